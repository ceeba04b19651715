"""Samples of a soak run: measurements of the broker's process, disk and metrics, one for each interval."""

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
    """Measurements of one interval, which ends `minutes` after the start of the run.

    `p50_ms`, `p99_ms`, `max_ms`: produce latency with acks=all, as librdkafka measures it. `e2e_…`:
    latency from produce() until a consumer gets the record. Both are None if nothing was measured.
    `counts`: events during the interval; `cleaned` is in bytes.
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
    """Resident memory in MiB (total and anonymous), threads and file descriptors, from /proc."""
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
    """Disk usage of the directory tree in MiB. A file that is deleted during the walk is not counted."""
    total = 0
    for where, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(where, name)).st_blocks * 512
    return total / MIB


class Metrics:
    """Reads the broker's /metrics and returns the difference from the previous read."""

    def __init__(self, admin_url: str) -> None:
        self._url = f"{admin_url}/metrics"
        self._lag: dict[float, float] = {}
        self._cleaned = 0.0

    def read(self) -> tuple[float, int]:
        """Return (loop lag in ms, bytes read by the log cleaner), both since the previous call.

        The lag is the 99th percentile, rounded up to the bound of its histogram bucket. Raises OSError.
        """
        with urllib.request.urlopen(self._url, timeout=30) as response:
            text = response.read().decode()
        cleaned = sum(map(float, CLEANED.findall(text)))
        added, self._cleaned = cleaned - self._cleaned, cleaned
        return self._lag_p99_ms(text), int(added)

    def _lag_p99_ms(self, text: str) -> float:
        buckets = {float(bound): float(count) for bound, count in LAG_BUCKET.findall(text)}
        added = {bound: count - self._lag.get(bound, 0) for bound, count in buckets.items()}
        self._lag = buckets
        total = max(added.values(), default=0)  # buckets are cumulative
        finite = [bound for bound in sorted(added) if bound != float("inf")]
        covering = [bound for bound in finite if added[bound] >= 0.99 * total]
        return 1000 * (covering[0] if covering else finite[-1] if finite else 0)
