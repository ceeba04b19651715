"""Failure watch: detects that a process seems to have died, from a broken connection and a refused one.

When a process is killed, the kernel of its host does both within milliseconds, so no timeout has to pass. A
host that hangs or is unreachable does neither. A firewall on the way can do both, so this is evidence and not
proof (ADR 0013).

The watch keeps one idle connection to each address. It sends nothing on it except the TLS handshake, without
which a TLS server would close the connection after a minute. Servers and middleboxes close idle connections,
so each one is replaced from time to time; the old one is closed only after the new one is established.

Used by the transport (`HttpPeers`).
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

SUSPECT_S = 0.25
"""How long a broken connection alone makes a process suspect: long enough to confirm or refute it."""

STABLE_AFTER_S = 1.0
"""Minimum age of a connection whose loss makes a process suspect: a middlebox may reset each one at once."""

RECONNECT_AFTER_S = 240.0
"""Maximum age of a connection. aiohttp closes an idle one after an hour; firewalls and load balancers
silently forget it after 350 s or more."""

RETRY_MIN_S = 0.005
RETRY_MAX_S = 0.5
"""Pause after a connection that broke early: doubled each time, from RETRY_MIN_S to RETRY_MAX_S, since a
server may accept and close connections forever. After a failed attempt: RETRY_MAX_S."""


class Address(NamedTuple):
    host: str
    port: int
    tls: bool = False


def address_of(url: str) -> Address:
    """The address of the server behind an http or https URL."""
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    return Address(parts.hostname or "", parts.port or (443 if tls else 80), tls)


class FailureWatch:
    def __init__(
        self,
        name: str,
        tasks: TaskGroup,
        on_death: Callable[[int], None] = lambda node: None,
        on_connected: Callable[[int], None] = lambda node: None,
        *,
        tls: ssl.SSLContext | None = None,
        suspect_s: float = SUSPECT_S,
        stable_after_s: float = STABLE_AFTER_S,
        reconnect_after_s: float = RECONNECT_AFTER_S,
    ) -> None:
        """Calls back on the event loop: `on_death(node)` once per death, `on_connected(node)` per connection.

        `tls`: context for addresses that use TLS; None: the system's default.
        """
        self._tls = tls or True
        self._name, self._tasks, self.on_death, self.on_connected = name, tasks, on_death, on_connected
        self._suspect_s, self._stable_after_s = suspect_s, stable_after_s
        self._reconnect_after_s = reconnect_after_s
        self._watched: dict[int, _Watched] = {}

    def watch(self, addresses: Mapping[int, Address]) -> None:
        """Replace the set of watched nodes. Nodes whose address is unchanged keep their connection."""
        for node, watched in list(self._watched.items()):
            if addresses.get(node) != watched.address:
                watched.stop()
                del self._watched[node]
        for node, address in addresses.items():
            if node not in self._watched:
                watched = self._watched[node] = _Watched(address, self._suspect_s, self._stable_after_s)
                watched.task = self._tasks.spawn(f"{self._name} watches {node}", self._run(node, watched))

    @property
    def connected(self) -> frozenset[int]:
        """Nodes whose death would be detected now."""
        return frozenset(node for node, watched in self._watched.items() if watched.connected)

    @property
    def suspects(self) -> frozenset[int]:
        """Nodes whose connection has just broken and is not re-established yet."""
        now = asyncio.get_running_loop().time()
        return frozenset(node for node, watched in self._watched.items() if now < watched.suspect_until)

    def retry_now(self, node: int) -> None:
        """The node has just responded elsewhere: if it is not connected yet, try now."""
        if watched := self._watched.get(node):
            watched.try_now.set()

    async def close(self) -> None:
        watched, self._watched = self._watched, {}
        for each in watched.values():
            each.stop()
        tasks = [each.task for each in watched.values() if each.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, node: int, watched: "_Watched") -> None:
        # the resolved address of the last connection: a host name may have several
        peer: tuple[str, int] | None = None
        retry_s = RETRY_MIN_S
        while True:
            watched.try_now.clear()
            try:
                connection = await self._connect(watched, peer)
            except ConnectionRefusedError:
                if peer is not None:
                    peer = None
                    self.on_death(node)
                await watched.pause()
            except (OSError, TimeoutError, ValueError):
                await watched.pause()  # proves nothing
            else:
                peer = connection.peer or peer
                if watched.connected:
                    self.on_connected(node)
                await self._hold(watched, connection)
                if watched.is_stable:
                    retry_s = RETRY_MIN_S
                else:  # sleeps even if `retry_now` is called
                    await asyncio.sleep(retry_s)
                    retry_s = min(2 * retry_s, RETRY_MAX_S)

    async def _connect(self, watched: "_Watched", peer: tuple[str, int] | None) -> "_Connection":
        """Raises OSError, TimeoutError; ValueError if the host name is malformed."""
        address = watched.address
        tls = self._tls if address.tls else None
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(watched),
                *(peer or address[:2]),
                ssl=tls,
                server_hostname=address.host if tls else None,
            )
        return connection

    async def _hold(self, watched: "_Watched", connection: "_Connection") -> None:
        """Replace the connection periodically; return once the newest is lost.

        If it cannot be replaced, the present one may still be good and is kept.
        """
        try:
            while True:
                await wait_for_event(connection.ended, self._reconnect_after_s)
                if connection.ended.is_set():
                    return
                with contextlib.suppress(OSError, TimeoutError):
                    old, connection = connection, await self._connect(watched, connection.peer)
                    old.abort()
        finally:
            connection.abort()


class _Watched:
    def __init__(self, address: Address, suspect_s: float, stable_after_s: float) -> None:
        self.address = address
        self.newest: _Connection | None = None
        self.connected = False
        self._suspect_s, self._stable_after_s = suspect_s, stable_after_s
        self._stable_from = 0.0  # on the loop's clock
        self.suspect_until = 0.0  # on the loop's clock
        self.try_now = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def pause(self, at_most_s: float = RETRY_MAX_S) -> None:
        await wait_for_event(self.try_now, at_most_s)

    @property
    def is_stable(self) -> bool:
        """Whether the connection is, or was until it broke, at least `stable_after_s` old."""
        return asyncio.get_running_loop().time() >= self._stable_from

    def on_connected(self, connection: "_Connection") -> None:
        if not self.connected:
            self._stable_from = asyncio.get_running_loop().time() + self._stable_after_s
        self.newest, self.connected, self.suspect_until = connection, True, 0.0

    def on_broken(self, connection: "_Connection") -> None:
        if connection is not self.newest:  # it was replaced
            return
        if self.connected and self.is_stable:
            self.suspect_until = asyncio.get_running_loop().time() + self._suspect_s
        self.connected = False

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()


class _Connection(asyncio.Protocol):
    """An idle connection. A break is recorded in the very iteration of the event loop that reports it,
    because clients of the dead process request its partitions in the next one.
    """

    def __init__(self, watched: _Watched) -> None:
        self._watched = watched
        self._transport: asyncio.Transport | None = None
        self.peer: tuple[str, int] | None = None  # None also if the connection broke at once
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if name := transport.get_extra_info("peername"):
            self.peer = name[:2]
        self._watched.on_connected(self)

    def eof_received(self) -> None:
        self._watched.on_broken(self)

    def connection_lost(self, _: Exception | None) -> None:
        self._watched.on_broken(self)
        self.ended.set()

    def abort(self) -> None:
        """Close without a TLS shutdown: nothing is left to send."""
        if self._transport is not None:
            self._transport.abort()
