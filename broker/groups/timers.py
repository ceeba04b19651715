"""Timers: many timers on one heap and one timer of the event loop, for sessions and join phases of groups.

To postpone a timer costs a dictionary write, not a heap operation: its heap entry stays, and is checked again
when it is due. After a pause of the process, many timers are due at once. Before they fire, the loop first
reads what clients sent during the pause, so that it does not expire their sessions. Called by the group
service.

A cancelled timer leaves its heap entry (two numbers) until it is due, which the client's session timeout
decides. At most half of the heap are such entries, so clients that join and leave all day cost no memory.
"""

import asyncio
import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import count

from tierlog.base.clock import Clock

STALL_MS = 500  # if the loop timer fires later than this, the process was paused
GRACE_MS = 200  # for reading the sockets after a pause
STALE_SLACK = 64  # entries without a timer that a small heap may have before they are removed

Action = Callable[[], None]


@dataclass(slots=True)
class _Timer:
    due_ms: int
    entry_ms: int  # time of its only valid heap entry, at or before due_ms
    number: int  # of that entry
    action: Action


class Timers:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timers: dict[Hashable, _Timer] = {}
        self._heap: list[tuple[int, int]] = []  # time and number of each entry
        self._keys: dict[int, Hashable] = {}  # of the valid entries, by number
        self._order = count()
        self._handle: asyncio.TimerHandle | None = None
        self._wakes_ms = 0

    def __len__(self) -> int:
        return len(self._timers)

    def set(self, key: Hashable, delay_ms: int, action: Action) -> None:
        """Set the timer of this key, replacing an earlier one."""
        due_ms = self._clock.monotonic_ms() + delay_ms
        known = self._timers.get(key)
        if known is not None and known.entry_ms <= due_ms:
            known.due_ms, known.action = due_ms, action
            return
        self.cancel(key)
        self._timers[key] = _Timer(due_ms, due_ms, self._push(due_ms, key), action)
        self._arm()

    def cancel(self, key: Hashable) -> None:
        if (timer := self._timers.pop(key, None)) is not None:
            del self._keys[timer.number]

    def cancel_where(self, matches: Callable[[Hashable], bool]) -> None:
        for key in [key for key in self._timers if matches(key)]:
            self.cancel(key)

    def close(self) -> None:
        self._timers.clear()
        self._keys.clear()
        self._heap.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _push(self, at_ms: int, key: Hashable) -> int:
        if len(self._heap) > 2 * len(self._timers) + STALE_SLACK:
            # At least half of the entries are removed, so the cost is amortized over the pushes since the
            # last time.
            self._heap = sorted(
                entry for entry in self._heap if entry[1] in self._keys
            )  # a sorted list is a heap
        number = next(self._order)
        self._keys[number] = key
        heapq.heappush(self._heap, (at_ms, number))
        return number

    def _arm(self, at_least_ms: int = 0) -> None:
        if not self._heap:
            return
        wakes_ms = max(self._heap[0][0], at_least_ms)
        if self._handle is not None:
            if self._wakes_ms <= wakes_ms:
                return
            self._handle.cancel()
        delay_ms = max(wakes_ms - self._clock.monotonic_ms(), 0)
        self._wakes_ms = wakes_ms
        self._handle = asyncio.get_running_loop().call_later(delay_ms / 1000, self._wake)

    def _wake(self) -> None:
        self._handle = None
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._wakes_ms > STALL_MS:
            self._arm(now_ms + GRACE_MS)
            return
        self._fire(now_ms)
        self._arm()

    def _fire(self, now_ms: int) -> None:
        while self._heap and self._heap[0][0] <= now_ms:
            _, number = heapq.heappop(self._heap)
            key = self._keys.pop(number, None)
            if key is None:
                continue  # cancelled, or replaced by an earlier entry
            timer = self._timers[key]
            if timer.due_ms > now_ms:
                timer.entry_ms, timer.number = timer.due_ms, self._push(timer.due_ms, key)
            else:
                del self._timers[key]
                timer.action()
