"""Limits of the network layer: constants, and `Bounds` from the settings."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from tierlog.config.node import NodeSettings

KIB = 1 << 10
MIB = 1 << 20

RECEIVE_BUFFER_BYTES = 256 * KIB
"""Size of the buffer that all connections of a listener share. It is small enough to stay in the CPU cache
between read and write."""

SPARE_BUFFER_BYTES = 16 * MIB
"""Size of the unused buffers that are kept for frames that arrive in parts. With them a stream of 1 MiB
batches maps no new pages."""

LOGIN_FRAMES_BYTES = 16 * MIB
"""Memory pool of the frames that arrive in pieces from clients that have not logged in. Most frames of logins
arrive whole and need none."""

SEND_BUFFERS = 64
"""Maximum number of buffers in one sendmsg. The kernel allows 1024, but more than a few dozen do not help."""

COPY_BYTES_MAX = 128 * KIB
"""Maximum bytes of file slices that are read and sent in one sendmsg. Up to this size, reading is cheaper for
both sides than sendfile, which sends each page as a packet of its own and wakes the client twice."""

ALLOCATE_BYTES_MAX = 32 * KIB
"""Slices up to this size are read into new memory, which stays in the allocator's caches."""

SENDFILE_TAIL_BYTES = 4 * KIB
"""Bytes at the end of a larger slice that are not sent with sendfile but with the following sendmsg."""

SEND_TURN_BYTES = 4 * MIB
"""A connection that has sent as much in one turn of the event loop continues in the next one."""

TLS_BATCH_BYTES = 64 * KIB
"""Bytes that are encrypted at once. A client that accepts no bytes costs as much memory."""

TLS_SEND_TURN_BYTES = 1 * MIB
"""SEND_TURN_BYTES of a connection with TLS, which takes several times as long."""

HANDSHAKES_MAX = 1_000
"""TLS handshakes in progress on each listener. At the limit further connections wait in the kernel's queue,
and a handshake that has taken longer than HANDSHAKE_GRACE_S is closed for each. One takes about 50 KB."""

HANDSHAKE_GRACE_S = 1.0
"""Time in which a client on a slow network makes progress: two or three round trips."""

HANDSHAKE_BYTES_MAX = 256 * KIB
"""Maximum bytes of a handshake from a client. Long certificate chains have a few kilobytes."""

FRAMES_PER_TURN = 64
"""Requests of a connection that are handled in one turn: a few milliseconds."""

ACCEPTS_PER_TURN = 64
"""Connections accepted in one turn."""

ACCEPT_PAUSE_S = 0.1
"""Pause after accept failed (no descriptors left) or its rate limit was reached."""

THROTTLED_CONNECTIONS_MAX = 1_000
"""Connections of addresses over their connection rate quota. They stay open, unserved, for their throttle
time; further ones are closed at once. Descriptors are reserved for them."""

THROTTLED_CONNECTIONS_PER_ADDRESS_MAX = 100
"""The same for one address, so that one address cannot use up the limit for all."""

ABANDONED_REQUESTS_MAX = 1_000
"""Additional requests, beyond max.in.flight.requests.per.connection, that may be pending once the client has
closed its connection. Its last requests (such as a Produce with acks=0) are still handled. Each costs a few
hundred bytes."""

BLOCKED_AFTER_S = 1.0
"""A client that accepts no bytes for this long counts as blocked; one that reads a large response accepts
some many times a second."""

SWEEP_PER_TURN = 500
"""Connections checked in one turn: a fraction of a millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of a listener, each from the setting named below. At a limit a client waits or is
    disconnected."""

    frame_bytes: int = 100 * MIB
    """socket.request.max.bytes; also limits the total size of a connection's pending requests: at the limit
    the connection is not read"""
    connections: int = 10_000
    """max.connections: a further one takes the place of the oldest that has not logged in; without such a one
    it is closed at once"""
    connections_per_address: int = 2**31 - 1
    """max.connections.per.ip"""
    connections_per_address_overrides: Mapping[str, int] = field(default_factory=dict)
    """max.connections.per.ip.overrides"""
    connections_per_second: int = 1_000
    """max.connection.creation.rate: more stay in the kernel's queue until the next second"""
    in_flight: int = 64
    """max.in.flight.requests.per.connection: at the limit the connection is not read"""
    queued_response_bytes: int = 64 * MIB
    """queued.max.response.bytes: bytes that a client has not accepted; at the limit the connection is not
    read"""
    queued_response_bytes_total: int = 512 * MIB
    """queued.max.response.total.bytes: the same in memory for all connections; above the limit the connection
    that has been blocked longest is closed"""
    request_bytes: int = 1024 * MIB
    """queued.max.request.bytes: size of the frames of all connections that are partly received, or kept by a
    handler. As many bytes again may have been received from connections that are no longer read; beyond that,
    the connection with most of them is closed"""
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
    """socket.receive.buffer.bytes; -1 (for either buffer) leaves the size to the operating system"""
    handshake_s: float = 10.0
    """no setting: from accepting a connection to the end of its TLS handshake"""
    abandoned_s: float = 10.0
    """no setting: how long requests of a closed connection may wait for earlier ones. Longer than an offset
    commit takes (offsets.commit.timeout.ms), because a consumer sends LeaveGroup after its commit and
    closes"""
    sweep_s: float = 1.0
    """no setting: how often slow and idle connections are checked"""


def bounds_of(settings: NodeSettings) -> Bounds:
    request_bytes = settings.queued_max_request_bytes
    return Bounds(
        frame_bytes=settings.socket_request_max_bytes,
        connections=settings.max_connections,
        connections_per_address=settings.max_connections_per_ip,
        connections_per_address_overrides=settings.connections_per_address,
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
