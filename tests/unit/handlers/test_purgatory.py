"""Delayed operations: completed by check_and_complete, together, once; expired at their deadline; bounded."""

import asyncio
from collections.abc import Collection, Hashable
from typing import Any

import pytest

from tierlog.broker.handlers.context import Pending
from tierlog.broker.handlers.purgatory import COALESCED_TURNS, Purgatory, Write

LONG_MS = 3_600_000


def future_of(answer: Any) -> "asyncio.Future[Any]":
    assert isinstance(answer, Pending) and isinstance(answer.work, asyncio.Future)
    return answer.work


class Box:
    """An operation's condition: it waits until `bytes` reaches `enough`."""

    def __init__(self, enough: int) -> None:
        self.bytes = 0
        self.enough = enough
        self.attempts = 0

    def try_complete(self, changed: Collection[Hashable]) -> str | None:
        self.attempts += 1
        return f"{self.bytes} bytes" if self.bytes >= self.enough else None

    def expire(self) -> str:
        return f"expired with {self.bytes}"


async def test_check_completes_an_operation_that_has_enough() -> None:
    purgatory, box = Purgatory(10), Box(2)
    future = future_of(purgatory.wait(["a", "b"], LONG_MS, box.try_complete, box.expire))
    box.bytes = 1
    purgatory.check_and_complete("a")
    await asyncio.sleep(0)
    assert not future.done()
    box.bytes = 2
    purgatory.check_and_complete("b")
    assert await future == "2 bytes"
    assert len(purgatory) == 0


async def test_checks_of_one_turn_try_once() -> None:
    purgatory, box = Purgatory(10), Box(1)
    purgatory.wait(["a", "b"], LONG_MS, box.try_complete, box.expire)
    for key in ("a", "b", "a", "c"):
        purgatory.check_and_complete(key)
    await asyncio.sleep(0)
    assert box.attempts == 1


async def test_coalesced_operation_gets_the_bytes_of_the_next_turn_too() -> None:
    purgatory, box = Purgatory(10), Box(1)
    immediate = future_of(purgatory.wait(["a"], LONG_MS, box.try_complete, box.expire))
    coalesced = future_of(purgatory.wait(["a"], LONG_MS, box.try_complete, box.expire, coalesced=True))

    def add_byte() -> None:
        box.bytes += 1
        purgatory.check_and_complete("a")

    add_byte()
    asyncio.get_running_loop().call_soon(add_byte)  # runs after the attempts that the first byte causes
    assert (await immediate, await coalesced) == ("1 bytes", "2 bytes")
    assert len(purgatory) == 0


async def test_coalesced_operation_waits_at_most_its_turns() -> None:
    purgatory, box = Purgatory(10), Box(1)
    coalesced = future_of(purgatory.wait(["a"], LONG_MS, box.try_complete, box.expire, coalesced=True))

    def add_bytes_until_done() -> None:
        box.bytes += 1
        purgatory.check_and_complete("a")
        if not coalesced.done():  # without COALESCED_TURNS this would never end
            asyncio.get_running_loop().call_soon(add_bytes_until_done)

    add_bytes_until_done()
    assert (await coalesced, box.attempts) == (f"{COALESCED_TURNS + 2} bytes", 1)

    box = Box(2)  # after an attempt without result, the next change is coalesced again
    coalesced = future_of(purgatory.wait(["a"], LONG_MS, box.try_complete, box.expire, coalesced=True))
    box.bytes = 1
    purgatory.check_and_complete("a")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (box.attempts, coalesced.done()) == (1, False)
    box.bytes = 2
    purgatory.check_and_complete("a")
    assert await coalesced == "2 bytes"


async def test_coalesced_operation_gets_the_keys_that_changed_since_its_last_try() -> None:
    purgatory, seen = Purgatory(10), list[set[Hashable]]()

    def try_complete(changed: Collection[Hashable]) -> str | None:
        seen.append(set(changed))
        return "enough" if len(seen) == 2 else None

    waiting = future_of(
        purgatory.wait(["a", "b", "c"], LONG_MS, try_complete, lambda: "expired", coalesced=True)
    )
    purgatory.check_and_complete("a")
    asyncio.get_running_loop().call_soon(purgatory.check_and_complete, "b")
    for _ in range(COALESCED_TURNS + 1):
        await asyncio.sleep(0)
    purgatory.check_and_complete("c")
    assert (await waiting, seen) == ("enough", [{"a", "b"}, {"c"}])


class OrderedWrites:
    """Writes to one partition that end at offsets 1, 2, 3, …, and a list of the checks of each."""

    def __init__(self, purgatory: Purgatory) -> None:
        self.purgatory = purgatory
        self.reached = 0
        self.checked: list[int] = []

    def write(self, end: int, lane: int = -1) -> Write:
        def is_complete() -> bool:
            self.checked.append(end)
            return end <= self.reached

        return Write("a", lane, is_complete)

    def wait(self, *ends: int, lane: int = -1, wait_ms: int = LONG_MS) -> "asyncio.Future[str]":
        writes = [self.write(end, lane) for end in ends]
        return future_of(
            self.purgatory.wait_in_order(writes, wait_ms, f"up to {ends[-1]}", lambda: "expired")
        )

    async def reach(self, end: int) -> None:
        self.reached = end
        self.purgatory.check_and_complete("a")
        await asyncio.sleep(0)


