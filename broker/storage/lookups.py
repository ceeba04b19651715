"""Lookups in a log: exported segments and searches by timestamp. Made by the log, read by tiering and
handlers.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import NamedTuple

from tierlog.base.leader_epochs import EpochEntry, LeaderEpochs
from tierlog.base.safeguards import safeguard
from tierlog.base.segments import DescribedSegments, SegmentDescriptor, SegmentExport
from tierlog.base.types import NO_TIMESTAMP
from tierlog.broker.storage.names import LOG, SNAPSHOT, segment_file, segment_file_name
from tierlog.broker.storage.segment import BatchAt, CorruptLog, Segment
from tierlog.config.topic import MAX_LONG
from tierlog.records.errors import RecordsError
from tierlog.records.indexes import AbortedTxn, encode_txn_entry, search_aborted
from tierlog.records.record import record_pieces
from tierlog.records.unpacking import NO_BOUND
from tierlog.records.walk import RecordAt, find_timestamp
from tierlog.records.window import Step, Window

HEADERS_PER_TURN = 256
"""Batch headers that a search reads before other requests run."""


class FoundTimestamp(NamedTuple):
    offset: int
    timestamp: int
    leader_epoch: int


TimestampSearch = Generator[Step, None, FoundTimestamp | None]
"""A search over records in steps, as those of a `Window`, since a batch may hold millions of records. Raises
RecordsError, CorruptLog and OSError.
"""


def export(
    segment: Segment, descriptor: SegmentDescriptor, aborted: list[AbortedTxn], epochs: tuple[EpochEntry, ...]
) -> SegmentExport:
    """Export a rolled segment. `aborted`: transactions that overlap it; `epochs`: leader epochs up to its
    end. Raises OSError.
    """
    return SegmentExport(
        descriptor,
        bytes(segment.offset_index),
        bytes(segment.time_index),
        b"".join(map(encode_txn_entry, aborted)),
        segment.files.read_whole(segment_file(segment.directory, segment.end_offset, SNAPSHOT)),
        epochs,
    )


def retry_if_replaced(
    current: Callable[[], Sequence[Segment]], search: Callable[[Sequence[Segment]], TimestampSearch]
) -> TimestampSearch:
    """Search the current segments, and search again if a segment it met, or in which it found the record, was
    dropped by retention or replaced by compaction.
    """
    while True:
        segments = tuple(current())
        try:
            found = yield from search(segments)
        except (OSError, CorruptLog, RecordsError):
            if set(segments) <= set(current()):
                raise
            continue
        if found is None or any(one.base_offset <= found.offset < one.end_offset for one in current()):
            return found


@safeguard("a fetch lists the aborted transactions of its range")
def find_aborted(segments: Iterable[Segment], start: int, end: int) -> list[AbortedTxn]:
    """The aborted transactions that overlap [start, end), in segments from that of `start` on. A transaction
    is in the index of the segment that has its marker, which may be far behind the end."""
    found: list[AbortedTxn] = []
    for segment in segments:
        if segment.has_aborts:
            overlapping, is_complete = search_aborted(segment.txn_index, start, end)
            found += overlapping
            if is_complete:
                break
    return found


def find_first(
    segments: Iterable[Segment], timestamp: int, start: int, limit: int, used: Callable[[Segment], None]
) -> TimestampSearch:
    """Find the first record at or after a timestamp, in offsets from `start` up to `limit`. `used` is called
    with each segment whose indexes were loaded.

    Batches are selected by their headers and searched by their records. A header timestamp that is too high
    costs one search; one that is too low hides the batch (ADR 0004 limits by how much).
    """
    for segment in segments:
        if segment.max_timestamp < timestamp or segment.end_offset <= start:
            continue
        used(segment)
        for batch in segment.find_timestamp(timestamp, start):
            if batch.header.base_offset >= limit:
                return None
            found, _ = yield from find_timestamp(_window(segment, batch), batch.header, timestamp, start)
            if found is not None:
                return _found(batch, found) if found.offset < limit else None
            yield None
    return None


def find_largest(
    segments: Sequence[Segment], start: int, limit: int, used: Callable[[Segment], None]
) -> TimestampSearch:
    """Find the first record with the largest timestamp. Records without a timestamp count only if no record
    has one, as in Kafka.
    """
    best: FoundTimestamp | None = None
    for segment in sorted(segments, key=lambda one: -one.max_timestamp):
        if best is not None and segment.max_timestamp <= best.timestamp:
            break
        found = yield from find_first((segment,), segment.max_timestamp, start, limit, used)
        if found is None:  # a header's timestamp is too high
            above = NO_TIMESTAMP if best is None else best.timestamp
            found = yield from _largest_of(segment, start, limit, above)
        if found is not None and (best is None or found.timestamp > best.timestamp):
            best = found
    return best


def _largest_of(segment: Segment, start: int, limit: int, above: int) -> TimestampSearch:
    best: FoundTimestamp | None = None
    for number, batch in enumerate(segment.scan(0), 1):
        if number % HEADERS_PER_TURN == 0:
            yield None
        header = batch.header
        if header.max_timestamp <= above or header.last_offset < start or header.base_offset >= limit:
            continue
        _, newest = yield from find_timestamp(_window(segment, batch), header, MAX_LONG, start)
        if newest is not None and newest.timestamp > above and newest.offset < limit:
            best, above = _found(batch, newest), newest.timestamp
        yield None
    return best


def _window(segment: Segment, batch: BatchAt) -> Window:
    """No limit applies to a batch on disk: it is decompressed in pieces that are dropped after use."""
    return Window(record_pieces(segment.read_batch(batch), 0, batch.header, NO_BOUND))


def _found(batch: BatchAt, record: RecordAt) -> FoundTimestamp:
    return FoundTimestamp(record.offset, record.timestamp, batch.header.leader_epoch)


def described(segments: Sequence[Segment], epochs: LeaderEpochs) -> DescribedSegments:
    """Descriptions of segments that are made when they are needed."""

    def at(number: int) -> SegmentDescriptor:
        segment = segments[number]
        return describe(segment, epochs.covering(segment.base_offset, segment.end_offset))

    return DescribedSegments(len(segments), at)


def describe(segment: Segment, leader_epochs: tuple[EpochEntry, ...]) -> SegmentDescriptor:
    return SegmentDescriptor(
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        size_bytes=segment.size,
        first_timestamp=segment.first_timestamp,
        max_timestamp=segment.max_timestamp,
        last_modified_ms=segment.last_modified_ms,
        rolled=segment.rolled,
        has_transactions=segment.has_transactions,
        has_aborts=segment.has_aborts,
        leader_epochs=leader_epochs,
        directory=segment.directory,
        file_name=segment_file_name(segment.base_offset, LOG + segment.file_suffix),
        damaged_end=segment.damage[-1].end_offset if segment.damage else -1,
    )
