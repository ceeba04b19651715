"""Known damage: which offsets are in it, and how far a log can be read around it.

Damage is a change by the disk below the log end, found by the scrubber or suspected by a reader. Damaged
batches are not served until `maintenance/log_repair.py` has repaired them. Called by `PartitionLog`, the
scrubber and the remote log manager.
"""

from collections.abc import Sequence

from tierlog.broker.storage.segment import CorruptLog, Damage, Segment


def damage_of(segments: Sequence[Segment]) -> tuple[Damage, ...]:
    return tuple(damage for segment in segments for damage in segment.damage)


def is_known(damage: Sequence[Damage], offset: int) -> bool:
    """Whether an offset is in a damaged range."""
    return overlaps(damage, offset, offset)


def overlaps(damage: Sequence[Damage], first: int, last: int) -> bool:
    """Whether a range of offsets, both inclusive, overlaps a damaged range."""
    return any(one.start_offset <= last and first < one.end_offset for one in damage)


def readable_end(damage: Sequence[Damage], offset: int, end_offset: int) -> int:
    """How far a read from an offset may go. Raises CorruptLog if the offset itself is damaged."""
    if is_known(damage, offset):
        raise CorruptLog(f"offset {offset} is damaged")
    starts = (one.start_offset for one in damage if offset < one.start_offset < end_offset)
    return min(starts, default=end_offset)
