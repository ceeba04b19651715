"""`make soak`: runs a broker under mixed load; memory, descriptors, latency and disk must stay flat.

    .venv/bin/python tests/soak/soak.py --minutes 10 --picture docs/img/soak.png --json build/soak.json

Fails (exit code 1) if a check of verdict.py fails, or if the broker or the load ended early. The samples are
then checked and drawn as well. docs/howto/soak.md explains the output. Linux only (/proc).
"""

import argparse
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from samples import Metrics, Sample, disk_mib, read_process
from soak_report import checks, draw, table
from verdict import LATENCY_LEVEL_MS, Verdict, verdict_of
from worker_process import Silent, lines

from tierlog.cli.process import BrokerFailed, TierlogBroker

LOAD = Path(__file__).parent / "load.py"
TIMEOUT_S = 60
"""A load without a report for this long hangs."""

DYING_S = 5
"""A killed process refuses connections shortly before it has ended."""

SETTINGS = {
    # Periodic work that takes hours by default happens within the run, to reach a steady state.
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
    "remote.cache.memory.bytes": 32 << 20,
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
            found = run(broker, options.minutes)
            log = broker.log_tail(1 << 30)
    failures = [line for line in log.splitlines() if "error" in line.split(" event=")[0]]
    verdict = verdict_of(
        found.samples,
        minutes_planned=options.minutes,
        broker_errors=len(failures),
        latency_level_ms=options.latency_level_ms,
        ended_early=found.ended_early,
    )
    if options.json:
        reported = {
            "minutes_asked": options.minutes,
            **verdict.as_json(),
            "faults": found.faults,
            "broker_errors": failures,
            "samples": [asdict(sample) for sample in found.samples],
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(reported, indent=1))
    if found.samples:
        draw(options.picture, found.samples, verdict)
    return report(found, verdict, failures)


@dataclass(slots=True)
class Run:
    """One sample per line of the load process, and the first error of each kind."""

    samples: list[Sample] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)
    ended_early: str = ""


def run(broker: TierlogBroker, minutes: float, load: Sequence[str] = (), timeout_s: float = TIMEOUT_S) -> Run:
    """`load`: a command other than load.py, for tests. Failures of broker and load do not raise."""
    found = Run()
    command = load or (sys.executable, str(LOAD), broker.bootstrap)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            if not _listen(process, broker, minutes, found, timeout_s):
                found.ended_early = f"the load ended with exit code {process.wait()}"
        except Silent as failure:
            found.ended_early = f"the load hangs: {failure}"
        except (OSError, BrokerFailed, http.client.HTTPException) as failure:
            found.ended_early = _what_happened(broker, failure)
        except KeyboardInterrupt:
            found.ended_early = "interrupted"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also ends its child processes
    print(file=sys.stderr)
    return found


def _listen(
    process: "subprocess.Popen[bytes]", broker: TierlogBroker, minutes: float, found: Run, timeout_s: float
) -> bool:
    """Wait until the minutes have passed. Returns False if the load ends before."""
    metrics, begin = Metrics(broker.admin_url), time.monotonic()
    for line in lines(process, timeout_s):
        reported = json.loads(line)
        found.faults = reported.pop("faults")
        passed = (time.monotonic() - begin) / 60
        loop_lag_p99_ms, reported["counts"]["cleaned"] = metrics.read()
        found.samples.append(
            Sample(
                minutes=passed,
                local_disk_mib=disk_mib(broker.data_dir),
                store_mib=disk_mib(broker.object_dir),
                loop_lag_p99_ms=loop_lag_p99_ms,
                **read_process(broker.pid),
                **reported,
            )
        )
        print(f"\r{passed:5.1f} of {minutes:g} minutes", end="", file=sys.stderr, flush=True)
        if passed >= minutes:
            return True
    return False


def _what_happened(broker: TierlogBroker, failure: Exception) -> str:
    until = time.monotonic() + DYING_S
    while time.monotonic() < until:
        if not broker.running:
            return "the broker ended"
        time.sleep(0.05)
    return f"the broker hangs: {failure}"


def report(found: Run, verdict: Verdict, failures: list[str]) -> int:
    samples = found.samples
    print(table(samples))
    counts = sum((Counter(sample.counts) for sample in samples), Counter())
    print("\n" + ", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
    for kind, text in sorted(found.faults.items()):
        print(f"first of {kind}: {text}")
    for line in failures[:10]:
        print("the broker logged:", line)
    print("\n" + checks(verdict))
    print("\nverdict:", verdict.headline)
    return int(bool(verdict.bad))


if __name__ == "__main__":
    sys.exit(main())
