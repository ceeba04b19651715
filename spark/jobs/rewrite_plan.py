"""Plan of `rewrite`: which successive segments become one. Pure.

A group is within one page of the manifest or within its newest entries, because one commit changes one page.
It is worth writing if it has several segments, or one that may have another codec than the wanted one. The
tags of the segments that a job has written say that nothing is left to do with them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tierlog.metadata.records import CODEC, GROUPED_BYTES, RemoteSegment, merged_tags

OFFSETS_MAX = (1 << 31) - 1  # indexes have relative offsets of 32 bits
SEGMENTS_MAX = 512  # replaced by one commit
INDEX_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class RewriteLimits:
    """`segment_bytes`: largest size of a new segment; 0 joins none. `bytes_max`, `span_ms_max`: what the
    topic's retention allows; None: no limit. `codec`: Kafka's name; None keeps the codecs."""

    segment_bytes: int
    codec: str | None
    bytes_max: int
    span_ms_max: int | None

    @property
    def joined_bytes(self) -> int:
        return min(self.segment_bytes, self.bytes_max)


@dataclass(frozen=True, slots=True)
class Group:
    """Successive segments that become one. `is_full`: the next segment does not fit."""

    old: tuple[RemoteSegment, ...]
    is_full: bool

    @property
    def base_offset(self) -> int:
        return self.old[0].base_offset

    @property
    def end_offset(self) -> int:
        return self.old[-1].end_offset

    @property
    def size_bytes(self) -> int:
        return sum(entry.log_bytes for entry in self.old)


def groups_of(entries: Sequence[RemoteSegment], limits: RewriteLimits) -> Iterator[Group]:
    """The groups of a page's entries, in order, that are worth writing."""
    at = 0
    while at < len(entries):
        count = _length(entries[at:], limits)
        group = Group(tuple(entries[at : at + count]), is_full=at + count < len(entries))
        if count > 1 or needs_codec(group.old[0], limits.codec):
            yield group
        at += count


def needs_codec(entry: RemoteSegment, codec: str | None) -> bool:
    """Whether a segment may have batches with another codec. One without data records has none."""
    has_data = entry.control_records < 0 or entry.records > entry.control_records
    return codec is not None and has_data and entry.codec != codec


def tags_of(group: Group, limits: RewriteLimits) -> tuple[tuple[str, str], ...]:
    """Tags of the new segment: how far it is compacted, as after a merge, and what was done."""
    tags = merged_tags(group.old)
    if limits.codec is not None:
        tags = (*(tag for tag in tags if tag[0] != CODEC), (CODEC, limits.codec))
    if group.is_full and limits.joined_bytes:
        tags += ((GROUPED_BYTES, str(limits.joined_bytes)),)
    return tags


def _length(entries: Sequence[RemoteSegment], limits: RewriteLimits) -> int:
    """How many of the first entries become one segment."""
    first = entries[0]
    size = index_bytes = 0
    newest = oldest = first.max_timestamp
    for count, entry in enumerate(entries):
        size, index_bytes = size + entry.log_bytes, index_bytes + entry.index_bytes
        newest, oldest = max(newest, entry.max_timestamp), min(oldest, entry.max_timestamp)
        is_long = limits.span_ms_max is not None and newest - oldest > limits.span_ms_max
        is_large = size > limits.joined_bytes or index_bytes > INDEX_BYTES_MAX or count == SEGMENTS_MAX
        is_complete = entry.grouped_bytes >= limits.joined_bytes
        if is_large or is_long or is_complete or entry.last_offset - first.base_offset > OFFSETS_MAX:
            return max(count, 1)
    return len(entries)
