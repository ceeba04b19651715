"""A proxy in front of an S3 server that withholds requests or responses, or sends the bodies of responses one
byte at a time."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from s3_servers import S3Server

GET = re.compile(rb"^GET (\S+) HTTP/1.1\r\n", re.MULTILINE)
RANGE = re.compile(rb"^GET (\S+) HTTP/1.1\r\n(?:\S.*\r\n)*?Range: bytes=(\d+)-(\d+)\r\n", re.MULTILINE)
PUT = re.compile(rb"^PUT (\S+) HTTP/1.1\r\n", re.MULTILINE)
CONDITION = re.compile(rb"^If-(None-)?Match: .*\r\n", re.MULTILINE | re.IGNORECASE)
END_OF_HEAD = b"\r\n\r\n"
TRICKLE_S = 0.01  # far below every timeout between two bytes


class S3Proxy:
    """Counts the GET requests (`gets`) and the bytes of requested ranges (`range_bytes`) by path, and the
    connections that are open (`connections`)."""

    def __init__(self, server: S3Server) -> None:
        self.gets: Counter[str] = Counter()
        self.range_bytes: Counter[str] = Counter()
        self.connections = 0
        self.trickles = False
        self.held = 0
        self.drops_conditions = False  # like a proxy that does not know the headers
        self._holds: tuple[str, ...] = ()
        self._server = server
        self._passes = asyncio.Event()
        self._passes.set()
        self._changed = asyncio.Condition()
        self._address = ""

    def url(self, prefix: str) -> str:
        return self._server.url(prefix).replace(self._server.address, self._address)

    def hang(self) -> None:
        """Withhold all responses until `resume`."""
        self._passes.clear()

    def resume(self) -> None:
        self._passes.set()

    def hold_puts(self, *words: str) -> None:
        """Let no PUT request through whose path contains one of these words. `held`: how many there were."""
        self._holds = words

    async def until_held(self, least: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.held >= least)

    async def until_gets(self, least: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.gets.total() >= least)

    async def until_closed(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: not self.connections)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["S3Proxy"]:
        listening = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        host, port = listening.sockets[0].getsockname()
        self._address = f"{host}:{port}"
        async with listening:
            yield self

    async def _count(self, change: int, sent: bytes = b"") -> None:
        async with self._changed:
            self.connections += change
            self.gets.update(path.decode() for path in GET.findall(sent))
            for path, first, last in RANGE.findall(sent):
                self.range_bytes[path.decode()] += int(last) - int(first) + 1
            self._changed.notify_all()

    async def _is_held(self, sent: bytes) -> bool:
        if not any(word in path.decode() for path in PUT.findall(sent) for word in self._holds):
            return False
        async with self._changed:
            self.held += 1
            self._changed.notify_all()
        return True

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._count(1)
        host, port = self._server.address.split(":")
        with suppress(OSError):
            from_server, to_server = await asyncio.open_connection(host, int(port))
            answering = asyncio.ensure_future(self._answer(from_server, writer))
            try:
                while sent := await reader.read(1 << 16):
                    await self._count(0, sent)
                    if await self._is_held(sent):
                        while await reader.read(1 << 16):
                            pass  # no response, until the client gives up
                        break
                    to_server.write(CONDITION.sub(b"", sent) if self.drops_conditions else sent)
            finally:
                answering.cancel()
                to_server.close()
                writer.close()
        await self._count(-1)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while received := await reader.read(1 << 16):
                await self._passes.wait()
                at_once = received.find(END_OF_HEAD) + len(END_OF_HEAD) if self.trickles else len(received)
                writer.write(received[:at_once])
                for at in range(at_once, len(received)):
                    writer.write(received[at : at + 1])
                    await asyncio.sleep(TRICKLE_S)
        writer.close()
