"""What a log answers with where numbers alone do not do. Made by the log, read by tiering and handlers."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tierlog.broker.log.names import LOG, SNAPSHOT, segment_file
from tierlog.broker.log.segment import Segment
from tierlog.broker.partition.epochs import EpochEntry
from tierlog.broker.partition.segments import SegmentInfo
from tierlog.broker.records.indexes import AbortedTxn, encode_txn_entry
from tierlog.broker.records.record import iter_records

LARGEST_BATCH_BYTES = 100 * 1024 * 1024


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


def first_at(
    segments: Iterable[Segment], timestamp: int, start: int, limit: int, used: Callable[[Segment], None]
) -> FoundTimestamp | None:
    """The first record at or after a timestamp, from offset `start` on and below `limit`; None if there is
    none. `used` is told whose indexes were loaded.
    """
    for segment in segments:
        if segment.max_timestamp < timestamp or segment.end_offset <= start:
            continue
        used(segment)
        for batch in segment.find_timestamp(timestamp, start):
            for record in iter_records(segment.read_batch(batch), max_bytes=LARGEST_BATCH_BYTES):
                if record.offset >= limit:
                    return None
                if record.timestamp >= timestamp and record.offset >= start:
                    return FoundTimestamp(record.offset, record.timestamp, batch.header.leader_epoch)
    return None


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
