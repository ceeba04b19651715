"""Which processes are proven dead: a connection to one breaks, and its host then refuses another.

The kernel of the host does both within milliseconds when a process is killed, so nobody has to wait for a
time-out; and since a host that hangs or is cut off does neither, there are no false alarms. One idle
connection to each watched address; nothing is sent on it.
"""

import asyncio
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from tierlog.broker.ports.tasks import TaskGroup
from tierlog.metadata.feed import happens

CONNECT_TIMEOUT_S = 5.0
RETRY_S = 0.5

Address = tuple[str, int]


def address_of(url: str) -> Address:
    """Of the server behind an http URL."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


class DeathWatch:
    def __init__(self, name: str, tasks: TaskGroup, died: Callable[[int], None]) -> None:
        """`died(node)` is called on the loop, once for each death."""
        self._name, self._tasks, self._died = name, tasks, died
        self._watched: dict[int, _Watched] = {}

    def watch(self, addresses: Mapping[int, Address]) -> None:
        """These from now on; who was watched at the same address before still is."""
        for node, watched in list(self._watched.items()):
            if addresses.get(node) != watched.address:
                watched.stop()
                del self._watched[node]
        for node, address in addresses.items():
            if node not in self._watched:
                watched = self._watched[node] = _Watched(address)
                watched.task = self._tasks.spawn(f"{self._name} watches {node}", self._follow(node, watched))

    @property
    def connected(self) -> frozenset[int]:
        """Those whose death would be noticed now."""
        return frozenset(node for node, watched in self._watched.items() if watched.connected)

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
        seen: Address | None = None  # the very address at which the process was met: a name may have several
        while True:
            watched.try_now.clear()
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    reader, writer = await asyncio.open_connection(*(seen or watched.address))
            except ConnectionRefusedError:
                if seen is not None:
                    seen = None
                    self._died(node)
                await watched.pause()
            except (OSError, TimeoutError):
                await watched.pause()  # proves nothing
            else:
                met = writer.get_extra_info("peername")  # None: it was reset before anybody could look
                seen = met[:2] if met else seen
                watched.connected = met is not None
                try:
                    await _until_broken(reader)
                finally:
                    watched.connected = False
                    writer.close()


class _Watched:
    def __init__(self, address: Address) -> None:
        self.address = address
        self.connected = False
        self.try_now = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def pause(self) -> None:
        await happens(self.try_now, RETRY_S)

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()


async def _until_broken(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(4096):
            pass
    except OSError:
        return
