"""Clock: drivers read it and pass `now_ms` to the pure cores, which never read a clock."""

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970-01-01 UTC. It may jump; only for retention and timestamps."""

    def monotonic_ms(self) -> int:
        """Never goes back, and continues while the machine is suspended; for timeouts and leases."""


_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""On Linux CLOCK_MONOTONIC stops while the machine is suspended, so a lease would outlive the broker's
session. Other systems have no CLOCK_BOOTTIME, but their CLOCK_MONOTONIC does not stop."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.clock_gettime_ns(_ELAPSED) // 1_000_000
