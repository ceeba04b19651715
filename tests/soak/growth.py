"""How fast memory grows in the second half of a run, and how well the run can know that. Pure; for judge.py.

The first half is left out: caches, retention and the cleaner have to fill. Samples that follow each other are
not independent, for what a broker holds goes up and down with segments and cleanings. So the half is cut into
blocks of equal time, a line is laid through the medians of the blocks, and how far they lie from it says how
well its slope is known (the 95 % confidence interval of a linear regression).
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LIMIT_MIB_AN_HOUR = 1.0
LONG_MINUTES = 60.0
"""A run of this length can tell a slope from steps: whatever comes round does so often in its second half."""

STEP_MIB = 2.0
"""An allocator takes memory in steps, and one or two of them look like a slope in a short run."""

BLOCKS = 12
T_95 = 2.228
"""Of Student's distribution with BLOCKS - 2 degrees of freedom, both sides."""


@dataclass(frozen=True, slots=True)
class Trend:
    """`uncertainty`: the slope is within so much of `per_hour`, with a confidence of 95 %."""

    per_hour: float
    uncertainty: float
    hours: float

    @property
    def growth(self) -> float:
        """Over the second half."""
        return self.per_hour * self.hours

    @property
    def sure_growth(self) -> float:
        return max(self.per_hour - self.uncertainty, 0.0) * self.hours


def trend(points: Sequence[tuple[float, float]]) -> Trend:
    """`points`: minutes and MiB, of the whole run."""
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
