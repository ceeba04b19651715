"""Clocks of a simulated node: a wall clock that may be wrong, and a correct monotonic one (guarantee 23)."""

from simulator.loop import SimLoop

START_MS = 1_750_000_000_000  # wall-clock time at which every run starts


class SimClock:
    """Reads the virtual time of the loop. A fault changes `skew_ms`, which makes the wall clock jump."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.skew_ms = 0

    def now_ms(self) -> int:
        return START_MS + self.monotonic_ms() + self.skew_ms

    def monotonic_ms(self) -> int:
        return int(self._loop.time() * 1000)
