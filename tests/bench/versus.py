#!/usr/bin/env python3
"""`make bench`: the load cases on tierlog and on Apache Kafka in turn, as a table and a plot.

All brokers run all the time with default settings, except those in SAME. Each round measures every case on
each broker in turn. `partitions` starts and stops brokers of its own. A figure is the median of the rounds.
tierlog runs with compiled hot modules (`make compiled`, ADR 0007) and, in its own column, as plain Python.
Kafka's jars come from Maven (tests/clients/fetch-java.sh). Its JVM is warmed up first, since it gains a
third in its first minutes.

A failed case has a row with the reason, and the others continue. A broker that died is started again.
Results are saved in results/versus.json at once. --add measures the named cases again, or without names
those that lack a value.

    versus.py [--rounds 3] [--seconds 3] [--compiled build/compiled] [--docs PAGE] [--add] [case …]
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol

import loop_lag
import partitions
import secure_brokers
from cases import CASES, CREATED, GROUPS, PARTITIONS, PROCESS_CASES, RETAINED, Case
from page import bars_of, by_hand, markdown, plot, split
from report import KAFKA, PURE, TIERLOG, Report, load
from suite import HERE, RESULTS, Broker, CaseFailed, fill, machine, run_case, tierlog_broker

sys.path.insert(0, str(HERE.parent / "support"))
from kafka_process import KafkaProcess

# As the scripts of Kafka's distribution start a broker.
JVM_FLAGS = (
    "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:MaxInlineLevel=15",
)  # fmt: skip
JAVA = ("java", "-Xms1g", "-Xmx2g", *JVM_FLAGS)
SAME = {
    "log.retention.check.interval.ms": "100",  # with the next one: what retention gives up is reused at once
    "log.segment.delete.delay.ms": "0",
    "log.cleaner.backoff.ms": "1000",  # no case waits for the cleaner
    "log.cleaner.threads": "1",
    "log.cleaner.dedupe.buffer.size": str(128 << 20),
    "group.initial.rebalance.delay.ms": "0",
}
"""Settings of all brokers."""
NOT_OF_TIERLOG = ("log.cleaner.threads",)  # always one
KAFKA_PROPERTIES = (
    "".join(f"{name}={value}\n" for name, value in SAME.items()) + "log.initial.task.delay.ms=100\n"
)
HEAT = (
    "raw-produce", "--retain", RETAINED, "--batch", "64k", "--seconds", "20", "--warm-s", "10", "--reps", "1",
    "--quiet-timeout", "1", "--retries", "0",
)  # fmt: skip
CASE_LIMIT_S = 120.0
"""One repetition, some ten seconds: a case that takes so long hangs."""
RESULT = RESULTS / "versus.json"


class Serves(Protocol):
    """A broker or cluster that serves case after case."""

    label: str

    def broker(self) -> Broker: ...

    def topic(self) -> str:
        """Name of a filled topic on the running broker."""


class Standing:
    """A broker that serves case after case; one that has died is started again."""

    def __init__(self, label: str, start: Callable[[], AbstractContextManager[Broker]]) -> None:
        self.label = label
        self._start = start
        self._running = ExitStack()
        self._broker: Broker | None = None
        self._topic: str | None = None

    def broker(self) -> Broker:
        if self._broker is None or not _alive(self._broker.pid):
            self.stop()
            self._broker = self._running.enter_context(self._start())
        return self._broker

    def topic(self) -> str:
        if self._topic is None:
            self._topic = fill(self.broker())
        return self._topic

    def stop(self) -> None:
        self._broker = self._topic = None
        self._running.close()


def _alive(pid: int) -> bool:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    return False


@contextmanager
def kafka_broker(classpath: str) -> Iterator[Broker]:
    """Heated."""
    with tempfile.TemporaryDirectory(prefix="kafka-bench-") as directory:
        kafka = KafkaProcess(classpath, Path(directory), JAVA, KAFKA_PROPERTIES)
        try:
            broker = Broker(kafka.bootstrap, kafka.pid, KAFKA)
            run_case(broker, *HEAT)
            yield broker
        finally:
            kafka.stop()


def brokers_with_security(classpath: str, compiled: Path | None) -> list[Standing]:
    """For the cases of the group, whose settings would change what the others measure."""
    settings = {name: value for name, value in SAME.items() if name not in NOT_OF_TIERLOG}
    of_kafka = SAME | {"log.initial.task.delay.ms": "100"}
    brokers = [Standing(KAFKA, partial(secure_brokers.secure_kafka, classpath, JAVA, of_kafka))]
    if compiled:
        brokers.append(Standing(TIERLOG, partial(secure_brokers.secure_tierlog, TIERLOG, compiled, settings)))
    return [*brokers, Standing(PURE, partial(secure_brokers.secure_tierlog, PURE, None, settings))]


def standing_brokers(classpath: str, compiled: Path | None) -> list[Standing]:
    settings = {name: value for name, value in SAME.items() if name not in NOT_OF_TIERLOG}
    brokers = [Standing(KAFKA, partial(kafka_broker, classpath))]
    if compiled:
        brokers.append(Standing(TIERLOG, partial(tierlog_broker, TIERLOG, compiled, settings)))
    return [*brokers, Standing(PURE, partial(tierlog_broker, PURE, settings=settings))]


def measure_standing(names: list[str], brokers: list[Standing], classpath: str, report: Report) -> None:
    """The load cases."""
    try:
        for number in range(report.rounds):
            for name in names:
                for standing in brokers if number % 2 == 0 else brokers[::-1]:
                    measure_case(name, standing, classpath, report)
                    report.save(RESULT)
    finally:
        for standing in brokers:
            standing.stop()


def measure_case(
    name: str, standing: Serves, classpath: str, report: Report, case: Case | None = None
) -> None:
    """`case`: the case itself, if it is not in CASES."""
    case = case or CASES[name]
    pace = (
        "--seconds", f"{report.seconds * case.length:g}", "--warm-s", "1", "--reps", "1", "--rest", "0.5",
        "--quiet-timeout", "5", "--retries", "1",
    )  # fmt: skip
    begin = time.monotonic()
    try:
        broker = standing.broker()
        topic = standing.topic() if "{topic}" in case.words else ""
        words = [word.format(topic=topic, classpath=classpath, **broker.placeholders) for word in case.words]
        before = loop_lag.read(broker.admin)
        summary = run_case(broker, words[0], *pace, *words[1:], limit_s=CASE_LIMIT_S)[-1]
        lag = loop_lag.since(before, broker.admin)
        report.add(name, standing.label, case.figures, summary, lag)
    except (CaseFailed, OSError, RuntimeError, subprocess.SubprocessError, ValueError) as error:
        failed(report, name, standing.label, error)
    print(f"# {name}, {standing.label}: {time.monotonic() - begin:.1f} s", flush=True)


def failed(report: Report, name: str, label: str, error: Exception) -> None:
    reason = str(error) or type(error).__name__
    report.at(name, label).failures.append(reason)
    print(f"# {name}, {label}: FAILED: {reason}", flush=True)


def measure_processes(makers: dict[str, partitions.MakeNode], report: Report) -> None:
    """The cases about partitions."""
    for number in range(report.rounds):
        for label in sorted(makers, reverse=number % 2 == 0):
            begin = time.monotonic()
            try:
                with tempfile.TemporaryDirectory(prefix="partitions-bench-") as directory:
                    summary, lag = partitions.measure(makers[label], Path(directory))
            except Exception as error:  # the other brokers and rounds continue
                for name in PROCESS_CASES:
                    failed(report, name, label, error)
            else:
                shown = {key: round(each[0], 3) for key, each in summary.items()}
                print(json.dumps({"label": label, **shown}), flush=True)
                for name, figures in PROCESS_CASES.items():
                    report.add(name, label, figures, summary, lag if name == CREATED else {})
            print(f"# {PARTITIONS}, {label}: {time.monotonic() - begin:.1f} s", flush=True)
            report.save(RESULT)


def previous(rounds: int, seconds: float, result: Path = RESULT) -> Report:
    """The figures of an earlier run of the same pace, whose cases need not be measured again."""
    report = load(result)
    if (report.rounds, report.seconds) != (rounds, seconds):
        raise SystemExit(
            f"{result.name} is of {report.rounds} rounds of {report.seconds:g} s: continue with the same"
        )
    return report


def jars() -> str:
    """The class path of Kafka and its tools."""
    script = HERE.parent / "clients" / "fetch-java.sh"
    fetched = subprocess.run([script], check=True, stdout=subprocess.PIPE, text=True)
    return f"{fetched.stdout.strip()}/*"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", choices=[*CASES, PARTITIONS, *GROUPS, []], help="default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--compiled", type=Path, help="what `make compiled` made; else only pure Python")
    parser.add_argument("--add", action="store_true", help="to what versus.json holds of the same pace")
    parser.add_argument("--docs", type=Path, help="write the page here, its plot into img/ beside it")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # brokers and cases end with this process
    begin, classpath = time.monotonic(), jars()
    compiled = options.compiled and options.compiled.absolute()
    labels = [KAFKA, PURE, *([TIERLOG] if compiled else [])]
    chosen = [name for each in options.cases for name in GROUPS.get(each, [each])]
    names = chosen or [*CASES, PARTITIONS]
    report = Report(machine(), options.rounds, options.seconds)
    if options.add:
        report = previous(options.rounds, options.seconds)
        names = chosen or [name for name in names if not report.whole(name, labels)]
    for name in names:
        report.forget(name)
    secured = [name for name in names if name in GROUPS["security"]]
    if secured:
        measure_standing(secured, brokers_with_security(classpath, compiled), classpath, report)
    load_cases = [name for name in names if name != PARTITIONS and name not in secured]
    if load_cases:
        measure_standing(load_cases, standing_brokers(classpath, compiled), classpath, report)
    if PARTITIONS in names:
        makers = {KAFKA: partitions.kafka_node(classpath, JAVA), PURE: partitions.tierlog_node()}
        if compiled:
            makers[TIERLOG] = partitions.tierlog_node(compiled)
        measure_processes(makers, report)
    page = markdown(report)
    print(page)
    plot(bars_of(report), (options.docs.parent / "img" if options.docs else RESULTS) / "benchmarks.png")
    if options.docs:
        before = options.docs.read_text()
        _, cluster = split(before)
        options.docs.write_text(page + cluster + by_hand(before))
    print(f"done in {(time.monotonic() - begin) / 60:.1f} min", file=sys.stderr)


if __name__ == "__main__":
    main()
