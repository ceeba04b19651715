"""`make soak`: one broker process under mixed load; do memory, descriptors, latency and disk stay flat?

    .venv/bin/python tests/soak/soak.py --minutes 10 --picture docs/img/soak.png --json build/soak.json

Exit code 1 if a check of judge.py is not passed. docs/howto/soak.md says how to read it. Linux only (/proc).
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from judge import LATENCY_LEVEL_MS, Verdict, judge
from samples import Metrics, Sample, disk_mib, read_process
from telling import checks, draw, table

from tierlog.cli.process import TierlogBroker

LOAD = Path(__file__).parent / "load.py"
PATIENCE_S = 120
"""After the minutes asked for: a load that tells nothing any more is ended, and the verdict says so."""

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
    parser.add_argument(
        "--latency-level-ms", type=float, default=LATENCY_LEVEL_MS, help="p99 that is too slow, flat or not"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tierlog-soak-") as directory:
        broker = TierlogBroker(Path(directory), SETTINGS)
        with broker:
            samples, faults = run(broker, options.minutes)
            log = broker.log_tail(1 << 30)
    failures = [line for line in log.splitlines() if "error" in line.split(" event=")[0]]
    verdict = judge(
        samples,
        minutes_asked=options.minutes,
        broker_errors=len(failures),
        latency_level_ms=options.latency_level_ms,
    )
    if options.json:
        told = {
            "minutes_asked": options.minutes,
            **verdict.as_json(),
            "faults": faults,
            "broker_errors": failures,
            "samples": [asdict(sample) for sample in samples],
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(told, indent=1))
    if samples:
        draw(options.picture, samples, verdict)
    return report(samples, verdict, faults, failures)


def run(broker: TierlogBroker, minutes: float) -> tuple[list[Sample], dict[str, str]]:
    """A sample for each line of the load's process; the first fault of each kind."""
    samples: list[Sample] = []
    metrics = Metrics(broker.admin_url)
    command = [sys.executable, str(LOAD), broker.bootstrap]
    begin = time.monotonic()
    faults: dict[str, str] = {}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as load:
        if load.stdout is None or load.stdin is None:
            raise OSError("the load has no pipes")
        watchdog = threading.Timer(minutes * 60 + PATIENCE_S, load.kill)
        watchdog.start()
        try:
            for line in load.stdout:
                told = json.loads(line)
                faults = told.pop("faults")
                passed = (time.monotonic() - begin) / 60
                loop_lag_p99_ms, told["counts"]["cleaned"] = metrics.read()
                samples.append(
                    Sample(
                        minutes=passed,
                        local_disk_mib=disk_mib(broker.data_dir),
                        store_mib=disk_mib(broker.object_dir),
                        loop_lag_p99_ms=loop_lag_p99_ms,
                        **read_process(broker.pid),
                        **told,
                    )
                )
                print(f"\r{passed:5.1f} of {minutes:g} minutes", end="", file=sys.stderr, flush=True)
                if passed >= minutes:
                    break
        finally:
            watchdog.cancel()
            load.kill()
    print(file=sys.stderr)
    return samples, faults


def report(samples: list[Sample], verdict: Verdict, faults: dict[str, str], failures: list[str]) -> int:
    print(table(samples))
    counts = sum((Counter(sample.counts) for sample in samples), Counter())
    print("\n" + ", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
    for kind, text in sorted(faults.items()):
        print(f"first of {kind}: {text}")
    for line in failures[:10]:
        print("the broker logged:", line)
    print("\n" + checks(verdict))
    print("\nverdict:", verdict.headline)
    return int(bool(verdict.bad))


if __name__ == "__main__":
    sys.exit(main())
