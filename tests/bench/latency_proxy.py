"""A proxy with the latency and bandwidth of S3: delays each response by 40 ms, and limits each connection to
90 MB/s.

A local server responds at once, which hides whether a client keeps enough requests in flight. Start the proxy
in front of such a server. It prints its own address:
`python tests/bench/latency_proxy.py 127.0.0.1:9000`
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

LATENCY_S = 0.040
BYTES_PER_SECOND = 90_000_000
PIECE_BYTES = 256 << 10


@asynccontextmanager
async def latency_proxy(
    server: str, *, latency_s: float = LATENCY_S, bytes_per_second: int = BYTES_PER_SECOND
) -> AsyncIterator[str]:
    """Run a proxy in front of `server`, and yield its address. Both are host:port."""
    host, port = server.split(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        delay = _ResponseDelay(latency_s)
        with suppress(OSError):
            from_server, to_server = await asyncio.open_connection(host, int(port), limit=4 * PIECE_BYTES)
            responses = asyncio.ensure_future(
                _forward(from_server, writer, bytes_per_second, delay.before_response_bytes)
            )
            try:
                await _forward(reader, to_server, bytes_per_second, delay.before_request_bytes)
            finally:
                responses.cancel()
                to_server.close()
                writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, limit=4 * PIECE_BYTES)
    async with listening:
        proxy_host, proxy_port = listening.sockets[0].getsockname()
        yield f"{proxy_host}:{proxy_port}"


class _ResponseDelay:
    """Delays the first bytes of a response, which are the first ones after bytes of a request.

    A pause between responses does not show where one begins: a fast server that gets the next request at once
    makes no pause.
    """

    def __init__(self, latency_s: float) -> None:
        self._latency_s = latency_s
        self._awaits_response = False

    def before_request_bytes(self) -> float:
        self._awaits_response = True
        return 0.0

    def before_response_bytes(self) -> float:
        """Seconds to wait before these bytes are sent to the client."""
        is_first, self._awaits_response = self._awaits_response, False
        return self._latency_s if is_first else 0.0


async def _forward(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    bytes_per_second: int,
    delay_s: Callable[[], float],
) -> None:
    """Forward bytes, each piece after `delay_s()`, at no more than this rate."""
    loop = asyncio.get_running_loop()
    free_at = 0.0
    with suppress(OSError):
        while piece := await reader.read(PIECE_BYTES):
            now = loop.time()
            free_at = max(free_at, now + delay_s())
            await asyncio.sleep(free_at - now)
            free_at += len(piece) / bytes_per_second
            writer.write(piece)
            await writer.drain()
    writer.close()


async def main(server: str) -> None:
    async with latency_proxy(server) as address:
        print(address, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1]))
