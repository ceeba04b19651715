"""The bounds of the network room, each with its reason. Settings override the first group."""

from dataclasses import dataclass

KIB = 1 << 10
MIB = 1 << 20

RECEIVE_BUFFER_BYTES = 256 * KIB
"""One for all connections of a listener: small enough to stay in the cache between read and write."""

SPARE_BUFFER_BYTES = 16 * MIB
"""Buffers of split frames kept for the next one, so that a stream of 1 MiB batches maps no new pages."""

SEND_BUFFERS = 64
"""Buffers given to one sendmsg; the kernel's limit is 1024, and beyond some dozens nothing is gained."""

SENDFILE_BYTES = 4 * MIB
"""The most that one connection sends from a file before the others have their turn."""

ACCEPTS_PER_TURN = 64
"""Connections accepted before those that exist have their turn."""

ACCEPT_PAUSE_S = 0.1
"""Rest after accept failed (no descriptors left), or its rate was reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What one listener allows. Bytes, seconds and counts; at a bound the client waits or is cut off."""

    frame_bytes: int = 100 * MIB
    """socket.request.max.bytes"""
    connections: int = 10_000
    """max.connections: a further one is closed at once"""
    connections_per_address: int = 10_000
    """max.connections.per.ip"""
    connections_per_second: int = 1_000
    """more stay in the kernel's queue until the next second"""
    in_flight: int = 128
    """requests of one connection that wait for their answer; at it the connection is not read"""
    queued_response_bytes: int = 64 * MIB
    """response bytes of one connection that its client has not taken; at it the connection is not read"""
    receiving_bytes: int = 1024 * MIB
    """bytes of frames that are not whole yet, over all connections; who passes it is closed"""
    idle_s: float = 600.0
    """connections.max.idle.ms; also the longest that a client may take nothing of its responses"""
    send_buffer_bytes: int = 512 * KIB
    """socket.send.buffer.bytes; more is not faster: what waits in the kernel falls out of the CPU's caches"""
    receive_buffer_bytes: int = -1
    """socket.receive.buffer.bytes; -1 (of either) leaves it to the operating system"""
    header_s: float = 5.0
    """from a frame's first byte to its request header"""
    frame_s: float = 30.0
    """from a frame's first byte to its last"""
    sweep_s: float = 1.0
    """how often slow and idle connections are looked for"""
