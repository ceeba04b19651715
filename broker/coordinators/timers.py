"""Timers for sessions and join phases of groups: any number of them on one heap, and one event loop timer.

Postponing a timer changes only its due time. Its heap entry stays, and when the entry is due, a new one with
the later time replaces it. After a pause of the process, many timers are due at once. The event loop then
reads the requests that clients sent during the pause before any timer fires, so that their sessions do not
expire. Created by the group service and used by its shards.

A cancelled timer leaves its heap entry behind until the entry is due, up to a session timeout later.
Such entries are removed when they are more than half of the heap, so clients that join and leave repeatedly
do not use more and more memory.
"""

import asyncio
import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import count

from tierlog.base.clock import Clock

STALL_MS = 500  # if the loop timer fires this late, the process was paused
GRACE_MS = 200  # time to read the sockets after a pause
STALE_SLACK = 64  # stale entries that are always tolerated, so that a small heap is not rebuilt often

Action = Callable[[], None]


@dataclass(slots=True)
class _Timer:
    due_ms: int
    heap_due_ms: int  # time of its only valid heap entry, at or before due_ms
    entry_number: int
    action: Action


class Timers:
    """At most one timer for each key. Times are monotonic milliseconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timers: dict[Hashable, _Timer] = {}
        self._heap: list[tuple[int, int]] = []  # time and number of each entry
        self._keys: dict[int, Hashable] = {}  # number of each valid entry -> key of its timer
        self._entry_numbers = count()
        self._handle: asyncio.TimerHandle | None = None  # the event loop timer
        self._wake_ms = 0  # time at which the event loop timer fires

    def __len__(self) -> int:
        return len(self._timers)

    def set(self, key: Hashable, delay_ms: int, action: Action) -> None:
        """Call `action` once after `delay_ms`. Replaces the current timer of this key, if there is one."""
        due_ms = self._clock.monotonic_ms() + delay_ms
        current = self._timers.get(key)
        if current is not None and current.heap_due_ms <= due_ms:
            current.due_ms, current.action = due_ms, action
            return
        self.cancel(key)
        self._timers[key] = _Timer(due_ms, due_ms, self._push(due_ms, key), action)
        self._arm()

    def cancel(self, key: Hashable) -> None:
        """Cancel the timer of this key, if there is one."""
        if (timer := self._timers.pop(key, None)) is not None:
            del self._keys[timer.entry_number]

    def cancel_where(self, matches: Callable[[Hashable], bool]) -> None:
        """Cancel the timers whose keys match."""
        for key in [key for key in self._timers if matches(key)]:
            self.cancel(key)

    def close(self) -> None:
        """Cancel all timers."""
        self._timers.clear()
        self._keys.clear()
        self._heap.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _push(self, at_ms: int, key: Hashable) -> int:
        """Add a heap entry and return its number. Stale entries are removed first if there are too many."""
        if len(self._heap) > 2 * len(self._timers) + STALE_SLACK:
            # About half of the entries are stale, so the cost per pushed entry is small. A sorted list is a
            # valid heap.
            self._heap = sorted(entry for entry in self._heap if entry[1] in self._keys)
        number = next(self._entry_numbers)
        self._keys[number] = key
        heapq.heappush(self._heap, (at_ms, number))
        return number

    def _arm(self, not_before_ms: int = 0) -> None:
        """Set the event loop timer for the first heap entry, unless it already fires early enough."""
        if not self._heap:
            return
        wake_ms = max(self._heap[0][0], not_before_ms)
        if self._handle is not None:
            if self._wake_ms <= wake_ms:
                return
            self._handle.cancel()
        delay_ms = max(wake_ms - self._clock.monotonic_ms(), 0)
        self._wake_ms = wake_ms
        self._handle = asyncio.get_running_loop().call_later(delay_ms / 1000, self._wake)

    def _wake(self) -> None:
        self._handle = None
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._wake_ms > STALL_MS:
            self._arm(now_ms + GRACE_MS)
            return
        self._fire(now_ms)
        self._arm()

    def _fire(self, now_ms: int) -> None:
        """Call the actions of due timers, and push new entries for postponed ones."""
        while self._heap and self._heap[0][0] <= now_ms:
            _, number = heapq.heappop(self._heap)
            key = self._keys.pop(number, None)
            if key is None:
                continue  # stale: its timer was cancelled, or has an earlier entry
            timer = self._timers[key]
            if timer.due_ms > now_ms:
                timer.heap_due_ms, timer.entry_number = timer.due_ms, self._push(timer.due_ms, key)
            else:
                del self._timers[key]
                timer.action()
