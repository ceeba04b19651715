"""Clients that hold a connection without a request, or do not read their response."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tierlog.base.clock import SystemClock
from tierlog.base.tasks import TaskGroup
from tierlog.rest.formats import Values
from tierlog.rest.gateway import Call, Gateway, Limits
from tierlog.rest.server import RestServer
from tierlog.rest.sessions import KafkaSecurity, Sessions


@pytest.fixture
async def address() -> AsyncIterator[tuple[str, int]]:
    failures: list[object] = []
    tasks = TaskGroup(lambda name, failure: failures.append((name, failure)))
    sessions = Sessions([], KafkaSecurity(), tasks)
    limits = Limits(idle_timeout_s=0.2, stop_timeout_s=0.1)
    server = RestServer(Gateway(sessions, Values(None), limits, SystemClock(), tasks))
    url = urlsplit(await server.start("127.0.0.1", 0))
    yield str(url.hostname), int(url.port or 0)
    await server.close()
    await tasks.close()
    assert not failures


@pytest.mark.parametrize(
    "sent", [b"", b"GET /health HTTP/1.1\r\nHost: loc", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"]
)
async def test_connection_without_a_whole_request_is_closed(address: tuple[str, int], sent: bytes) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(sent)
    async with asyncio.timeout(60):
        await reader.read()  # until the server closes
    writer.close()


async def test_unread_response_ends() -> None:
    tasks = TaskGroup(lambda name, failure: None)
    limits = Limits(write_timeout_s=0.2, short_write_timeout_s=0.1)
    gateway = Gateway(Sessions([], KafkaSecurity(), tasks), Values(None), limits, SystemClock(), tasks)
    ended: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    session: Any = None

    async def respond(request: web.Request) -> web.StreamResponse:
        try:
            return await Call(gateway=gateway, request=request, session=session).respond(200, bytes(64 << 20))
        except ConnectionError as failure:
            ended.set_result(failure)
            raise

    application = web.Application()
    application.add_routes([web.get("/", respond)])
    async with TestServer(application) as server:
        _, writer = await asyncio.open_connection(server.host, server.port, limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(60):
            assert "takes no data" in str(await ended)
        writer.close()
    assert gateway.counts.slow_clients == 1
