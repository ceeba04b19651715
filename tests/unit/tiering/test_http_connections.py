"""HTTP connections to an object store: headers of requests, errors of TLS."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tierlog.tiering.http_connections import HttpConnections, Transfer
from tierlog.tiering.object_store import ObjectStoreUnavailable
from tierlog.tiering.s3_client import is_transient, translate


@asynccontextmanager
async def recorded() -> AsyncIterator[tuple[int, list[str]]]:
    """A server's port, and the request lines and headers that it receives."""
    lines: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.extend((await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], lines


async def request(url: str, proxy: str) -> None:
    connections = HttpConnections(connect_s=30, read_s=30, tls=ssl.create_default_context, proxy=proxy)
    transfer = Transfer(None)
    try:
        await asyncio.to_thread(connections.request, transfer, "GET", url, {}, b"")
    except OSError:
        assert url.startswith("https:")
    connections.close()


async def test_host_header_has_no_default_port_as_botocore_signs_it() -> None:
    for address, host in (("minio:80", "minio"), ("minio:9000", "minio:9000"), ("[::1]:80", "[::1]")):
        async with recorded() as (port, lines):
            await request(f"http://{address}/bucket/key", f"http://127.0.0.1:{port}")
        assert lines[0] == f"GET http://{address}/bucket/key HTTP/1.1"
        assert f"Host: {host}" in lines


async def test_credentials_of_a_proxy_are_sent() -> None:
    for url in ("http://minio/key", "https://minio/key"):
        async with recorded() as (port, lines):
            await request(url, f"http://user:p%40ss@127.0.0.1:{port}")
        assert "Proxy-Authorization: Basic dXNlcjpwQHNz" in lines


def test_certificate_that_is_not_valid_means_that_the_store_is_not_reached() -> None:
    error = ssl.SSLCertVerificationError(1, "certificate has expired")
    assert isinstance(translate("k", error), ObjectStoreUnavailable)
    assert not is_transient(error)
