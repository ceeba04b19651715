"""Known damage of a log: how far the log can be read around it, and the invariants of a log.

Damage is a change by the disk below the log end, found by the scrubber or suspected by a reader. Damaged
batches are not served until `maintenance/log_repair.py` has repaired them. Called by `PartitionLog`.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from tierlog.base.types import require
from tierlog.broker.storage.segment import CorruptLog, Damage, Segment

if TYPE_CHECKING:
    from tierlog.broker.storage.log import PartitionLog


def damage_of(segments: Sequence[Segment]) -> tuple[Damage, ...]:
    return tuple(damage for segment in segments for damage in segment.damage)


def damage_in_reach(log: "PartitionLog") -> tuple[Damage, ...]:
    """The damage above the log start. Below it no client reads, and no replica serves what a repair needs."""
    return tuple(damage for damage in log.damage if damage.end_offset > log.log_start_offset)


def segments_of(log: "PartitionLog") -> tuple[Segment, ...]:
    """All segments of the log."""
    return (*log.rolled_below(log.log_end_offset), log.active)


def mark_repaired(log: "PartitionLog", segment: Segment, damage: Damage) -> None:
    """A range is intact again, in place. Earlier copies and checks of the segment are void."""
    segment.damage = tuple(one for one in segment.damage if one != damage)
    segment.content_version += 1
    log.damage = damage_of(segments_of(log))


def is_known(damage: Sequence[Damage], offset: int) -> bool:
    """Whether an offset is in a damaged range."""
    return lies_in(damage, offset, offset)


def lies_in(damage: Sequence[Damage], first: int, last: int) -> bool:
    """Whether a range of offsets, both inclusive, overlaps a damaged range."""
    return any(one.start_offset <= last and first < one.end_offset for one in damage)


def readable_end(damage: Sequence[Damage], offset: int, end_offset: int) -> int:
    """How far a read from an offset may go. Raises CorruptLog if the offset itself is damaged."""
    if is_known(damage, offset):
        raise CorruptLog(f"offset {offset} is damaged")
    starts = (one.start_offset for one in damage if offset < one.start_offset < end_offset)
    return min(starts, default=end_offset)


def check_log(log: "PartitionLog", segments: Sequence[Segment], bases: Sequence[int]) -> None:
    """Raise InvariantViolation if an invariant is broken."""
    require(bases == [segment.base_offset for segment in segments], "bases")
    for before, after in pairwise(segments):
        require(
            before.end_offset == after.base_offset and before.rolled,
            f"{before.base_offset} is not contiguous",
        )
    require(log.log_end_offset == log.active.end_offset and log.active is segments[-1], "log end")
    require(log.log_start_offset <= log.log_end_offset, "log start above log end")
    require(log.recovery_point <= log.log_end_offset, "recovery point above log end")
    require(log.damage == damage_of(segments), "damage")
    log.epochs.check()
    log.producers.check()
