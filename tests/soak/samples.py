"""Samples of a soak run: the broker's process, disk and metrics in each interval."""

import os
import re
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

MIB = 1 << 20
LAG_BUCKET = re.compile(r'tierlog_loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)')
CLEANED = re.compile(r"^tierlog_log_cleaner_read_bytes_total (\S+)", re.MULTILINE)


@dataclass(slots=True)
class Sample:
    """One interval. Produce latency: of acks=all, as librdkafka sees it; end to end: from produce() to the
    consumer's hands. None where nothing was measured. Counts are of this interval, `cleaned` in bytes.
    """

    minutes: float
    rss_mib: float
    anon_mib: float
    descriptors: int
    threads: int
    local_disk_mib: float
    store_mib: float
    loop_lag_p99_ms: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None
    e2e_p50_ms: float | None = None
    e2e_p99_ms: float | None = None
    e2e_max_ms: float | None = None
    counts: dict[str, int] = field(default_factory=dict)


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
    """Disk usage of the directory. Files may be deleted while they are counted."""
    total = 0
    for where, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(where, name)).st_blocks * 512
    return total / MIB


class Metrics:
    """The broker's own metrics since the last sample."""

    def __init__(self, admin_url: str) -> None:
        self._url = f"{admin_url}/metrics"
        self._lag: dict[float, float] = {}
        self._cleaned = 0.0

    def read(self) -> tuple[float, int]:
        """(99th percentile of the loop lag in ms: the upper bound of its bucket; bytes compacted)."""
        with urllib.request.urlopen(self._url, timeout=30) as answer:
            text = answer.read().decode()
        cleaned = sum(map(float, CLEANED.findall(text)))
        new, self._cleaned = cleaned - self._cleaned, cleaned
        return self._lag_p99_ms(text), int(new)

    def _lag_p99_ms(self, text: str) -> float:
        now = {float(bound): float(count) for bound, count in LAG_BUCKET.findall(text)}
        new = {bound: count - self._lag.get(bound, 0) for bound, count in now.items()}
        self._lag = now
        total = max(new.values(), default=0)
        finite = [bound for bound in sorted(new) if bound != float("inf")]
        reached = [bound for bound in finite if new[bound] >= 0.99 * total]
        return 1000 * (reached[0] if reached else finite[-1] if finite else 0)
