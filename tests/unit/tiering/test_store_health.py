"""The circuit breaker of an object store: opens after failures, one probe closes it, two log lines."""

import asyncio

import pytest
from connection_harness import until
from structlog.testing import capture_logs

from tierlog.base.tasks import TaskGroup
from tierlog.tiering.memory_store import MemoryStore
from tierlog.tiering.object_store import (
    CorruptObject,
    ObjectInfo,
    ObjectNotFound,
    ObjectStoreUnavailable,
)
from tierlog.tiering.store_health import (
    FAILURES_TO_OPEN,
    PROBE_KEY,
    BreakerOpen,
    BreakerState,
    HealthyStore,
)


class Failing(MemoryStore):
    """Fails while `down`. Probes wait for `gate`."""

    def __init__(self) -> None:
        super().__init__()
        self.down = False
        self.calls = 0
        self.probes = 0
        self.probed, self.gate = asyncio.Event(), asyncio.Event()

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.calls += 1
        if self.down:
            raise ObjectStoreUnavailable("503 SlowDown")
        return await super().get(key, start, end)

    async def head(self, key: str) -> ObjectInfo:
        if key == PROBE_KEY:
            self.probes += 1
            self.probed.set()
            await self.gate.wait()
        return await super().head(key)


def tasks() -> TaskGroup:
    return TaskGroup(lambda name, failure: None)


async def test_breaker_opens_after_failures_in_a_row_and_one_probe_closes_it() -> None:
    inner, group = Failing(), tasks()
    store = HealthyStore(inner, group)
    await store.put("k", b"content")
    inner.down = True
    with capture_logs() as logs:
        for _ in range(FAILURES_TO_OPEN):
            with pytest.raises(ObjectStoreUnavailable):
                await store.get("k")
        for _ in range(100):
            with pytest.raises(BreakerOpen, match="503 SlowDown"):
                await store.get("k")
        assert store.health.state is BreakerState.OPEN
        assert inner.calls == FAILURES_TO_OPEN
        await inner.probed.wait()
        inner.down = False
        inner.gate.set()
        await until(lambda: store.health.state is BreakerState.CLOSED)
    assert inner.probes == 1
    assert [line["event"] for line in logs] == [
        "the object store is unavailable",
        "the object store is available again",
    ]
    assert await store.get("k") == b"content"
    assert (store.health.opened, store.health.refused_calls) == (1, 100)
    await group.close()


async def test_responses_of_the_store_keep_the_breaker_closed() -> None:
    """Also errors: a missing or damaged object says nothing about the others."""
    inner, group = Failing(), tasks()
    store = HealthyStore(inner, group)
    await store.put("k", b"content")
    for _ in range(2 * FAILURES_TO_OPEN):
        inner.down = False
        with pytest.raises(ObjectNotFound):
            await store.get("missing")
        with pytest.raises(CorruptObject):
            await store.get("k", 5, 10)
        inner.down = True
        with pytest.raises(ObjectStoreUnavailable):
            await store.get("k")
    assert store.health.state is BreakerState.CLOSED
