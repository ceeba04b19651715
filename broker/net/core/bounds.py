"""Limits of the network layer: constants, and `Bounds` from the settings."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from tierlog.config.node import NodeSettings

KIB = 1 << 10
MIB = 1 << 20

RECEIVE_BUFFER_BYTES = 256 * KIB
"""One for all connections of a listener; small enough to stay in the CPU cache between read and write."""

SPARE_BUFFER_BYTES = 16 * MIB
"""Buffers of split frames that are kept, so that a stream of 1 MiB batches maps no new pages."""

SEND_BUFFERS = 64
"""Buffers in one sendmsg; the kernel's limit is 1024, but more than some dozens do not help."""

COPIED_BYTES = 128 * KIB
"""Bytes of file slices that one sendmsg reads and sends. Up to this size reading is cheaper for both sides
than sendfile, which sends packets of pages and wakes the client twice."""

ALLOCATED_BYTES = 32 * KIB
"""Slices up to this size are read into new memory, which stays in the allocator's caches."""

LAST_BYTES = 4 * KIB
"""End of a larger slice that sendfile leaves to the following sendmsg."""

SEND_TURN_BYTES = 4 * MIB
"""Maximum bytes that a connection sends in one turn of the event loop."""

FRAMES_PER_TURN = 64
"""Requests of a connection that are handled in one turn: a few milliseconds."""

ACCEPTS_PER_TURN = 64
"""Connections accepted in one turn."""

ACCEPT_PAUSE_S = 0.1
"""Pause after accept failed (no descriptors left) or its rate limit was reached."""

TURNED_AWAY_MAX = 1_000
"""Connections of addresses over their quota that stay open, unserved, for their throttle time; further ones
are closed at once. They have a share of the process's descriptors."""

TURNED_AWAY_OF_ADDRESS_MAX = 100
"""The same for one address, so that it cannot take all places."""

ABANDONED_REQUESTS = 1_000
"""Requests beyond max.in.flight.requests.per.connection of a client that has closed its connection: its last
requests (such as a Produce with acks=0) are still handled. Each costs a few hundred bytes."""

BLOCKED_AFTER_S = 1.0
"""A client that accepts no bytes for this long counts as blocked; one that reads a large response accepts
some many times a second."""

SWEPT_PER_TURN = 500
"""Connections checked in one turn: a fraction of a millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of a listener, each from the setting named below. At a limit a client waits or is
    disconnected."""

    frame_bytes: int = 100 * MIB
    """socket.request.max.bytes; also the limit of all pending requests of a connection, which is not read at
    it"""
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
    """queued.max.response.bytes: bytes that a client has not accepted; at it the connection is not read"""
    queued_response_bytes_total: int = 512 * MIB
    """queued.max.response.total.bytes: in memory; above it the longest blocked connection is closed"""
    request_bytes: int = 1024 * MIB
    """queued.max.request.bytes: of partly received or kept frames of all connections. As much again may be
    received from connections that are not read; beyond it the connection that holds most is closed"""
    idle_s: float = 600.0
    """connections.max.idle.ms"""
    header_s: float = 5.0
    """request.header.timeout.ms: from a frame's first byte to its request header"""
    frame_s: float = 30.0
    """request.receive.timeout.ms: from a frame's first byte to its last"""
    blocked_s: float = 300.0
    """response.send.timeout.ms: how long a client may accept no response bytes"""
    send_buffer_bytes: int = 512 * KIB
    """socket.send.buffer.bytes; more is not faster, since waiting bytes fall out of the CPU's caches"""
    receive_buffer_bytes: int = -1
    """socket.receive.buffer.bytes; -1 (of either) leaves it to the operating system"""
    abandoned_s: float = 10.0
    """no setting: how long requests of a closed connection may wait for earlier ones. Longer than an offset
    commit takes (offsets.commit.timeout.ms): a consumer sends LeaveGroup after it and closes"""
    sweep_s: float = 1.0
    """no setting: how often slow and idle connections are checked"""


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
