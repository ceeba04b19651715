"""Waiting operations: woken by touch, together, once; expired at their time; bounded."""

import asyncio
from collections.abc import Collection, Hashable

import pytest

from tierlog.broker.handlers.purgatory import PATIENT_TURNS, Purgatory, Write

LONG_MS = 3_600_000


class Box:
    """What an operation waits for: `bytes` reaching `enough`."""

    def __init__(self, enough: int) -> None:
        self.bytes = 0
        self.enough = enough
        self.attempts = 0

    def attempt(self) -> str | None:
        self.attempts += 1
        return f"{self.bytes} bytes" if self.bytes >= self.enough else None

    def attempt_of(self, touched: Collection[Hashable]) -> str | None:
        return self.attempt()

    def expire(self) -> str:
        return f"expired with {self.bytes}"


async def test_a_touch_completes_what_has_enough() -> None:
    purgatory, box = Purgatory(10), Box(2)
    future = purgatory.wait(["a", "b"], LONG_MS, box.attempt, box.expire)
    assert isinstance(future, asyncio.Future)
    box.bytes = 1
    purgatory.touch("a")
    await asyncio.sleep(0)
    assert not future.done()
    box.bytes = 2
    purgatory.touch("b")
    assert await future == "2 bytes"
    assert len(purgatory) == 0


async def test_touches_of_one_turn_make_one_attempt() -> None:
    purgatory, box = Purgatory(10), Box(1)
    purgatory.wait(["a", "b"], LONG_MS, box.attempt, box.expire)
    for key in ("a", "b", "a", "c"):
        purgatory.touch(key)
    await asyncio.sleep(0)
    assert box.attempts == 1


async def test_one_that_is_patient_gets_what_the_next_turn_brings_too() -> None:
    purgatory, box = Purgatory(10), Box(1)
    eager = purgatory.wait(["a"], LONG_MS, box.attempt, box.expire)
    patient = purgatory.wait_patiently(["a"], LONG_MS, box.attempt_of, box.expire)

    def bring() -> None:
        box.bytes += 1
        purgatory.touch("a")

    bring()
    asyncio.get_running_loop().call_soon(bring)  # behind those that were tried because of the first
    assert isinstance(eager, asyncio.Future) and isinstance(patient, asyncio.Future)
    assert (await eager, await patient) == ("1 bytes", "2 bytes")
    assert len(purgatory) == 0


async def test_patience_lasts_as_long_as_each_turn_brings_something_and_no_longer_than_its_turns() -> None:
    purgatory, box = Purgatory(10), Box(1)
    patient = purgatory.wait_patiently(["a"], LONG_MS, box.attempt_of, box.expire)

    def bring_on() -> None:
        box.bytes += 1
        purgatory.touch("a")
        if not patient.done():  # for ever, if it were not for the bound
            asyncio.get_running_loop().call_soon(bring_on)

    assert isinstance(patient, asyncio.Future)
    bring_on()
    assert (await patient, box.attempts) == (f"{PATIENT_TURNS + 2} bytes", 1)

    box = Box(2)  # one that has waited for its turns in vain has them again
    patient = purgatory.wait_patiently(["a"], LONG_MS, box.attempt_of, box.expire)
    assert isinstance(patient, asyncio.Future)
    box.bytes = 1
    purgatory.touch("a")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (box.attempts, patient.done()) == (1, False)
    box.bytes = 2
    purgatory.touch("a")
    assert await patient == "2 bytes"


async def test_one_that_is_patient_is_told_what_was_touched_since_it_was_tried() -> None:
    purgatory, told = Purgatory(10), list[set[Hashable]]()

    def attempt(touched: Collection[Hashable]) -> str | None:
        told.append(set(touched))
        return "enough" if len(told) == 2 else None

    waiting = purgatory.wait_patiently(["a", "b", "c"], LONG_MS, attempt, lambda: "expired")
    assert isinstance(waiting, asyncio.Future)
    purgatory.touch("a")
    asyncio.get_running_loop().call_soon(purgatory.touch, "b")
    for _ in range(PATIENT_TURNS + 1):
        await asyncio.sleep(0)
    purgatory.touch("c")
    assert (await waiting, told) == ("enough", [{"a", "b"}, {"c"}])


class Line:
    """Writes that end at 1, 2, 3, … in one partition, and how often each was looked at."""

    def __init__(self, purgatory: Purgatory) -> None:
        self.purgatory = purgatory
        self.reached = 0
        self.looks: list[int] = []
        self.answers: list[asyncio.Future[str]] = []

    def write(self, end: int, lane: int = -1) -> Write:
        def is_settled() -> bool:
            self.looks.append(end)
            return end <= self.reached

        return Write("a", lane, is_settled)

    def wait(self, *ends: int, lane: int = -1, wait_ms: int = LONG_MS) -> "asyncio.Future[str]":
        writes = [self.write(end, lane) for end in ends]
        answer = self.purgatory.wait_in_line(writes, wait_ms, f"up to {ends[-1]}", lambda: "expired")
        assert isinstance(answer, asyncio.Future)
        return answer

    async def reach(self, end: int) -> None:
        self.reached = end
        self.purgatory.touch("a")
        await asyncio.sleep(0)


async def test_of_writes_in_line_a_touch_looks_no_further_than_the_first_that_has_to_wait() -> None:
    line = Line(Purgatory(10))
    first, second, third = line.wait(1), line.wait(2), line.wait(3)
    await line.reach(0)
    assert line.looks == [1]
    await line.reach(2)
    assert line.looks == [1, 1, 2, 3]
    assert (await first, await second, third.done()) == ("up to 1", "up to 2", False)
    await line.reach(3)
    assert await third == "up to 3"
    await asyncio.sleep(0)
    assert (len(line.purgatory), line.purgatory._lines) == (0, {})


