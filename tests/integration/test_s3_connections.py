"""Connections to a real S3 server: TLS with a private authority, and proxies that the environment names."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from certificates import Authority
from s3_servers import ACCESS_KEY, SECRET_KEY, S3Server

from tierlog.tiering.object_store import ObjectStoreError, ObjectStoreUnavailable
from tierlog.tiering.stores import store_from_url

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
END_OF_HEAD = b"\r\n\r\n"


async def carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str, first: bytes = b""
) -> None:
    """Carry bytes both ways between a client and a server until one of them closes."""
    from_server, to_server = await asyncio.open_connection(*address.rsplit(":", 1))
    to_server.write(first)

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()
        sink.close()

    await asyncio.gather(copy(reader, to_server), copy(from_server, writer))


def address_of(listening: asyncio.Server) -> str:
    host, port = listening.sockets[0].getsockname()
    return f"{host}:{port}"


@asynccontextmanager
async def tls_front(server: S3Server, directory: Path) -> AsyncIterator[tuple[str, Path]]:
    """A TLS listener before the server: its address, and the file of its authority."""
    files = Authority(directory).issue("s3")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await carry(reader, writer, server.address)

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as listening:
        yield address_of(listening), files.ca


@asynccontextmanager
async def http_proxy() -> AsyncIterator[tuple[str, list[str]]]:
    """An HTTP proxy: its address, and the request lines that it has received."""
    lines: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(END_OF_HEAD)
        line = head.partition(b"\r\n")[0].decode()
        method, target, _ = line.split(" ")
        lines.append(line)
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established" + END_OF_HEAD)
            await carry(reader, writer, target)
            return
        origin = target.removeprefix("http://").partition("/")[0]
        await carry(reader, writer, origin, head.replace(f"http://{origin}".encode(), b"", 1))

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        yield address_of(listening), lines


async def round_trip(url: str) -> bytes:
    """Put an object and get it."""
    store = store_from_url(url, access_key=ACCESS_KEY, secret_key=SECRET_KEY)
    try:
        await store.put("key", b"content")
        return await store.get("key")
    finally:
        await store.close()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in (*VARIABLES, *map(str.lower, VARIABLES)):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


async def test_tls_with_a_private_authority(s3: S3Server, tmp_path: Path) -> None:
    async with tls_front(s3, tmp_path) as (address, authority):
        url = s3.url("tls").replace(s3.endpoint, f"https://{address}")
        assert await round_trip(f"{url}&ca_bundle={authority}") == b"content"
        with pytest.raises(ObjectStoreUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await round_trip(url)


@pytest.mark.parametrize("scheme", ("http://", ""))
async def test_proxy_of_the_environment_carries_all_requests(
    s3: S3Server, environment: pytest.MonkeyPatch, scheme: str
) -> None:
    async with http_proxy() as (address, lines):
        environment.setenv("HTTP_PROXY", scheme + address)
        assert await round_trip(s3.url("by-proxy")) == b"content"
        assert lines and all(f"http://{s3.address}/" in line for line in lines)


async def test_tls_through_a_proxy(s3: S3Server, environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with tls_front(s3, tmp_path) as (front, authority), http_proxy() as (address, lines):
        environment.setenv("HTTPS_PROXY", f"http://{address}")
        url = s3.url("tls-by-proxy").replace(s3.endpoint, f"https://{front}")
        assert await round_trip(f"{url}&ca_bundle={authority}") == b"content"
        assert lines and all(line.startswith(f"CONNECT {front} ") for line in lines)


async def test_host_in_no_proxy_is_reached_directly(s3: S3Server, environment: pytest.MonkeyPatch) -> None:
    async with http_proxy() as (address, lines):
        environment.setenv("HTTP_PROXY", f"http://{address}")
        environment.setenv("NO_PROXY", "127.0.0.1")
        assert await round_trip(s3.url("direct")) == b"content"
        assert not lines


@pytest.mark.parametrize("proxy", ("https://127.0.0.1:1", "socks5://127.0.0.1:1"))
async def test_proxy_that_cannot_be_used_is_refused(
    s3: S3Server, environment: pytest.MonkeyPatch, proxy: str
) -> None:
    environment.setenv("HTTP_PROXY", proxy)
    with pytest.raises(ObjectStoreError, match="set HTTPS_PROXY or HTTP_PROXY to http"):
        await round_trip(s3.url("refused"))
