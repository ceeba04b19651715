"""`make simulate-mutants`: switches each safeguard off in turn, and runs seeds until one fails.

Prints a table. The last line is JSON: {"safeguards": n, "caught": n, "seeds": the most that any needed}.
The exit code is 1 if a safeguard was not caught. `--docs FILE` writes the table between its markers in FILE.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import NamedTuple

from simulate import is_of_quorum, play, play_all, quiet
from simulator.consumer_groups import has_consumers
from simulator.safeguards import SAFEGUARDS
from simulator.switches import Safeguard
from simulator.tiering import is_tiered
from simulator.transactions import has_transactions

BEGIN, END = "<!-- safeguards: made by make simulate-mutants -->", "<!-- end of safeguards -->"
BRIEF_MAX = 90


class Outcome(NamedTuple):
    """The first seed that fails without a safeguard, and its failure; None if no seed fails."""

    seed: int | None
    failure: str


def hunt(safeguard: Safeguard, seeds: int, processes: int) -> Outcome:
    """The lowest seed that fails without the safeguard and passes with it, in whatever order the runs end.

    Only seeds of the safeguard's kind (cluster, with tiered topics, transactions or consumers, or quorum) are
    run.
    """
    candidates = [
        seed
        for seed in range(seeds)
        if is_of_quorum(seed) == safeguard.of_quorum
        and (is_tiered(seed) or not safeguard.of_tier)
        and (has_transactions(seed) or not safeguard.of_transactions)
        and (has_consumers(seed) or not safeguard.of_consumers)
    ]
    caught: dict[int, str] = {}
    ended = set()
    for played in play_all(candidates, processes, safeguard.name):
        ended.add(played.seed)
        if played.failure is not None and play(played.seed).failure is None:
            caught[played.seed] = played.failure
        if caught and ended.issuperset(seed for seed in candidates if seed < min(caught)):
            return Outcome(min(caught), caught[min(caught)])
    return Outcome(None, "")


def main() -> int:
    parser = argparse.ArgumentParser(description="Switch safeguards off, one at a time.")
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="")
    parser.add_argument("--docs", type=Path)
    arguments = parser.parse_args()
    quiet()
    rows, outcomes = [], []
    for name, safeguard in SAFEGUARDS.items():
        if not any(word in name for word in arguments.only.split(",")):
            continue
        outcome = hunt(safeguard, arguments.seeds, arguments.processes)
        outcomes.append(outcome)
        seed = "none" if outcome.seed is None else str(outcome.seed)
        rows.append(f"| {name} | {safeguard.breaks} | {seed} | {_brief(outcome.failure)} |")
        print(rows[-1], flush=True)
    missed = sum(outcome.seed is None for outcome in outcomes)
    if arguments.docs is not None and not arguments.only:
        _write(arguments.docs, rows)
    most = max((outcome.seed or 0 for outcome in outcomes), default=0) + 1
    print(json.dumps({"safeguards": len(outcomes), "caught": len(outcomes) - missed, "seeds": most}))
    return 1 if missed else 0


def _brief(failure: str) -> str:
    text = " ".join(failure.split()).replace("|", "/")
    return text if len(text) <= BRIEF_MAX else text[:BRIEF_MAX] + "…"


def _write(page: Path, rows: list[str]) -> None:
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    head = ["| without | what could happen | first seed that notices | how |", "| --- | --- | --- | --- |"]
    page.write_text("\n".join([before + BEGIN, "", *head, *rows, "", END + after]))


if __name__ == "__main__":
    sys.exit(main())
