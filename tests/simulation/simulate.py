"""`make simulate SEEDS=n FIRST_SEED=k`: runs the simulated cluster and quorum by seed, on all cores.

The last line is JSON: {"seeds": n, "failed": 0, "acknowledged": …, "faults": …, "of": n, "trace": hash of all
runs, "traces": number of distinct run hashes, "done": number of completed operations, by kind}.
For each seed that fails, the command that replays it is printed, and the exit code is 1. `--seconds` limits
the duration: `seeds` is then the number of seeds run, `of` the number requested.
"""

import argparse
import gc
import hashlib
import json
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import structlog
from simulator.cluster import ClusterRun
from simulator.quorum import QuorumRun
from simulator.safeguards import switched_off

QUORUM_EVERY = 2
"""One seed in this many runs the quorum alone: it sees more events in the same time."""

SEEDS_A_PROCESS = 40
"""Seeds before a process is replaced. Its garbage is never collected: finalizers would clean up, which a
killed process does not."""

HANG_S = 1800
"""A seed that takes longer hangs: the longest needs twenty seconds of a quiet core, and many may share it."""


class Played(NamedTuple):
    seed: int
    failure: str | None
    acknowledged: int
    faults: int
    trace: str
    done: Mapping[str, int]


def is_of_quorum(seed: int) -> bool:
    return seed % QUORUM_EVERY == 0


def play(seed: int, without: str | None = None) -> Played:
    """Run one seed. `without` names a safeguard to switch off."""
    make = QuorumRun if is_of_quorum(seed) else ClusterRun
    with tempfile.TemporaryDirectory(prefix="tierlog-simulation-", dir=_fast_directory()) as directory:
        signal.alarm(HANG_S)
        try:
            with switched_off(without):
                outcome = make(seed, Path(directory)).play()
        except Exception as failure:  # any exception is the finding of this seed
            return Played(seed, f"{type(failure).__name__}: {failure}", 0, 0, "", {})
        finally:
            signal.alarm(0)
    faults = sum(outcome.faults.values())
    return Played(seed, None, outcome.acknowledged, faults, outcome.trace, outcome.done)


def play_all(seeds: Iterable[int], processes: int, without: str | None = None) -> Iterator[Played]:
    """Yield results as runs end. A caller that stops early cancels the rest.

    Each process is replaced after SEEDS_A_PROCESS seeds. Raises BrokenProcessPool if a process is killed.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["simulate"])
    rest = iter(seeds)
    while some := list(islice(rest, SEEDS_A_PROCESS * processes)):
        pool = ProcessPoolExecutor(processes, context, quiet)
        try:
            playing = [pool.submit(play, seed, without) for seed in some]
            yield from (one.result() for one in as_completed(playing))
        finally:
            pool.shutdown(cancel_futures=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run seeds of the simulator.")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", default="", help="seeds to run, separated by commas")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    failed = acknowledged = faults = 0
    done = Counter[str]()
    traces: dict[int, str] = {}
    ends = time.monotonic() + arguments.seconds
    seeds: Sequence[int] = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    if arguments.only:
        seeds = [int(seed) for seed in arguments.only.split(",")]
    for number, played in enumerate(play_all(seeds, arguments.processes), 1):
        acknowledged += played.acknowledged
        faults += played.faults
        done.update(played.done)
        traces[played.seed] = played.trace
        if played.failure is not None:
            failed += 1
            print(f"seed {played.seed}: {played.failure}", flush=True)
            print(f"  again: make simulate SEEDS=1 FIRST_SEED={played.seed}", flush=True)
        if number % 100 == 0:
            print(f"{number} of {len(seeds)} seeds", file=sys.stderr, flush=True)
        if time.monotonic() > ends:
            break
    summary: dict[str, object] = {
        "seeds": len(traces),
        "failed": failed,
        "acknowledged": acknowledged,
        "faults": faults,
    }
    trace = hashlib.sha256("".join(traces[seed] for seed in sorted(traces)).encode()).hexdigest()
    summary |= {"of": len(seeds), "trace": trace, "traces": len(set(traces.values()))}
    print(json.dumps({**summary, "done": dict(sorted(done.items()))}))
    return 1 if failed else 0


def quiet() -> None:
    signal.signal(signal.SIGALRM, _hangs)
    warnings.simplefilter("ignore")  # coroutines of killed processes are never awaited
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    gc.freeze()
    gc.disable()


def _hangs(*_: object) -> None:
    raise TimeoutError(f"the run hangs: it has not ended after {HANG_S} s")


def _fast_directory() -> str | None:
    """A directory in memory, if the machine has one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


if __name__ == "__main__":
    sys.exit(main())
