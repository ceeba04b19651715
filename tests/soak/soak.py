"""`make soak`: one broker process under mixed load; do memory, descriptors and latency stay flat?

    .venv/bin/python tests/soak/soak.py --minutes 10 --picture docs/img/soak.png --json build/soak.json

Exit code 1 if memory, descriptors or threads grow after the warm-up, if the broker ends, or if it logs a
failure. docs/howto/soak.md says how to read it. Linux only (/proc).
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from samples import LoopLag, Sample, Slope, as_json, disk_mib, draw, read_process, slopes, table

from tierlog.cli.process import TierlogBroker

LOAD = Path(__file__).parent / "load.py"
SETTINGS = {
    # What takes hours by default comes round within the run, so that a steady state can be reached.
    "log.retention.check.interval.ms": 2_000,
    "log.segment.delete.delay.ms": 2_000,
    "log.cleaner.backoff.ms": 1_000,
    "log.cleaner.delete.retention.ms": 10_000,
    "log.flush.offset.checkpoint.interval.ms": 5_000,
    "offsets.topic.num.partitions": 4,
    "offsets.topic.segment.bytes": 1 << 20,
    "producer.id.expiration.ms": 30_000,
    "remote.log.manager.task.interval.ms": 2_000,
    "remote.log.delete.grace.ms": 5_000,
    "remote.cache.bytes": 16 << 20,
    "group.initial.rebalance.delay.ms": 100,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--picture", type=Path, default=Path("build/soak.png"))
    parser.add_argument("--json", type=Path, help="also write all samples there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tierlog-soak-") as directory:
        broker = TierlogBroker(Path(directory), SETTINGS)
        with broker:
            samples, faults = run(broker, options.minutes)
            log = broker.log_tail(1 << 30)
    judged = slopes(samples)
    draw(options.picture, samples, judged)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(as_json(samples, judged, faults)))
    return report(samples, judged, faults, log)


def run(broker: TierlogBroker, minutes: float) -> tuple[list[Sample], dict[str, str]]:
    """A sample for each line of the load's process."""
    samples: list[Sample] = []
    lag = LoopLag(broker.admin_url)
    command = [sys.executable, str(LOAD), broker.bootstrap]
    begin = time.monotonic()
    faults: dict[str, str] = {}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as load:
        if load.stdout is None or load.stdin is None:
            raise OSError("the load has no pipes")
        try:
            for line in load.stdout:
                told = json.loads(line)
                faults = told.pop("faults")
                passed = (time.monotonic() - begin) / 60
                samples.append(
                    Sample(
                        minutes=passed,
                        disk_mib=disk_mib(broker.directory),
                        loop_lag_p99_ms=lag.p99_ms(),
                        **read_process(broker.pid),
                        **told,
                    )
                )
                print(f"\r{passed:5.1f} of {minutes:g} minutes", end="", file=sys.stderr, flush=True)
                if passed >= minutes:
                    break
        finally:
            load.kill()
    print(file=sys.stderr)
    return samples, faults


def report(samples: list[Sample], judged: list[Slope], faults: dict[str, str], log: str) -> int:
    print(table(samples))
    counts = sum((Counter(sample.counts) for sample in samples), Counter())
    print("\n" + ", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
    for kind, text in sorted(faults.items()):
        print(f"first of {kind}: {text}")
    print(f"\n{'after the warm-up':<24} {'middle':>8} {'a minute':>9} {'growth':>8} {'allowed':>8}")
    for slope in judged:
        verdict = "GROWS" if slope.grows else "flat"
        print(
            f"{slope.what:<24} {slope.middle:8.1f} {slope.per_minute:+9.3f} {slope.growth:+8.1f} "
            f"{slope.allowed:8.1f}  {verdict}"
        )
    failures = [line for line in log.splitlines() if "error" in line.split(" event=")[0]]
    for line in failures[:10]:
        print("the broker logged:", line)
    bad = bool(failures) or any(slope.grows for slope in judged)
    print("\nverdict:", "NOT FLAT" if bad else "flat")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
