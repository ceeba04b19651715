"""Which processes are proven dead: a connection to one breaks, and its host then refuses another.

The kernel of the host does both within milliseconds when a process is killed, so nobody has to wait for a
time-out; and since a host that hangs or is cut off does neither, there are no false alarms. One idle
connection to each watched address; nothing is sent on it.
"""

import asyncio
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from tierlog.broker.ports.tasks import TaskGroup

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
        self._watched: dict[int, tuple[Address, asyncio.Task[None]]] = {}

    def watch(self, addresses: Mapping[int, Address]) -> None:
        """These from now on; who was watched at the same address before still is."""
        for node, (address, watching) in list(self._watched.items()):
            if addresses.get(node) != address:
                watching.cancel()
                del self._watched[node]
        for node, address in addresses.items():
            if node not in self._watched:
                watching = self._tasks.spawn(f"{self._name} watches {node}", self._follow(node, address))
                self._watched[node] = (address, watching)

    async def close(self) -> None:
        tasks = [watching for _, watching in self._watched.values()]
        self._watched.clear()
        for watching in tasks:
            watching.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, node: int, address: Address) -> None:
        seen: Address | None = None  # the very address at which the process was met: a name may have several
        while True:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    reader, writer = await asyncio.open_connection(*(seen or address))
            except ConnectionRefusedError:
                if seen is not None:
                    seen = None
                    self._died(node)
                await asyncio.sleep(RETRY_S)
            except (OSError, TimeoutError):
                await asyncio.sleep(RETRY_S)  # proves nothing
            else:
                seen = writer.get_extra_info("peername")[:2]
                try:
                    await _until_broken(reader)
                finally:
                    writer.close()


async def _until_broken(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(4096):
            pass
    except OSError:
        return
