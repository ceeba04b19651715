"""One short round against real processes: the leader is killed, clients go on, and nothing is lost."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHAOS = Path(__file__).parent / "chaos.py"


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_short_round(tmp_path: Path) -> None:
    words = ["--rounds", "1", "--faults", "kill-leader", "--baseline-seconds", "3", "--fault-seconds", "5"]
    command = [sys.executable, str(CHAOS), *words, "--directory", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["passed"] and told["rounds"] == 1 and told["acknowledged"] >= 1000
    assert (told["lost"], told["doubled"], told["reordered"]) == (0, 0, 0)
    assert told["unavailable_s"].keys() == {"kill-leader"}
    assert list(tmp_path.iterdir()) == []  # what passed leaves nothing behind


def test_unknown_faults_are_refused(tmp_path: Path) -> None:
    command = [sys.executable, str(CHAOS), "--faults", "earthquake", "--directory", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "no such faults: earthquake" in ended.stderr and "kill-leader" in ended.stderr
    assert list(tmp_path.iterdir()) == []