async def test_a_produce_of_several_batches_waits_for_all_of_them() -> None:
    line = Line(Purgatory(10))
    both = line.wait(1, 2)
    await line.reach(1)
    assert not both.done()
    await line.reach(2)
    assert await both == "up to 2"


async def test_writes_that_wait_for_other_things_are_in_lines_of_their_own() -> None:
    line = Line(Purgatory(10))
    for_all, for_leader = line.wait(2), line.wait(1, lane=1)
    await line.reach(1)
    assert (await for_leader, for_all.done()) == ("up to 1", False)


async def test_one_that_gave_up_does_not_hold_up_those_behind_it() -> None:
    line = Line(Purgatory(10))
    cancelled, expired, last = line.wait(5), line.wait(4, wait_ms=1), line.wait(3)
    cancelled.cancel()
    assert await expired == "expired"
    await line.reach(3)
    assert await last == "up to 3"
    await asyncio.sleep(0)
    assert line.purgatory._lines == {}


@pytest.mark.parametrize("how", ["cancelled", "expired"])
async def test_when_the_first_in_line_gives_up_the_next_is_looked_at_at_once(
    how: str,
) -> None:
    line = Line(Purgatory(10))
    first, second = line.wait(5, wait_ms=1 if how == "expired" else LONG_MS), line.wait(3)
    await line.reach(3)
    if how == "cancelled":
        assert not second.done()
        first.cancel()
    async with asyncio.timeout(20):
        assert await second == "up to 3"
    await asyncio.sleep(0)
    assert line.purgatory._lines == {}


async def test_a_write_that_cannot_be_judged_fails_its_own_produce_only() -> None:
    line = Line(Purgatory(10))

    def broken() -> bool:
        raise RuntimeError("cannot tell")

    failing = line.purgatory.wait_in_line([Write("a", -1, broken)], LONG_MS, "never", lambda: "expired")
    behind = line.wait(1)
    await line.reach(1)
    assert isinstance(failing, asyncio.Future)
    with pytest.raises(RuntimeError, match="cannot tell"):
        await failing
    assert await behind == "up to 1"


async def test_a_deadline_answers_with_what_there_is() -> None:
    purgatory, box = Purgatory(10), Box(100)
    later = purgatory.wait(["a"], LONG_MS, box.attempt, box.expire)
    soon = purgatory.wait(["a"], 1, box.attempt, box.expire)
    box.bytes = 7
    assert isinstance(soon, asyncio.Future)
    assert await soon == "expired with 7"
    assert isinstance(later, asyncio.Future)
    assert not later.done()
    assert len(purgatory) == 1


async def test_no_time_or_no_room_answers_at_once() -> None:
    purgatory, box = Purgatory(1), Box(1)
    assert purgatory.wait(["a"], 0, box.attempt, box.expire) == "expired with 0"
    purgatory.wait(["a"], LONG_MS, box.attempt, box.expire)
    assert purgatory.wait(["a"], LONG_MS, box.attempt, box.expire) == "expired with 0"


async def test_a_cancelled_wait_is_forgotten_and_frees_its_place() -> None:
    purgatory, box = Purgatory(1), Box(1)
    for _ in range(200):
        future = purgatory.wait(["a"], LONG_MS, box.attempt, box.expire)
        assert isinstance(future, asyncio.Future)
        future.cancel()
        await asyncio.sleep(0)
    purgatory.touch("a")
    await asyncio.sleep(0)
    assert box.attempts == 0
    assert len(purgatory) == 0
    assert len(purgatory._deadlines) <= 65, "cancelled waits pile up in the heap"


async def test_close_completes_everything_and_refuses_to_wait() -> None:
    purgatory, box = Purgatory(10), Box(1)
    future = purgatory.wait(["a"], LONG_MS, box.attempt, box.expire)
    purgatory.close()
    assert isinstance(future, asyncio.Future)
    assert await future == "expired with 0"
    assert purgatory.wait(["a"], LONG_MS, box.attempt, box.expire) == "expired with 0"


async def test_an_attempt_that_fails_fails_its_own_waiter_only() -> None:
    purgatory, box = Purgatory(10), Box(0)

    def broken() -> str:
        raise RuntimeError("cannot read")

    failing = purgatory.wait(["a"], LONG_MS, broken, box.expire)
    other = purgatory.wait(["a"], LONG_MS, box.attempt, box.expire)
    purgatory.touch("a")
    assert isinstance(failing, asyncio.Future)
    assert isinstance(other, asyncio.Future)
    with pytest.raises(RuntimeError, match="cannot read"):
        await failing
    assert await other == "0 bytes"


async def test_what_all_fetches_watch_together_is_bounded() -> None:
    purgatory, box = Purgatory(10, watched_max=5), Box(100)
    first = purgatory.wait(["a", "b", "c"], LONG_MS, box.attempt, box.expire)
    assert purgatory.wait(["a", "b", "c"], LONG_MS, box.attempt, box.expire) == "expired with 0"
    assert purgatory.refused["Fetch"] == 1
    second = purgatory.wait(["a", "b"], LONG_MS, box.attempt, box.expire)
    assert isinstance(first, asyncio.Future) and isinstance(second, asyncio.Future)
    first.cancel()
    await asyncio.sleep(0)
    assert isinstance(purgatory.wait(["a", "b", "c"], LONG_MS, box.attempt, box.expire), asyncio.Future)
    write = Write("a", -1, lambda: False)
    assert isinstance(purgatory.wait_in_line([write], LONG_MS, "", box.expire), asyncio.Future)
