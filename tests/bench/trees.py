#!/usr/bin/env python3
"""`make bench-trees BEFORE=REVISION`: the load cases on two compiled trees in turn, as a table of ratios.

BEFORE and AFTER are directories that `compile_hot.py` made. Both brokers run all the time, with the settings
of `make bench`, under the load generator of this tree. Each round measures case after case on both; which of
them is first alternates. A figure is the median of the rounds. A ratio above 1: AFTER is better, by more of
what is good or less of what is not.

A failed case is named with the reason, and the others continue. Results are saved in results/trees.json after
each round.

    trees.py BEFORE AFTER [--rounds 3] [--seconds 3] [--json] [case …]
"""

import argparse
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from cases import CASES, Figure
from page import cell, failed_cases
from report import Report
from suite import RESULTS, Broker, machine, tierlog_broker
from versus import NOT_OF_TIERLOG, SAME, Standing, jars, measure_case

BEFORE, AFTER = "before", "after"
RESULT = RESULTS / "trees.json"


class Ratio(NamedTuple):
    case: str
    figure: Figure
    value: float

    def __str__(self) -> str:
        return f"{self.value:.2f}, {self.case}: {self.figure.title}"


def ratios(report: Report) -> Iterator[Ratio]:
    """One for each figure that both trees have, in the order of the cases."""
    for case in report.found:
        for figure in CASES[case].figures:
            before, after = (report.median(case, label, figure) for label in (BEFORE, AFTER))
            if before is not None and after is not None:
                yield Ratio(case, figure, figure.ratio(after, before))


def table(report: Report) -> str:
    found = {(ratio.case, ratio.figure): ratio for ratio in ratios(report)}
    lines = ["| case and figure | before | after | ratio |", "| --- | ---: | ---: | ---: |"]
    for case in report.found:
        for figure in CASES[case].figures:
            cells = [cell(report, case, label, figure) for label in (BEFORE, AFTER)]
            shown = f"{found[case, figure].value:.2f}" if (case, figure) in found else ""
            lines.append(f"| {' | '.join([f'{case}: {figure.title}', *cells, shown])} |")
    lines += ["", f"worst: {min(found.values(), key=lambda ratio: ratio.value)}"] if found else []
    for case, label, reasons in failed_cases(report):
        rounds = f"{len(reasons)} of {report.rounds} rounds"
        lines.append(f"failed: {case}, {label}, {rounds}: {'; '.join(dict.fromkeys(reasons))}")
    return "\n".join(lines)


def document(report: Report) -> dict[str, Any]:
    """The same as JSON, with the value of each round."""
    figures = [
        {
            "case": case,
            "figure": figure.title,
            "better": figure.better,
            "ratio": ratio,
            **{label: report.at(case, label).values[figure.title] for label in (BEFORE, AFTER)},
        }
        for case, figure, ratio in ratios(report)
    ]
    return {
        "machine": report.machine,
        "rounds": report.rounds,
        "seconds": report.seconds,
        "figures": figures,
        "worst": min(figures, key=lambda each: each["ratio"], default=None),
        "failures": [
            {"case": case, "tree": label, "reasons": reasons} for case, label, reasons in failed_cases(report)
        ],
    }


def standing(label: str, tree: Path) -> Standing:
    settings = {name: value for name, value in SAME.items() if name not in NOT_OF_TIERLOG}

    @contextmanager
    def start() -> Iterator[Broker]:
        with tierlog_broker(label, tree.absolute(), settings) as broker:
            yield replace(broker, admin=None)  # an older tree may have no metric of the loop lag

    return Standing(label, start)


def measure(names: Sequence[str], trees: list[Standing], report: Report) -> None:
    needs_jars = any("{classpath}" in CASES[name].words for name in names)
    classpath = jars() if needs_jars else ""
    try:
        for number in range(report.rounds):
            for place, name in enumerate(names):
                for tree in trees if (number + place) % 2 == 0 else trees[::-1]:
                    measure_case(name, tree, classpath, report)
            report.save(RESULT)
    finally:
        for tree in trees:
            tree.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, help="what compile_hot.py of the older revision made")
    parser.add_argument("after", type=Path, help="what compile_hot.py of the newer one made")
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json", action="store_true", help="JSON instead of the table")
    options = parser.parse_intermixed_args()  # cases may follow the options
    for tree in (options.before, options.after):
        if not (tree / "tierlog").is_dir():
            parser.error(f"{tree} has no compiled tierlog: make it with compile_hot.py")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # brokers and cases end with this process
    report = Report(machine(), options.rounds, options.seconds)
    with redirect_stdout(sys.stderr):  # the progress
        trees = [standing(BEFORE, options.before), standing(AFTER, options.after)]
        measure(options.cases or list(CASES), trees, report)
    print(json.dumps(document(report), indent=1) if options.json else table(report))


if __name__ == "__main__":
    main()
