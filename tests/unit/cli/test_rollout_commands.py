"""Commands of a rollout: one that has run for too long ends with all that it started."""

import os
from pathlib import Path

import pytest
from waiting import until

from tierlog.cli import rollout_run
from tierlog.cli.rollout_run import run_command


def test_a_child_that_ignores_sigterm_ends_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_run, "END_TIMEOUT_S", 1.0)
    child, output = tmp_path / "child", tmp_path / "output"
    command = (
        f"(trap '' TERM; exec sh -c 'echo $$ > {child}.new; mv {child}.new {child}; exec sleep 600') & wait"
    )
    with output.open("wb") as log:
        assert run_command(command, log, 2.0) is None
    until(lambda: not _runs(int(child.read_text())), "the child has ended")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_code_of_a_command_is_that_of_the_shell(tmp_path: Path) -> None:
    with (tmp_path / "output").open("wb") as log:
        assert run_command(f"echo {os.getpid()}; exit 3", log, 60.0) == 3
    assert (tmp_path / "output").read_text() == f"{os.getpid()}\n"
