"""Bound of the admin HTTP server's connections: strangers use up neither it nor the files of the node."""

import asyncio
import ssl
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from certificates import Authority

from tierlog.broker.gateway import connections
from tierlog.broker.gateway.admin import AdminServer

CONNECTIONS_MAX = 5


@pytest.mark.parametrize("has_tls", [False, True])
async def test_at_the_bound_the_oldest_connection_without_a_request_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_tls: bool
) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", CONNECTIONS_MAX)
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
