"""The cluster section of docs/benchmarks.md, written by `make bench-cluster`."""

from collections.abc import Iterator

from cases import Figure
from cluster_cases import FIGURES, TIGHT
from failover import PARTITIONS
from page import CLUSTER, Bar, cell, failed_cases, ratio
from report import KAFKA, TIERLOG, Report

SECTION = """\
{heading}
<!-- Written by `make bench-cluster`: do not edit. -->

Three nodes, each broker and voter at once, beside Apache Kafka 4.3.1 in the same shape (heap 1 GiB a node,
heated until it gains no more), in turn on one machine: {cores} cores, {cpu}, Linux {kernel}, Python {python};
{date}, commit {commit}. Three replicas, `min.insync.replicas=2`, acks=all. CPU is that of all three
processes; they share the cores with the load generator. Medians of {rounds} rounds of {seconds:g} s a load
case, and of {kills} of each kill. tierlog's hot modules are {made}. A ratio above 1: tierlog is ahead.
{met} of {goals} goals are met.

*Killed* is SIGKILL of the node that leads what a librdkafka producer at its defaults writes to; beside it lie
{partitions:,} partitions, a third of them led by that node. The gap is between two acknowledgements; *all led
again* is of these partitions. The log must hold all that was acknowledged, else the case fails.
*Tight settings*, of both: {tight}.

![Ratio of tierlog's cluster to Kafka's by case](img/benchmarks-cluster.png)

| case and figure | Kafka | tierlog | ratio | goal | met |
| --- | ---: | ---: | ---: | ---: | :---: |"""


def section(report: Report, kills: int) -> str:
    goals = [(name, figure) for name, figures in FIGURES.items() for figure in figures if goal_text(figure)]
    lines = [
        SECTION.format(
            heading=CLUSTER,
            **report.machine,
            rounds=report.rounds,
            seconds=report.seconds,
            kills=kills,
            partitions=PARTITIONS,
            tight=", ".join(f"`{name}={value}`" for name, value in TIGHT.items()),
            met=sum(is_met(report, *goal) is True for goal in goals),
            goals=len(goals),
        ),
        *rows(report),
        "",
        *_failures(report),
    ]
    return "\n".join(lines)


def rows(report: Report) -> Iterator[str]:
    """One row for each figure of each case. A row without a value has the reason."""
    for name, figures in FIGURES.items():
        for figure in figures:
            reached = ratio(report, name, figure, TIERLOG)
            cells = [
                f"{name}: {figure.title}",
                cell(report, name, KAFKA, figure),
                cell(report, name, TIERLOG, figure),
                "" if reached is None else f"{reached:.2f}",
                goal_text(figure),
                {True: "yes", False: "**no**", None: "?"}[is_met(report, name, figure)]
                if goal_text(figure)
                else "",
            ]
            yield f"| {' | '.join(cells)} |"


def goal_text(figure: Figure) -> str:
    """The goal as a ratio, or as a bound that does not depend on Kafka."""
    if figure.within is not None:
        return f"≤ {figure.within:g} s"
    return f"{figure.goal:.3g}" if figure.goal else ""


def is_met(report: Report, name: str, figure: Figure) -> bool | None:
    """Whether the rounded figures meet the goal; None: not measured yet. A failed round never does."""
    found = report.found.get(name, {})
    if TIERLOG in found and found[TIERLOG].failures:
        return False
    ours = report.median(name, TIERLOG, figure)
    if figure.within is not None:
        return None if ours is None else ours <= figure.within
    reached = ratio(report, name, figure, TIERLOG)
    if reached is None or figure.goal is None:
        return None
    return round(reached, 2) >= round(figure.goal, 2)


def bars_of(report: Report) -> list[Bar]:
    """One bar for each figure with a ratio. For a bound, the goal is the ratio that just keeps it."""
    found = []
    for name, figures in FIGURES.items():
        for figure in figures:
            reached = ratio(report, name, figure, TIERLOG)
            theirs = report.median(name, KAFKA, figure)
            if reached is not None and theirs is not None:
                goal = theirs / figure.within if figure.within is not None else figure.goal
                found.append((f"{name}: {figure.title}", goal, reached))
    return found


def _failures(report: Report) -> Iterator[str]:
    failed = failed_cases(report)
    if not failed:
        return
    yield from ("Failed:", "")
    for name, label, reasons in failed:
        times = f"{len(reasons)} times" if len(reasons) > 1 else "once"
        yield f"- {name}, {label}, {times}: {'; '.join(dict.fromkeys(reasons))}"
    yield ""
