"""Listener: accepts connections on all addresses of a node, limits their number and memory, and closes slow
and idle ones. Built by the composition root.
"""

import asyncio
import errno
import itertools
import select
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from ipaddress import IPv6Address
from itertools import islice
from typing import NamedTuple

import structlog

from tierlog.base.tasks import TaskGroup
from tierlog.broker.handlers.chain import Report
from tierlog.broker.handlers.context import Authentication, Connection, Handler
from tierlog.broker.handlers.stats import RequestStats
from tierlog.broker.net.connection import Channel, Stopwatch
from tierlog.broker.net.core.bounds import (
    ACCEPT_PAUSE_S,
    ACCEPTS_PER_TURN,
    SWEEP_PER_TURN,
    THROTTLED_CONNECTIONS_MAX,
    THROTTLED_CONNECTIONS_PER_ADDRESS_MAX,
    Bounds,
)
from tierlog.broker.net.core.close_reasons import CloseReason
from tierlog.broker.net.core.memory_pool import MemoryPool
from tierlog.broker.net.core.protocol import HALT_MUTED, HALT_YIELDED
from tierlog.broker.net.core.receive import Buffers, must_log_in
from tierlog.broker.net.dispatch import Dispatcher
from tierlog.broker.net.tls_gate import Tls, TlsGate
from tierlog.broker.net.tls_socket import TlsSocket
from tierlog.config.node import NodeSettings

BACKLOG = 1024
REFUSALS_LOGGED_EVERY_S = 10.0
DEFAULT_BOUNDS = Bounds()
NO_TLS: Mapping[str, Tls] = {}
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_log = structlog.get_logger("tierlog")
OnClose = Callable[[Connection, CloseReason, str], None]


class ListenerAddress(NamedTuple):
    """Port 0 picks a free one."""

    name: str = "PLAINTEXT"
    host: str = "127.0.0.1"
    port: int = 0


def addresses_of(settings: NodeSettings) -> list[ListenerAddress]:
    return [ListenerAddress(one.name, one.host, one.port) for one in settings.client_listeners]


class Refusal(StrEnum):
    """Why a connection was not accepted, or only later: the setting or quota; a label of metrics."""

    ALL = "max.connections"
    ADDRESS = "max.connections.per.ip"
    RATE = "max.connection.creation.rate"
    QUOTA = "connection_creation_rate"
    DESCRIPTORS = "open files"
    HANDSHAKES = "TLS handshakes"


OnRefusal = Callable[[Refusal, str], None]


def log_close(connection: Connection, why: CloseReason, detail: str) -> None:
    """Log connections that the broker closed for a fault; most ends are ordinary."""
    if why in (
        CloseReason.MALFORMED,
        CloseReason.SLOW,
        CloseReason.UNANSWERED,
        CloseReason.BLOCKED,
        CloseReason.QUEUE_FULL,
    ):
        client = f"{connection.peer_host}:{connection.peer_port}"
        software = f"{connection.client_software} {connection.client_software_version}"
        _log.warning("connection.closed", why=why.value, detail=detail, client=client, software=software)


class RefusalLog:
    """Logs refusals at most every REFUSALS_LOGGED_EVERY_S: refused clients reconnect."""

    def __init__(self) -> None:
        self._quiet_until: dict[Refusal, float] = {}

    def __call__(self, refusal: Refusal, host: str) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._quiet_until.get(refusal, 0.0):
            self._quiet_until[refusal] = now + REFUSALS_LOGGED_EVERY_S
            _log.warning("connection.limited", bound=refusal.value, client=host)


_connection_ids = itertools.count(1)


