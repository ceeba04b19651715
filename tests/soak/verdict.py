"""Checks of a soak run: values that must stay flat or bounded, and the presence of every kind of load.

Memory is checked by its trend over the second half of the run (growth.py). For other values the run has three
thirds, of which the first is warm-up. Descriptors and threads are checked by their slope after the warm-up,
latency and disk by their level in the last third compared with the second. Pure: works on samples. Called by
soak.py.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise

from growth import LIMIT_MIB_AN_HOUR, LONG_MINUTES, STEP_MIB, Trend, trend
from samples import Sample
from worker_process import CLOSED, HUNG

WARM_UP = 1 / 3

LATENCY_FACTOR = 1.5
LATENCY_SLACK_MS = 3.0
"""How far the median of the last third may be above that of the second. If a value grows in proportion to
time, the median of the last third is 5/3 times that of the second, so the growth is found. If a value does
not grow, the medians differ by less than the factor, even if other processes use the machine for a while. The
slack is one turn of a busy loop: for very small values a factor is only noise.
"""

LATENCY_LEVEL_MS = 250.0
"""Limit of the 99th percentile in each third: a broker that is slow from the start is flat, too."""

DISK_FACTOR = 1.25
DISK_SLACK_MIB = 8.0
"""One segment of each retained partition may be added or deleted between two samples."""

DISK_LEVEL_MIB = 256.0
"""Twice what load.py's settings add up to: retention and two segments of each partition, the cleaner's
copies, the cache of remote chunks, the metadata log, room reserved ahead.
"""

THREADS_SLACK = 1
SHORT_RUN_THREADS_SLACK = 2
"""How many more threads the last third may have at its peak than the second third. A thread pool starts a
thread whenever all of its threads are busy, so it fills slowly and then stays: a broker had 13 threads after
4 minutes and 16 from minute 77 on. A leak of one thread in a quarter of an hour adds 2 or 3 in a third of two
hours. In a run of less than LONG_MINUTES pools still fill: in its second minute that broker started 3.
"""

EXPECTED_HUNG_SHARE = 0.002
"""Expected share of clients that hang: confluent-kafka's `Consumer.close()` (worker_process.py) hung in 3 of
2,034 calls against tierlog, and in 2 of 900 against Kafka.
"""

MUST_GO_ON = ("produced", "read", "cleaned", "topics", "connections", CLOSED)
LONGEST_GAP_MINUTES = 0.5


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the verdict. `bad`: `measured` exceeds `allowed`, or falls below it for minimums."""

    what: str
    measured: float
    allowed: float
    bad: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class Slope:
    """Trend of one value after the warm-up. `growth`: slope times the measured time."""

    middle: float
    per_minute: float
    growth: float


@dataclass(frozen=True, slots=True)
class Verdict:
    checks: tuple[Check, ...]
    slopes: Mapping[str, Slope]
    trends: Mapping[str, Trend]

    @property
    def bad(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.bad)

    @property
    def headline(self) -> str:
        return "NOT FLAT: " + ", ".join(check.what for check in self.bad) if self.bad else "flat"

    def as_json(self) -> dict[str, object]:
        return {
            "verdict": self.headline,
            "checks": [asdict(check) for check in self.checks],
            "slopes": {name: asdict(slope) for name, slope in self.slopes.items()},
            "trends": {name: asdict(trend) for name, trend in self.trends.items()},
        }


def verdict_of(
    samples: Sequence[Sample],
    *,
    minutes_planned: float,
    broker_errors: int = 0,
    latency_level_ms: float = LATENCY_LEVEL_MS,
    ended_early: str = "",
) -> Verdict:
    """`ended_early`: why the run ended before `minutes_planned`; empty if it did not."""
    slopes = {
        name: slope([(s.minutes, float(getattr(s, name))) for s in after_warm_up(samples)])
        for name in ("rss_mib", "anon_mib", "descriptors")
    }
    trends = {
        name: trend([(s.minutes, float(getattr(s, name))) for s in samples])
        for name in ("rss_mib", "anon_mib")
    }
    checks = (
        *_memory("resident memory", trends["rss_mib"]),
        *_memory("anonymous memory", trends["anon_mib"]),
        _growth("descriptors", slopes["descriptors"], 0.05, 8),
        _threads(samples),
        *_latency(samples, "produce", "p99_ms", latency_level_ms),
        *_latency(samples, "end to end", "e2e_p99_ms", latency_level_ms),
        *_disk(samples),
        *_load(samples, minutes_planned),
        _at_most("runs that ended early", int(bool(ended_early)), 0, ended_early),
        _at_most("faults that clients met", _count(samples, "fault: "), 0),
        _hung(samples),
        _at_most("errors that the broker logged", broker_errors, 0),
    )
    return Verdict(checks, slopes, trends)


def after_warm_up(samples: Sequence[Sample]) -> Sequence[Sample]:
    return [*_third(samples, 1), *_third(samples, 2)]


def level(samples: Sequence[Sample], third: int, name: str) -> float:
    """The median of a value in a third of the run (0, 1, 2), over the intervals that measured it."""
    values = [getattr(sample, name) for sample in _third(samples, third)]
    return statistics.median([value for value in values if value is not None] or [0.0])


def peak(samples: Sequence[Sample], third: int, name: str) -> float:
    """The maximum of a quantity in a third of the run (0, 1, 2)."""
    return max((float(getattr(sample, name)) for sample in _third(samples, third)), default=0.0)


