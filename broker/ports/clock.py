"""Time as a port: drivers read a Clock and hand `now_ms` to the cores, which never read one."""

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970-01-01 UTC. May jump; decides only retention and timestamps."""

    def monotonic_ms(self) -> int:
        """Never goes back; for timeouts and leases."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
