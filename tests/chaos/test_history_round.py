"""A short history with real processes: one is killed, partitions move, and all copies agree at the end."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HISTORY = Path(__file__).parent / "history_check.py"


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_short_history(tmp_path: Path) -> None:
    words = ["--minutes", "0.1", "--faults", "kill-leader", "--fault-seconds", "3"]
    command = [sys.executable, str(HISTORY), *words, "--directory", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=220, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = json.loads(ended.stdout.splitlines()[-1])
    assert result["passed"] and set(result["faults"]) == {"kill-leader"}
    assert result["remote"] > 0 and result["batches_compared"] > 0 and result["acknowledged_with_keys"] > 0
    assert list(tmp_path.iterdir()) == []  # what passed leaves nothing behind
