#!/usr/bin/env python3
"""`make bench-versus`: the load cases on tierlog and on Apache Kafka in turn, as a table and a plot.

All brokers run all the time at their default settings; each round measures every case on one after the
other. `partitions` starts and stops brokers of its own. The figure is the median of the rounds. tierlog runs
with its hot modules compiled (`make compiled`, ADR 0007) and, in a column of its own, as plain Python.
Kafka's jars come by Maven (tests/clients/fetch-java.sh); its JVM is heated first, as it gains a third in its
first minutes.

Topics that are produced to keep RETAINED bytes. A virtual machine pays for a page of memory at its first
touch, several times what the write costs; a log that grows for ever would measure that, on either broker.

    versus.py [--rounds 3] [--seconds 5] [--compiled build/compiled] [--docs PAGE] [--add] [case …]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import partitions
from partitions import MADE, STANDING, MakeNode
from suite import HERE, RESULTS, Broker, fill, machine, run_case, tierlog_broker

sys.path.insert(0, str(HERE.parent / "support"))
from kafka_process import KafkaProcess

# As the scripts of Kafka's distribution start a broker.
JAVA = (
    "java", "-Xms1g", "-Xmx2g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:MaxInlineLevel=15",
)  # fmt: skip
RETAINED = "256m"
RETENTION = {"log.retention.check.interval.ms": "100", "log.segment.delete.delay.ms": "0"}
"""Of all brokers: what retention gives up is reused at once."""
KAFKA_PROPERTIES = (
    "".join(f"{name}={value}\n" for name, value in RETENTION.items()) + "log.initial.task.delay.ms=100\n"
)
HEAT = (
    "raw-produce", "--retain", RETAINED, "--batch", "64k", "--seconds", "20", "--warm-s", "10", "--reps", "1",
    "--patience", "1",
)  # fmt: skip
MORE, LESS = "more", "less"


@dataclass(frozen=True)
class Figure:
    """One column of a case's result; `better` says which way is ahead."""

    key: str
    title: str
    better: str

    def read(self, summary: dict[str, list[float]]) -> float:
        if self.key == "mb_per_cpu_s":
            return 1000 / max(summary["broker_cpu_s_per_gb"][1], 1e-4)
        return summary[self.key][1]

    def ratio(self, ours: float, theirs: float) -> float:
        """Above 1: tierlog is ahead."""
        return ours / theirs if self.better == MORE else theirs / ours


PER_CPU = Figure("mb_per_cpu_s", "MB per CPU second", MORE)
RATE = Figure("mb_s", "MB/s", MORE)
P50, P99, P999 = (Figure(f"p{n}_ms", f"p{t} ms", LESS) for n, t in ((50, "50"), (99, "99"), (999, "99.9")))
CPU_SHARE = Figure("broker_cpu_pct", "CPU %", LESS)
MEMORY = Figure("rss_mib", "resident MiB", LESS)
READ = ("raw-fetch", "--batch", "64k", "--max-bytes", "64g", "--topic", "{topic}")

WRITE = ("raw-produce", "--retain", RETAINED, "--batch")
SPEED = (PER_CPU, RATE)

CASES: dict[str, tuple[tuple[str, ...], tuple[Figure, ...]]] = {
    "produce 16 KiB": ((*WRITE, "16k"), SPEED),
    "produce 64 KiB": ((*WRITE, "64k"), SPEED),
    "produce 1 MiB": ((*WRITE, "1m"), SPEED),
    "produce 16 KiB, 8 partitions": ((*WRITE, "16k", "--partitions", "8"), SPEED),
    "produce 64 KiB, 8 partitions": ((*WRITE, "64k", "--partitions", "8"), SPEED),
    "produce 1 MiB, 8 partitions": ((*WRITE, "1m", "--partitions", "8"), SPEED),
    "produce 64 KiB, 4 connections": ((*WRITE, "64k", "--partitions", "4", "--connections", "4"), SPEED),
    "produce 16 KiB at 52 MB/s": ((*WRITE, "16k", "--rate", "3200"), (P50, P99, P999)),
    "produce 16 KiB at 3 MB/s while compacting": (
        ("produce-while-compacting", "--batch", "16k", "--rate", "200", "--fill-bytes", "512m"),
        (P50, P99, P999),
    ),
    "fetch 1 MiB": ((*READ, "--max-partition", "1m"), SPEED),
    "fetch 8 MiB": ((*READ, "--max-partition", "8m"), SPEED),
    "librdkafka produce, 1 KB": (("rd-produce",), SPEED),
    "librdkafka end to end, 1,000/s": (("rd-e2e", "--rate", "1000", "--linger", "0"), (P50, P99, P999)),
    "1,000 connections": (("connections", "--connections", "1000"), (CPU_SHARE, P99)),
    "idle after the load": (("idle",), (MEMORY,)),
}
KAFKA, TIERLOG, PURE = "kafka", "tierlog", "pure Python"

