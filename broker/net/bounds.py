"""The bounds of the network room: constants with their reasons, and `Bounds`, which the settings fill."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from tierlog.config.node import NodeSettings

KIB = 1 << 10
MIB = 1 << 20

RECEIVE_BUFFER_BYTES = 256 * KIB
"""One for all connections of a listener: small enough to stay in the cache between read and write."""

SPARE_BUFFER_BYTES = 16 * MIB
"""Buffers of split frames kept for the next one, so that a stream of 1 MiB batches maps no new pages."""

SEND_BUFFERS = 64
"""Buffers given to one sendmsg; the kernel's limit is 1024, and beyond some dozens nothing is gained."""

COPIED_BYTES = 128 * KIB
"""Of slices of files, what one sendmsg takes along: to read so much costs both sides together less than
sendfile, which leaves in packets of pages, and wakes the client twice."""

ALLOCATED_BYTES = 32 * KIB
"""What is read for that into memory of its own: no more of it than stays in the allocator's caches."""

LAST_BYTES = 4 * KIB
"""Of a larger slice, what sendfile leaves to the sendmsg that takes along what comes after it."""

SEND_TURN_BYTES = 4 * MIB
"""The most that one connection sends before the others have their turn."""

FRAMES_PER_TURN = 64
"""Requests of one connection handled before the others have their turn: a few milliseconds."""

ACCEPTS_PER_TURN = 64
"""Connections accepted before those that exist have their turn."""

ACCEPT_PAUSE_S = 0.1
"""Rest after accept failed (no descriptors left), or its rate was reached."""

TURNED_AWAY_MAX = 1_000
"""Connections of addresses over their quota that are kept, unserved, until their time is over; a further one
is closed at once. They have their part of the process's descriptors."""

TURNED_AWAY_OF_ADDRESS_MAX = 100
"""Of these, those of one address: it must not take the places of the others."""

ABANDONED_REQUESTS = 1_000
"""Requests that may wait beyond max.in.flight.requests.per.connection if their client has gone: what it sent
last is handled (a Produce with acks=0, say), which costs a few hundred bytes each."""

BLOCKED_AFTER_S = 1.0
"""A client that takes nothing for so long is shown as blocked; one that reads a large answer takes some of it
many times a second."""

SWEPT_PER_TURN = 500
"""Connections looked at before the others have their turn: a fraction of a millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What one listener allows, each by the setting of that name; at a bound a client waits or is cut off."""

    frame_bytes: int = 100 * MIB
    """socket.request.max.bytes; also what the requests of one connection that wait may have together: at it
    the connection is not read"""
    connections: int = 10_000
    """max.connections: a further one is closed at once"""
    connections_per_address: int = 2**31 - 1
    """max.connections.per.ip"""
    connections_of_address: Mapping[str, int] = field(default_factory=dict)
    """max.connections.per.ip.overrides"""
    connections_per_second: int = 1_000
    """max.connection.creation.rate: more stay in the kernel's queue until the next second"""
    in_flight: int = 64
    """max.in.flight.requests.per.connection: at it the connection is not read"""
    queued_response_bytes: int = 64 * MIB
    """queued.max.response.bytes: what one client has not taken; at it the connection is not read"""
    queued_response_bytes_total: int = 512 * MIB
    """queued.max.response.total.bytes: in memory; above it the one that took nothing for longest is closed"""
    request_bytes: int = 1024 * MIB
    """queued.max.request.bytes: received in part, or kept by their handler, over all connections; as much
    again was received and lies with connections that are not read, beyond which who holds most is closed"""
    idle_s: float = 600.0
    """connections.max.idle.ms"""
    header_s: float = 5.0
    """request.header.timeout.ms: from a frame's first byte to its request header"""
    frame_s: float = 30.0
    """request.receive.timeout.ms: from a frame's first byte to its last"""
    blocked_s: float = 300.0
    """response.send.timeout.ms: the longest that a client may take nothing of its responses"""
    send_buffer_bytes: int = 512 * KIB
    """socket.send.buffer.bytes; more is not faster: what waits in the kernel falls out of the CPU's caches"""
    receive_buffer_bytes: int = -1
    """socket.receive.buffer.bytes; -1 (of either) leaves it to the operating system"""
    abandoned_s: float = 10.0
    """no setting: how long requests of a client that has gone may wait for those before them. Longer than an
    offset commit takes (offsets.commit.timeout.ms): a consumer sends LeaveGroup behind it and closes"""
    sweep_s: float = 1.0
    """no setting: how often slow and idle connections are looked for"""


def bounds_of(settings: NodeSettings) -> Bounds:
    request_bytes = settings.queued_max_request_bytes
    return Bounds(
        frame_bytes=settings.socket_request_max_bytes,
        connections=settings.max_connections,
        connections_per_address=settings.max_connections_per_ip,
        connections_of_address=settings.connections_per_address,
        connections_per_second=settings.max_connection_creation_rate,
        in_flight=settings.max_in_flight_requests_per_connection,
        queued_response_bytes=settings.queued_max_response_bytes,
        queued_response_bytes_total=settings.queued_max_response_total_bytes,
        request_bytes=sys.maxsize if request_bytes < 0 else request_bytes,
        send_buffer_bytes=settings.socket_send_buffer_bytes,
        receive_buffer_bytes=settings.socket_receive_buffer_bytes,
        idle_s=settings.connections_max_idle_ms / 1000,
        header_s=settings.request_header_timeout_ms / 1000,
        frame_s=settings.request_receive_timeout_ms / 1000,
        blocked_s=settings.response_send_timeout_ms / 1000,
    )
