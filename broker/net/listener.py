"""Accepts connections, bounds them and what they hold in memory, and sweeps out the slow and the idle ones.

Built by the composition root, one for each listening address.
"""

import asyncio
import errno
import itertools
import select
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from ipaddress import IPv6Address
from itertools import islice

from tierlog.base.tasks import TaskGroup
from tierlog.broker.handlers.context import Connection, ErrorReply, Handler
from tierlog.broker.net.bounds import (
    ACCEPT_PAUSE_S,
    ACCEPTS_PER_TURN,
    SWEPT_PER_TURN,
    TURNED_AWAY_MAX,
    TURNED_AWAY_OF_ADDRESS_MAX,
    Bounds,
)
from tierlog.broker.net.budget import Budget
from tierlog.broker.net.connection import Pump, Stopwatch
from tierlog.broker.net.dispatch import Dispatcher, Report
from tierlog.broker.net.end_reasons import Why
from tierlog.broker.net.receive import Buffers

BACKLOG = 1024
DEFAULT_BOUNDS = Bounds()
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
Note = Callable[[Connection, Why, str], None]


class Refusal(StrEnum):
    """Why a connection was not taken, or not yet: the setting or quota that says so; a label of metrics."""

    ALL = "max.connections"
    ADDRESS = "max.connections.per.ip"
    RATE = "max.connection.creation.rate"
    QUOTA = "connection_creation_rate"
    DESCRIPTORS = "open files"


NoteRefusal = Callable[[Refusal, str], None]


def _ignore(*_: object) -> None:
    """The default of Listener's `note` and `note_refusal`."""


_connection_ids = itertools.count(1)


