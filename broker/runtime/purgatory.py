"""Requests that wait: a fetch for enough bytes, a produce for the high watermark. One timer, no tasks.

A waiting operation is tried again when a key that it watches is touched, all touches of one turn of the event
loop together, so that a produce of many partitions wakes a fetch once. One that is `patient` is tried a turn
later, with what the sockets have brought by then, and, as long as each turn touches it anew, up to
PATIENT_TURNS later: a follower's fetch costs the same for one batch as for ten.
At its deadline an operation completes with what there is. Called by handlers (wait) and by the replica
manager (touch). Runs on the event loop only.
"""

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
PATIENT_TURNS = 3
"""In a busy loop a turn is long: what the sockets bring in so many is most of what a producer has in flight.
More of them, and the first record of all would wait for ever later ones.
"""
FETCH, PRODUCE = "Fetch", "Produce"
DELAYED_OPERATIONS = (FETCH, PRODUCE)
"""What waits here, under Kafka's names; a label of metrics."""

WATCHED_MAX = 1_000_000
"""Keys that may be watched when one more Fetch comes to wait: as long as it waits, it keeps what it asks of
each partition in memory, some hundred bytes. A Produce is not refused for it: to be answered early is an
error to it, and what it holds is bounded (queued.max.request.bytes).
"""


@dataclass(slots=True, eq=False)
class Waiting:
    """One operation: `attempt` answers None while there is not enough, `expire` answers in any case."""

    keys: tuple[Hashable, ...]
    attempt: Callable[[], Any]
    expire: Callable[[], Any]
    future: "asyncio.Future[Any]"
    kind: str
    patient: bool
    turns: int = 0
    """For which it has been left to wait since it was first touched."""


class Purgatory:
    """Waiting operations by key, and one heap of deadlines."""

    def __init__(self, limit: int, watched_max: int = WATCHED_MAX) -> None:
        self.waiting: Counter[str] = Counter()
        self.expired: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        """Answered at once, for want of room."""
        self._limit = limit
        self._watched_max = watched_max
        self._loop = asyncio.get_running_loop()
        self._watchers: dict[Hashable, dict[Waiting, None]] = {}
        self._deadlines: list[tuple[float, int, Waiting]] = []
        self._sequence = 0
        self._waiting = self._watched = 0
        self._touched: dict[Hashable, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._closed = False

    def __len__(self) -> int:
        return self._waiting

    def wait(
        self,
        keys: Iterable[Hashable],
        wait_ms: int,
        attempt: Callable[[], T | None],
        expire: Callable[[], T],
        kind: str = FETCH,
        *,
        patient: bool = False,
    ) -> "T | asyncio.Future[T]":
        """The answer, if there is no room or no time to wait; else a future of it.

        The caller has tried already: `attempt` is first called after a touch. Cancelling is allowed.
        """
        if wait_ms <= 0 or self._closed:
            return expire()
        watched = tuple(keys)
        too_many = kind == FETCH and self._watched + len(watched) > self._watched_max
        if too_many or self._waiting >= self._limit:
            self.refused[kind] += 1
            return expire()
        operation = Waiting(watched, attempt, expire, self._loop.create_future(), kind, patient)
        for key in operation.keys:
            self._watchers.setdefault(key, {})[operation] = None
        self._waiting += 1
        self._watched += len(watched)
        self.waiting[kind] += 1
        operation.future.add_done_callback(lambda _: self._forget(operation))
        self._sequence += 1
        heapq.heappush(self._deadlines, (self._loop.time() + wait_ms / 1000, self._sequence, operation))
        self._arm()
        return operation.future

    def touch(self, key: Hashable) -> None:
        """Something changed under the key; those who watch it are tried before the loop's next turn."""
        if key in self._watchers:
            if not self._touched:
                self._loop.call_soon(self._try_touched)
            self._touched[key] = None

    def close(self) -> None:
        """Completes everything with what there is; nothing waits from now on."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for _, _, operation in self._deadlines:
            _settle(operation, operation.expire)
        self._deadlines.clear()

    def _try_touched(self) -> None:
        touched, self._touched = self._touched, {}
        operations = {
            operation: None
            for key in touched
            for operation in self._watchers.get(key, ())
            if not operation.future.done()
        }
        patient: list[Waiting] = []
        for operation in operations:
            if operation.patient:
                patient.append(operation)
            else:
                _settle(operation, operation.attempt)
        if patient:
            self._loop.call_soon(self._try_patient, patient)

    def _try_patient(self, operations: list[Waiting]) -> None:
        """Those that this turn has touched again have their turn after it."""
        again = {operation for key in self._touched for operation in self._watchers.get(key, ())}
        for operation in operations:
            if operation in again and operation.turns < PATIENT_TURNS:
                operation.turns += 1
            else:
                operation.turns = 0
                _settle(operation, operation.attempt)

    def _forget(self, operation: Waiting) -> None:
        self._waiting -= 1
        self._watched -= len(operation.keys)
        self.waiting[operation.kind] -= 1
        for key in operation.keys:
            watchers = self._watchers.get(key)
            if watchers is not None:
                watchers.pop(operation, None)
                if not watchers:
                    del self._watchers[key]
        # Done ones are left in the heap until their time, unless they would outnumber the live ones.
        if len(self._deadlines) > 2 * self._waiting + 64:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].future.done()]
            heapq.heapify(self._deadlines)

    def _arm(self) -> None:
        if not self._deadlines:
            return
        soonest = self._deadlines[0][0]
        if self._timer is not None:
            if self._timer_at <= soonest:
                return
            self._timer.cancel()
        self._timer_at = soonest
        self._timer = self._loop.call_at(soonest, self._expire_due)

    def _expire_due(self) -> None:
        self._timer = None
        # The timer may fire a clock tick early: what was armed for is due.
        now = max(self._loop.time(), self._timer_at)
        while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][2].future.done()):
            _, _, operation = heapq.heappop(self._deadlines)
            self.expired[operation.kind] += not operation.future.done()
            _settle(operation, operation.expire)
        self._arm()


def _settle(operation: Waiting, answer: Callable[[], Any]) -> None:
    if operation.future.done():
        return
    try:
        result = answer()
    except Exception as failure:  # the waiter's request fails, not the loop
        operation.future.set_exception(failure)
        return
    if result is not None:
        operation.future.set_result(result)
