"""Output of the demo: steps and their progress, checks, and a table of figures."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

STEPS = 8
LONGEST_VALUE = 1000  # characters that are shown if a check failed


@dataclass
class Report:
    """Collects figures and checks; `failed` decides the exit code."""

    console: Console
    figures: list[tuple[str, str]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    checks: int = 0

    def __post_init__(self) -> None:
        self._begin = time.monotonic()
        self._step = 0

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """A numbered step; its duration becomes a figure."""
        self._step += 1
        self.console.print(f"\n[bold cyan]{self._step}/{STEPS}[/] [bold]{escape(title)}[/]")
        begin = time.monotonic()
        yield
        self.figure(f"step {self._step}: {title}", f"{time.monotonic() - begin:.1f} s")

    @contextmanager
    def progress(self, label: str, total: int) -> Iterator["Bar"]:
        """A progress bar, which stays on the screen when it is complete."""
        columns = (
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.console) as progress:
            yield Bar(progress, label, total)

    def say(self, message: str) -> None:
        self.console.print(f"  {message}")

    def figure(self, name: str, value: str) -> None:
        self.figures.append((name, value))

    def check(self, what: str, expected: Any, actual: Any) -> None:
        """Compare two values; if they differ, the demo fails at its end."""
        self.checks += 1
        if expected == actual:
            self.console.print(f"  [green]✓[/] {escape(what)}")
            return
        self.failed.append(what)
        wanted, got = str(expected)[:LONGEST_VALUE], str(actual)[:LONGEST_VALUE]
        self.console.print(f"  [bold red]✗ {escape(what)}[/]: expected {escape(wanted)}, got {escape(got)}")

    def finish(self) -> None:
        """Prints the figures and the verdict."""
        self.figure("all steps", f"{time.monotonic() - self._begin:.1f} s")
        table = Table(title="Figures of this run", title_justify="left", show_header=False)
        table.add_column("what")
        table.add_column("value", justify="right")
        for name, value in self.figures:
            table.add_row(escape(name), escape(value))
        self.console.print()
        self.console.print(table)
        if self.failed:
            self.console.print(f"[bold red]{len(self.failed)} of {self.checks} checks failed[/]")
        else:
            self.console.print(f"[bold green]All {self.checks} checks passed.[/]")


class Bar:
    """One progress bar."""

    def __init__(self, progress: Progress, label: str, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task(label, total=total)

    def reach(self, count: int) -> None:
        self._progress.update(self._task, completed=count)

    def say(self, message: str) -> None:
        self._progress.console.print(f"  {message}")
