"""Segment index: divides a remote segment into pieces of complete batches, without reading it. Pure.

A segment that need not be divided is one piece, whose checksum is in the manifest. The chunk table divides
others into chunks with a checksum each. Bundles of earlier versions have none: their offset index names the
positions of batches, and readers check each batch. Called by `plan` for splits, and by `snapshot` to find
timestamps and the batches of merged segments.
"""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

from tierlog.base.checksums import crc32c_combine
from tierlog.base.types import NO_TIMESTAMP
from tierlog.metadata.records import RemoteSegment
from tierlog.records.chunks import ChunkEntry
from tierlog.records.indexes import (
    find_end_position,
    find_offset_for_time,
    find_position,
    last_offset_at,
    next_position,
)


class Piece(NamedTuple):
    """Bytes [start, end) of a segment. Its batches have last offsets of at least `least_last_offset`, and all
    batches before it have smaller ones. `crc32c` is None if only its batches have checksums."""

    start: int
    end: int
    least_last_offset: int
    crc32c: int | None


class SegmentIndex(Protocol):
    def pieces(
        self, start_offset: int, end_offset: int, max_bytes: int, since_ms: int = NO_TIMESTAMP
    ) -> list[Piece]:
        """Pieces, in order, which contain all batches with offsets in [start_offset, end_offset), but for
        chunks whose records are all older than `since_ms`. They are as large as possible, but larger than
        `max_bytes` only if the index has no smaller ones."""

    def offset_for_time(self, timestamp_ms: int) -> int:
        """An offset at or before the first record with this timestamp or a later one, where a scan starts."""


@dataclass(frozen=True, slots=True)
class ChunkIndex:
    """The chunks of a segment of `log_bytes`, in order."""

    chunks: tuple[ChunkEntry, ...]
    log_bytes: int

    def pieces(
        self, start_offset: int, end_offset: int, max_bytes: int, since_ms: int = NO_TIMESTAMP
    ) -> list[Piece]:
        first = max(0, bisect_right(self.chunks, start_offset, key=lambda chunk: chunk.first_offset) - 1)
        ends = (*(chunk.position for chunk in self.chunks[first + 1 :]), self.log_bytes)
        found: list[Piece] = []
        for chunk, end in zip(self.chunks[first:], ends, strict=True):
            if chunk.first_offset >= end_offset:
                break
            if NO_TIMESTAMP < chunk.max_timestamp < since_ms:
                continue
            if found and found[-1].end == chunk.position and end - found[-1].start <= max_bytes:
                checksum = crc32c_combine(found[-1].crc32c or 0, chunk.crc32c, end - chunk.position)
                found[-1] = found[-1]._replace(end=end, crc32c=checksum)
            else:
                found.append(Piece(chunk.position, end, chunk.first_offset, chunk.crc32c))
        return found

    def offset_for_time(self, timestamp_ms: int) -> int:
        newer = (chunk for chunk in self.chunks if chunk.max_timestamp >= timestamp_ms)
        return next(newer, self.chunks[-1]).first_offset


@dataclass(frozen=True, slots=True)
class OffsetIndex:
    """The sparse indexes of a bundle without a chunk table."""

    entry: RemoteSegment
    offset_index: bytes
    time_index: bytes

    def pieces(
        self, start_offset: int, end_offset: int, max_bytes: int, since_ms: int = NO_TIMESTAMP
    ) -> list[Piece]:
        index, base = self.offset_index, self.entry.base_offset
        start = find_position(index, base, start_offset)
        end = find_end_position(index, base, end_offset) or self.entry.log_bytes
        cuts = [start]
        while end - cuts[-1] > max_bytes:
            cut = next_position(index, cuts[-1], cuts[-1] + max_bytes)
            if cut is None or cut >= end:
                break
            cuts.append(cut)
        return [
            Piece(at, to, last_offset_at(index, base, at) if at else base, None)
            for at, to in pairwise([*cuts, end])
        ]

    def offset_for_time(self, timestamp_ms: int) -> int:
        return find_offset_for_time(self.time_index, self.entry.base_offset, timestamp_ms)


def undivided(entry: RemoteSegment) -> ChunkIndex:
    """The index of a segment that is read as a whole: the manifest has all that it needs."""
    whole = ChunkEntry(0, entry.base_offset, entry.max_timestamp, entry.log_crc32c)
    return ChunkIndex((whole,), entry.log_bytes)
