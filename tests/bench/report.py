"""Measurements and failures of a benchmark run, saved after every case so that the run can be resumed."""

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
    """Measurements of one case on one broker: one value per round for each figure, why rounds failed, and the
    event loop lag.
    """

    values: dict[str, list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    lag: loop_lag.Counts = field(default_factory=dict)


@dataclass
class Report:
    machine: dict[str, object]
    rounds: int
    """Rounds per case."""
    seconds: float
    """Measured time of each round."""
    found: dict[str, dict[str, Found]] = field(default_factory=dict)
    """Case -> label of the broker -> measurements."""

    def at(self, case: str, label: str) -> Found:
        """The measurements of a case on a broker, added if there are none yet."""
        return self.found.setdefault(case, {}).setdefault(label, Found())

    def add(
        self,
        case: str,
        label: str,
        figures: Iterable[Figure],
        summary: dict[str, list[float]],
        lag: loop_lag.Counts,
    ) -> None:
        """Add the result of one round. `summary` is what the load generator reports."""
        found = self.at(case, label)
        for figure in figures:
            found.values.setdefault(figure.title, []).append(figure.read(summary))
        found.lag = loop_lag.together(found.lag, lag)

    def median(self, case: str, label: str, figure: Figure) -> float | None:
        """The median over the rounds, in the unit of the figure; None if it was not measured."""
        values = self.found.get(case, {}).get(label, Found()).values.get(figure.title)
        return statistics.median(values) if values else None

    def forget(self, case: str) -> None:
        """Remove the measurements of a case. PARTITIONS stands for all cases that are measured together."""
        for name in PROCESS_CASES if case == PARTITIONS else [case]:
            self.found.pop(name, None)

    def whole(self, case: str, labels: Iterable[str]) -> bool:
        """Whether each of these brokers has a value for each round."""
        names = PROCESS_CASES if case == PARTITIONS else [case]
        return all(self.has(name, FIGURES[name], labels, self.rounds) for name in names)

    def has(self, case: str, figures: Iterable[Figure], labels: Iterable[str], rounds: int) -> bool:
        """Whether each of these brokers has at least `rounds` values for each figure."""
        return all(
            len(self.at(case, label).values.get(figure.title, [])) >= rounds
            for label in labels
            for figure in figures
        )

    def save(self, file: Path) -> None:
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(self, default=vars, indent=1) + "\n")


def load(file: Path) -> Report:
    """Raises OSError, or ValueError if the file is not JSON."""
    fields = json.loads(file.read_text())
    found = fields.pop("found")
    report = Report(**fields)
    report.found = {
        case: {label: Found(**measurements) for label, measurements in by_label.items()}
        for case, by_label in found.items()
    }
    return report