async def test_check_stops_at_the_first_write_that_must_wait() -> None:
    writes = OrderedWrites(Purgatory(10))
    first, second, third = writes.wait(1), writes.wait(2), writes.wait(3)
    await writes.reach(0)
    assert writes.checked == [1]
    await writes.reach(2)
    assert writes.checked == [1, 1, 2, 3]
    assert (await first, await second, third.done()) == ("up to 1", "up to 2", False)
    await writes.reach(3)
    assert await third == "up to 3"
    await asyncio.sleep(0)
    assert (len(writes.purgatory), writes.purgatory._writes) == (0, {})


async def test_produce_completes_after_all_of_its_batches() -> None:
    writes = OrderedWrites(Purgatory(10))
    both = writes.wait(1, 2)
    await writes.reach(1)
    assert not both.done()
    await writes.reach(2)
    assert await both == "up to 2"


async def test_lanes_of_a_key_complete_independently() -> None:
    writes = OrderedWrites(Purgatory(10))
    for_all, for_leader = writes.wait(2), writes.wait(1, lane=1)
    await writes.reach(1)
    assert (await for_leader, for_all.done()) == ("up to 1", False)


async def test_cancelled_and_expired_writes_do_not_block_later_ones() -> None:
    writes = OrderedWrites(Purgatory(10))
    cancelled, expired, last = writes.wait(5), writes.wait(4, wait_ms=1), writes.wait(3)
    cancelled.cancel()
    assert await expired == "expired"
    await writes.reach(3)
    assert await last == "up to 3"
    await asyncio.sleep(0)
    assert writes.purgatory._writes == {}


@pytest.mark.parametrize("how", ["cancelled", "expired"])
async def test_next_write_is_checked_at_once_when_the_first_leaves(how: str) -> None:
    writes = OrderedWrites(Purgatory(10))
    first, second = writes.wait(5, wait_ms=1 if how == "expired" else LONG_MS), writes.wait(3)
    await writes.reach(3)
    if how == "cancelled":
        assert not second.done()
        first.cancel()
    async with asyncio.timeout(20):
        assert await second == "up to 3"
    await asyncio.sleep(0)
    assert writes.purgatory._writes == {}


async def test_failing_write_fails_only_its_own_produce() -> None:
    writes = OrderedWrites(Purgatory(10))

    def broken() -> bool:
        raise RuntimeError("cannot tell")

    failing = future_of(
        writes.purgatory.wait_in_order([Write("a", -1, broken)], LONG_MS, "never", lambda: "expired")
    )
    behind = writes.wait(1)
    await writes.reach(1)
    with pytest.raises(RuntimeError, match="cannot tell"):
        await failing
    assert await behind == "up to 1"


async def test_operation_expires_with_its_partial_result() -> None:
    purgatory, box = Purgatory(10), Box(100)
    later = future_of(purgatory.wait(["a"], LONG_MS, box.try_complete, box.expire))
    soon = future_of(purgatory.wait(["a"], 1, box.try_complete, box.expire))
    box.bytes = 7
    assert await soon == "expired with 7"
    assert not later.done()
    assert len(purgatory) == 1


async def test_operation_is_answered_at_once_without_time_or_at_the_limit() -> None:
    purgatory, box = Purgatory(1), Box(1)
    assert purgatory.wait(["a"], 0, box.try_complete, box.expire) == "expired with 0"
    purgatory.wait(["a"], LONG_MS, box.try_complete, box.expire)
    assert purgatory.wait(["a"], LONG_MS, box.try_complete, box.expire) == "expired with 0"


async def test_cancelled_operation_frees_its_place() -> None:
    purgatory, box = Purgatory(1), Box(1)
    for _ in range(200):
        future = future_of(purgatory.wait(["a"], LONG_MS, box.try_complete, box.expire))
        future.cancel()
        await asyncio.sleep(0)
    purgatory.check_and_complete("a")
    await asyncio.sleep(0)
    assert box.attempts == 0
    assert len(purgatory) == 0
    assert len(purgatory._deadlines) <= 65, "cancelled waits pile up in the heap"


async def test_close_expires_all_operations() -> None:
    purgatory, box = Purgatory(10), Box(1)
    future = future_of(purgatory.wait(["a"], LONG_MS, box.try_complete, box.expire))
    purgatory.close()
    assert await future == "expired with 0"
    assert purgatory.wait(["a"], LONG_MS, box.try_complete, box.expire) == "expired with 0"


async def test_failing_try_fails_only_its_own_operation() -> None:
    purgatory, box = Purgatory(10), Box(0)

    def broken(changed: Collection[Hashable]) -> str:
        raise RuntimeError("cannot read")

    failing = future_of(purgatory.wait(["a"], LONG_MS, broken, box.expire))
    other = future_of(purgatory.wait(["a"], LONG_MS, box.try_complete, box.expire))
    purgatory.check_and_complete("a")
    with pytest.raises(RuntimeError, match="cannot read"):
        await failing
    assert await other == "0 bytes"


async def test_number_of_watched_keys_is_bounded() -> None:
    purgatory, box = Purgatory(10, watched_max=5), Box(100)
    first = future_of(purgatory.wait(["a", "b", "c"], LONG_MS, box.try_complete, box.expire))
    assert purgatory.wait(["a", "b", "c"], LONG_MS, box.try_complete, box.expire) == "expired with 0"
    assert purgatory.refused["Fetch"] == 1
    future_of(purgatory.wait(["a", "b"], LONG_MS, box.try_complete, box.expire))
    first.cancel()
    await asyncio.sleep(0)
    assert isinstance(purgatory.wait(["a", "b", "c"], LONG_MS, box.try_complete, box.expire), Pending)
    write = Write("a", -1, lambda: False)
    assert isinstance(purgatory.wait_in_order([write], LONG_MS, "", box.expire), Pending)
