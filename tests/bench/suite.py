#!/usr/bin/env python3
"""`make bench-alone`: the load cases against a broker of its own; JSON and a plot under tests/bench/results.

Each line of the summary holds [min, median, max] of three repetitions after a warm-up. The broker and the
generator share the machine's cores: read MB per broker CPU second first, MB/s second.

    suite.py [--quick] [case …]

Cases: produce fetch librdkafka connections compaction startup (default: all).
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results"
TIERLOG = [sys.executable, "-m", "tierlog.cli.main"]
STARTUP_PORT = 19192
CASE_LIMIT_S = 600.0
"""Several times the duration of the longest case with its repetitions. A slower one hangs."""


@dataclass(frozen=True)
class Broker:
    """`admin`: the URL of tierlog's admin listener. `more_pids`: of the other nodes of a cluster.
    `placeholders`: values for the words of cases, such as the address of a listener with TLS."""

    bootstrap: str
    pid: int
    label: str = "tierlog"
    admin: str | None = None
    more_pids: tuple[int, ...] = ()
    placeholders: Mapping[str, str] = field(default_factory=dict)

    @property
    def pids(self) -> str:
        return ",".join(map(str, (self.pid, *self.more_pids)))


@contextmanager
def tierlog_broker(
    label: str = "tierlog", compiled: Path | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[Broker]:
    """A throw-away broker process, stopped by its process id. `compiled`: what compile_hot.py made."""
    environment = os.environ | ({"PYTHONPATH": str(compiled)} if compiled else {})
    with tempfile.TemporaryDirectory(prefix="tierlog-bench-") as data:
        command = [*TIERLOG, "dev", "--json", "--port", "0", "--data-dir", data]
        command += [f"--set={name}={value}" for name, value in (settings or {}).items()]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        try:
            ready = json.loads(process.stdout.readline())
            yield Broker(ready["bootstrap"], ready["pid"], label, ready["admin"])
        finally:
            process.terminate()
            process.wait()


class CaseFailed(Exception):
    """Its text is the last line that the case wrote."""


def run_case(broker: Broker, *arguments: str, limit_s: float = CASE_LIMIT_S) -> list[dict[str, object]]:
    """Runs one case of bench.py; its JSON lines, which are also printed."""
    command = [
        sys.executable,
        str(HERE / "bench.py"),
        "--bootstrap",
        broker.bootstrap,
        "--label",
        broker.label,
    ]
    process = subprocess.Popen(
        [*command, "--pid", broker.pids, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=HERE,
        start_new_session=True,  # its processes end with it
    )
    try:
        written, errors = process.communicate(timeout=limit_s)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise CaseFailed(f"not done within {limit_s:g} s") from None
        raise
    print(written, end="", flush=True)
    if process.returncode:
        print(errors, file=sys.stderr, flush=True)
        raise CaseFailed((errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1])
    return [json.loads(line) for line in written.splitlines() if line.startswith("{")]


def produce(broker: Broker, pace: list[str]) -> list[dict[str, object]]:
    lines = []
    for batch in ("16k", "64k", "1m"):
        for partitions in ("1", "8"):
            lines += run_case(broker, "raw-produce", "--batch", batch, "--partitions", partitions, *pace)
    return lines + run_case(broker, "raw-produce", "--batch", "16k", "--rate", "3200", *pace)


def fill(broker: Broker) -> str:
    """The name of a new topic that holds 1 GiB in batches of 64 KiB."""
    command = [sys.executable, str(HERE / "bench.py"), "--bootstrap", broker.bootstrap]
    command += ["fill", "--batch", "64k", "--fill-bytes", "1g"]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=HERE).stdout.strip()


def fetch(broker: Broker, pace: list[str]) -> list[dict[str, object]]:
    topic = fill(broker)
    lines = []
    for most in ("1m", "8m"):
        reading = ("raw-fetch", "--topic", topic, "--batch", "64k", "--max-partition", most)
        lines += run_case(broker, *reading, "--max-bytes", "64g", *pace)
    return lines + run_case(broker, "rd-consume", "--topic", topic, *pace)


def librdkafka(broker: Broker, pace: list[str]) -> list[dict[str, object]]:
    lines = run_case(broker, "rd-produce", *pace)
    return lines + run_case(broker, "rd-e2e", "--rate", "1000", "--linger", "0", *pace)


def connections(broker: Broker, pace: list[str]) -> list[dict[str, object]]:
    lines = run_case(broker, "connections", "--connections", "1000", *pace)
    lines += run_case(
        broker, "fairness", "--connections", "1000", "--batch", "1k", "--request", "produce", *pace
    )
    return lines + run_case(broker, "idle", *pace)


def compaction(broker: Broker, pace: list[str]) -> list[dict[str, object]]:
    """Some 250 MB, which keep the cleaner busy for longer than the measurement."""
    case = ("produce-while-compacting", "--batch", "16k", "--rate", "200", "--fill-bytes", "256m")
    return run_case(broker, *case, *pace)


def startup(_broker: Broker, _pace: list[str]) -> list[dict[str, object]]:
    """Process start to the first Metadata answer, of a broker that this case starts and stops itself."""
    with tempfile.TemporaryDirectory(prefix="tierlog-start-") as scratch:
        pid_file = Path(scratch) / "pid"
        command = " ".join([*TIERLOG, "dev", "--port", str(STARTUP_PORT), "--data-dir", f"{scratch}/data"])
        start = f"{command} & echo $! > {pid_file}"
        await_end = f"tail --pid=$(cat {pid_file}) -f /dev/null"
        stop = f"test ! -f {pid_file} || {{ kill $(cat {pid_file}); {await_end}; }}"
        here = Broker(f"127.0.0.1:{STARTUP_PORT}", os.getpid())
        idle = ("--idle", "2", "--pid-file", str(pid_file))
        try:
            return run_case(here, "startup", "--start", start, "--stop", stop, *idle)
        finally:
            subprocess.run(stop, shell=True, check=False)


CASES = {
    "produce": produce,
    "fetch": fetch,
    "librdkafka": librdkafka,
    "connections": connections,
    "compaction": compaction,
    "startup": startup,
}


def machine() -> dict[str, object]:
    model = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cores": os.cpu_count(),
        "cpu": model[0] if model else platform.processor(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def name_of(line: dict[str, object]) -> str:
    options = line["options"]
    shown = [
        f"{key} {options[key]}" for key in ("batch", "partitions", "rate", "max_partition") if key in options
    ]
    return " ".join([line["case"], *shown])


def plot(summaries: list[dict[str, object]], target: Path) -> None:
    """MB per broker CPU second of every case that moves bytes: the median, with the range as a whisker."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    moving = [line for line in summaries if "broker_cpu_s_per_gb" in line and line["broker_cpu_s_per_gb"][1]]
    medians = [1000 / line["broker_cpu_s_per_gb"][1] for line in moving]
    low = [m - 1000 / line["broker_cpu_s_per_gb"][2] for m, line in zip(medians, moving, strict=True)]
    high = [
        1000 / max(line["broker_cpu_s_per_gb"][0], 1e-3) - m for m, line in zip(medians, moving, strict=True)
    ]
    figure, axes = plt.subplots(figsize=(9, 0.5 * len(moving) + 1.5), layout="constrained")
    axes.barh([name_of(line) for line in moving], medians, xerr=[low, high], color="#3b7ea1", capsize=3)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("MB per CPU second of the broker (more is better)")
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(target, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="default: all")
    parser.add_argument(
        "--quick", action="store_true", help="short runs, one repetition: a look, not a result"
    )
    options = parser.parse_args()
    quick = ["--seconds", "2", "--warm-s", "1", "--reps", "1", "--max-bytes", "1g", "--quiet-timeout", "1"]
    pace = quick if options.quick else ["--seconds", "8", "--warm-s", "3"]
    lines: list[dict[str, object]] = []
    for case in options.cases or CASES:
        with tierlog_broker() as broker:
            try:
                lines += CASES[case](broker, pace)
            except CaseFailed as failure:
                raise SystemExit(f"{case}: {failure}") from None
    RESULTS.mkdir(exist_ok=True)
    summaries = [line for line in lines if line.get("kind") == "summary"]
    report = {"machine": machine(), "quick": options.quick, "summaries": summaries, "lines": lines}
    (RESULTS / "bench.json").write_text(json.dumps(report, indent=1) + "\n")
    plot(summaries, RESULTS / "bench.png")
    print(f"results: {RESULTS}/bench.json and bench.png")


if __name__ == "__main__":
    main()
