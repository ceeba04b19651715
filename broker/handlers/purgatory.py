"""Purgatory: delayed operations. A Fetch waits for enough bytes, a Produce for the high watermark,
DeleteRecords for the low watermark. One timer, no tasks.

- An operation watches keys. `check_and_complete` of a key tries the operations that watch it, each once for
  all keys that change in one turn of the event loop: a Produce to many partitions wakes a Fetch once.
- An operation may watch thousands of keys, so it is tried with only those that have changed.
- A coalesced operation is tried one turn later, when the sockets may have brought more. While its keys change
  in each turn, it waits for up to COALESCED_TURNS more. A follower's Fetch costs as much for one batch as for
  ten.
- Writes wait in the order of `wait_in_order`. No write of a partition completes before an earlier one, so a
  check stops at the first that must wait.
- At its deadline an operation completes with the data that is available.

Called by handlers (`wait`) and the replica manager (`check_and_complete`). Runs on the event loop only.
"""

import asyncio
import heapq
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from functools import partial
from typing import Any

from tierlog.broker.handlers.context import Pending, Reply

TryComplete = Callable[[Collection[Hashable]], Reply | None]
"""(keys that have changed since the last try) -> the reply, or None if the operation must wait."""

COALESCED_TURNS = 3
"""Maximum number of additional turns that a coalesced operation waits while its keys change. In a busy loop a
turn is long, and this many bring most of what a producer has in flight. With no limit, a Fetch could wait for
as long as records arrive."""
FETCH, PRODUCE, DELETE_RECORDS = "Fetch", "Produce", "DeleteRecords"
DELAYED_OPERATIONS = (FETCH, PRODUCE, DELETE_RECORDS)
"""Kinds of delayed operations under Kafka's names; a label of metrics."""

WATCHED_MAX = 1_000_000
"""Maximum number of watched keys: a delayed Fetch takes about a hundred bytes of memory for each partition.
The limit does not apply to a Produce: its early response would be an error, and queued.max.request.bytes
bounds its memory."""


class DelayedOperation:
    __slots__ = (
        "changed", "expire", "future", "is_coalesced", "keys", "kind", "left", "response", "try_complete",
        "turns", "writes",
    )  # fmt: skip

    def __init__(self, kind: str, future: "asyncio.Future[Any]", expire: Callable[[], Reply]) -> None:
        self.kind = kind
        self.keys: tuple[Hashable, ...] = ()
        self.future = future
        self.expire = expire
        self.try_complete: TryComplete | None = None
        self.is_coalesced = False
        self.changed: dict[Hashable, None] = {}
        """Keys that changed since `try_complete` was last called."""
        self.turns = 0
        """Turns since the first of these changes."""
        self.writes: Sequence[Write] = ()
        self.left = 0
        """Number of incomplete writes; `response` is sent after the last."""
        self.response: Any = None


class Write:
    """An append that waits for its acknowledgement or failure, after the earlier writes of its key and lane.

    Writes that wait for different conditions (acks) have different lanes.
    """

    __slots__ = ("is_complete", "key", "lane", "operation")

    def __init__(self, key: Hashable, lane: int, is_complete: Callable[[], bool]) -> None:
        self.key = key
        self.lane = lane
        self.is_complete = is_complete
        self.operation: DelayedOperation | None = None


