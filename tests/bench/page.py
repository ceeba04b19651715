"""The page and the plot of a report. Every figure of every case has a row; a missing value has a reason."""

from collections.abc import Iterator
from functools import reduce
from pathlib import Path

import loop_lag
from cases import CREATED, FIGURES, Figure
from report import KAFKA, LABELS, PURE, TIERLOG, Found, Report

INTRODUCTION = """\
# Benchmarks

<!-- Written by `make bench`: do not edit. -->

tierlog beside Apache Kafka 4.3.1 on one machine ({cores} cores, {cpu}, Linux {kernel}, Python {python}),
in turn: the median of {rounds} rounds of {seconds:g} s a case, Kafka heated first. The load generator shares
the cores with the broker under test, so compare CPU seconds first; and such machines vary, so compare
ratios, not figures of different days.

A ratio above 1: tierlog is ahead, by more of what is good or less of what is not. The goal is such a ratio
too: 1.43 is 0.7 times Kafka's latency. *Compiled* is tierlog with its hot modules built by mypyc
([ADR 0007](adr/0007-compiled-hot-modules.md)), *pure* the same without. The compiled one meets {met} of
{goals} goals. How each case loads a broker: [tests/bench](../tests/bench/README.md). What was tried to get
here, and what it gave: [performance](explanation/performance.md).

![Ratio of tierlog to Kafka by case](img/benchmarks.png)

| case and figure | Kafka | compiled | ratio | goal | met | pure | ratio |
| --- | ---: | ---: | ---: | ---: | :---: | ---: | ---: |"""
LOOP = """\
## Pauses of the event loop

`tierlog_loop_lag_seconds` of the {shown} tierlog over each case, with its warm-up and the making and
deleting of topics: how late a timer fires that is due every 50 ms. The goal is no pause over 5 ms. A pause
shorter than 50 ms is seen as often as it meets the timer; and as the load generator competes for the
cores, time in which the kernel runs another process counts as a pause too. *Memory after the load* is idle:
its pauses are those of the machine.

| case | samples | over 5 ms | over 10 ms | over 25 ms | all within |
| --- | ---: | ---: | ---: | ---: | ---: |"""
CLUSTER = "## Cluster\n"
"""Start of the part of the page that `make bench-cluster` writes."""
BY_HAND = "## Metadata at scale\n"
"""Start of the part that people write, at the end of the page."""
PAUSE_GOAL_S = "0.005"
SHOWN = {KAFKA: "Kafka", TIERLOG: "compiled", PURE: "pure"}


def ratio(report: Report, case: str, figure: Figure, label: str) -> float | None:
    """Above 1, tierlog is better."""
    ours, theirs = report.median(case, label, figure), report.median(case, KAFKA, figure)
    return None if ours is None or theirs is None else figure.ratio(ours, theirs)


def compared_label(report: Report) -> str:
    """The label whose ratios are compared with the goals."""
    return TIERLOG if any(TIERLOG in by_label for by_label in report.found.values()) else PURE


def split(page: str) -> tuple[str, str]:
    """The parts of the page that `make bench` and `make bench-cluster` write. Neither changes the other's."""
    page = page.removesuffix(by_hand(page))
    at = page.find(CLUSTER)
    return (page, "") if at < 0 else (page[:at], page[at:])


def by_hand(page: str) -> str:
    """The end of the page, which people write."""
    at = page.find("\n" + BY_HAND)
    return "" if at < 0 else page[at:]


def markdown(report: Report) -> str:
    met, goals = _goals(report)
    of_report = {"rounds": report.rounds, "seconds": report.seconds, "met": met, "goals": goals}
    return "\n".join(
        [
            INTRODUCTION.format(**report.machine, **of_report),
            *_rows(report),
            "",
            *_failures(report),
            *_loop(report),
        ]
    )


def _goals(report: Report) -> tuple[int, int]:
    """How many goals are met, and how many there are."""
    pairs = [(case, figure) for case, figures in FIGURES.items() for figure in figures if figure.goal]
    return sum(_met(report, *pair) for pair in pairs), len(pairs)


def _met(report: Report, case: str, figure: Figure) -> bool:
    """Uses the ratio as rounded on the page."""
    reached = ratio(report, case, figure, compared_label(report))
    return reached is not None and figure.goal is not None and round(reached, 2) >= round(figure.goal, 2)


