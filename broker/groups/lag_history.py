"""Lag history: how far each group was behind over the last hour, in memory.

A sample is taken when the lag is refreshed, which happens when metrics or the web page are requested, and at
most once in SAMPLE_INTERVAL_MS. Bounded by SAMPLES and GROUPS_MAX: about a megabyte. It is lost when the
broker stops, and begins again where the group moves to another coordinator. Owned by the group lag.
"""

from array import array
from collections.abc import Mapping

SAMPLE_INTERVAL_MS = 30_000
SAMPLES = 120
GROUPS_MAX = 1_000

UNKNOWN = -1


class LagHistory:
    def __init__(self) -> None:
        self._times_ms: array[int] = array("q")
        self._lags: dict[str, array[int]] = {}

    def is_due(self, now_ms: int) -> bool:
        return not self._times_ms or now_ms >= self._times_ms[-1] + SAMPLE_INTERVAL_MS

    def add(self, now_ms: int, lags: Mapping[str, int]) -> None:
        """Add a sample: the sum of lags of each group. A group that is missing has none at this time."""
        if self._times_ms and now_ms <= self._times_ms[-1]:  # the clock was set back
            self._times_ms, self._lags = array("q"), {}
        before = len(self._times_ms)
        self._times_ms.append(now_ms)
        for group, series in self._lags.items():
            series.append(lags.get(group, UNKNOWN))
        for group, lag in lags.items():
            if group not in self._lags and len(self._lags) < GROUPS_MAX:
                self._lags[group] = array("q", [UNKNOWN]) * before + array("q", [lag])
        if len(self._times_ms) > SAMPLES:
            del self._times_ms[0]
            for series in self._lags.values():
                del series[0]
        gone = [group for group, series in self._lags.items() if max(series) == UNKNOWN]
        for group in gone:
            del self._lags[group]

    def of(self, group: str) -> list[tuple[int, int | None]]:
        """Wall clock time and lag of each sample, the oldest first. Samples before the first lag are left
        out."""
        series = self._lags.get(group)
        if series is None:
            return []
        known = [
            (at, None if lag == UNKNOWN else lag) for at, lag in zip(self._times_ms, series, strict=True)
        ]
        first = next((index for index, (_, lag) in enumerate(known) if lag is not None), len(known))
        return known[first:]

    def oldest(self, group: str) -> tuple[int, int] | None:
        """Age in milliseconds, as of the newest sample, and lag of the group's oldest sample."""
        for at, lag in zip(self._times_ms, self._lags.get(group, ()), strict=False):
            if lag != UNKNOWN:
                return self._times_ms[-1] - at, lag
        return None
