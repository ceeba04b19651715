"""Copy slots: the order in which partitions get them, and what uploads that hang leave to the others."""

import asyncio

import pytest

from tierlog.tiering.copy_slots import CopySlots


class Copies:
    """Copies that hold their slot until they are ended."""

    def __init__(self, count: int) -> None:
        self.slots = CopySlots(count)
        self.started: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def start(
        self, name: str, lag_bytes: int = 0, *, due_ms: int | None = None, timed_out: bool = False
    ) -> None:
        self._ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.ensure_future(self._run(name, lag_bytes, due_ms, timed_out))
        await turns()

    async def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
            await self.tasks[name]
            await turns()

    async def cancel(self, name: str) -> None:
        self.tasks[name].cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.tasks[name]
        await turns()

    async def _run(self, name: str, lag_bytes: int, due_ms: int | None, timed_out: bool) -> None:
        async with self.slots.slot(lag_bytes, due_ms=due_ms, timed_out=timed_out):
            self.started.append(name)
            await self._ends[name].wait()


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_slots_go_in_turn_to_the_largest_lag_and_to_the_longest_wait() -> None:
    copies = Copies(1)
    await copies.start("first")
    for name, lag_bytes in (("a", 1), ("b", 2), ("c", 9), ("d", 5)):
        await copies.start(name, lag_bytes)
    await copies.end("first", "a", "c", "b", "d")
    assert copies.started == ["first", "a", "c", "b", "d"]


async def test_copies_that_are_due_come_before_those_with_more_bytes() -> None:
    copies = Copies(1)
    await copies.start("first")
    for name, lag_bytes, due_ms in (("old", 5, None), ("large", 9, None), ("later", 1, 20), ("soon", 1, 10)):
        await copies.start(name, lag_bytes, due_ms=due_ms)
    await copies.end("first", "old", "soon", "large", "later")
    assert copies.started == ["first", "old", "soon", "large", "later"]


async def test_partition_with_little_lag_does_not_starve() -> None:
    copies = Copies(1)
    await copies.start("large 0", 9)
    await copies.start("small", 1)
    for number in range(1, 4):
        await copies.start(f"large {number}", 9)
        await copies.end(copies.started[-1])
    assert "small" in copies.started


async def test_as_many_copies_run_as_there_are_slots() -> None:
    copies = Copies(3)
    for name in "abcde":
        await copies.start(name)
    assert copies.started == ["a", "b", "c"]
    await copies.end("b")
    assert len(copies.started) == 4


async def test_copies_that_timed_out_hold_a_quarter_of_the_slots() -> None:
    copies = Copies(8)
    for number in range(10):
        await copies.start(f"hung {number}", 100, timed_out=True)
    assert len(copies.started) == 2
    for number in range(8):
        await copies.start(f"other {number}")
    assert copies.started[2:] == [f"other {number}" for number in range(6)]
    await copies.end("hung 0")
    assert copies.started[8:] in (["hung 2"], ["other 6"])
    await copies.end("other 0", "other 1", "other 2")
    assert sum(name.startswith("hung") for name in copies.started) == 3


async def test_only_slot_is_not_kept_from_a_copy_that_timed_out() -> None:
    copies = Copies(1)
    await copies.start("hung", timed_out=True)
    assert copies.started == ["hung"]


async def test_cancelled_copies_give_their_places_back() -> None:
    copies = Copies(1)
    for name in "abc":
        await copies.start(name)
    await copies.cancel("b")
    await copies.cancel("a")
    assert copies.started == ["a", "c"]


async def test_copy_that_is_cancelled_when_it_gets_its_slot_gives_it_back() -> None:
    copies = Copies(1)
    for name in "abc":
        await copies.start(name)
    copies._ends["a"].set()
    copies.tasks["b"].cancel()
    await turns()
    assert copies.started == ["a", "c"]


async def test_copy_that_crawls_gives_its_slot_up_only_for_one_that_did_not_time_out() -> None:
    slots = CopySlots(2)
    async with slots.slot(0) as crawling, slots.slot(0, timed_out=True) as retry:
        assert not slots.give_up(crawling, 60), "no other waits"
        waiting = asyncio.ensure_future(_hold(slots, timed_out=True))
        await turns()
        assert not slots.give_up(crawling, 60), "retries have slots of their own"
        other = asyncio.ensure_future(_hold(slots))
        await turns()
        assert not slots.give_up(retry, 60), "a slow link must upload too"
        assert slots.give_up(crawling, 60)
        assert not slots.give_up(crawling, 60), "one at a time"
        assert slots.give_up(crawling, 0)
    await asyncio.gather(waiting, other)


async def _hold(slots: CopySlots, *, timed_out: bool = False) -> None:
    async with slots.slot(0, timed_out=timed_out):
        pass
