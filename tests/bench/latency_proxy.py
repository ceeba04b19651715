"""A proxy with the latency and bandwidth of S3: 40 ms to each response, 90 MB/s a connection.

A local server answers at once, which hides whether a client keeps enough requests in flight. Run it in front
of one:
`python tests/bench/latency_proxy.py 127.0.0.1:9000`. It prints its address.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

LATENCY_S = 0.040
BYTES_PER_SECOND = 90_000_000
PIECE_BYTES = 256 << 10


@asynccontextmanager
async def slowed(
    server: str, *, latency_s: float = LATENCY_S, bytes_per_second: int = BYTES_PER_SECOND
) -> AsyncIterator[str]:
    """The address of a proxy in front of a server; both as host:port."""
    host, port = server.split(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            from_server, to_server = await asyncio.open_connection(host, int(port), limit=4 * PIECE_BYTES)
            answers = asyncio.ensure_future(_carry(from_server, writer, latency_s, bytes_per_second))
            try:
                await _carry(reader, to_server, 0, bytes_per_second)
            finally:
                answers.cancel()
                to_server.close()
                writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, limit=4 * PIECE_BYTES)
    async with listening:
        host_, port_ = listening.sockets[0].getsockname()
        yield f"{host_}:{port_}"


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, latency_s: float, bytes_per_second: int
) -> None:
    """Bytes after a pause are a new response, which comes after the latency."""
    loop = asyncio.get_running_loop()
    free_at = 0.0
    with suppress(OSError):
        while piece := await reader.read(PIECE_BYTES):
            now = loop.time()
            if now - free_at > latency_s:
                free_at = now + latency_s
            await asyncio.sleep(max(0.0, free_at - now))
            free_at = max(free_at, now) + len(piece) / bytes_per_second
            writer.write(piece)
            await writer.drain()
    writer.close()


async def main(server: str) -> None:
    async with slowed(server) as address:
        print(address, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1]))