def _rows(report: Report) -> Iterator[str]:
    for case, figures in FIGURES.items():
        for figure in figures:
            cells = {label: cell(report, case, label, figure) for label in LABELS}
            ratios = {label: ratio(report, case, figure, label) for label in (TIERLOG, PURE)}
            shown = {label: "" if each is None else f"{each:.2f}" for label, each in ratios.items()}
            goal = f"{figure.goal:.3g}" if figure.goal else ""
            known = shown[compared_label(report)] or "failed" in cells.values()
            met = "yes" if _met(report, case, figure) else "**no**" if known else "?"
            row = [
                f"{case}: {figure.title}",
                cells[KAFKA],
                cells[TIERLOG],
                shown[TIERLOG],
                goal,
                met if goal else "",
            ]
            yield f"| {' | '.join([*row, cells[PURE], shown[PURE]])} |"


def cell(report: Report, case: str, label: str, figure: Figure) -> str:
    value = report.median(case, label, figure)
    if value is not None:
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return "failed" if report.found.get(case, {}).get(label, Found()).failures else "not measured"


def failed_cases(report: Report) -> list[tuple[str, str, list[str]]]:
    """Case, label of the broker, and the reasons."""
    return [
        (case, label, found.failures)
        for case, by_label in report.found.items()
        for label, found in by_label.items()
        if found.failures
    ]


def _failures(report: Report) -> Iterator[str]:
    failed = failed_cases(report)
    if not failed:
        return
    yield from ("## What failed", "")
    for case, label, reasons in failed:
        rounds = f"{len(reasons)} of {report.rounds} rounds"
        yield f"- {case}, {SHOWN[label]}, {rounds}: {'; '.join(dict.fromkeys(reasons))}"
    yield ""


def _loop(report: Report) -> Iterator[str]:
    """What tierlog itself says about the pauses of its event loop in each case."""
    label = compared_label(report)
    by_case = {case: by_label[label].lag for case, by_label in report.found.items() if label in by_label}
    by_case = {case: by_case[case] for case in FIGURES if loop_lag.samples(by_case.get(case, {}))}
    if not by_case:
        return
    yield LOOP.format(shown=SHOWN[label])
    whole = reduce(loop_lag.together, by_case.values())
    for case, counts in [*by_case.items(), ("all", whole)]:
        late = [f"{loop_lag.later_than(counts, bound):,}" for bound in (PAUSE_GOAL_S, "0.01", "0.025")]
        cells = [case, f"{loop_lag.samples(counts):,}", *late, f"{loop_lag.worst_ms(counts):g} ms"]
        yield f"| {' | '.join(cells)} |"
    yield ""
    if CREATED in by_case:
        yield from (
            f"*{CREATED}* is of a broker of its own, from before its topic is made until all serve.",
            "",
        )


Bar = tuple[str, float | None, float]
"""Title, goal and ratio of a figure."""


def bars_of(report: Report) -> list[Bar]:
    """One bar for each figure with a ratio."""
    label = compared_label(report)
    pairs = [(case, figure) for case, figures in FIGURES.items() for figure in figures]
    reached = [(case, figure, ratio(report, case, figure, label)) for case, figure in pairs]
    return [(f"{case}: {figure.title}", figure.goal, each) for case, figure, each in reached if each]


def plot(bars: list[Bar], target: Path) -> None:
    """One bar a figure, from 1 (even) to the ratio, on a logarithmic scale; a mark at the goal."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 0.3 * len(bars) + 1.4), layout="constrained")
    titles, ratios = [bar[0] for bar in bars], [bar[2] for bar in bars]
    colours = ["#2a6f97" if each >= 1 else "#f4a259" for each in ratios]
    axes.barh(titles, [each - 1 for each in ratios], left=1, color=colours)
    goals = [(goal, title) for title, goal, _ in bars if goal]
    axes.plot(*zip(*goals, strict=True), "|", color="#1b2a38", markersize=11, markeredgewidth=2, label="goal")
    axes.set_xscale("log")
    axes.axvline(1, color="#1b2a38", linewidth=1)
    shown = [*ratios, *(goal for goal, _ in goals)]
    ticks = [tick for tick in (0.25, 0.5, 1, 2, 4, 8, 16) if min(shown) / 2 < tick < max(shown) * 2]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.invert_yaxis()
    axes.set_xlabel("ratio to Apache Kafka (right of 1: tierlog is ahead)")
    axes.legend(loc="lower right")
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=120)