def slope(points: Sequence[tuple[float, float]]) -> Slope:
    """The median of the slopes between all pairs, which is robust against outliers."""
    pairs = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if b[0] > a[0]]
    per_minute = statistics.median(pairs) if pairs else 0.0
    middle = statistics.median(value for _, value in points) if points else 0.0
    length = points[-1][0] - points[0][0] if points else 0.0
    return Slope(middle, per_minute, per_minute * length)


# -- the kinds of checks --


def _memory(what: str, found: Trend) -> list[Check]:
    """A long run must show that memory is flat. A short run is bad if memory certainly grew by more than a
    step."""
    note = f"{found.per_hour:+.2f} ± {found.uncertainty:.2f} an hour"
    allowed = LIMIT_MIB_AN_HOUR * found.hours
    if 120 * found.hours < LONG_MINUTES:
        said = f"sure growth of {what}, second half, MiB"
        return [_at_most(said, found.sure_growth, allowed + STEP_MIB, note)]
    return [
        _at_most(f"growth of {what}, second half, MiB", found.growth, allowed, note),
        _at_most(f"uncertainty of that, {what}, MiB an hour", found.uncertainty, LIMIT_MIB_AN_HOUR),
    ]


def _growth(what: str, found: Slope, share: float, least: float) -> Check:
    """Growth up to a share of the middle value, or up to `least`, is normal for an allocator."""
    note = f"{found.middle:.1f} in the middle, {found.per_minute:+.3f} a minute"
    return _at_most(f"growth of {what}", found.growth, max(share * found.middle, least), note)


def _latency(samples: Sequence[Sample], what: str, name: str, most_ms: float) -> list[Check]:
    before, last = level(samples, 1, name), level(samples, 2, name)
    allowed = max(LATENCY_FACTOR * before, before + LATENCY_SLACK_MS)
    unmeasured = sum(getattr(sample, name) is None for sample in after_warm_up(samples))
    return [
        _at_most(f"{what} p99, last third, ms", last, allowed, f"{before:.2f} in the second"),
        _at_most(f"{what} p99, level, ms", max(before, last), most_ms),
        _at_most(f"{what} intervals without latency", unmeasured, 0),
    ]


def _disk(samples: Sequence[Sample]) -> list[Check]:
    first, second, last = (peak(samples, third, "local_disk_mib") for third in range(3))
    allowed = max(DISK_FACTOR * second, second + DISK_SLACK_MIB)
    return [
        _at_most("local disk, peak of the last third, MiB", last, allowed, f"{second:.1f} in the second"),
        _at_most("local disk, peak, MiB", max(first, second, last), DISK_LEVEL_MIB),
    ]


def _threads(samples: Sequence[Sample]) -> Check:
    second, last = (peak(samples, third, "threads") for third in (1, 2))
    is_long = bool(samples) and samples[-1].minutes >= LONG_MINUTES
    allowed = second + (THREADS_SLACK if is_long else SHORT_RUN_THREADS_SLACK)
    return _at_most("threads, peak of the last third", last, allowed, f"{second:.0f} in the second")


def _load(samples: Sequence[Sample], minutes_planned: float) -> list[Check]:
    """Every kind of load must appear in each minute, because an idle broker is flat, too."""
    passed = samples[-1].minutes if samples else 0.0
    times = [0.0, *(sample.minutes for sample in samples)]
    gap = max((b - a for a, b in pairwise(times)), default=passed)
    checks = [
        _at_least("minutes passed", passed, minutes_planned),
        _at_most("minutes without a sample", gap, LONGEST_GAP_MINUTES),
    ]
    minutes = max(int(passed), 1)
    for what in MUST_GO_ON:
        counts = [0] * minutes
        for sample in samples:  # samples after the last whole minute count in that minute
            counts[min(int(sample.minutes), minutes - 1)] += sample.counts.get(what, 0)
        idle = [str(minute + 1) for minute, count in enumerate(counts) if count <= 0]
        note = f"nothing in minute {', '.join(idle)}" if idle else ""
        checks.append(_at_least(f"{what}, least of a minute", min(counts), 1, note))
    return checks


def _hung(samples: Sequence[Sample]) -> Check:
    hung, closed = _count(samples, HUNG), _count(samples, CLOSED)
    expected = EXPECTED_HUNG_SHARE * (hung + closed)
    allowed = 1 + expected + 3 * expected**0.5  # a Poisson count is above that once in a thousand runs
    return _at_most("clients that hung", hung, allowed, f"{closed} closed")


def _count(samples: Sequence[Sample], kind: str) -> int:
    return sum(n for sample in samples for what, n in sample.counts.items() if what.startswith(kind))


def _third(samples: Sequence[Sample], number: int) -> Sequence[Sample]:
    """Thirds by time, not by number of samples: intervals may be late."""
    end = samples[-1].minutes if samples else 0.0
    return [sample for sample in samples if end and min(int(3 * sample.minutes / end), 2) == number]


def _at_most(what: str, measured: float, allowed: float, note: str = "") -> Check:
    return Check(what, measured, allowed, not measured <= allowed, note)  # a NaN is bad


def _at_least(what: str, measured: float, allowed: float, note: str = "") -> Check:
    return Check(what, measured, allowed, not measured >= allowed, note)