class Listener:
    """One listening address.

    `report` gets what handlers raise, `note` each connection that ended and why, `note_refusal` each that was
    not taken, with its address, and without one each rest of accepting for which some have to wait; `closed`
    and `refused` count the latter two.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        tasks: TaskGroup,
        error_reply: ErrorReply,
        report: Report,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        bounds: Bounds = DEFAULT_BOUNDS,
        note: Note = _ignore,
        note_refusal: NoteRefusal = _ignore,
    ) -> None:
        self.bounds = bounds
        self.buffers = Buffers(Budget(bounds.request_bytes))
        self.dispatcher = Dispatcher(handlers, error_reply, report)
        self.tasks = tasks
        self.closed: Counter[Why] = Counter()
        self.refused: Counter[Refusal] = Counter()
        self.accepted = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self.kept_bytes = 0
        """Answers in memory that clients have not taken."""
        self.stopwatch: Stopwatch | None = None
        self.admission: Callable[[str], int] | None = None
        """Milliseconds that an address has to wait with another connection; None while there is no quota."""
        self._note = note
        self._note_refusal = note_refusal
        self._host = host
        self._port = port
        self._pumps: dict[int, Pump] = {}
        self._turned_away: dict[socket.socket, tuple[str, asyncio.TimerHandle]] = {}
        self._turned_away_of: Counter[str] = Counter()
        self._per_address: Counter[str] = Counter()
        self._second = 0
        self._accepted_in_second = 0
        self._accepting = False
        self._bound = False
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def configure(self, bounds: Bounds) -> None:
        """Of connections that come from now on, and of time; memory and sockets keep what they had."""
        self.bounds = bounds

    @property
    def budget(self) -> Budget:
        return self.buffers.budget

    @property
    def connections(self) -> int:
        """Connections that are open now."""
        return len(self._pumps)

    @property
    def muted(self) -> int:
        """Connections that are not read now, as their clients are over a quota."""
        return sum(pump.muted for pump in self._pumps.values())

    def mute(self, connection: Connection, seconds: float) -> None:
        """Does not read the connection for so long (KIP-219)."""
        pump = self._pumps.get(connection.id)
        if pump is not None:
            pump.mute(seconds)

    def unmute_all(self) -> None:
        """They are judged anew by what they do next."""
        for pump in self._pumps.values():
            pump.unmute_soon()

    def time_clients(self, stopwatch: Stopwatch | None) -> None:
        """From now on the stopwatch runs what the loop does for a connection; None: nothing does."""
        if stopwatch != self.stopwatch:  # a method is another object whenever it is looked up
            self.stopwatch = stopwatch
            for pump in [*self._pumps.values()]:
                pump.rearm()

    async def bind(self) -> tuple[str, int]:
        """Takes the address, which a broker has to announce before it serves; returns the one that it got."""
        self.loop = asyncio.get_running_loop()
        found = await self.loop.getaddrinfo(
            self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = found[0]
        self._socket = socket.socket(family, kind, protocol)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # connections inherit them; set here, as the window's scale is agreed on when a connection begins
        sizes = {
            socket.SO_SNDBUF: self.bounds.send_buffer_bytes,
            socket.SO_RCVBUF: self.bounds.receive_buffer_bytes,
        }
        for option, size in sizes.items():
            if size >= 0:
                self._socket.setsockopt(socket.SOL_SOCKET, option, size)
        self._socket.bind(address)
        self._host, self._port = self._socket.getsockname()[:2]
        self._bound = True
        return self._host, self._port

    async def start(self) -> tuple[str, int]:
        """Listens; returns the address that it got."""
        if not self._bound:
            await self.bind()
        self._socket.listen(BACKLOG)
        self._accept_again()
        self._sweep()
        return self._host, self._port

    def stop_accepting(self) -> None:
        """Existing connections go on; the address is free for the next process."""
        for timer in self._timers.values():
            timer.cancel()
        self._pause_accepting()
        self._socket.close()

    async def close(self) -> None:
        """Stops listening and closes all connections."""
        self.stop_accepting()
        for _, timer in self._turned_away.values():
            timer.cancel()
        for turned_away in [*self._turned_away]:
            self._send_away(turned_away)
        for pump in tuple(self._pumps.values()):
            pump.close(Why.STOPPING)

    def forget(self, pump: Pump, why: Why, detail: str) -> None:
        """Called by a connection that closed."""
        if self._pumps.pop(pump.connection.id, None) is None:
            return
        self.closed[why] += 1
        self._note(pump.connection, why, detail)
        host = pump.connection.peer_host
        _one_less(self._per_address, host)

    def kept_more(self, count: int) -> None:
        self.kept_bytes += count
        while count > 0 and self.kept_bytes > self.bounds.queued_response_bytes_total:
            keeping = (pump for pump in self._pumps.values() if pump.kept_bytes)
            slowest = min(keeping, key=_took_last, default=None)
            if slowest is None:
                return
            slowest.close(Why.CROWDED, f"{slowest.kept_bytes} of {self.kept_bytes} bytes that nobody takes")

    def bound_held(self) -> None:
        """Closes who holds most of what was received and cannot be handled yet, as long as it is too much."""
        budget = self.budget
        while budget.held > budget.limit:
            holding = (pump for pump in self._pumps.values() if pump.held_bytes)
            largest = max(holding, key=_holds_most, default=None)
            if largest is None:
                return
            detail = f"{largest.held_bytes} of {budget.held} bytes that cannot be handled yet"
            largest.close(Why.CROWDED, detail)

    @property
    def saturated(self) -> int:
        """Connections with as many requests under way as they may have."""
        return sum(pump.is_saturated for pump in self._pumps.values())

    @property
    def blocked(self) -> int:
        """Connections whose client does not take what there is for it."""
        now = self.loop.time()
        return sum(pump.is_blocked(now) for pump in self._pumps.values())

    # ---- accepting --------------------------------------------------------------------------------

    def _on_acceptable(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            if self._rate_is_reached():
                return self._rest(Refusal.RATE)
            try:
                accepted, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return None
            except OSError as failure:
                if failure.errno in _NO_DESCRIPTORS:
                    return self._rest(Refusal.DESCRIPTORS)
                raise
            self._accepted_in_second += 1
            self._welcome(accepted, plain_address(address[0]), address[1])
        return None

    def _welcome(self, accepted: socket.socket, host: str, port: int) -> None:
        refusal = self._refusal(host)
        if refusal is not None:
            accepted.close()
            self._refuse(refusal, host)
            return
        if self.admission is not None and (throttle_ms := self.admission(host)):
            self._turn_away(accepted, host, throttle_ms / 1000)
            return
        self.accepted += 1
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection = Connection(next(_connection_ids), host, port, self._host, self._port)
        self._per_address[host] += 1
        self._pumps[connection.id] = Pump(self, accepted, connection)

    def _refusal(self, host: str) -> Refusal | None:
        bounds = self.bounds
        if len(self._pumps) >= bounds.connections:
            return Refusal.ALL
        most = bounds.connections_of_address.get(host, bounds.connections_per_address)
        return Refusal.ADDRESS if self._per_address[host] >= most else None

    def _turn_away(self, accepted: socket.socket, host: str, seconds: float) -> None:
        """Closes it after the time that its address should have waited: clients connect anew at once when
        they are refused at once (KIP-612).
        """
        self._refuse(Refusal.QUOTA, host)
        is_too_many = self._turned_away_of[host] >= TURNED_AWAY_OF_ADDRESS_MAX
        if is_too_many or len(self._turned_away) >= TURNED_AWAY_MAX:
            accepted.close()
            return
        self._turned_away_of[host] += 1
        self._turned_away[accepted] = host, self.loop.call_later(seconds, self._send_away, accepted)

    def _send_away(self, accepted: socket.socket) -> None:
        host, _ = self._turned_away.pop(accepted)
        _one_less(self._turned_away_of, host)
        accepted.close()

    def _refuse(self, refusal: Refusal, host: str) -> None:
        self.refused[refusal] += 1
        self._note_refusal(refusal, host)

    def _rate_is_reached(self) -> bool:
        second = int(self.loop.time())
        if second != self._second:
            self._second, self._accepted_in_second = second, 0
        return self._accepted_in_second >= self.bounds.connections_per_second

    def _rest(self, refusal: Refusal) -> None:
        """Those that wait in the kernel's queue are taken a little later."""
        self._pause_accepting()
        self._timers["accept"] = self.loop.call_later(ACCEPT_PAUSE_S, self._rested, refusal)

    def _rested(self, refusal: Refusal) -> None:
        if self._some_wait():
            self._refuse(refusal, "")
        self._accept_again()

    def _some_wait(self) -> bool:
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def _accept_again(self) -> None:
        self.loop.add_reader(self._socket.fileno(), self._on_acceptable)
        self._accepting = True

    def _pause_accepting(self) -> None:
        if self._accepting:
            self.loop.remove_reader(self._socket.fileno())
            self._accepting = False

    # ---- sweeping ---------------------------------------------------------------------------------

    def _sweep(self) -> None:
        self._sweep_some(iter([*self._pumps.values()]))

    def _sweep_some(self, left: Iterator[Pump]) -> None:
        now = self.loop.time()
        some = list(islice(left, SWEPT_PER_TURN))
        for pump in some:
            pump.close_if_overdue(now)
        if len(some) == SWEPT_PER_TURN:
            self._timers["sweep"] = self.loop.call_later(0, self._sweep_some, left)
        else:
            self._timers["sweep"] = self.loop.call_later(self.bounds.sweep_s, self._sweep)


def plain_address(host: str) -> str:
    """As settings and quotas name it: an IPv4 client of a dual-stack listener by its IPv4 address (RFC 4291
    2.5.5.2), and none with its interface (RFC 4007 11).
    """
    if ":" not in host:
        return host
    address = IPv6Address(host.partition("%")[0])
    return str(address.ipv4_mapped or address)


def _one_less(counts: Counter[str], host: str) -> None:
    counts[host] -= 1
    if not counts[host]:
        del counts[host]


def _took_last(pump: Pump) -> tuple[bool, float]:
    """Those who have something to take first, and of these who took nothing for longest."""
    return not pump.is_sending, pump.blocked_at


def _holds_most(pump: Pump) -> tuple[bool, int]:
    """Of those that do not go on by themselves in the next turn, who holds most."""
    return not pump.gives_way, pump.held_bytes
