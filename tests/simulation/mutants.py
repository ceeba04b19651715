"""`make simulate-mutants`: switches each safeguard off in turn, and runs seeds until one fails.

Prints a table. The last line is JSON: {"safeguards": n, "caught": n, "seeds": the most that any needed}.
The exit code is 1 if a safeguard was not caught. `--docs FILE` renews the table between its markers in FILE:
for each safeguard it first plays the seed that the table names, and searches only if that one notices nothing
any more. With `--only` the other rows stay.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from simulate import is_of_quorum, play_all, quiet
from simulator.consumer_groups import has_consumers
from simulator.safeguards import SAFEGUARDS
from simulator.switches import Safeguard
from simulator.tiering import is_tiered
from simulator.transactions import has_transactions

BEGIN, END = "<!-- safeguards: made by make simulate-mutants -->", "<!-- end of safeguards -->"
BRIEF_MAX = 90


class Outcome(NamedTuple):
    """A seed that fails without a safeguard, and its failure; None if no seed fails."""

    seed: int | None
    failure: str


@cache
def passes(seed: int) -> bool:
    """Whether the seed passes with all safeguards."""
    return next(play_all([seed], 1)).failure is None


def known(safeguard: Safeguard, seed: int) -> Outcome:
    """The failure of this seed without the safeguard. No seed if it notices nothing."""
    played = next(play_all([seed], 1, safeguard.name))
    if played.failure is None or not passes(seed):
        return Outcome(None, "")
    return Outcome(seed, played.failure)


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
        if played.failure is not None and passes(played.seed):
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
    table = {} if arguments.docs is None else _read(arguments.docs)
    outcomes = []
    for name, safeguard in SAFEGUARDS.items():
        if not any(word in name for word in arguments.only.split(",")):
            continue
        outcome, before = Outcome(None, ""), re.search(r"\| (\d+) \|", table.get(name, ""))
        if before is not None:
            outcome = known(safeguard, int(before[1]))
        if outcome.seed is None:
            outcome = hunt(safeguard, arguments.seeds, arguments.processes)
        outcomes.append(outcome)
        seed = "none" if outcome.seed is None else str(outcome.seed)
        table[name] = f"| {name} | {safeguard.breaks} | {seed} | {_brief(outcome.failure)} |"
        print(table[name], flush=True)
        if arguments.docs is not None:
            _write(arguments.docs, table)
    missed = sum(outcome.seed is None for outcome in outcomes)
    most = max((outcome.seed or 0 for outcome in outcomes), default=0) + 1
    print(json.dumps({"safeguards": len(outcomes), "caught": len(outcomes) - missed, "seeds": most}))
    return 1 if missed else 0


def _brief(failure: str) -> str:
    text = " ".join(failure.split()).replace("|", "/")
    return text if len(text) <= BRIEF_MAX else text[:BRIEF_MAX] + "…"


def _read(page: Path) -> dict[str, str]:
    """The rows of the table, by safeguard."""
    rows = page.read_text().partition(BEGIN)[2].partition(END)[0].splitlines()
    return {row.split(" | ")[0].removeprefix("| "): row for row in rows if row.startswith("| ")}


def _write(page: Path, table: Mapping[str, str]) -> None:
    """Rows in the order of the safeguards, without those of safeguards that are gone."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    head = ["| without | what could happen | a seed that notices | how |", "| --- | --- | --- | --- |"]
    rows = [table[name] for name in SAFEGUARDS if name in table]
    page.write_text("\n".join([before + BEGIN, "", *head, *rows, "", END + after]))


if __name__ == "__main__":
    sys.exit(main())
