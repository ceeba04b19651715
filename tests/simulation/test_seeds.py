"""Some seeds of the simulated cluster and quorum, as `make simulate` plays any."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SIMULATE = Path(__file__).parent / "simulate.py"


def simulate(seeds: int, first: int, hash_seed: str = "random") -> dict[str, Any]:
    """In processes of their own: what was killed in a run is not tidied up."""
    command = [sys.executable, str(SIMULATE), "--seeds", str(seeds), "--first-seed", str(first)]
    environment = {**os.environ, "PYTHONPATH": _path(), "PYTHONHASHSEED": hash_seed}
    played = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert played.returncode == 0, played.stdout + played.stderr
    told: dict[str, Any] = json.loads(played.stdout.splitlines()[-1])
    return told


def _path() -> str:
    found = [str(SIMULATE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.pathsep.join(found)


def test_no_seed_breaks_a_promise() -> None:
    told = simulate(8, first=0)
    assert (told["seeds"], told["failed"]) == (8, 0)
    assert told["acknowledged"] > 100
    assert told["faults"] > 50


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nor_do_many() -> None:
    assert simulate(60, first=1000)["failed"] == 0


def test_the_same_seed_leaves_the_same_trace() -> None:
    first = simulate(1, first=3, hash_seed="1")
    assert first == simulate(1, first=3, hash_seed="2")
    assert first["trace"] != simulate(1, first=5)["trace"]