class Listener:
    """The listening addresses of a node. Limits apply to the connections of all of them.

    `report`: called with exceptions of handlers. `on_close`: with each closed connection and the reason.
    `on_refusal`: with the address of each refused connection, or without one after each pause of accepting in
    which connections waited. `closed` and `refused` count them. `begin`: begins the login of a connection.
    `tls`: of the addresses that have it, by name.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        tasks: TaskGroup,
        report: Report,
        *,
        addresses: Sequence[ListenerAddress] = (ListenerAddress(),),
        bounds: Bounds = DEFAULT_BOUNDS,
        stats: RequestStats | None = None,
        on_close: OnClose = log_close,
        on_refusal: OnRefusal | None = None,
        begin: Callable[[Connection], Authentication | None] | None = None,
        tls: Mapping[str, Tls] = NO_TLS,
    ) -> None:
        self.bounds = bounds
        self.buffers = Buffers(MemoryPool(bounds.request_bytes))
        self.dispatcher = Dispatcher(handlers, tasks, report, stats)
        self.closed: Counter[CloseReason] = Counter()
        self.refused: Counter[Refusal] = Counter()
        self.accepted = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self.kept_bytes = 0
        """Bytes of responses in memory that clients have not accepted."""
        self.stopwatch: Stopwatch | None = None
        self.admission: Callable[[str], int] | None = None
        """Throttle time in milliseconds of an address before its next connection; None: no quota."""
        self._on_close = on_close
        self._begin = begin
        self._on_refusal = on_refusal or RefusalLog()
        self._addresses = addresses
        self.tls_gate = TlsGate(tls, self._open, self._ended)
        self._sockets: dict[str, socket.socket] = {}
        self._channels: dict[int, Channel] = {}
        self._strangers: dict[int, Channel] = {}
        """Open connections that had to log in, in order; those that have are removed when they are found."""
        self._throttled_connections: dict[socket.socket, tuple[str, asyncio.TimerHandle]] = {}
        self._throttled_per_address: Counter[str] = Counter()
        self._per_address: Counter[str] = Counter()
        self._second = 0
        self._accepted_in_second = 0
        self._accepting = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._paused: dict[str, asyncio.TimerHandle] = {}  # addresses with too many handshakes

    def configure(self, bounds: Bounds) -> None:
        """Apply new limits. Memory limits and socket options of the listener stay."""
        self.bounds = bounds
        for channel in self._channels.values():
            channel.core.bounds = bounds
            channel.core.small_frame_bytes = 0

    @property
    def memory_pool(self) -> MemoryPool:
        return self.buffers.memory_pool

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._channels)

    @property
    def muted(self) -> int:
        """Connections that are not read because their clients are over a quota."""
        return sum(bool(channel.core.halts & HALT_MUTED) for channel in self._channels.values())

    def mute(self, connection: Connection, seconds: float) -> None:
        """Do not read the connection for this time (KIP-219)."""
        channel = self._channels.get(connection.id)
        if channel is not None:
            channel.mute(seconds)

    def unmute_all(self) -> None:
        """Unmute all connections, since the quotas have changed."""
        for channel in self._channels.values():
            channel.unmute()

    def set_stopwatch(self, stopwatch: Stopwatch | None) -> None:
        """Measure the event loop's time for each connection; None: do not."""
        if stopwatch != self.stopwatch:  # each access to a method creates a new object
            self.stopwatch = stopwatch
            for channel in [*self._channels.values()]:
                channel.update_stopwatch()

    async def bind(self) -> dict[str, tuple[str, int]]:
        """Bind the addresses, which a broker registers before it serves. Returns host and port of each
        name."""
        self.loop = asyncio.get_running_loop()
        try:
            for name, host, port in self._addresses:
                await self._bind(name, host, port)
        except OSError:
            for bound in self._sockets.values():
                bound.close()
            raise
        return self._bound()

    async def _bind(self, name: str, host: str, port: int) -> None:
        found = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        bound = self._sockets[name] = socket.socket(family, kind, protocol)
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # connections inherit them; set here, as the window scale is negotiated when a connection begins
        sizes = {
            socket.SO_SNDBUF: self.bounds.send_buffer_bytes,
            socket.SO_RCVBUF: self.bounds.receive_buffer_bytes,
        }
        for option, size in sizes.items():
            if size >= 0:
                bound.setsockopt(socket.SOL_SOCKET, option, size)
        bound.bind(address)

    def _bound(self) -> dict[str, tuple[str, int]]:
        return {name: bound.getsockname()[:2] for name, bound in self._sockets.items()}

    async def start(self) -> dict[str, tuple[str, int]]:
        """Listen. Returns host and port of each name."""
        if not self._sockets:
            await self.bind()
        for bound in self._sockets.values():
            bound.listen(BACKLOG)
        self._accept_again()
        self._sweep()
        return self._bound()

    def stop_accepting(self) -> None:
        """Stop listening; existing connections continue."""
        for timer in self._timers.values():
            timer.cancel()
        self._pause_accepting()
        for bound in self._sockets.values():
            bound.close()

    async def close(self) -> None:
        """Stop listening and close all connections."""
        self.stop_accepting()
        for _, timer in self._throttled_connections.values():
            timer.cancel()
        for accepted in [*self._throttled_connections]:
            self._close_throttled(accepted)
        self.tls_gate.close()
        for channel in tuple(self._channels.values()):
            channel.close(CloseReason.STOPPING)

    def forget(self, channel: Channel, why: CloseReason, detail: str) -> None:
        """Called by a connection that closed."""
        if self._channels.pop(channel.connection.id, None) is None:
            return
        self._strangers.pop(channel.connection.id, None)
        self._ended(channel.connection, why, detail)

    def _ended(self, connection: Connection, why: CloseReason, detail: str) -> None:
        self.closed[why] += 1
        self._on_close(connection, why, detail)
        _one_less(self._per_address, connection.peer_host)

    def count_kept(self, count: int) -> None:
        self.kept_bytes += count
        while count > 0 and self.kept_bytes > self.bounds.queued_response_bytes_total:
            keeping = (channel for channel in self._channels.values() if channel.kept_bytes)
            slowest = min(keeping, key=_slowest_order, default=None)
            if slowest is None:
                return
            slowest.close(
                CloseReason.QUEUE_FULL,
                f"{slowest.kept_bytes} of {self.kept_bytes} bytes that the client has not accepted",
            )

    def limit_held(self) -> None:
        """Close the connections with the most bytes that cannot be handled yet, until the limit holds."""
        memory_pool = self.memory_pool
        while memory_pool.is_overheld:
            holding = (channel for channel in self._channels.values() if channel.core.held_bytes)
            largest = max(holding, key=_largest_order, default=None)
            if largest is None:
                return
            detail = f"{largest.core.held_bytes} of {memory_pool.held} bytes that cannot be handled yet"
            largest.close(CloseReason.QUEUE_FULL, detail)

    @property
    def saturated(self) -> int:
        """Connections with as many pending requests as allowed."""
        return sum(channel.core.is_saturated for channel in self._channels.values())

    @property
    def blocked(self) -> int:
        """Connections whose client accepts no response bytes."""
        now = self.loop.time()
        return sum(channel.core.is_blocked(now) for channel in self._channels.values())

    # ---- accepting --------------------------------------------------------------------------------

    def _on_acceptable(self, name: str, bound: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            if self._rate_is_reached():
                return self._pause(Refusal.RATE)
            if self.tls_gate.has(name) and not self.tls_gate.has_room(name):
                return self._pause_one(name, bound)
            try:
                accepted, address = bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return None
            except OSError as failure:
                if failure.errno in _NO_DESCRIPTORS:
                    return self._pause(Refusal.DESCRIPTORS)
                raise
            self._accepted_in_second += 1
            self._sockets[name] = self._sockets.pop(name)  # the one that waits longest is first
            self._admit(accepted, name, plain_address(address[0]), address[1])
        return None

    def _admit(self, accepted: socket.socket, name: str, host: str, port: int) -> None:
        refusal = self._refusal(host)
        if refusal is not None:
            accepted.close()
            self._refuse(refusal, host)
            return
        if self.admission is not None and (throttle_ms := self.admission(host)):
            self._throttle_connection(accepted, host, throttle_ms / 1000)
            return
        self.accepted += 1
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection = Connection(next(_connection_ids), host, port, name)
        self._per_address[host] += 1
        if self.tls_gate.has(name):
            self.tls_gate.begin(connection, accepted)
        else:
            self._open(connection, accepted)

    def _open(self, connection: Connection, sock: socket.socket | TlsSocket) -> None:
        """Serve a connection, after its TLS handshake."""
        if self._begin is not None:
            connection.authentication = self._begin(connection)
        channel = self._channels[connection.id] = Channel(self, sock, connection)
        if connection.authentication is not None:
            self._strangers[connection.id] = channel
        if isinstance(sock, TlsSocket):
            self.loop.call_soon(channel.read_early)

    def _refusal(self, host: str) -> Refusal | None:
        bounds = self.bounds
        most = bounds.connections_per_address_overrides.get(host, bounds.connections_per_address)
        if self._per_address[host] >= most:
            return Refusal.ADDRESS
        is_full = len(self._channels) + self.tls_gate.pending >= bounds.connections
        return Refusal.ALL if is_full and not self._close_oldest_stranger() else None

    def _close_oldest_stranger(self) -> bool:
        """Close the oldest connection that has not logged in, so that strangers do not shut out clients and
        brokers. Returns whether there was one."""
        shaking = self.tls_gate.oldest()
        while self._strangers:
            number, channel = next(iter(self._strangers.items()))
            if shaking is not None and shaking.id < number:
                break
            del self._strangers[number]
            if must_log_in(channel.connection.authentication):
                self._refuse(Refusal.ALL, channel.connection.peer_host)
                channel.close(CloseReason.AUTHENTICATION, "max.connections is reached")
                return True
        if shaking is None:
            return False
        self._refuse(Refusal.ALL, shaking.peer_host)
        self.tls_gate.give_up(shaking)
        return True

    def _throttle_connection(self, accepted: socket.socket, host: str, seconds: float) -> None:
        """Close the connection after its throttle time: clients reconnect at once if they are refused at once
        (KIP-612).
        """
        self._refuse(Refusal.QUOTA, host)
        is_too_many = self._throttled_per_address[host] >= THROTTLED_CONNECTIONS_PER_ADDRESS_MAX
        if is_too_many or len(self._throttled_connections) >= THROTTLED_CONNECTIONS_MAX:
            accepted.close()
            return
        self._throttled_per_address[host] += 1
        self._throttled_connections[accepted] = (
            host,
            self.loop.call_later(seconds, self._close_throttled, accepted),
        )

    def _close_throttled(self, accepted: socket.socket) -> None:
        host, _ = self._throttled_connections.pop(accepted)
        _one_less(self._throttled_per_address, host)
        accepted.close()

    def _refuse(self, refusal: Refusal, host: str) -> None:
        self.refused[refusal] += 1
        self._on_refusal(refusal, host)

    def _rate_is_reached(self) -> bool:
        second = int(self.loop.time())
        if second != self._second:
            self._second, self._accepted_in_second = second, 0
        return self._accepted_in_second >= self.bounds.connections_per_second

    def _pause(self, refusal: Refusal) -> None:
        """Accept again a little later; connections wait in the kernel's queue."""
        self._pause_accepting()
        self._timers["accept"] = self.loop.call_later(ACCEPT_PAUSE_S, self._resume_accepting, refusal)

    def _resume_accepting(self, refusal: Refusal) -> None:
        if _connections_wait(*self._sockets.values()):
            self._refuse(refusal, "")
        self._accept_again()

    def _pause_one(self, name: str, bound: socket.socket) -> None:
        """Accept again a little later on this address, which has too many handshakes; others continue."""
        self.loop.remove_reader(bound.fileno())
        self._paused[name] = self.loop.call_later(ACCEPT_PAUSE_S, self._resume_one, name, bound)

    def _resume_one(self, name: str, bound: socket.socket) -> None:
        del self._paused[name]
        if _connections_wait(bound):
            self._refuse(Refusal.HANDSHAKES, "")
        self.loop.add_reader(bound.fileno(), self._on_acceptable, name, bound)

    def _accept_again(self) -> None:
        """Accept on all addresses. The one that has accepted nothing for longest comes first, so that
        connections of one address cannot use up the rate each time."""
        for name, bound in self._sockets.items():
            self.loop.add_reader(bound.fileno(), self._on_acceptable, name, bound)
        self._accepting = True

    def _pause_accepting(self) -> None:
        for timer in self._paused.values():
            timer.cancel()
        self._paused.clear()
        if self._accepting:
            for bound in self._sockets.values():
                self.loop.remove_reader(bound.fileno())
            self._accepting = False

    # ---- sweeping ---------------------------------------------------------------------------------

    def _sweep(self) -> None:
        self.tls_gate.sweep(self.loop.time(), self.bounds.handshake_s)
        self._sweep_some(iter([*self._channels.values()]))

    def _sweep_some(self, left: Iterator[Channel]) -> None:
        now = self.loop.time()
        some = list(islice(left, SWEEP_PER_TURN))
        for channel in some:
            channel.close_if_overdue(now)
        if len(some) == SWEEP_PER_TURN:
            self._timers["sweep"] = self.loop.call_later(0, self._sweep_some, left)
        else:
            self._timers["sweep"] = self.loop.call_later(self.bounds.sweep_s, self._sweep)


def plain_address(host: str) -> str:
    """An address as in settings and quotas: an IPv4 client of a dual-stack listener as IPv4 (RFC 4291
    2.5.5.2), and without a zone id (RFC 4007 11).
    """
    if ":" not in host:
        return host
    address = IPv6Address(host.partition("%")[0])
    return str(address.ipv4_mapped or address)


def _connections_wait(*sockets: socket.socket) -> bool:
    poll = select.poll()
    for bound in sockets:
        poll.register(bound.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _one_less(counts: Counter[str], host: str) -> None:
    counts[host] -= 1
    if not counts[host]:
        del counts[host]


def _slowest_order(channel: Channel) -> tuple[bool, float]:
    """Order of closing: connections with queued responses first, then those blocked for longest."""
    return not channel.core.is_sending, channel.core.blocked_at


def _largest_order(channel: Channel) -> tuple[bool, int]:
    """Order of closing: connections that do not continue in the next turn first, then those that hold
    most."""
    return not channel.core.halts & HALT_YIELDED, channel.core.held_bytes
