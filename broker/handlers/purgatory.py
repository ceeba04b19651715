"""Requests that wait: a fetch for enough bytes, a produce for the high watermark, DeleteRecords for the low
watermark. One timer, no tasks.

A waiting operation is tried again when a key that it watches is touched, all touches of one turn of the event
loop together, so that a produce of many partitions wakes a fetch once. One that is `patient` is tried a turn
later, with what the sockets have brought by then, and, as long as each turn touches it anew, up to
PATIENT_TURNS later: a follower's fetch costs the same for one batch as for ten. It is told which keys were
touched, as it may watch thousands.
Writes wait in line, in the order of `wait_in_line`: of a partition none is acknowledged before those that
came to wait before it, so that a touch looks at the first of those that wait, and not at all of them.
At its deadline an operation completes with what there is. Called by handlers (wait) and by the replica
manager (touch). Runs on the event loop only.
"""

import asyncio
import heapq
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")
PATIENT_TURNS = 3
"""In a busy loop a turn is long: what the sockets bring in so many is most of what a producer has in flight.
More of them, and the first record of all would wait for ever later ones.
"""
FETCH, PRODUCE, DELETE_RECORDS = "Fetch", "Produce", "DeleteRecords"
DELAYED_OPERATIONS = (FETCH, PRODUCE, DELETE_RECORDS)
"""What waits here, under Kafka's names; a label of metrics."""

WATCHED_MAX = 1_000_000
"""Keys that may be watched when one more Fetch comes to wait: as long as it waits, it keeps what it asks of
each partition in memory, some hundred bytes. A Produce is not refused for it: to be answered early is an
error to it, and what it holds is bounded (queued.max.request.bytes).
"""


class Waiting:
    """One operation: `attempt` answers None while there is not enough, `expire` answers in any case."""

    __slots__ = (
        "answer", "attempt", "attempt_of", "expire", "future", "keys", "kind", "left", "touched", "turns",
        "writes",
    )  # fmt: skip

    def __init__(
        self,
        kind: str,
        keys: tuple[Hashable, ...],
        future: "asyncio.Future[Any]",
        expire: Callable[[], Any],
        attempt: Callable[[], Any] | None = None,
    ) -> None:
        self.kind = kind
        self.keys = keys
        self.future = future
        self.expire = expire
        self.attempt = attempt
        self.attempt_of: Callable[[Collection[Hashable]], Any] | None = None
        """Of one that is patient."""
        self.touched: dict[Hashable, None] = {}
        """Of its keys, since that was last called."""
        self.turns = 0
        """For which it has been left to wait since it was first touched."""
        self.writes: Sequence[Write] = ()
        self.left = 0
        """How many of them wait; then comes `answer`."""
        self.answer: Any = None


