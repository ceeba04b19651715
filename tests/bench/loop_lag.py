"""tierlog's event loop lag from /metrics: number of samples by upper bound."""

import urllib.request

NAME = 'tierlog_loop_lag_seconds_bucket{le="'

Counts = dict[str, float]
"""Upper bound, as in /metrics -> cumulative number of samples."""


def read(admin: str | None) -> Counts:
    """Empty for a broker without an admin URL."""
    if admin is None:
        return {}
    with urllib.request.urlopen(f"{admin}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.removeprefix(NAME).split('"}') for line in lines if line.startswith(NAME))
    return {bound: float(count) for bound, count in pairs}


def since(before: Counts, admin: str | None) -> Counts:
    return {bound: count - before.get(bound, 0) for bound, count in read(admin).items()}


def together(one: Counts, other: Counts) -> Counts:
    return {bound: one.get(bound, 0) + other.get(bound, 0) for bound in one | other}


def samples(counts: Counts) -> int:
    return int(max(counts.values(), default=0))


def later_than(counts: Counts, bound: str) -> int:
    return samples(counts) - int(counts.get(bound, 0))


def worst_ms(counts: Counts) -> float:
    """The lowest bound that covers all samples."""
    return 1000 * min(float(bound) for bound, count in counts.items() if count >= samples(counts))
