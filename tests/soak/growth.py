"""Memory growth in the second half of a run, with its confidence interval. Pure; called by verdict.py.

The first half is warm-up for caches, retention and the cleaner. Consecutive samples are not independent,
because memory rises and falls with segments and cleanings. Therefore the half is divided into blocks of
equal time, and a linear regression through their medians gives the slope and its 95 % confidence interval.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LIMIT_MIB_AN_HOUR = 1.0
LONG_MINUTES = 60.0
"""A run of this length can tell a slope from steps: periodic work happens often in its second half."""

STEP_MIB = 2.0
"""An allocator takes memory in steps. One or two of them look like a slope in a short run."""

BLOCKS = 12
T_95 = 2.228
"""Two-sided 95 % quantile of Student's distribution with BLOCKS - 2 degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Trend:
    """`uncertainty`: half the width of the 95 % confidence interval around `per_hour`."""

    per_hour: float
    uncertainty: float
    hours: float

    @property
    def growth(self) -> float:
        """Growth over the second half, in MiB."""
        return self.per_hour * self.hours

    @property
    def sure_growth(self) -> float:
        return max(self.per_hour - self.uncertainty, 0.0) * self.hours


def trend(points: Sequence[tuple[float, float]]) -> Trend:
    """`points`: (minutes, MiB) of the whole run."""
    end = points[-1][0] if points else 0.0
    blocks = [block for block in _blocks(points, end) if block]
    if len(blocks) < BLOCKS:
        return Trend(0.0, math.inf, end / 120)
    times = [statistics.fmean(minute for minute, _ in block) / 60 for block in blocks]
    values = [statistics.median(value for _, value in block) for block in blocks]
    slope, intercept = statistics.linear_regression(times, values)
    middle = statistics.fmean(times)
    spread = sum((time - middle) ** 2 for time in times)
    off = sum((value - intercept - slope * time) ** 2 for time, value in zip(times, values, strict=True))
    return Trend(slope, T_95 * math.sqrt(off / (BLOCKS - 2) / spread), end / 120)


def _blocks(points: Sequence[tuple[float, float]], end: float) -> list[list[tuple[float, float]]]:
    found: list[list[tuple[float, float]]] = [[] for _ in range(BLOCKS)]
    for minute, value in points:
        if minute > end / 2:
            found[min(int((2 * minute / end - 1) * BLOCKS), BLOCKS - 1)].append((minute, value))
    return found
