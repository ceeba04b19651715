"""The circuit breaker of an object store: opens after failures, one probe closes it, two log lines. One check
for all callers."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from connection_harness import until
from structlog.testing import capture_logs

from tierlog.base.tasks import TaskGroup
from tierlog.tiering import store_health, store_probe
from tierlog.tiering.memory_store import MemoryStore
from tierlog.tiering.object_store import (
    CorruptObject,
    ObjectInfo,
    ObjectNotFound,
    ObjectStore,
    ObjectStoreTimeout,
    ObjectStoreUnavailable,
)
from tierlog.tiering.store_health import (
    FAILURES_TO_OPEN,
    BreakerOpen,
    BreakerState,
    HealthyStore,
)
from tierlog.tiering.store_probe import UnsuitableStore, probe_store


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
        if key == "probe":
            self.probes += 1
            self.probed.set()
            await self.gate.wait()
        return await super().head(key)


def tasks() -> TaskGroup:
    return TaskGroup(lambda name, failure: None)


class Hanging(MemoryStore):
    """Requests for objects wait for `objects`, and probes for `probes`."""

    def __init__(self) -> None:
        super().__init__()
        self.objects, self.probes = asyncio.Event(), asyncio.Event()
        self.probed = asyncio.Event()

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        await self.objects.wait()
        return await super().get(key, start, end)

    async def head(self, key: str) -> ObjectInfo:
        if key == "probe":
            self.probed.set()
            await self.probes.wait()
        return await super().head(key)


@pytest.fixture
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_health, "SILENCE_S", 0.01)
    monkeypatch.setattr(store_health, "SILENCE_PROBE_S", 0.05)


@pytest.mark.usefixtures("short_silence")
async def test_probe_without_a_response_opens_the_breaker_while_calls_wait() -> None:
    inner, group = Hanging(), tasks()
    store = HealthyStore(inner, group)
    await store.put("k", b"content")
    waits = asyncio.create_task(store.get("k"))
    await until(lambda: store.health.state is BreakerState.OPEN)
    assert "timed out" in store.health.last_error
    with pytest.raises(BreakerOpen):
        await store.get("k")
    inner.objects.set()
    inner.probes.set()
    assert await waits == b"content"
    await until(lambda: store.health.state is BreakerState.CLOSED)
    await group.close()


@pytest.mark.usefixtures("short_silence")
async def test_slow_call_does_not_open_the_breaker_while_probes_have_responses() -> None:
    inner, group = Hanging(), tasks()
    store = HealthyStore(inner, group)
    await store.put("k", b"content")
    inner.probes.set()
    waits = asyncio.create_task(store.get("k"))
    for _ in range(3):
        await inner.probed.wait()
        inner.probed.clear()
    assert store.health.is_available
    inner.objects.set()
    assert await waits == b"content"
    await group.close()


@pytest.mark.usefixtures("short_silence")
async def test_responses_to_probes_do_not_hide_that_calls_time_out() -> None:
    inner, group = Hanging(), tasks()
    store = HealthyStore(inner, group)
    await store.put("k", b"content")
    inner.probes.set()

    async def times_out(key: str, start: int = 0, end: int | None = None) -> bytes:
        await inner.objects.wait()
        raise ObjectStoreTimeout("timed out after 25 s")

    inner.get = times_out  # type: ignore[method-assign]
    calls = [asyncio.ensure_future(store.get(f"{number}")) for number in range(FAILURES_TO_OPEN)]
    await inner.probed.wait()
    inner.objects.set()
    await asyncio.gather(*calls, return_exceptions=True)
    assert store.health.opened == 1
    await group.close()


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
        "store.unavailable",
        "store.available",
    ]
    assert await store.get("k") == b"content"
    assert (store.health.opened, store.health.refused_calls) == (1, 100)
    await group.close()


async def test_failures_of_later_pages_of_a_listing_open_the_breaker() -> None:
    class FailsLater(Failing):
        async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
            yield ObjectInfo("a", 1, "etag")
            raise ObjectStoreUnavailable("503 SlowDown")

    group = tasks()
    store = HealthyStore(FailsLater(), group)
    listings = [store.list(f"{number}/") for number in range(FAILURES_TO_OPEN)]
    for listing in listings:
        assert (await anext(listing)).key == "a"
    assert store.health.is_available
    for listing in listings:
        with pytest.raises(ObjectStoreUnavailable):
            await anext(listing)
    assert store.health.state is BreakerState.OPEN
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


async def fail(store: HealthyStore, key: str = "k") -> None:
    with pytest.raises(ObjectStoreUnavailable):
        await store.get(key)


async def test_pieces_of_one_chunk_count_as_one_failure() -> None:
    """Sent at once, they fail together; calls for other keys say more."""
    inner, group = Failing(), tasks()
    store = HealthyStore(inner, group)
    inner.down = True
    held = asyncio.Event()

    async def get(key: str, start: int = 0, end: int | None = None) -> bytes:
        await held.wait()
        raise ObjectStoreUnavailable("503 SlowDown")

    inner.get = get  # type: ignore[method-assign]
    pieces = [asyncio.ensure_future(store.get("chunk")) for _ in range(8)]
    await asyncio.sleep(0)
    held.set()
    await asyncio.gather(*pieces, return_exceptions=True)
    assert store.health.state is BreakerState.CLOSED
    await asyncio.gather(*(store.get(f"{n}") for n in range(FAILURES_TO_OPEN)), return_exceptions=True)
    assert store.health.state is BreakerState.OPEN
    await group.close()


async def test_failures_of_calls_that_began_before_a_success_do_not_count() -> None:
    inner, group = Failing(), tasks()
    store = HealthyStore(inner, group)
    await store.put("k", b"content")
    held = asyncio.Event()

    async def head(key: str) -> ObjectInfo:
        await held.wait()
        raise ObjectStoreTimeout("no response")

    inner.head = head  # type: ignore[method-assign]
    slow = [asyncio.ensure_future(store.head(f"{n}")) for n in range(2 * FAILURES_TO_OPEN)]
    await asyncio.sleep(0)
    await store.get("k")
    held.set()
    await asyncio.gather(*slow, return_exceptions=True)
    assert store.health.state is BreakerState.CLOSED


async def test_mistake_in_a_probe_does_not_keep_the_breaker_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_health, "FIRST_PROBE_S", 0.001)
    inner, group = Failing(), tasks()
    store = HealthyStore(inner, group)
    probes = 0

    async def head(key: str) -> ObjectInfo:
        nonlocal probes
        probes += 1
        if probes < 3:
            raise KeyError("ContentLength")
        raise ObjectNotFound(key)

    inner.head = head  # type: ignore[method-assign]
    inner.down = True
    for _ in range(FAILURES_TO_OPEN):
        await fail(store)
    await until(lambda: store.health.state is BreakerState.CLOSED)
    assert probes == 3


async def test_call_starts_a_probe_if_none_is_running() -> None:
    inner, group = Failing(), tasks()
    store = HealthyStore(inner, group)
    inner.down = True
    for _ in range(FAILURES_TO_OPEN):
        await fail(store)
    await group.close()
    inner.gate.set()
    with pytest.raises(BreakerOpen):
        await store.get("k")
    await until(lambda: store.health.state is BreakerState.CLOSED)


async def test_breaker_that_opens_again_soon_keeps_its_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_health, "FIRST_PROBE_S", 0.001)
    inner, group = Failing(), tasks()
    store = HealthyStore(inner, group)
    inner.down = True
    inner.gate.set()
    for opened in range(1, 4):
        for _ in range(FAILURES_TO_OPEN):
            await fail(store)
        await until(lambda: store.health.state is BreakerState.CLOSED)
        assert store._pause_s == pytest.approx(store_health.FIRST_PROBE_S * 2**opened)


async def test_all_callers_wait_for_one_check_and_none_cancels_it() -> None:
    inner, group = MemoryStore(), tasks()
    checks, gate = 0, asyncio.Event()

    async def check(store: ObjectStore) -> None:
        nonlocal checks
        checks += 1
        await gate.wait()
        if checks == 1:
            raise ObjectStoreUnavailable("no response")

    store = HealthyStore(inner, group, check=check)
    calls = [asyncio.ensure_future(store.put(f"{n}", b"")) for n in range(20)]
    await until(lambda: checks > 0)
    calls[0].cancel()
    await asyncio.sleep(0)
    gate.set()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert checks == 1
    assert isinstance(results[0], asyncio.CancelledError)
    assert all(isinstance(result, ObjectStoreUnavailable) for result in results[1:])
    await store.put("k", b"")
    assert checks == 2
    await group.close()


async def test_check_that_times_out_opens_the_breaker() -> None:
    """A store that hangs as the broker starts: five checks would take two minutes."""
    inner, group, checks = Failing(), tasks(), 0

    async def check(store: ObjectStore) -> None:
        nonlocal checks
        checks += 1
        if checks == 1:
            raise ObjectStoreTimeout("timed out after 25 s")

    store = HealthyStore(inner, group, check=check, probe_key="probe")
    results = await asyncio.gather(*(store.put(f"{n}", b"") for n in range(20)), return_exceptions=True)
    assert [type(result) for result in results] == [ObjectStoreTimeout] * 20
    assert (store.health.state, store.health.opened, checks) == (BreakerState.OPEN, 1, 1)
    with pytest.raises(BreakerOpen, match="timed out after 25 s"):
        await store.put("k", b"")
    inner.gate.set()
    await until(lambda: store.health.state is BreakerState.CLOSED)
    await store.put("k", b"")
    assert checks == 2, "it is checked before it is used"
    await group.close()


async def test_breaker_stays_open_until_the_check_passes() -> None:
    """A store that responds to the probe may hang in what the check asks for."""
    inner, group, checks, state = Failing(), tasks(), 0, list[BreakerState]()
    inner.gate.set()

    async def check(_: ObjectStore) -> None:
        nonlocal checks
        checks += 1
        state.append(store.health.state)
        if checks < 4:
            raise ObjectStoreTimeout("timed out after 25 s")

    store = HealthyStore(inner, group, check=check, probe_key="probe")
    with pytest.raises(ObjectStoreTimeout):
        await store.put("k", b"")
    await until(lambda: store.health.state is BreakerState.CLOSED)
    assert state == [BreakerState.CLOSED, *[BreakerState.OPEN] * 3]
    await store.put("k", b"")
    assert (checks, store.health.opened) == (4, 1)
    await group.close()


async def test_refused_store_is_logged_once_and_accepted_once_it_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_health, "CHECK_PAUSE_S", 0)
    monkeypatch.setattr(store_health, "RECHECK_S", 0.001)
    group, gate = tasks(), asyncio.Event()
    is_suitable, checks = False, 0

    async def check(store: ObjectStore) -> None:
        nonlocal checks
        checks += 1
        if checks > 3:
            await gate.wait()
        if not is_suitable:
            raise UnsuitableStore("the store ignores conditional puts")

    store = HealthyStore(MemoryStore(), group, check=check)
    with capture_logs() as logs:
        calls = [store.put(f"{n}", b"") for n in range(5)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [UnsuitableStore] * 5
        with pytest.raises(UnsuitableStore, match="conditional puts"):
            await store.put("k", b"")
        is_suitable = True
        gate.set()
        await until(lambda: store.health.state is BreakerState.CLOSED)
    await store.put("k", b"")
    assert [line["event"] for line in logs] == ["store.refused", "store.accepted"]
    await group.close()


async def test_object_that_an_earlier_check_has_left_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a delete that hangs end the check."""
    monkeypatch.setattr(store_probe, "_CLEANUP_S", 0.001)

    class Undeletable(MemoryStore):
        async def delete(self, keys: object) -> None:
            await asyncio.Event().wait()

    store = Undeletable()
    with capture_logs() as logs:
        for _ in range(2):
            await probe_store(store, "cluster/probe/1")
    assert [line["event"] for line in logs] == ["store.check.undeleted"] * 2
