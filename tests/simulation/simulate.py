"""`make simulate SEEDS=n FIRST_SEED=k`: runs of the simulated cluster and quorum, by seed, on all cores.

The last line is JSON: {"seeds": n, "failed": 0, "acknowledged": …, "faults": …, "trace": hash of all runs}. A
seed that fails is told with the command that plays it again, and the exit code is 1.
"""

import argparse
import hashlib
import json
import logging
import multiprocessing
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import NamedTuple

import structlog
from simulator.cluster import ClusterRun
from simulator.quorum import QuorumRun

QUORUM_EVERY = 4
"""Of so many seeds, one is of the quorum alone: more happens to it in the same time."""


class Played(NamedTuple):
    seed: int
    failure: str | None
    acknowledged: int
    faults: int
    trace: str


def play(seed: int) -> Played:
    make = QuorumRun if seed % QUORUM_EVERY == 0 else ClusterRun
    with tempfile.TemporaryDirectory(prefix="tierlog-simulation-", dir=_fast_directory()) as directory:
        try:
            outcome = make(seed, Path(directory)).play()
        except Exception as failure:  # whatever it is, it is what the seed shows
            return Played(seed, f"{type(failure).__name__}: {failure}", 0, 0, "")
    return Played(seed, None, outcome.acknowledged, sum(outcome.faults.values()), outcome.trace)


def main() -> int:
    parser = argparse.ArgumentParser(description="Play seeds of the simulator.")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    failed = acknowledged = faults = 0
    traces: dict[int, str] = {}
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    with multiprocessing.get_context("spawn").Pool(arguments.processes, _quiet) as pool:
        for number, played in enumerate(pool.imap_unordered(play, seeds), 1):
            acknowledged += played.acknowledged
            faults += played.faults
            traces[played.seed] = played.trace
            if played.failure is not None:
                failed += 1
                print(f"seed {played.seed}: {played.failure}", flush=True)
                print(f"  again: make simulate SEEDS=1 FIRST_SEED={played.seed}", flush=True)
            if number % 100 == 0:
                print(f"{number} of {len(seeds)} seeds", file=sys.stderr, flush=True)
    told = {"seeds": len(seeds), "failed": failed, "acknowledged": acknowledged, "faults": faults}
    trace = hashlib.sha256("".join(traces[seed] for seed in sorted(traces)).encode()).hexdigest()
    print(json.dumps({**told, "trace": trace}))
    return 1 if failed else 0


def _quiet() -> None:
    warnings.simplefilter("ignore")  # coroutines of processes that were killed are never awaited
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def _fast_directory() -> str | None:
    """In memory, where there is such a file system."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


if __name__ == "__main__":
    sys.exit(main())
