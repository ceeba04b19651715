"""Network for machines without namespaces: all nodes on 127.0.0.1, with a proxy before each port.

A cut connection passes nothing in that direction until the heal, as with TCP. A lost packet delays its
stream. /proc/net/tcp and /proc/PID/fd show which process opened a connection.
"""

import asyncio
import os
import random
import shutil
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from havoc.network import CLIENTS, WITH_PARENT, Place
from tierlog.cli.cluster_files import free_ports

HOST = "127.0.0.1"
CHUNK = 1 << 16
RETRANSMISSION_S = 0.2
"""Minimum delay of a stream after a lost packet (Linux's minimum retransmission timeout)."""


class Loopback:
    name = "loopback"

    def __init__(self, nodes: Sequence[int]) -> None:
        ports = [free_ports(4 * len(nodes))[at :: len(nodes)] for at in range(len(nodes))]
        self.places = {
            node: Place(*(f"{HOST}:{port}" for port in mine)) for node, mine in zip(nodes, ports, strict=True)
        }
        self._pids: dict[int, int] = {}
        self._cut: set[tuple[int, int]] = set()
        self._loss = 0.0
        self._rng = random.Random(1)
        self._changed = asyncio.Condition()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(60)

    def command(self, node: int, words: Sequence[str]) -> list[str]:
        return [*(WITH_PARENT if shutil.which(WITH_PARENT[0]) else ()), *words]

    def is_at(self, node: int, pid: int) -> None:
        self._pids[node] = pid

    def cut(self, sources: Iterable[int], targets: Iterable[int]) -> None:
        into = list(targets)
        self._set(
            {(source, target) for source in sources for target in into if source != target} | self._cut, 0.0
        )

    def lose(self, share: float) -> None:
        self._set(self._cut, share)

    def heal(self) -> None:
        self._set(set(), 0.0)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _set(self, cut: set[tuple[int, int]], loss: float) -> None:
        async def change() -> None:
            async with self._changed:
                self._cut, self._loss = cut, loss
                self._changed.notify_all()

        asyncio.run_coroutine_threadsafe(change(), self._loop).result(60)

    # --- in the proxy's thread

    async def _listen(self) -> None:
        for node, place in self.places.items():
            for inner, outer in ((place.kafka_bind, place.kafka), (place.admin_bind, place.admin)):
                await self._listen_at(node, _port(inner), _port(outer))

    async def _listen_at(self, node: int, inner: int, outer: int) -> None:
        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            source = self._node_of(writer.get_extra_info("peername")[1], outer)
            with suppress(OSError):
                await self._may_pass(source, node)
                upstream = await asyncio.open_connection(HOST, inner)
                there = asyncio.ensure_future(self._forward(reader, upstream[1], source, node))
                back = asyncio.ensure_future(self._forward(upstream[0], writer, node, source))
                await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
                there.cancel()
                back.cancel()
                upstream[1].close()
            writer.close()

        await asyncio.start_server(carry, HOST, outer)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: int, target: int
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                if self._loss and self._rng.random() < self._loss:
                    await asyncio.sleep(RETRANSMISSION_S)
                await self._may_pass(source, target)
                writer.write(data)
                await writer.drain()
        await self._may_pass(source, target)  # nor does the end of a connection come through

    async def _may_pass(self, source: int, target: int) -> None:
        if (source, target) in self._cut:
            async with self._changed:
                await self._changed.wait_for(lambda: (source, target) not in self._cut)

    def _node_of(self, port: int, outer: int) -> int:
        inode = _inode(port, outer)
        for node, pid in self._pids.items():
            with suppress(OSError):
                for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                    with suppress(OSError):
                        if os.readlink(descriptor) == f"socket:[{inode}]":
                            return node
        return CLIENTS


def _inode(local: int, remote: int) -> str:
    """Inode of the socket from one port to the other (proc(5), /proc/net/tcp)."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if (_hex_port(fields[1]), _hex_port(fields[2])) == (local, remote):
            return fields[9]
    return ""


def _hex_port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
