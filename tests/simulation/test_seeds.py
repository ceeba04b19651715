"""A few seeds of the simulated cluster and quorum, run as `make simulate` does."""

import inspect
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from simulator.safeguards import SAFEGUARDS, switched_off
from simulator.switches import references

from tierlog.base import safeguards as product

SIMULATE = Path(__file__).parent / "simulate.py"
MUTANTS = SIMULATE.with_name("mutants.py")
REPOSITORY = Path(__file__).parents[2]
PRODUCT = ("broker", "cli", "metadata", "spark", "src", "tiering")

DONE = {
    "moves",
    "moves cancelled",
    "elections",
    "brokers removed",
    "topics recreated",
    "offsets of recreated topics",
    "bits flipped",
    "brokers without a vote",
    "group commits",
    "voters removed",
    "voters added",
    "segments tiered",
    "segments compacted",
    "segments merged",
    "history jobs",
    "history jobs refused",
    "history jobs that died",
    "bulk loads",
    "bulk loads refused",
    "bulk loads repeated",
    "bulk loads that died",
    "segments with gaps tiered",
    "records compacted before their upload",
    "tiering switched off",
    "tiering switched on",
    "switching off refused",
    "remote logs dropped",
    "segments damaged in passing",
    "pages damaged in passing",
    "roots damaged in passing",
    "records compacted in the bucket",
    "segments dropped on low disks",
    "starts after what is remote",
    "pages",
    "late uploads",
    "objects deleted",
    "objects flipped",
    "objects removed",
    "damaged objects refused",
    "log starts moved",
    "log starts listed",
    "unknown ends",
    "messages in responses",
    "retries of written batches",
    "transactions committed",
    "transactions aborted",
    "transactions that time out",
    "transactional producers fenced",
    "zombies fenced",
    "late batches",
    "late ends of transactions",
    "coordinators killed before their markers",
    "consumer partitions assigned",
    "consumer partitions revoked",
    "consumer members fenced",
    "consumer commits",
    "consumers: die",
    "consumers: leave",
    "consumers: pause",
    "consumers: rejoin",
    "consumers: subscribe",
    "static members that left",
    "late heartbeats of consumers",
    "late commits of consumers",
    "late responses to consumers",
    "transactions of members",
    "offsets of stale members refused",
    "classic members of mixed groups",
    "classic leaders of mixed groups",
    "snapshots taken",
    "snapshots renewed",
    "leases that ended",
    "rights revoked",
    "writes of guests",
    "writes of guests refused",
}
"""Operations other than records and faults. Each must happen at least once in the seeds below."""

OPERATOR_CALLS_MAX = 5
"""Partitions left to an operator in a thousand seeds. With more, partitions no longer recover alone."""

TRACED = "19,22"
COVERING = "13,19,22,25,35,37,41,45,59,97,203,223,241"


def simulate(seeds: int, first: int, hash_seed: str = "random") -> dict[str, Any]:
    return play(SIMULATE, "--seeds", str(seeds), "--first-seed", str(first), hash_seed=hash_seed)


def play(script: Path, *arguments: str, hash_seed: str = "random") -> dict[str, Any]:
    """Run a script in a separate process, because a run never cleans up the simulated processes it kills."""
    environment = {**os.environ, "PYTHONPATH": _path(), "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, str(script), *arguments]
    played = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=2400, check=False
    )
    assert played.returncode == 0, played.stdout + played.stderr
    summary: dict[str, Any] = json.loads(played.stdout.splitlines()[-1])
    return summary


def _path() -> str:
    found = [str(SIMULATE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.pathsep.join(found)


@pytest.mark.timeout(600)
def test_twelve_seeds_keep_all_guarantees() -> None:
    summary = simulate(12, first=0)
    assert (summary["seeds"], summary["failed"]) == (12, 0)
    assert summary["acknowledged"] > 100
    assert summary["faults"] > 50


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(2600)
def test_three_hundred_seeds_keep_all_guarantees() -> None:
    summary = simulate(300, first=0)
    assert (summary["seeds"], summary["failed"]) == (300, 0)
    assert {kind for kind, count in summary["done"].items() if count} >= DONE
    assert summary["done"].get("left to an operator", 0) <= OPERATOR_CALLS_MAX


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["pre-vote", "the high watermark waits for every in-sync replica"])
def test_the_loss_of_a_safeguard_is_noticed(name: str) -> None:
    """`make simulate-mutants` tests the others."""
    summary = play(MUTANTS, "--seeds", "40", "--only", name)
    assert (summary["safeguards"], summary["caught"]) == (1, 1)


def test_each_safeguard_of_the_product_has_a_replacement_here() -> None:
    files = [file for part in PRODUCT for file in (REPOSITORY / part).rglob("*.py")]
    names = {
        name for file in files for name in re.findall(r'(?m)^ *@?safeguard\(\s*"(.+)"', file.read_text())
    }
    assert names == {name for row in SAFEGUARDS.values() for name in row.replacements}


def test_each_replacement_takes_the_arguments_of_its_safeguard() -> None:
    """Otherwise a run fails in its replacement, and seems to notice the loss."""
    for row in SAFEGUARDS.values():
        for name, replacement in row.replacements.items():
            original = product.SAFEGUARDS[name]
            parameters = inspect.signature(original).parameters.values()
            places = [
                None for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
            ]
            named = {each.name: None for each in parameters if each.kind is each.KEYWORD_ONLY}
            inspect.signature(replacement).bind(original, *places, **named)
            awaited = map(inspect.iscoroutinefunction, (original, replacement))
            assert len({*awaited}) == 1, name


def test_no_compiled_function_is_decorated() -> None:
    compiled = runpy.run_path(str(REPOSITORY / ".ci/compile_hot.py"))["HOT"]
    assert compiled
    assert [
        name for name in compiled if "@safeguard" in (REPOSITORY / "src/tierlog" / name).read_text()
    ] == []


def test_a_safeguard_is_switched_off_everywhere_and_on_again() -> None:
    for name, row in SAFEGUARDS.items():
        originals = [product.SAFEGUARDS[point] for point in row.replacements]
        before = [set(references(original)) for original in originals]
        assert all(before), name
        with switched_off(name):
            assert not any(map(references, originals))
        assert [set(references(original)) for original in originals] == before


@pytest.mark.timeout(600)
def test_the_same_seeds_produce_the_same_traces() -> None:
    first = play(SIMULATE, "--only", TRACED, hash_seed="1")
    assert first == play(SIMULATE, "--only", TRACED, hash_seed="2")
    assert first["traces"] == first["seeds"]


@pytest.mark.slow
@pytest.mark.timeout(1300)
def test_a_few_seeds_cover_everything_that_a_run_can_contain() -> None:
    summary = play(SIMULATE, "--only", COVERING)
    assert summary["failed"] == 0
    assert {kind for kind, count in summary["done"].items() if count} >= DONE
