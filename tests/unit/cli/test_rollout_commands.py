"""Commands of a rollout: one that has run for too long ends with all that it started."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import until

from tierlog.cli import rollout_run
from tierlog.cli.errors import CliError
from tierlog.cli.rollout_run import StateFile, run_command


def test_a_child_that_ignores_sigterm_ends_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_run, "END_TIMEOUT_S", 1.0)
    child, output = tmp_path / "child", tmp_path / "output"
    command = (
        f"(trap '' TERM; exec sh -c 'echo $$ > {child}.new; mv {child}.new {child}; exec sleep 600') & wait"
    )
    with output.open("wb") as log:
        assert run_command(command, log, 2.0, tmp_path / "record") is None
    until(lambda: not _runs(int(child.read_text())), "the child has ended")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_command_of_a_run_that_was_killed_is_noticed(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.json")
    file.check_command()
    words = (
        f"from pathlib import Path; from tierlog.cli.rollout_run import run_command; "
        f"run_command('sleep 600', None, 600.0, Path({str(file.command)!r}))"
    )
    run = subprocess.Popen([sys.executable, "-c", words])
    until(lambda: file.command.exists() and file.command.read_text() != "", "the command runs")
    run.kill()
    run.wait()
    command = int(file.command.read_text().split()[0])
    try:
        with pytest.raises(CliError, match=f"still runs: {command}") as refused:
            file.check_command()
        assert f"kill -TERM -- -{command}" in refused.value.hint
    finally:
        os.killpg(command, signal.SIGKILL)
    until(lambda: not _runs(command), "it has ended")
    file.command.write_text(f"{os.getpid()} 1")  # the id belongs to another process now
    file.check_command()


def test_the_code_of_a_command_is_that_of_the_shell(tmp_path: Path) -> None:
    with (tmp_path / "output").open("wb") as log:
        assert run_command(f"echo {os.getpid()}; exit 3", log, 60.0, tmp_path / "record") == 3
    assert (tmp_path / "output").read_text() == f"{os.getpid()}\n"
