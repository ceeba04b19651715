#!/usr/bin/env python3
"""`make bench-cluster`: three tierlog nodes beside three of Apache Kafka, as a section of a page and a plot.

The load cases run in turn on both clusters, which run at the same time. Then a node of each cluster is
killed under load, at default and at tight settings (`cluster_cases.py`). A failed case has a row with the
reason, and the others continue. Results are saved in results/cluster.json at once. --add measures the named
cases again, or without names those that lack a value.

    cluster.py [--rounds 3] [--kills 1] [--seconds 3] [--compiled build/compiled] [--docs PAGE] [--add]
               [--alone] [case …]
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import cast

import coordinator_kill
import failover
from cluster_cases import FIGURES, KILL_CASES, LOAD_CASES, REPLICATED, TIGHT
from cluster_nodes import NODES, Cluster, KafkaCluster, TierlogCluster, as_broker, ended
from cluster_page import bars_of, section
from page import by_hand, plot, split
from report import KAFKA, TIERLOG, Report
from suite import HERE, RESULTS, Broker, machine, run_case
from versus import NOT_OF_TIERLOG, SAME, failed, jars, measure_case, previous

HEAT = ("raw-produce", "--partitions", "3", *REPLICATED, "--max-bytes", "1g")
HEAT_PACE = ("--seconds", "12", "--warm-s", "0", "--reps", "1", "--quiet-timeout", "1", "--retries", "0")
HEAT_ROUNDS = 20
"""Rounds of 12 s for each batch size, before load is measured."""
HEAT_ROUNDS_BEFORE_KILLS = 2
WARMER = 1.05
"""A round below this multiple of the best one before it gains nothing. Two such rounds end the warm-up."""
NO_DELAY = {
    "log.initial.task.delay.ms": "100"
}  # Kafka's: with SAME, what retention gives up is reused at once


class Standing:
    """A cluster that serves case after case; one that has lost a node is started again."""

    def __init__(self, label: str, start: Callable[[], AbstractContextManager[Cluster]]) -> None:
        self.label = label
        self._start = start
        self._running = ExitStack()
        self._cluster: Cluster | None = None
        self._big: str | None = None

    def cluster(self) -> Cluster:
        if self._cluster is None or len(self._cluster.pids) < NODES:
            self.stop()
            self._cluster = self._running.enter_context(self._start())
        return self._cluster

    def broker(self) -> Broker:
        return as_broker(self.cluster())

    def topic(self) -> str:
        """Name of the topic with many partitions in the running cluster."""
        cluster = self.cluster()
        if self._big is None:
            self._big = failover.make_big(cluster)
        return self._big

    def stop(self) -> None:
        self._cluster = self._big = None
        self._running.close()


@contextmanager
def kafka_cluster(
    classpath: str, settings: Mapping[str, str], heat: Sequence[str], rounds: int
) -> Iterator[Cluster]:
    """A Kafka cluster, warmed up with batches of these sizes."""
    with (
        tempfile.TemporaryDirectory(prefix="kafka-cluster-") as directory,
        ended(KafkaCluster(classpath, Path(directory), settings)) as cluster,
    ):
        for batch in heat:
            warm(cluster, batch, rounds)
        yield cluster


def warm(cluster: Cluster, batch: str, rounds: int) -> None:
    """Send load until throughput stops rising: three JVMs compile on the cores on which they serve."""
    best, in_vain = 0.0, 0
    for _ in range(rounds):
        summary = run_case(as_broker(cluster), *HEAT, "--batch", batch, *HEAT_PACE)[-1]
        rate = median(cast("list[float]", summary["mb_s"]))
        in_vain = 0 if rate > best * WARMER else in_vain + 1
        if in_vain == 2:
            return
        best = max(best, rate)


@contextmanager
def tierlog_cluster(settings: Mapping[str, str], compiled: Path | None) -> Iterator[Cluster]:
    with (
        tempfile.TemporaryDirectory(prefix="tierlog-cluster-") as directory,
        ended(TierlogCluster(Path(directory), settings, compiled)) as cluster,
    ):
        yield cluster


def clusters(
    classpath: str | None, compiled: Path | None, settings: Mapping[str, str], *, load: bool
) -> list[Standing]:
    """`classpath` None: without Kafka's. `load`: with settings that spare the memory of the machine."""
    ours, theirs = dict(settings), dict(settings)
    heat: Sequence[str] = ("64k",)
    if load:
        heat = ("64k", "16k")
        ours |= {name: value for name, value in SAME.items() if name not in NOT_OF_TIERLOG}
        theirs |= SAME | NO_DELAY
    rounds = HEAT_ROUNDS if load else HEAT_ROUNDS_BEFORE_KILLS
    found = [Standing(KAFKA, partial(kafka_cluster, classpath, theirs, heat, rounds))] if classpath else []
    return [*found, Standing(TIERLOG, partial(tierlog_cluster, ours, compiled))]


