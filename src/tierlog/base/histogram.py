"""Histogram as in Prometheus: counts observations by size. The gateway exports it as a metric."""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate


class Histogram:
    """`buckets[i]` counts observations of at most `bounds[i]`; the last one counts larger ones."""

    __slots__ = ("bounds", "buckets", "count", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.count = 0
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.buckets[bisect_left(self.bounds, value)] += 1
        self.count += 1
        self.total += value

    def __add__(self, other: "Histogram") -> "Histogram":
        """The sum of two histograms with the same bounds."""
        both = Histogram(self.bounds)
        both.buckets = [mine + theirs for mine, theirs in zip(self.buckets, other.buckets, strict=True)]
        both.count = self.count + other.count
        both.total = self.total + other.total
        return both

    def cumulative(self) -> Iterator[tuple[float | None, int]]:
        """Each bound (None: no bound) and the number of observations up to it."""
        return zip([*self.bounds, None], accumulate(self.buckets), strict=True)
