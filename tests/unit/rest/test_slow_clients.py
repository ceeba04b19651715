"""Clients that hold a connection without a request, against the server of the gateway."""

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from tierlog.base.clock import SystemClock
from tierlog.base.tasks import TaskGroup
from tierlog.rest.formats import Values
from tierlog.rest.gateway import Gateway, Limits
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
