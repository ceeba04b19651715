"""What a log answers with where numbers alone do not do. Made by the log, read by tiering and handlers."""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tierlog.base.leader_epochs import EpochEntry
from tierlog.base.segments import SegmentInfo
from tierlog.base.types import NO_TIMESTAMP
from tierlog.broker.storage.names import LOG, SNAPSHOT, segment_file
from tierlog.broker.storage.segment import BatchAt, CorruptLog, Segment
from tierlog.config.topic import MAX_LONG
from tierlog.records.errors import RecordsError
from tierlog.records.indexes import AbortedTxn, encode_txn_entry
from tierlog.records.record import record_pieces
from tierlog.records.unpacking import NO_BOUND
from tierlog.records.walk import RecordAt, find_timestamp
from tierlog.records.window import Step, Window

HEADERS_A_TURN = 256
"""Headers of batches that a search reads before others have their turn."""


@dataclass(frozen=True, slots=True)
class SegmentExport:
    """All that tiering uploads of a rolled segment; the producer snapshot is that of the next base offset."""

    info: SegmentInfo
    log_path: Path
    offset_index: bytes
    time_index: bytes
    txn_index: bytes  # of all aborted transactions that touch it: a marker above may not be tiered yet
    producer_snapshot: bytes
    leader_epochs: tuple[EpochEntry, ...]  # all up to its end: who begins behind it has nobody else to ask
    has_transactions: bool


@dataclass(frozen=True, slots=True)
class FoundTimestamp:
    offset: int
    timestamp: int
    leader_epoch: int


TimestampSearch = Generator[Step, None, FoundTimestamp | None]
"""A search among records, in steps as those of a `Window`: a batch may hold millions of them. Raises
RecordsError, CorruptLog and OSError.
"""


def export(
    segment: Segment, info: SegmentInfo, aborted: list[AbortedTxn], epochs: tuple[EpochEntry, ...]
) -> SegmentExport:
    """Of a rolled segment; `aborted`: what touches it; `epochs`: up to its end. Raises OSError."""
    return SegmentExport(
        info,
        segment.path(LOG),
        bytes(segment.offset_index),
        bytes(segment.time_index),
        b"".join(map(encode_txn_entry, aborted)),
        segment.files.read_whole(segment_file(segment.directory, segment.end_offset, SNAPSHOT)),
        epochs,
        bool(segment.has_transactions),
    )


def retry_if_replaced(
    current: Callable[[], Sequence[Segment]], search: Callable[[Sequence[Segment]], TimestampSearch]
) -> TimestampSearch:
    """A search among the current segments, made again if it met one that went meanwhile, or found a record of
    it: retention drops segments, and compaction puts others in their place."""
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


def find_first(
    segments: Iterable[Segment], timestamp: int, start: int, limit: int, used: Callable[[Segment], None]
) -> TimestampSearch:
    """Finds the first record at or after a timestamp, from offset `start` on and below `limit`. `used` is
    told whose indexes were loaded.

    Batches are chosen by their headers and searched by their records. A header that is too high costs a look,
    one that is too low hides its batch (ADR 0004 says by how much).
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
    """Finds the first record with the largest timestamp. One without a timestamp counts if none has one, as
    in Kafka.
    """
    best: FoundTimestamp | None = None
    for segment in sorted(segments, key=lambda one: -one.max_timestamp):
        if best is not None and segment.max_timestamp <= best.timestamp:
            break
        found = yield from find_first((segment,), segment.max_timestamp, start, limit, used)
        if found is None:  # some header is too high
            above = NO_TIMESTAMP if best is None else best.timestamp
            found = yield from _largest_of(segment, start, limit, above)
        if found is not None and (best is None or found.timestamp > best.timestamp):
            best = found
    return best


def _largest_of(segment: Segment, start: int, limit: int, above: int) -> TimestampSearch:
    best: FoundTimestamp | None = None
    for number, batch in enumerate(segment.scan(0), 1):
        if number % HEADERS_A_TURN == 0:
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
    """Nothing bounds how much a batch on disk may yield: it is read in pieces, each of which is dropped."""
    return Window(record_pieces(segment.read_batch(batch), 0, batch.header, NO_BOUND))


def _found(batch: BatchAt, record: RecordAt) -> FoundTimestamp:
    return FoundTimestamp(record.offset, record.timestamp, batch.header.leader_epoch)


def info_of(segment: Segment, leader_epochs: tuple[EpochEntry, ...]) -> SegmentInfo:
    return SegmentInfo(
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
        path_log=segment.path(LOG),
        damaged_end=segment.damage[-1].end_offset if segment.damage else -1,
    )
