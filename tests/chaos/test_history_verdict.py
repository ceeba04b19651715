"""The verdict when some copies cannot be read, and faults that a history refuses."""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from havoc.history import FINAL, Acked, Read, Recorder, Sent, value_of
from history_check import Run

HISTORY = Path(__file__).parent / "history_check.py"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """One record was acknowledged, and is not in the final reading; no replica has a directory."""
    run = Run(argparse.Namespace(seed=1, min_acknowledged=1, minutes=1.0), tmp_path)
    recorder = Recorder(tmp_path / "history.jsonl")
    for number in range(2):
        recorder.write(Sent(at=0.0, producer="p", partition=0, number=number))
        recorder.write(Acked(at=0.0, producer="p", partition=0, number=number, offset=number))
    recorder.write(Read(at=1.0, reader=FINAL, partition=0, records=((0, value_of("p", 0, 0)),)))
    recorder.close()
    yield run
    run._cluster.close()


def test_reads_of_clients_count_without_readable_copies(run: Run) -> None:
    run._stands_still = True
    result = run._result({})
    assert (result["lost"], result["passed"]) == (1, False)
    assert any(problem.startswith("nothing was compared") for problem in result["problems"])


def test_unread_records_of_a_run_that_ended_early_are_not_lost(run: Run) -> None:
    result = run._result({})
    assert (result["lost"], result["passed"]) == (0, False)


def test_faults_without_effect_here_are_refused(tmp_path: Path) -> None:
    """Nodes of a history run without the library that falsifies clocks and fsync, and without small disks."""
    names = "kill-leader,wrong-clocks,disk-full"
    command = [sys.executable, str(HISTORY), "--faults", names, "--directory", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "wrong-clocks, disk-full" in ended.stderr and "kill-leader" not in ended.stderr
    assert list(tmp_path.iterdir()) == []