class Purgatory:
    """Delayed operations by key, and one heap of deadlines."""

    def __init__(self, limit: int, watched_max: int = WATCHED_MAX) -> None:
        self.waiting: Counter[str] = Counter()
        self.expired: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        """Number of operations that were completed at once because of a limit."""
        self._limit = limit
        self._watched_max = watched_max
        self._loop = asyncio.get_running_loop()
        self._watchers: dict[Hashable, dict[DelayedOperation, None]] = {}
        self._writes: dict[Hashable, dict[int, deque[Write]]] = {}  # by key and lane
        self._deadlines: list[tuple[float, int, DelayedOperation]] = []
        self._sequence = 0
        self._waiting = self._watched = 0
        self._changed: dict[Hashable, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._closed = False

    def __len__(self) -> int:
        return self._waiting

    def wait(
        self,
        keys: Iterable[Hashable],
        wait_ms: int,
        try_complete: TryComplete,
        expire: Callable[[], Reply],
        kind: str = FETCH,
        *,
        coalesced: bool = False,
    ) -> Reply | Pending:
        """Returns the response at once if a limit is reached or `wait_ms` is 0, else the pending work.

        The caller has already tried the operation: `try_complete` is first called when a key changes. The
        pending work is a future, which may be cancelled. `kind`: one of DELAYED_OPERATIONS.
        """
        watched = tuple(keys)
        if not self._may_wait(kind, wait_ms, len(watched)):
            return expire()
        operation = DelayedOperation(kind, self._loop.create_future(), expire)
        operation.keys, operation.try_complete, operation.is_coalesced = watched, try_complete, coalesced
        for key in watched:
            self._watchers.setdefault(key, {})[operation] = None
        self._watched += len(watched)
        return self._begin(operation, wait_ms)

    def wait_in_order(
        self, writes: Sequence[Write], wait_ms: int, response: Reply, expire: Callable[[], Reply]
    ) -> Reply | Pending:
        """As `wait`, for a Produce: returns `response` when all of its writes are complete."""
        if not self._may_wait(PRODUCE, wait_ms, 0):
            return expire()
        operation = DelayedOperation(PRODUCE, self._loop.create_future(), expire)
        operation.writes, operation.left, operation.response = writes, len(writes), response
        for write in writes:
            write.operation = operation
            lanes = self._writes.setdefault(write.key, {})
            queue = lanes.get(write.lane)
            if queue is None:
                queue = lanes[write.lane] = deque()
            queue.append(write)
        return self._begin(operation, wait_ms)

    def check_and_complete(self, key: Hashable) -> None:
        """The key has changed: try the operations that watch it in the loop's next turn."""
        if key in self._watchers or key in self._writes:
            if not self._changed:
                self._loop.call_soon(self._complete_changed)
            self._changed[key] = None

    def close(self) -> None:
        """Expire all operations; from now on none waits."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for _, _, operation in self._deadlines:
            _complete(operation, operation.expire)
        self._deadlines.clear()

    # -- waiting --

    def _may_wait(self, kind: str, wait_ms: int, count: int) -> bool:
        if wait_ms <= 0 or self._closed:
            return False
        if self._waiting >= self._limit or (count and self._watched + count > self._watched_max):
            self.refused[kind] += 1
            return False
        return True

    def _begin(self, operation: DelayedOperation, wait_ms: int) -> Pending:
        self._waiting += 1
        self.waiting[operation.kind] += 1
        operation.future.add_done_callback(partial(self._forget, operation))
        self._sequence += 1
        heapq.heappush(self._deadlines, (self._loop.time() + wait_ms / 1000, self._sequence, operation))
        self._arm()
        return Pending(operation.future)

    # -- completing --

    def _complete_changed(self) -> None:
        changed, self._changed = self._changed, {}
        immediate: dict[DelayedOperation, None] = {}
        coalesced: dict[DelayedOperation, None] = {}
        for key in changed:
            if key in self._writes:
                self._complete_writes(key)
            for operation in self._watchers.get(key, ()):
                operation.changed[key] = None
                (coalesced if operation.is_coalesced else immediate)[operation] = None
        for operation in immediate:
            _try(operation)
        if coalesced:
            self._loop.call_soon(self._complete_coalesced, coalesced)

    def _complete_coalesced(self, operations: dict[DelayedOperation, None]) -> None:
        """Try coalesced operations, except those whose keys changed again in this turn."""
        again = {operation for key in self._changed for operation in self._watchers.get(key, ())}
        for operation in operations:
            if operation in again and operation.turns < COALESCED_TURNS:
                operation.turns += 1
                continue
            operation.turns = 0
            _try(operation)

    def _complete_writes(self, key: Hashable) -> None:
        lanes = self._writes[key]
        for lane, queue in list(lanes.items()):
            while queue and self._is_done(queue[0]):
                queue.popleft()
            if not queue:
                del lanes[lane]
        if not lanes:
            del self._writes[key]

    def _is_done(self, write: Write) -> bool:
        """Whether the write is complete. The last write of an operation completes the operation."""
        operation = write.operation
        if operation is None or operation.future.done():
            return True
        try:
            if not write.is_complete():
                return False
        except Exception as failure:  # only this request fails
            operation.future.set_exception(failure)
            return True
        write.operation = None
        operation.left -= 1
        if not operation.left:
            operation.future.set_result(operation.response)
        return True

    # -- ending --

    def _forget(self, operation: DelayedOperation, _future: "asyncio.Future[Any]") -> None:
        self._waiting -= 1
        self.waiting[operation.kind] -= 1
        self._watched -= len(operation.keys)
        for key in operation.keys:
            watchers = self._watchers.get(key)
            if watchers is not None:
                watchers.pop(operation, None)
                if not watchers:
                    del self._watchers[key]
        if operation.left:  # it was cancelled or has expired
            for write in operation.writes:
                self._remove_write(write)
        # Completed operations stay in the heap until they are due, unless they outnumber the waiting ones.
        if len(self._deadlines) > 2 * self._waiting + 64:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].future.done()]
            heapq.heapify(self._deadlines)

    def _remove_write(self, write: Write) -> None:
        write.operation = None
        lanes = self._writes.get(write.key, {})
        queue = lanes.get(write.lane)
        if queue is not None and write in queue:
            was_first = queue[0] is write
            queue.remove(write)
            if queue:
                if was_first:  # the next write may be complete, and no other event may follow
                    self.check_and_complete(write.key)
            else:
                del lanes[write.lane]
                if not lanes:
                    del self._writes[write.key]

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
        # The timer may fire a clock tick early, but the operations that it was armed for are due.
        now = max(self._loop.time(), self._timer_at)
        while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][2].future.done()):
            _, _, operation = heapq.heappop(self._deadlines)
            self.expired[operation.kind] += not operation.future.done()
            _complete(operation, operation.expire)
        self._arm()


def _try(operation: DelayedOperation) -> None:
    changed, operation.changed = operation.changed, {}
    if operation.try_complete is not None:
        _complete(operation, partial(operation.try_complete, changed))


def _complete(operation: DelayedOperation, respond: Callable[[], Reply | None]) -> None:
    if operation.future.done():
        return
    try:
        result = respond()
    except Exception as failure:  # only this request fails
        operation.future.set_exception(failure)
        return
    if result is not None:
        operation.future.set_result(result)
