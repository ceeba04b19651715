"""tierlog's own measure of how late its event loop is, from /metrics: samples by their upper bound."""

import urllib.request

NAME = 'tierlog_loop_lag_seconds_bucket{le="'

Counts = dict[str, float]
"""Upper bound, as /metrics writes it -> how many samples so far were at most so late."""


def read(admin: str | None) -> Counts:
    """Nothing for a broker without an admin URL."""
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
    """The bound below which all samples are."""
    return 1000 * min(float(bound) for bound, count in counts.items() if count >= samples(counts))
