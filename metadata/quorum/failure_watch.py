"""Death watch: notices processes that seem dead, as a connection to one breaks and its host refuses another.

The kernel of the host does both within milliseconds when a process is killed, so no timeout has to pass. A
host that hangs or is cut off does neither. A firewall on the way can do both, so this is evidence and no
proof (ADR 0013).

There is one idle connection to each watched address. Nothing is sent on it but for the handshake of TLS,
without which a server that awaits one breaks it after a minute. It is replaced from time to time, the next
one made before it is given up: servers and what lies in between close what is idle for long.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from tierlog.base.tasks import TaskGroup
from tierlog.metadata.quorum.publisher import wait_for_event

CONNECT_TIMEOUT_S = 5.0
RETRY_S = 0.5

SUSPECT_S = 0.25
"""How long a broken connection alone casts doubt on a process: time for the proof, one way or the other."""

STEADY_S = 1.0
"""Only one that has stood for so long casts any: something between here and there may break each at once."""

RENEW_S = 240.0
"""How old a connection gets. aiohttp closes an idle one after an hour; firewalls and load balancers forget
it, without a word, after 350 s or more."""

AGAIN_S = 0.005
"""Before the next try after one that broke sooner; twice as long each time, up to RETRY_S: who accepts and
closes may do so for ever."""


class Address(NamedTuple):
    host: str
    port: int
    tls: bool = False


def address_of(url: str) -> Address:
    """Of the server behind an http URL."""
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    return Address(parts.hostname or "", parts.port or (443 if tls else 80), tls)


class FailureWatch:
    def __init__(
        self,
        name: str,
        tasks: TaskGroup,
        died: Callable[[int], None],
        met: Callable[[int], None] = lambda node: None,
        *,
        tls: ssl.SSLContext | None = None,
        suspect_s: float = SUSPECT_S,
        steady_s: float = STEADY_S,
        renew_s: float = RENEW_S,
    ) -> None:
        """Called on the loop: `died(node)` once for each death, `met(node)` for each connection. `tls`: for
        addresses that speak it; None: as clients of the web do."""
        self._tls = tls or True
        self._name, self._tasks, self._died, self._met = name, tasks, died, met
        self._suspect_s, self._steady_s, self._renew_s = suspect_s, steady_s, renew_s
        self._watched: dict[int, _Watched] = {}

    def watch(self, addresses: Mapping[int, Address]) -> None:
        """These from now on; who was watched at the same address before still is."""
        for node, watched in list(self._watched.items()):
            if addresses.get(node) != watched.address:
                watched.stop()
                del self._watched[node]
        for node, address in addresses.items():
            if node not in self._watched:
                watched = self._watched[node] = _Watched(address, self._suspect_s, self._steady_s)
                watched.task = self._tasks.spawn(f"{self._name} watches {node}", self._follow(node, watched))

    @property
    def connected(self) -> frozenset[int]:
        """Those whose death would be noticed now."""
        return frozenset(node for node, watched in self._watched.items() if watched.connected)

    @property
    def suspects(self) -> frozenset[int]:
        """Those whose connection has just broken and is not made anew: dead, it may be."""
        now = asyncio.get_running_loop().time()
        return frozenset(node for node, watched in self._watched.items() if now < watched.suspect_until)

    def is_up(self, node: int) -> None:
        """It has just answered: if it is not watched yet, because it was not there, it can be now."""
        if watched := self._watched.get(node):
            watched.try_now.set()

    async def close(self) -> None:
        watched, self._watched = self._watched, {}
        for each in watched.values():
            each.stop()
        tasks = [each.task for each in watched.values() if each.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, node: int, watched: "_Watched") -> None:
        seen: tuple[str, int] | None = None  # the very address where it was met: a name may have several
        again_s = AGAIN_S
        while True:
            watched.try_now.clear()
            try:
                line = await self._connect(watched, seen)
            except ConnectionRefusedError:
                if seen is not None:
                    seen = None
                    self._died(node)
                await watched.pause()
            except (OSError, TimeoutError, ValueError):
                await watched.pause()  # proves nothing
            else:
                seen = line.peer or seen
                if watched.connected:
                    self._met(node)
                await self._keep(watched, line)
                if watched.is_steady:
                    again_s = AGAIN_S
                else:  # though it answers others, which `is_up` tells
                    await asyncio.sleep(again_s)
                    again_s = min(2 * again_s, RETRY_S)

    async def _connect(self, watched: "_Watched", seen: tuple[str, int] | None) -> "_Line":
        """Raises OSError, TimeoutError; ValueError if that is no name of a host."""
        address = watched.address
        tls = self._tls if address.tls else None
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, line = await asyncio.get_running_loop().create_connection(
                lambda: _Line(watched),
                *(seen or address[:2]),
                ssl=tls,
                server_hostname=address.host if tls else None,
            )
        return line

    async def _keep(self, watched: "_Watched", line: "_Line") -> None:
        """Returns when it and those that followed it are gone. One that cannot be replaced may be good."""
        try:
            while True:
                await wait_for_event(line.ended, self._renew_s)
                if line.ended.is_set():
                    return
                with contextlib.suppress(OSError, TimeoutError):
                    old, line = line, await self._connect(watched, line.peer)
                    old.abort()
        finally:
            line.abort()


class _Watched:
    def __init__(self, address: Address, suspect_s: float, steady_s: float) -> None:
        self.address = address
        self.line: _Line | None = None  # the newest
        self.connected = False
        self._suspect_s, self._steady_s = suspect_s, steady_s
        self._steady_from = 0.0  # on the loop's clock
        self.suspect_until = 0.0  # on the loop's clock
        self.try_now = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def pause(self, at_most_s: float = RETRY_S) -> None:
        await wait_for_event(self.try_now, at_most_s)

    @property
    def is_steady(self) -> bool:
        """Whether its connection has stood for long, or did until now."""
        return asyncio.get_running_loop().time() >= self._steady_from

    def met(self, line: "_Line") -> None:
        if not self.connected:
            self._steady_from = asyncio.get_running_loop().time() + self._steady_s
        self.line, self.connected, self.suspect_until = line, True, 0.0

    def broke(self, line: "_Line") -> None:
        if line is not self.line:  # there is another by now
            return
        if self.connected and self.is_steady:
            self.suspect_until = asyncio.get_running_loop().time() + self._suspect_s
        self.connected = False

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()


class _Line(asyncio.Protocol):
    """An idle connection. That it broke is noted in the turn of the loop that hears of it: clients of the
    dead process ask for its partitions in the next.
    """

    def __init__(self, watched: _Watched) -> None:
        self._watched = watched
        self._transport: asyncio.Transport | None = None
        self.peer: tuple[str, int] | None = None  # None too if it broke at once
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if met := transport.get_extra_info("peername"):
            self.peer = met[:2]
        self._watched.met(self)

    def eof_received(self) -> None:
        self._watched.broke(self)

    def connection_lost(self, _: Exception | None) -> None:
        self._watched.broke(self)
        self.ended.set()

    def abort(self) -> None:
        """Nothing is left to send, nor anyone to wait for TLS's farewell."""
        if self._transport is not None:
            self._transport.abort()
