"""Measurements and failures so far, saved after every case so that a run can be continued."""

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import loop_lag
from cases import FIGURES, PARTITIONS, PROCESS_CASES, Figure

KAFKA, TIERLOG, PURE = "kafka", "tierlog", "pure Python"
LABELS = (KAFKA, TIERLOG, PURE)


@dataclass
class Found:
    """Measurements of one case on one broker: values by figure, reasons of failed rounds, and loop lag."""

    values: dict[str, list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    lag: loop_lag.Counts = field(default_factory=dict)


@dataclass
class Report:
    machine: dict[str, object]
    rounds: int
    seconds: float
    found: dict[str, dict[str, Found]] = field(default_factory=dict)
    """Case -> label of the broker -> measurements."""

    def at(self, case: str, label: str) -> Found:
        return self.found.setdefault(case, {}).setdefault(label, Found())

    def add(
        self,
        case: str,
        label: str,
        figures: Iterable[Figure],
        summary: dict[str, list[float]],
        lag: loop_lag.Counts,
    ) -> None:
        found = self.at(case, label)
        for figure in figures:
            found.values.setdefault(figure.title, []).append(figure.read(summary))
        found.lag = loop_lag.together(found.lag, lag)

    def median(self, case: str, label: str, figure: Figure) -> float | None:
        values = self.found.get(case, {}).get(label, Found()).values.get(figure.title)
        return statistics.median(values) if values else None

    def forget(self, case: str) -> None:
        for name in PROCESS_CASES if case == PARTITIONS else [case]:
            self.found.pop(name, None)

    def whole(self, case: str, labels: Iterable[str]) -> bool:
        """Whether each of these brokers has a value of each round."""
        names = PROCESS_CASES if case == PARTITIONS else [case]
        return all(self.has(name, FIGURES[name], labels, self.rounds) for name in names)

    def has(self, case: str, figures: Iterable[Figure], labels: Iterable[str], rounds: int) -> bool:
        """Whether each of these brokers has this many values of each figure."""
        return all(
            len(self.at(case, label).values.get(figure.title, [])) >= rounds
            for label in labels
            for figure in figures
        )

    def save(self, file: Path) -> None:
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(self, default=vars, indent=1) + "\n")


def load(file: Path) -> Report:
    held = json.loads(file.read_text())
    found = held.pop("found")
    report = Report(**held)
    report.found = {
        case: {label: Found(**each) for label, each in by_label.items()} for case, by_label in found.items()
    }
    return report
