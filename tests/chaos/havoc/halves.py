"""Parts of a chaos run: in an open cluster, and in a cluster with SASL_SSL, users and ACLs.

Each part is a process of its own, because the namespaces of a run end with its process. Every second round is
secure, and the seed decides which, so that another seed plays the other faults with SASL_SSL. A run of a
given time has several parts, because the checker keeps the history of a part in memory; every second one is
secure.
"""

import json
import math
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from havoc.network import WITH_PARENT

HALF, NONE, ALL = "half", "none", "all"
SECURITY = (HALF, NONE, ALL)
PART_MINUTES_MAX = 20
_LONGEST = ("unavailable_s", "after_heal_s", "regained_s")


def is_secure(number: int, seed: int) -> bool:
    """Whether the round with this number, from 1, runs with SASL_SSL."""
    return (number + seed) % 2 == 0


def run(rounds: int | None, seed: int, *, security: str = HALF, minutes: float | None = None) -> int:
    """Play all parts by this program, and print one result. `rounds`: None for each fault once. With
    `minutes` the parts follow each other for this long. Returns the exit code."""
    parts = _in_time(minutes, seed, security) if minutes else _by_security(rounds, seed)
    results: list[dict[str, Any]] = []
    for words in parts:
        command = [sys.executable, *sys.argv, *words]
        process = subprocess.Popen([*WITH_PARENT, *command], stdout=subprocess.PIPE, text=True)
        signal.signal(signal.SIGTERM, lambda *_, process=process: process.terminate())  # type: ignore[misc]
        output, _ = process.communicate()
        lines = output.splitlines()
        if process.returncode not in (0, 1) or not lines:
            return process.returncode if process.returncode > 0 else 128 - process.returncode
        results.append(json.loads(lines[-1]))
    result = merged(results)
    print(json.dumps(result), flush=True)
    return 0 if result["passed"] else 1


def _by_security(rounds: int | None, seed: int) -> list[list[str]]:
    """Arguments of the open part and of the secure one, if there are rounds for both."""
    found = {is_secure(number, seed) for number in range(1, (rounds or 2) + 1)}
    return [["--security", ALL if secure else NONE, "--half"] for secure in sorted(found)]


def _in_time(minutes: float, seed: int, security: str) -> list[list[str]]:
    """Arguments of parts of equal length, each with a seed of its own."""
    count = max(1, math.ceil(minutes / PART_MINUTES_MAX))
    secure = [security == ALL or (security == HALF and is_secure(one, seed)) for one in range(1, count + 1)]
    common = ["--part", "--minutes", str(minutes / count)]
    return [
        [*common, "--security", ALL if is_one else NONE, "--seed", str(seed + number)]
        for number, is_one in enumerate(secure)
    ]


def merged(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One result of several runs: sums of numbers, the worst of times, all problems."""
    whole = dict(results[0])
    for other in results[1:]:
        for name, value in other.items():
            whole[name] = _merged(name, whole[name], value)
    return whole


def _merged(name: str, one: Any, other: Any) -> Any:
    if name in ("seed", "network", "shape") or other is None:
        return one
    if one is None:
        return other
    if name in _LONGEST:
        times = {**one, **other}
        return {fault: _worst(one, other, fault) for fault in times}
    if isinstance(one, bool):
        return one and other
    if isinstance(one, dict):
        return {**one, **other}
    return f"{one}, {other}" if isinstance(one, str) else one + other


def _worst(one: dict[str, float | None], other: dict[str, float | None], fault: str) -> float | None:
    """A time of None is that of a fault which did not heal in time."""
    times = [found[fault] for found in (one, other) if fault in found]
    return None if None in times else max(time for time in times if time is not None)
