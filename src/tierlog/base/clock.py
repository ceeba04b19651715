"""Time as a port: drivers read a Clock and hand `now_ms` to the cores, which never read one."""

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970-01-01 UTC. May jump; decides only retention and timestamps."""

    def monotonic_ms(self) -> int:
        """Never goes back, and goes on while the machine is suspended; for timeouts and leases."""


_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux stops CLOCK_MONOTONIC while the machine is suspended: a lease would outlive the broker's session.
Other systems have no CLOCK_BOOTTIME, and their CLOCK_MONOTONIC does not stop."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.clock_gettime_ns(_ELAPSED) // 1_000_000
