"""Heartbeat pace: how often the members of consumer groups send heartbeats.

A member learns of a new assignment with the response to its next heartbeat, so the interval between two of
them decides how long a rebalance takes. The response names that interval (KIP-848). A broker with few members
names a short one, and a longer one for each further member, so that all heartbeats together stay at a rate
that costs it little. The group service asks for it with each heartbeat.
"""

from collections.abc import Callable

from tierlog.base.clock import Clock

SHORTEST_MS = 1_000
"""A rebalance takes about two intervals: one until members give partitions up, one until others get them."""

COUNTED_EVERY_MS = 1_000
"""Counting visits all groups."""


class HeartbeatPace:
    def __init__(self, per_second: int, members: Callable[[], int], clock: Clock) -> None:
        """`per_second`: heartbeats of all members at most, unless their interval is the longest already; 0:
        always the longest. `members`: counts the members that this broker coordinates."""
        self._per_second = per_second
        self._members = members
        self._clock = clock
        self._counted_at_ms: int | None = None
        self._interval_ms = 0

    def interval_ms(self, longest_ms: int) -> int:
        """The interval for the members of a group whose setting is `longest_ms`."""
        if not self._per_second:
            return longest_ms
        now_ms = self._clock.monotonic_ms()
        if self._counted_at_ms is None or now_ms - self._counted_at_ms >= COUNTED_EVERY_MS:
            self._counted_at_ms = now_ms
            self._interval_ms = max(SHORTEST_MS, self._members() * 1_000 // self._per_second)
        return min(longest_ms, self._interval_ms)