PARTITIONS = "partitions"
PROCESS_CASES: dict[str, tuple[Figure, ...]] = {
    "start to the first Metadata answer": (Figure("start_s", "s", LESS),),
    f"start with {STANDING:,} partitions": (Figure("start_standing_s", "s", LESS),),
    f"{MADE:,} partitions created and serving": (Figure("made_s", "s", LESS),),
    f"{MADE:,} idle partitions": (Figure("kib_per_partition", "KiB resident a partition", LESS),),
}
"""Of brokers that are started for them; measured together."""

Results = dict[tuple[str, str], dict[str, list[float]]]  # (case, figure) -> label -> one value a round


def measure(names: list[str], brokers: list[Broker], rounds: int, seconds: float) -> Results:
    topics = {broker.label: fill(broker) for broker in brokers}
    found: Results = defaultdict(lambda: defaultdict(list))
    for number in range(rounds):
        for name in names:
            arguments, figures = CASES[name]
            for broker in brokers if number % 2 == 0 else brokers[::-1]:
                words = [word.format(topic=topics[broker.label]) for word in arguments]
                pace = ["--seconds", f"{seconds:g}", "--warm-s", "2", "--reps", "1", "--patience", "10"]
                summary = run_case(broker, *words, *pace)[-1]
                for figure in figures:
                    found[name, figure.title][broker.label].append(figure.read(summary))
    return found


def measure_running(
    names: list[str], classpath: str, rounds: int, seconds: float, compiled: Path | None
) -> Results:
    """The load cases."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kafka-bench-")))
        kafka = KafkaProcess(classpath, directory, JAVA, KAFKA_PROPERTIES)
        stack.callback(kafka.stop)
        brokers = [Broker(kafka.bootstrap, kafka.pid, KAFKA)]
        if compiled:
            brokers.append(stack.enter_context(tierlog_broker(TIERLOG, compiled, RETENTION)))
        brokers.append(stack.enter_context(tierlog_broker(PURE, settings=RETENTION)))
        run_case(brokers[0], *HEAT)
        return measure(names, brokers, rounds, seconds)


def measure_processes(makers: dict[str, MakeNode], rounds: int) -> Results:
    """The cases about partitions."""
    found: Results = defaultdict(lambda: defaultdict(list))
    for number in range(rounds):
        for label in sorted(makers, reverse=number % 2 == 0):
            with tempfile.TemporaryDirectory(prefix="partitions-bench-") as directory:
                summary = partitions.measure(makers[label], Path(directory))
            shown = {key: round(values[0], 3) for key, values in summary.items()}
            print(json.dumps({"label": label, **shown}), flush=True)
            for name, figures in PROCESS_CASES.items():
                for figure in figures:
                    found[name, figure.title][label].append(figure.read(summary))
    return found


@dataclass(frozen=True)
class Row:
    """One line of the result: the medians of one figure of a case, and their ratios to Kafka's."""

    title: str
    medians: dict[str, float]
    ratios: dict[str, float]


def rows(found: Results) -> list[Row]:
    by_case = {**{name: all_ for name, (_, all_) in CASES.items()}, **PROCESS_CASES}
    figures = {(name, figure.title): figure for name, all_ in by_case.items() for figure in all_}
    table = []
    for key, values in found.items():
        medians = {label: statistics.median(each) for label, each in values.items()}
        theirs = max(medians[KAFKA], 1e-9)
        ratios = {
            label: figures[key].ratio(max(ours, 1e-9), theirs)
            for label, ours in medians.items()
            if label != KAFKA
        }
        table.append(Row(": ".join(key), medians, ratios))
    return table


