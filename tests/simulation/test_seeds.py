"""Some seeds of the simulated quorum and cluster; `make simulate` runs any."""

from pathlib import Path

import pytest
from simulator.cluster import ClusterRun
from simulator.quorum import QuorumRun

FAST = range(8)


@pytest.mark.parametrize("seed", FAST)
def test_a_cluster_keeps_its_promises(seed: int, tmp_path: Path):
    outcome = ClusterRun(seed, tmp_path).play()
    assert outcome.acknowledged > 0
    assert sum(outcome.faults.values()) > 5


@pytest.mark.parametrize("seed", FAST)
def test_a_quorum_keeps_its_promises(seed: int, tmp_path: Path):
    assert QuorumRun(seed, tmp_path).play().acknowledged > 0


def test_the_same_seed_leaves_the_same_trace(tmp_path: Path):
    def trace(run: int, seed: int) -> str:
        directory = tmp_path / str(run)
        directory.mkdir()
        return ClusterRun(seed, directory).play().trace

    first = trace(1, 3)
    assert first == trace(2, 3)
    assert first != trace(3, 4)
