"""Event loop lag: measures how late a timer fires that is due every SAMPLE_EVERY_S.

All clients of a node share one event loop, so whatever blocks it delays all of them. A pause longer than the
interval is always seen, and measured from the time at which the timer was due. A shorter one is seen only if
the timer is due during it. Owned by the composition root, which starts it before anything else runs on the
loop.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter

import structlog

from tierlog.base.histogram import Histogram

SAMPLE_EVERY_S = 0.05
"""Twenty wake-ups a second cost an idle node a thousandth of a core."""

WARN_LAG_S = 0.1
"""Longer pauses, which clients notice, are logged."""

WARN_EVERY_S = 10.0
"""Minimum time between two log lines, so that logging does not add to an overload."""

LAG_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_log = structlog.get_logger("tierlog.loop")


class LoopLag:
    """`seconds` is the histogram. `clock` counts seconds and never goes back."""

    def __init__(
        self, clock: Callable[[], float] = perf_counter, sample_every_s: float = SAMPLE_EVERY_S
    ) -> None:
        self.seconds = Histogram(LAG_BOUNDS_S)
        self._clock = clock
        self._every_s = sample_every_s
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._worst = 0.0  # since the last warning
        self._quiet_until = 0.0

    def start(self) -> None:
        self._arm(self._clock())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, now: float) -> None:
        # not loop.time(): uvloop updates that once a turn, so the length of the turn would be missing
        self._due = now + self._every_s
        self._timer = asyncio.get_running_loop().call_later(self._every_s, self._sample)

    def _sample(self) -> None:
        now = self._clock()
        lag = max(now - self._due, 0.0)
        self.seconds.observe(lag)
        self._worst = max(self._worst, lag)
        if self._worst > WARN_LAG_S and now >= self._quiet_until:
            _log.warning("loop.blocked", worst_ms=round(self._worst * 1000))
            self._worst, self._quiet_until = 0.0, now + WARN_EVERY_S
        self._arm(now)
