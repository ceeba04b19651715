"""Timers, on a loop with virtual time."""

import asyncio

import pytest

from tierlog.broker.groups.timers import GRACE_MS, STALE_SLACK, STALL_MS, Timers


class HandClock:
    """Advances only with `pass_time`, which replaces the loop's `call_later`."""

    def __init__(self) -> None:
        self.ms = 0

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


class HandLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is the clock's."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__()
        self.clock = clock

    def time(self) -> float:
        return self.clock.ms / 1000

    def pass_time(self, ms: int, step_ms: int = 1) -> None:
        end_ms = self.clock.ms + ms
        while self.clock.ms < end_ms:
            self.clock.ms = min(self.clock.ms + step_ms, end_ms)
            self.run_until_complete(asyncio.sleep(0))


@pytest.fixture
def world():
    clock = HandClock()
    loop = HandLoop(clock)
    timers = Timers(clock)
    fired: list[tuple[int, str]] = []

    def set_timer(key: str, delay_ms: int) -> None:
        async def on_loop() -> None:
            timers.set(key, delay_ms, lambda: fired.append((clock.ms, key)))

        loop.run_until_complete(on_loop())

    yield loop, timers, fired, set_timer
    timers.close()
    loop.close()


def test_timers_fire_once_in_order_and_can_be_moved(world):
    loop, timers, fired, set_timer = world
    for key, delay_ms in (("late", 300), ("early", 100), ("moved out", 100), ("moved in", 400), ("gone", 50)):
        set_timer(key, delay_ms)
    set_timer("moved out", 200)
    set_timer("moved in", 150)
    timers.cancel("gone")
    loop.pass_time(1_000)
    assert fired == [(100, "early"), (150, "moved in"), (200, "moved out"), (300, "late")]
    assert len(timers) == 0


def test_timer_that_is_set_repeatedly_has_one_entry(world):
    loop, timers, fired, set_timer = world
    for _ in range(1_000):
        set_timer("session", 100)
    assert len(timers._heap) == 1
    loop.pass_time(100)
    assert fired == [(100, "session")]


def test_timers_fire_after_a_grace_when_the_process_was_paused(world):
    loop, _timers, fired, set_timer = world
    set_timer("heard from", 100)
    set_timer("silent", 100)
    loop.pass_time(STALL_MS + 200, step_ms=STALL_MS + 200)
    assert fired == []
    set_timer("heard from", 10_000)
    loop.pass_time(GRACE_MS)
    assert [key for _, key in fired] == ["silent"]


def test_cancelled_timers_are_removed_from_the_heap(world):
    loop, timers, fired, set_timer = world
    set_timer("stays", 1_000)
    for number in range(10 * STALE_SLACK):
        set_timer(f"member {number}", 1_800_000)
        timers.cancel(f"member {number}")
    assert len(timers) == 1 and len(timers._heap) <= STALE_SLACK + 3
    loop.pass_time(1_000, step_ms=100)
    assert fired == [(1_000, "stays")]


def test_removal_of_stale_entries_keeps_all_timers(world):
    loop, timers, fired, set_timer = world
    for number in range(5 * STALE_SLACK):
        set_timer(f"kept {number % 7}", 100 + number % 7)
        timers.cancel(f"kept {number % 7}")
        set_timer(f"kept {number % 7}", 100 + number % 7)
        set_timer(f"gone {number}", 50)
        timers.cancel(f"gone {number}")
    loop.pass_time(200)
    assert fired == [(100 + number, f"kept {number}") for number in range(7)]
