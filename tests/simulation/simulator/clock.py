"""Wall clocks that are wrong, and a monotonic one that is not (guarantee 23)."""

from simulator.loop import SimLoop

START_MS = 1_750_000_000_000


class SimClock:
    """`skew_ms` may be changed at any time: the wall clock jumps."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.skew_ms = 0

    def now_ms(self) -> int:
        return START_MS + self.monotonic_ms() + self.skew_ms

    def monotonic_ms(self) -> int:
        return int(self._loop.time() * 1000)
