"""Figures of one round, computed from the times of acknowledgements. Pure. Times are seconds of one clock."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise

REGAINED = 0.95
WINDOW_S = 3.0
STEP_S = 0.25

Acks = Mapping[int, Sequence[float]]  # partition -> moments, ascending


def unavailable_s(acks: Acks, begin: float, end: float) -> float:
    """The longest time within [begin, end] in which some partition acknowledged nothing."""
    return max((_longest_gap(moments, begin, end) for moments in acks.values()), default=end - begin)


def _longest_gap(moments: Sequence[float], begin: float, end: float) -> float:
    inside = moments[bisect_left(moments, begin) : bisect_left(moments, end)]
    edges = [begin, *inside, end]
    return max(later - earlier for earlier, later in pairwise(edges))


def served_again_s(acks: Acks, healed: float, end: float) -> float | None:
    """Time from the heal until every partition has acknowledged a record; None if not before the end."""
    firsts = [_first_after(moments, healed, end) for moments in acks.values()]
    if not firsts or None in firsts:
        return None
    return max(first - healed for first in firsts if first is not None)


def _first_after(moments: Sequence[float], moment: float, end: float) -> float | None:
    at = bisect_left(moments, moment)
    return moments[at] if at < len(moments) and moments[at] < end else None


def count(acks: Acks, begin: float, end: float) -> int:
    return sum(bisect_left(moments, end) - bisect_left(moments, begin) for moments in acks.values())


def rate(acks: Acks, begin: float, end: float) -> float:
    """Acknowledgements per second."""
    return count(acks, begin, end) / (end - begin) if end > begin else 0.0


def regained_s(acks: Acks, healed: float, end: float, baseline: float) -> float | None:
    """From the heal until the end of the first WINDOW_S in which each partition has its share of 95 % of
    `baseline` (a second, over all partitions): what waited and then comes at once in one of them does not
    hide that another stands still. None: not before `end`.
    """
    wanted = REGAINED * baseline * WINDOW_S / max(len(acks), 1)
    moment = healed
    while moment + WINDOW_S <= end:
        if acks and all(count({0: one}, moment, moment + WINDOW_S) >= wanted for one in acks.values()):
            return moment + WINDOW_S - healed
        moment += STEP_S
    return None
