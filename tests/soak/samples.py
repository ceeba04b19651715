"""What a soak measures of a broker, how it judges it, and its table and picture."""

import os
import re
import statistics
import urllib.request
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path

MIB = 1 << 20
WARM_UP = 0.35
"""Share of the run before the slopes count: caches, retention and the first cleaning have to fill first."""

LAG_BUCKET = re.compile(r'tierlog_loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)')


@dataclass(slots=True)
class Sample:
    """One interval. Bytes in MiB; latency is produce with acks=all as librdkafka sees it."""

    minutes: float
    rss_mib: float
    anon_mib: float
    descriptors: int
    threads: int
    disk_mib: float
    loop_lag_p99_ms: float
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Slope:
    """Of one quantity after the warm-up. `growth`: what the slope makes of the measured part of the run."""

    what: str
    middle: float
    per_minute: float
    growth: float
    allowed: float

    @property
    def grows(self) -> bool:
        return self.growth > self.allowed


def read_process(pid: int) -> dict[str, float]:
    """Resident memory, descriptors and threads, from /proc."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    return {
        "rss_mib": int(status["VmRSS"].split()[0]) / 1024,
        "anon_mib": int(status["RssAnon"].split()[0]) / 1024,
        "threads": int(status["Threads"]),
        "descriptors": sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
    }


def disk_mib(directory: Path) -> float:
    """What the directory takes on the disk; files may go while they are counted."""
    total = 0
    for where, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(where, name)).st_blocks * 512
    return total / MIB


class LoopLag:
    """The 99th percentile of each interval: the upper bound of its bucket in the broker's histogram."""

    def __init__(self, admin_url: str) -> None:
        self._url = f"{admin_url}/metrics"
        self._before: dict[float, float] = {}

    def p99_ms(self) -> float:
        with urllib.request.urlopen(self._url, timeout=30) as answer:
            text = answer.read().decode()
        now = {float(bound): float(count) for bound, count in LAG_BUCKET.findall(text)}
        new = {bound: count - self._before.get(bound, 0) for bound, count in now.items()}
        self._before = now
        total = max(new.values(), default=0)
        finite = [bound for bound in sorted(new) if bound != float("inf")]
        reached = [bound for bound in finite if new[bound] >= 0.99 * total]
        return 1000 * (reached[0] if reached else finite[-1] if finite else 0)


def slopes(samples: list[Sample]) -> list[Slope]:
    """Memory and descriptors; the median of the slopes between all pairs, which outliers do not move."""
    measured = samples[int(len(samples) * WARM_UP) :]
    return [
        _slope("resident memory, MiB", [(s.minutes, s.rss_mib) for s in measured], 0.05, 6),
        _slope("anonymous memory, MiB", [(s.minutes, s.anon_mib) for s in measured], 0.05, 6),
        _slope("descriptors", [(s.minutes, float(s.descriptors)) for s in measured], 0.05, 8),
        _slope("threads", [(s.minutes, float(s.threads)) for s in measured], 0.1, 3),
    ]


def _slope(what: str, points: list[tuple[float, float]], share: float, least: float) -> Slope:
    """Growth up to a share of the middle value, or up to `least`, is within what an allocator does."""
    pairs = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if b[0] > a[0]]
    per_minute = statistics.median(pairs) if pairs else 0.0
    middle = statistics.median(value for _, value in points) if points else 0.0
    length = points[-1][0] - points[0][0] if points else 0.0
    return Slope(what, middle, per_minute, per_minute * length, max(share * middle, least))


def table(samples: list[Sample], rows: int = 20) -> str:
    """A line for each of about `rows` stretches of the run."""
    lines = [
        f"{'minute':>6} {'RSS':>7} {'anon':>7} {'fds':>5} {'thr':>4} {'disk':>7} {'lag p99':>8} "
        f"{'p50':>7} {'p99':>8} {'max':>8} {'produced/s':>10} {'read/s':>8}"
    ]
    step = max(len(samples) // rows, 1)
    for at in range(0, len(samples), step):
        part = samples[at : at + step]
        last = part[-1]
        begin = samples[at - 1].minutes if at else 0.0
        seconds = max((last.minutes - begin) * 60, 1)
        produced, read = (sum(s.counts.get(what, 0) for s in part) / seconds for what in ("produced", "read"))
        lines.append(
            f"{last.minutes:6.1f} {last.rss_mib:7.1f} {last.anon_mib:7.1f} {last.descriptors:5d} "
            f"{last.threads:4d} {last.disk_mib:7.1f} {max(s.loop_lag_p99_ms for s in part):8.1f} "
            f"{statistics.median(s.p50_ms for s in part):7.2f} {max(s.p99_ms for s in part):8.2f} "
            f"{max(s.max_ms for s in part):8.1f} {produced:10.0f} {read:8.0f}"
        )
    return "\n".join(lines)


def as_json(samples: list[Sample], judged: list[Slope], faults: dict[str, str]) -> dict[str, object]:
    return {
        "samples": [asdict(sample) for sample in samples],
        "slopes": [{**asdict(slope), "grows": slope.grows} for slope in judged],
        "faults": faults,
    }


def draw(path: Path, samples: list[Sample], judged: list[Slope]) -> None:
    """A PNG: four panels over the same minutes; the warm-up is shaded, slopes are drawn over the rest."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    minutes = [sample.minutes for sample in samples]
    begin = samples[int(len(samples) * WARM_UP)].minutes
    figure, panels = pyplot.subplots(4, 1, figsize=(10, 10), sharex=True, dpi=130)
    by_name = {slope.what: slope for slope in judged}

    def line(panel, name, label, color, slope=None):  # type: ignore[no-untyped-def]
        panel.plot(minutes, [getattr(s, name) for s in samples], color=color, linewidth=1.3, label=label)
        if slope is not None:
            half = (minutes[-1] - begin) / 2 * slope.per_minute
            ends = (slope.middle - half, slope.middle + half)
            panel.plot((begin, minutes[-1]), ends, color=color, linestyle="--", linewidth=1)

    line(panels[0], "rss_mib", "resident", "#2a6f97", by_name["resident memory, MiB"])
    line(panels[0], "anon_mib", "anonymous", "#89c2d9", by_name["anonymous memory, MiB"])
    panels[0].set_ylabel("memory, MiB")
    line(panels[1], "descriptors", "descriptors", "#f4a259", by_name["descriptors"])
    line(panels[1], "threads", "threads", "#8c5e58", by_name["threads"])
    panels[1].set_ylabel("count")
    line(panels[2], "p50_ms", "produce p50", "#5b8e7d")
    line(panels[2], "p99_ms", "produce p99", "#bc4b51")
    line(panels[2], "loop_lag_p99_ms", "loop lag p99 (bucket)", "#8d8d8d")
    panels[2].set_yscale("log")
    panels[2].set_ylabel("milliseconds")
    line(panels[3], "disk_mib", "on disk, object store included", "#6c5b7b")
    panels[3].set_ylabel("MiB")
    panels[3].set_xlabel("minutes")
    for panel in panels:
        panel.axvspan(0, begin, color="#eeeeee")
        panel.set_ylim(bottom=None if panel is panels[2] else 0)
        panel.legend(loc="upper left", fontsize=8, frameon=False)
        panel.grid(alpha=0.25)
    verdict = "grows" if any(slope.grows for slope in judged) else "flat"
    figure.suptitle(f"tierlog under mixed load: {verdict} after the warm-up (shaded)")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