class Write:
    """What waits in line under a key: until those before it in its lane are settled, and it is, be it
    refused. A key has several lanes where writes wait for different things.
    """

    __slots__ = ("is_settled", "key", "lane", "operation")

    def __init__(self, key: Hashable, lane: int, is_settled: Callable[[], bool]) -> None:
        self.key = key
        self.lane = lane
        self.is_settled = is_settled
        self.operation: Waiting | None = None


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
        self._lines: dict[Hashable, dict[int, deque[Write]]] = {}  # by key and lane
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
    ) -> "T | asyncio.Future[T]":
        """The answer, if there is no room or no time to wait; else a future of it. `kind`: one of
        DELAYED_OPERATIONS.

        The caller has tried already: `attempt` is first called after a touch. Cancelling is allowed.
        """
        watched = tuple(keys)
        if not self._has_room(kind, wait_ms, len(watched)):
            return expire()
        return self._watch(Waiting(kind, watched, self._loop.create_future(), expire, attempt), wait_ms)

    def wait_patiently(
        self,
        keys: Iterable[Hashable],
        wait_ms: int,
        attempt: Callable[[Collection[Hashable]], T | None],
        expire: Callable[[], T],
    ) -> "T | asyncio.Future[T]":
        """As `wait`; `attempt` gets the keys that were touched since it was last called."""
        watched = tuple(keys)
        if not self._has_room(FETCH, wait_ms, len(watched)):
            return expire()
        operation = Waiting(FETCH, watched, self._loop.create_future(), expire)
        operation.attempt_of = attempt
        return self._watch(operation, wait_ms)

    def wait_in_line(
        self, writes: Sequence[Write], wait_ms: int, answer: T, expire: Callable[[], T]
    ) -> "T | asyncio.Future[T]":
        """Of a Produce: `answer` once all of its writes are settled, else as `wait`."""
        if not self._has_room(PRODUCE, wait_ms, 0):
            return expire()
        operation = Waiting(PRODUCE, (), self._loop.create_future(), expire)
        operation.writes, operation.left, operation.answer = writes, len(writes), answer
        for write in writes:
            write.operation = operation
            lanes = self._lines.setdefault(write.key, {})
            line = lanes.get(write.lane)
            if line is None:
                line = lanes[write.lane] = deque()
            line.append(write)
        return self._begin(operation, wait_ms)

    def touch(self, key: Hashable) -> None:
        """Something changed under the key; those who wait for it are tried before the loop's next turn."""
        if key in self._watchers or key in self._lines:
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

    # -- beginning --

    def _has_room(self, kind: str, wait_ms: int, count: int) -> bool:
        if wait_ms <= 0 or self._closed:
            return False
        if self._waiting >= self._limit or (count and self._watched + count > self._watched_max):
            self.refused[kind] += 1
            return False
        return True

    def _watch(self, operation: Waiting, wait_ms: int) -> "asyncio.Future[Any]":
        for key in operation.keys:
            self._watchers.setdefault(key, {})[operation] = None
        self._watched += len(operation.keys)
        return self._begin(operation, wait_ms)

    def _begin(self, operation: Waiting, wait_ms: int) -> "asyncio.Future[Any]":
        self._waiting += 1
        self.waiting[operation.kind] += 1
        operation.future.add_done_callback(partial(self._forget, operation))
        self._sequence += 1
        heapq.heappush(self._deadlines, (self._loop.time() + wait_ms / 1000, self._sequence, operation))
        self._arm()
        return operation.future

    # -- trying --

    def _try_touched(self) -> None:
        touched, self._touched = self._touched, {}
        eager: dict[Waiting, None] = {}
        patient: dict[Waiting, None] = {}
        for key in touched:
            if key in self._lines:
                self._serve_lines(key)
            for operation in self._watchers.get(key, ()):
                if operation.attempt_of is None:
                    eager[operation] = None
                else:
                    operation.touched[key] = None
                    patient[operation] = None
        for operation in eager:
            if operation.attempt is not None:
                _settle(operation, operation.attempt)
        if patient:
            self._loop.call_soon(self._try_patient, patient)

    def _try_patient(self, operations: dict[Waiting, None]) -> None:
        """Those that this turn has touched again have their turn after it."""
        again = {operation for key in self._touched for operation in self._watchers.get(key, ())}
        for operation in operations:
            if operation in again and operation.turns < PATIENT_TURNS:
                operation.turns += 1
                continue
            operation.turns = 0
            touched, operation.touched = operation.touched, {}
            if operation.attempt_of is not None:
                _settle(operation, partial(operation.attempt_of, touched))

    def _serve_lines(self, key: Hashable) -> None:
        lanes = self._lines[key]
        for lane, line in list(lanes.items()):
            while line and self._is_through(line[0]):
                line.popleft()
            if not line:
                del lanes[lane]
        if not lanes:
            del self._lines[key]

    def _is_through(self, write: Write) -> bool:
        """Whether it leaves its line; the last one of an operation completes that."""
        operation = write.operation
        if operation is None or operation.future.done():
            return True
        try:
            if not write.is_settled():
                return False
        except Exception as failure:  # the waiter's request fails, not the loop
            operation.future.set_exception(failure)
            return True
        write.operation = None
        operation.left -= 1
        if not operation.left:
            operation.future.set_result(operation.answer)
        return True

    # -- ending --

    def _forget(self, operation: Waiting, _future: "asyncio.Future[Any]") -> None:
        self._waiting -= 1
        self.waiting[operation.kind] -= 1
        self._watched -= len(operation.keys)
        for key in operation.keys:
            watchers = self._watchers.get(key)
            if watchers is not None:
                watchers.pop(operation, None)
                if not watchers:
                    del self._watchers[key]
        if operation.left:  # it was cancelled, or its time is up
            for write in operation.writes:
                self._leave_line(write)
        # Done ones are left in the heap until their time, unless they would outnumber the live ones.
        if len(self._deadlines) > 2 * self._waiting + 64:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].future.done()]
            heapq.heapify(self._deadlines)

    def _leave_line(self, write: Write) -> None:
        write.operation = None
        lanes = self._lines.get(write.key, {})
        line = lanes.get(write.lane)
        if line is not None and write in line:
            was_first = line[0] is write
            line.remove(write)
            if line:
                if was_first:
                    self.touch(write.key)  # the next one may be settled, and nothing else may happen here
            else:
                del lanes[write.lane]
                if not lanes:
                    del self._lines[write.key]

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
