"""Rates of copies and remote reads, on a loop whose time is counted by its waits."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tierlog.base.tasks import TaskGroup
from tierlog.config.background import UNLIMITED_RATE
from tierlog.tiering.memory_store import MemoryStore
from tierlog.tiering.rate_limit import WINDOW_S, RateLimit, ThrottleTimes
from tierlog.tiering.store_health import HealthyStore

HUGE, SLOW = 1 << 60, 1 << 20


async def ended(call: Callable[[], Awaitable[object]]) -> bool:
    """Whether a call ends without waiting for time to pass."""
    running = asyncio.ensure_future(call())
    for _ in range(20):
        await asyncio.sleep(0)
    done = running.done()
    running.cancel()
    await asyncio.wait([running])
    return done


async def test_transfer_waits_until_the_one_before_is_paid_off() -> None:
    limit = RateLimit(SLOW)
    await limit.take(HUGE)  # the first one waits for nothing
    assert not await ended(lambda: limit.take(1))


async def test_higher_rate_ends_the_wait() -> None:
    limit = RateLimit(SLOW)
    await limit.take(HUGE)
    waiting = [asyncio.ensure_future(limit.take(1)) for _ in range(3)]
    await asyncio.sleep(0)
    limit.change(HUGE << 40)
    await asyncio.gather(*waiting)


async def test_wait_ends_with_time() -> None:
    limit = RateLimit(SLOW)
    for _ in range(5):
        await limit.take(SLOW // 1000)


async def test_waits_are_counted_for_two_windows_and_transfers_that_need_not_wait_are_not() -> None:
    async def waits_of(size_bytes: int, rate: int) -> RateLimit:
        limit = RateLimit(rate)
        for _ in range(3):
            await limit.take(size_bytes)
        return limit

    begin = asyncio.get_running_loop().time()
    free = await waits_of(HUGE, UNLIMITED_RATE)
    assert (free.throttles.average_s, free.throttles.max_s) == (0, 0)
    limit = await waits_of(SLOW // 100, SLOW)
    passed = asyncio.get_running_loop().time() - begin
    times = limit.throttles
    assert 0 < times.average_s <= times.max_s <= passed


async def test_statistics_forget_old_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, now = asyncio.get_running_loop(), [100.0]
    monkeypatch.setattr(loop, "time", lambda: now[0])
    times = ThrottleTimes()
    times.record(1.0)
    times.record(3.0)
    assert (times.average_s, times.max_s) == (2.0, 3.0)
    now[0] += WINDOW_S
    times.record(5.0)
    assert (times.average_s, times.max_s) == (3.0, 5.0)
    now[0] += WINDOW_S
    assert (times.average_s, times.max_s) == (5.0, 5.0)
    now[0] += 2 * WINDOW_S
    assert (times.average_s, times.max_s) == (0.0, 0.0)


async def test_cancelled_wait_lets_the_next_one_in() -> None:
    limit = RateLimit(SLOW)
    await limit.take(HUGE)
    assert not await ended(lambda: limit.take(1))
    limit.change(HUGE << 40)
    await limit.take(1)


async def test_ranges_are_limited_and_small_objects_are_not() -> None:
    store = HealthyStore(
        MemoryStore(),
        TaskGroup(lambda name, failure: None),
        fetch_rate=RateLimit(SLOW),
    )
    await store.fetch_rate.take(HUGE)
    assert await ended(lambda: store.put("root", b"manifest"))
    assert await ended(lambda: store.get("root"))
    assert not await ended(lambda: store.get_into("root", 0, memoryview(bytearray(3))))
    assert await ended(lambda: store.get("root", 0, 3)), "of an index, or to verify an upload"
