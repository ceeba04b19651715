"""Timers of groups, on an event loop whose time the tests advance."""

import asyncio

import pytest

from tierlog.broker.coordinators.timers import GRACE_MS, STALE_SLACK, STALL_MS, Timers


class ManualClock:
    """Advances only with `ManualLoop.advance`."""

    def __init__(self) -> None:
        self.ms = 0

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


class ManualLoop(asyncio.SelectorEventLoop):
    """Takes its time from the clock, so that `call_later` waits for `advance`."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock

    def time(self) -> float:
        return self.clock.ms / 1000

    def advance(self, ms: int, step_ms: int = 1) -> None:
        """Run one iteration after each step. A step longer than STALL_MS is a pause of the process."""
        end_ms = self.clock.ms + ms
        while self.clock.ms < end_ms:
            self.clock.ms = min(self.clock.ms + step_ms, end_ms)
            self.run_until_complete(asyncio.sleep(0))


@pytest.fixture
def manual_timers():
    clock = ManualClock()
    loop = ManualLoop(clock)
    timers = Timers(clock)
    fired: list[tuple[int, str]] = []

    def set_timer(key: str, delay_ms: int) -> None:
        async def on_loop() -> None:
            timers.set(key, delay_ms, lambda: fired.append((clock.ms, key)))

        loop.run_until_complete(on_loop())

    yield loop, timers, fired, set_timer
    timers.close()
    loop.close()


def test_timers_fire_once_in_order_of_their_last_due_times(manual_timers):
    loop, timers, fired, set_timer = manual_timers
    for key, delay_ms in (
        ("late", 300),
        ("early", 100),
        ("postponed", 100),
        ("brought forward", 400),
        ("cancelled", 50),
    ):
        set_timer(key, delay_ms)
    set_timer("postponed", 200)
    set_timer("brought forward", 150)
    timers.cancel("cancelled")
    loop.advance(1_000)
    assert fired == [(100, "early"), (150, "brought forward"), (200, "postponed"), (300, "late")]
    assert len(timers) == 0


def test_timer_that_is_set_repeatedly_has_one_entry(manual_timers):
    loop, timers, fired, set_timer = manual_timers
    for _ in range(1_000):
        set_timer("session", 100)
    assert len(timers._heap) == 1
    loop.advance(100)
    assert fired == [(100, "session")]


def test_timers_fire_after_a_grace_period_when_the_process_was_paused(manual_timers):
    loop, _timers, fired, set_timer = manual_timers
    set_timer("renewed", 100)
    set_timer("silent", 100)
    loop.advance(STALL_MS + 200, step_ms=STALL_MS + 200)
    assert fired == []
    set_timer("renewed", 10_000)
    loop.advance(GRACE_MS)
    assert [key for _, key in fired] == ["silent"]


def test_cancelled_timers_are_removed_from_the_heap(manual_timers):
    loop, timers, fired, set_timer = manual_timers
    set_timer("stays", 1_000)
    for number in range(10 * STALE_SLACK):
        set_timer(f"member {number}", 1_800_000)
        timers.cancel(f"member {number}")
    assert len(timers) == 1
    assert len(timers._heap) <= 2 * len(timers) + STALE_SLACK + 1  # the last entry is pushed after the check
    loop.advance(1_000, step_ms=100)
    assert fired == [(1_000, "stays")]


def test_removal_of_stale_entries_keeps_the_entries_of_timers(manual_timers):
    loop, timers, fired, set_timer = manual_timers
    for number in range(5 * STALE_SLACK):
        set_timer(f"kept {number % 7}", 100 + number % 7)
        timers.cancel(f"kept {number % 7}")
        set_timer(f"kept {number % 7}", 100 + number % 7)
        set_timer(f"cancelled {number}", 50)
        timers.cancel(f"cancelled {number}")
    loop.advance(200)
    assert fired == [(100 + number, f"kept {number}") for number in range(7)]
