"""One short round of each shape with real processes: clients continue, and nothing is lost."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHAOS = Path(__file__).parent / "chaos.py"


@pytest.mark.slow
@pytest.mark.timeout(450)
@pytest.mark.parametrize(
    ("fault", "shape", "security"),
    [
        pytest.param("kill-coordinator", (), "none", marks=pytest.mark.nightly),
        pytest.param("kill-coordinator", (), "all", marks=pytest.mark.nightly),
        ("kill-both", ("apart",), "half"),
        ("store-kill", ("tiered",), "none"),
    ],
)
def test_a_short_round(fault: str, shape: tuple[str, ...], security: str, tmp_path: Path) -> None:
    words = ["--rounds", "1", "--faults", fault, "--baseline-seconds", "3", "--fault-seconds", "5"]
    words += [*(f"--{name}" for name in shape), "--security", security]
    command = [sys.executable, str(CHAOS), *words, "--directory", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = json.loads(ended.stdout.splitlines()[-1])
    assert result["passed"] and result["rounds"] == 1 and result["acknowledged"] >= 1000
    assert result["secure_rounds"] == (security != "none")  # a single round of seed 1 is a secure one
    assert result["transactions"] >= 20
    assert (result["lost"], result["doubled"], result["reordered"]) == (0, 0, 0)
    assert result["unavailable_s"].keys() == {fault} and result["shape"] == list(shape)
    assert (result["remote"] or 0) > 0 if "tiered" in shape else result["remote"] is None
    assert list(tmp_path.iterdir()) == []  # what passed leaves nothing behind


def test_unknown_faults_are_refused(tmp_path: Path) -> None:
    command = [sys.executable, str(CHAOS), "--faults", "earthquake", "--directory", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "no such faults: earthquake" in ended.stderr and "kill-leader" in ended.stderr
    assert list(tmp_path.iterdir()) == []