def measure_load(names: Sequence[str], standing: Sequence[Standing], report: Report, result: Path) -> None:
    """In each round, run every case on one cluster after the other."""
    try:
        for number in range(report.rounds):
            for name in names:
                for each in standing if number % 2 == 0 else standing[::-1]:
                    measure_case(name, each, "", report, LOAD_CASES[name])
                    report.save(result)
    finally:
        for each in standing:
            each.stop()


def measure_kills(
    names: Sequence[str], standing: Sequence[Standing], kills: int, report: Report, result: Path
) -> None:
    """Run one cluster at a time: three idle JVMs would disturb the other."""
    for each in standing:
        try:
            for _ in range(kills):
                for name in names:
                    measure_kill(name, each, report)
                    report.save(result)
        finally:
            each.stop()


def measure_kill(name: str, standing: Standing, report: Report) -> None:
    begin, case = time.monotonic(), KILL_CASES[name]
    try:
        if case.coordinator:
            summary = coordinator_kill.measure(standing.cluster())
        else:
            summary = failover.measure(standing.cluster(), standing.topic(), controller=case.controller)
    except Exception as error:  # whatever it is, the rest is measured, on a cluster that is whole
        failed(report, name, standing.label, error)
        standing.stop()
    else:
        shown = {key: values[0] for key, values in summary.items()}
        print(json.dumps({"label": standing.label, "case": name, **shown}), flush=True)
        report.add(name, standing.label, case.figures, summary, {})
    print(f"# {name}, {standing.label}: {time.monotonic() - begin:.1f} s", flush=True)


def publish(report: Report, kills: int, page: Path | None) -> None:
    """Write the results after each part of the run, so that an interrupted run keeps them."""
    if page is None:
        return
    before = page.read_text()
    others, _ = split(before)
    page.write_text(others + section(report, kills) + by_hand(before))
    if bars := bars_of(report):
        plot(bars, page.parent / "img" / "benchmarks-cluster.png")


def state() -> dict[str, object]:
    """Conditions of the measurement: machine, date and commit."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=HERE, check=False, capture_output=True, text=True
    )
    return {**machine(), "date": time.strftime("%d %B %Y"), "commit": commit.stdout.strip() or "unknown"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", choices=[*FIGURES, []], metavar="case", help="default: all")
    parser.add_argument("--rounds", type=int, default=3, help="of the load cases")
    parser.add_argument("--kills", type=int, default=1, help="of each kill")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--compiled", type=Path, help="what `make compiled` made; else pure Python")
    parser.add_argument("--add", action="store_true", help="to what was measured before at the same pace")
    parser.add_argument("--alone", action="store_true", help="without Kafka: a look, not for the page")
    parser.add_argument(
        "--docs", type=Path, help="put the section into this page, its plot into img/ beside it"
    )
    return parser.parse_args()


def main() -> None:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # clusters and cases end with this process
    begin = time.monotonic()
    classpath = None if options.alone else jars()
    compiled = options.compiled and options.compiled.absolute()
    page = None if options.alone else options.docs
    result = RESULTS / ("cluster-alone.json" if options.alone else "cluster.json")
    made = {"made": "compiled" if compiled else "not compiled"}
    report = Report(state() | made, options.rounds, options.seconds)
    names = options.cases or list(FIGURES)
    if options.add:
        report = previous(options.rounds, options.seconds, result)
        report.machine |= state()
        labels = [TIERLOG] if options.alone else [KAFKA, TIERLOG]
        rounds = {**dict.fromkeys(LOAD_CASES, options.rounds), **dict.fromkeys(KILL_CASES, options.kills)}
        names = options.cases or [
            name for name in names if not report.has(name, FIGURES[name], labels, rounds[name])
        ]
    for name in names:
        report.forget(name)
    if load := [name for name in LOAD_CASES if name in names]:
        measure_load(load, clusters(classpath, compiled, {}, load=True), report, result)
        publish(report, options.kills, page)
    for tight, settings in ((False, {}), (True, TIGHT)):
        if kills := [name for name, case in KILL_CASES.items() if name in names and case.tight == tight]:
            measure_kills(
                kills, clusters(classpath, compiled, settings, load=False), options.kills, report, result
            )
        publish(report, options.kills, page)
    print(section(report, options.kills))
    print(f"done in {(time.monotonic() - begin) / 60:.1f} min", file=sys.stderr)


if __name__ == "__main__":
    main()
