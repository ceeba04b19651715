"""`tier flush` and `tier explain` over HTTP: clients that leave, bad parameters, failures of the broker."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from connection_harness import until

from tierlog.broker.gateway import tier_status
from tierlog.broker.gateway.admin import AdminServer
from tierlog.broker.gateway.tier_status import tier_status_routes
from tierlog.tiering.object_store import ObjectStoreUnavailable


class Manager:
    """A remote log manager whose object store is down."""

    def __init__(self) -> None:
        self.flushes = self.cancelled = 0
        self.failure: Exception = ObjectStoreUnavailable("the store is down")

    async def flush(self, topic: str) -> list[Any]:
        self.flushes += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return []

    async def explain(self, topic: str, partition: int, offset: int) -> Any:
        raise self.failure


@pytest.fixture
def manager() -> Manager:
    return Manager()


@pytest.fixture
async def session(manager: Manager) -> AsyncIterator[aiohttp.ClientSession]:
    serving: Any = SimpleNamespace(tiering=manager)
    server = AdminServer(tier_status_routes(lambda: serving))
    url = await server.start("127.0.0.1", 0)
    async with aiohttp.ClientSession(url) as session:
        yield session
    await server.close()


async def test_flush_ends_when_its_client_disconnects(
    manager: Manager, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier_status, "DISCONNECT_CHECK_S", 0.01)
    asking = asyncio.ensure_future(session.post("/v1/tier/flush", json={"topic": "t"}))
    await until(lambda: manager.flushes == 1)
    assert manager.cancelled == 0
    asking.cancel()
    await until(lambda: manager.cancelled == 1)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}"])
async def test_flush_without_a_topic_is_a_bad_request(session: aiohttp.ClientSession, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    async with session.post("/v1/tier/flush", data=body, headers=headers) as answer:
        assert answer.status == 400
        assert "bad or missing parameter" in (await answer.json())["error"]


@pytest.mark.parametrize("query", ["", "topic=t&partition=0", "topic=t&partition=x&offset=0"])
async def test_explain_without_an_offset_is_a_bad_request(session: aiohttp.ClientSession, query: str) -> None:
    async with session.get(f"/v1/tier/explain?{query}") as answer:
        assert answer.status == 400


@pytest.mark.parametrize(
    "failure, status",
    [(ObjectStoreUnavailable("down"), 503), (KeyError("bug"), 500), (ValueError("bug"), 500)],
)
async def test_error_of_the_broker_is_no_bad_request(
    manager: Manager, session: aiohttp.ClientSession, failure: Exception, status: int
) -> None:
    manager.failure = failure
    async with session.get("/v1/tier/explain?topic=t&partition=0&offset=0") as answer:
        assert answer.status == status