def markdown(found: Results, rounds: int, seconds: float) -> str:
    here = machine()
    lines = [
        "# Benchmarks",
        "",
        "<!-- Written by `make bench-versus`: do not edit. -->",
        "",
        f"tierlog beside Apache Kafka 4.3.1 on one machine ({here['cores']} cores, {here['cpu']}, Linux",
        f"{here['kernel']}, Python {here['python']}), in turn: the median of {rounds} rounds of",
        f"{seconds:g} s each, Kafka heated first. The load generator shares the cores with the broker under",
        "test, so compare CPU seconds first; and such machines vary, so compare ratios, not figures of",
        "different days. A ratio above 1: tierlog is ahead. *Compiled* is tierlog with its hot modules built",
        "by mypyc ([ADR 0007](adr/0007-compiled-hot-modules.md)); *pure* is the same uncompiled.",
        "What was tried to get here, and what it gave: [performance](explanation/performance.md).",
        "",
        "![Ratio of tierlog to Kafka by case](img/benchmarks.png)",
        "",
        "| case and figure | Kafka | compiled | ratio | pure | ratio |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows(found):
        cells = [row.title, _n(row.medians[KAFKA])]
        for label in (TIERLOG, PURE):
            known = label in row.medians
            cells += [_n(row.medians[label]), f"{row.ratios[label]:.2f}"] if known else ["", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _n(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def plot(found: Results, target: Path) -> None:
    """One bar a figure, from 1 (even) to the ratio, on a logarithmic scale."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = TIERLOG if any(TIERLOG in values for values in found.values()) else PURE
    table = [row for row in rows(found) if shown in row.ratios]
    figure, axes = plt.subplots(figsize=(9, 0.3 * len(table) + 1.4), layout="constrained")
    ratios = [row.ratios[shown] for row in table]
    colours = ["#2a6f97" if ratio >= 1 else "#f4a259" for ratio in ratios]
    axes.barh([row.title for row in table], [r - 1 for r in ratios], left=1, color=colours)
    axes.set_xscale("log")
    axes.axvline(1, color="#1b2a38", linewidth=1)
    ticks = [tick for tick in (0.25, 0.5, 1, 2, 4, 8, 16) if min(ratios) / 2 < tick < max(ratios) * 2]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.invert_yaxis()
    axes.set_xlabel("ratio to Apache Kafka (right of 1: tierlog is ahead)")
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=120)


def measured_before(rounds: int, seconds: float) -> Results:
    """The figures of an earlier run, whose cases need not be measured again."""
    report = json.loads((RESULTS / "versus.json").read_text())
    if (report["rounds"], report["seconds"]) != (rounds, seconds):
        raise SystemExit(
            f"versus.json is of {report['rounds']} rounds of {report['seconds']:g} s: go on alike"
        )
    return {(line.pop("case"), line.pop("figure")): line for line in report["results"]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", choices=[*CASES, PARTITIONS, []], help="default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--compiled", type=Path, help="what `make compiled` made; else only pure Python")
    parser.add_argument("--add", action="store_true", help="to what versus.json holds of the same pace")
    parser.add_argument("--docs", type=Path, help="write the page here, its plot into img/ beside it")
    options = parser.parse_args()
    fetched = subprocess.run(
        [HERE.parent / "clients" / "fetch-java.sh"], check=True, stdout=subprocess.PIPE, text=True
    )
    names, classpath = options.cases or [*CASES, PARTITIONS], f"{fetched.stdout.strip()}/*"
    compiled = options.compiled and options.compiled.absolute()
    found: Results = measured_before(options.rounds, options.seconds) if options.add else {}
    if set(names) != {PARTITIONS}:
        load = [name for name in names if name != PARTITIONS]
        found.update(measure_running(load, classpath, options.rounds, options.seconds, compiled))
    if PARTITIONS in names:
        makers = {KAFKA: partitions.kafka_node(classpath, JAVA), PURE: partitions.tierlog_node()}
        if compiled:
            makers[TIERLOG] = partitions.tierlog_node(compiled)
        found.update(measure_processes(makers, options.rounds))
    RESULTS.mkdir(exist_ok=True)
    by_case = [{"case": name, "figure": title, **values} for (name, title), values in found.items()]
    report = {"machine": machine(), "rounds": options.rounds, "seconds": options.seconds, "results": by_case}
    (RESULTS / "versus.json").write_text(json.dumps(report, indent=1) + "\n")
    page = markdown(found, options.rounds, options.seconds)
    print(page)
    plot(found, (options.docs.parent / "img" if options.docs else RESULTS) / "benchmarks.png")
    if options.docs:
        options.docs.write_text(page)


if __name__ == "__main__":
    main()
