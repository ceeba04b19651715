"""Bound of the admin HTTP server's connections: strangers use up neither it nor the files of the node."""

import asyncio
import contextlib
import ssl
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from certificates import Authority
from connection_harness import until

from tierlog.base import http_listener
from tierlog.broker.gateway import admin
from tierlog.broker.gateway.admin import AdminServer

CONNECTIONS_MAX = 5


@pytest.mark.parametrize("has_tls", [False, True])
async def test_at_the_bound_the_oldest_connection_without_a_request_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_tls: bool
) -> None:
    monkeypatch.setattr(admin, "CONNECTIONS_MAX", CONNECTIONS_MAX)
    files = Authority(tmp_path).issue("node")
    begun, released = asyncio.Event(), asyncio.Event()

    async def wait(_: web.Request) -> web.Response:
        begun.set()
        await released.wait()
        return web.Response(text="waited")

    async def at_once(_: web.Request) -> web.Response:
        return web.Response(text="at once")

    server = AdminServer([web.get("/wait", wait), web.get("/health", at_once)], files if has_tls else None)
    url = await server.start("127.0.0.1", 0)
    context: ssl.SSLContext | bool = files.client() if has_tls else True
    port = int(url.rpartition(":")[2])

    async def get(path: str) -> str:
        async with aiohttp.ClientSession() as session, session.get(url + path, ssl=context) as response:
            return await response.text()

    waiting = asyncio.ensure_future(get("/wait"))
    await begun.wait()
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * CONNECTIONS_MAX)]
    assert await get("/health") == "at once"
    assert await silent[0][0].read() == b""
    released.set()
    assert await waiting == "waited"
    for _, writer in silent:
        writer.close()
    await server.close()


async def test_requests_of_strangers_do_not_shut_out_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger may send requests between nodes, with bodies that never end."""
    monkeypatch.setattr(admin, "CONNECTIONS_MAX", CONNECTIONS_MAX)
    begun, released = asyncio.Semaphore(0), asyncio.Event()

    async def step(request: web.Request) -> web.Response:
        begun.release()
        if await request.read() == b"waits":
            await released.wait()
        return web.Response(text="stepped")

    server = AdminServer([web.post("/raft/v1/step", step)])
    url = await server.start("127.0.0.1", 0)

    async def post(session: aiohttp.ClientSession, body: bytes) -> str:
        async with session.post(f"{url}/raft/v1/step", data=body) as response:
            return await response.text()

    async with aiohttp.ClientSession() as node, aiohttp.ClientSession() as new:
        assert await post(node, b"first") == "stepped"
        waiting = asyncio.ensure_future(post(node, b"waits"))
        strangers = []
        for _ in range(CONNECTIONS_MAX - 1):
            strangers.append(await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2])))
            strangers[-1][1].write(b"POST /raft/v1/step HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
        for _ in range(CONNECTIONS_MAX + 1):
            await begun.acquire()
        assert await post(new, b"of a new connection") == "stepped"
        assert await strangers[0][0].read() == b""
        released.set()
        assert await waiting == "stepped"
    for _, writer in strangers:
        writer.close()
    await server.close()


@pytest.mark.parametrize("has_tls", [False, True])
@pytest.mark.parametrize("requests", [0, 1])
async def test_connection_whose_request_header_never_ends_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_tls: bool, requests: int
) -> None:
    """`requests`: those that it has sent before."""
    monkeypatch.setattr(http_listener, "HEADER_TIMEOUT_S", 1.0)
    monkeypatch.setattr(admin, "IDLE_TIMEOUT_S", 1.0)
    files = Authority(tmp_path).issue("node")
    released = asyncio.Event()

    async def wait(_: web.Request) -> web.Response:
        await released.wait()
        return web.Response(text="waited")

    async def at_once(_: web.Request) -> web.Response:
        return web.Response(text="at once")

    server = AdminServer([web.get("/wait", wait), web.get("/health", at_once)], files if has_tls else None)
    url = await server.start("127.0.0.1", 0)
    context = files.client() if has_tls else None
    port = int(url.rpartition(":")[2])
    longer, longer_writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    longer_writer.write(b"GET /wait HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    for _ in range(requests):
        writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert (await reader.readuntil(b"at once")).startswith(b"HTTP/1.1 200")
    writer.write(b"GET /health HTTP/1.1\r\n")
    ended = asyncio.ensure_future(reader.read())
    while not ended.done():
        writer.write(b"X")
        await asyncio.wait((ended,), timeout=0.1)
    with contextlib.suppress(ConnectionError):
        assert ended.result() == b""
    released.set()  # a request may take longer than its header
    assert (await longer.readuntil(b"waited")).startswith(b"HTTP/1.1 200")
    for each in (writer, longer_writer):
        each.close()
    await server.close()


@pytest.mark.parametrize("has_tls", [False, True])
@pytest.mark.parametrize("requests", [0, 1])
async def test_connections_that_have_ended_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_tls: bool, requests: int
) -> None:
    """With TLS each keeps up to 256 KiB until then."""
    monkeypatch.setattr(http_listener, "HEADER_TIMEOUT_S", 3600.0)
    monkeypatch.setattr(http_listener, "SWEEP_S", 0.01)
    files = Authority(tmp_path).issue("node")

    async def at_once(_: web.Request) -> web.Response:
        return web.Response(text="at once")

    server = AdminServer([web.get("/health", at_once)], files if has_tls else None)
    url = await server.start("127.0.0.1", 0)
    port, usage = int(url.rpartition(":")[2]), server._usage
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=files.client() if has_tls else None)
    if requests:
        writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        await reader.readuntil(b"at once")
    await until(lambda: len(usage.used if requests else usage.awaited) == 1)
    writer.transport.abort()
    await until(lambda: not usage.awaited and not usage.used)
    await server.close()
