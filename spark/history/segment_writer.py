"""Segment writer: a finished segment (`.log` and `.idx`) from its batches, as a broker uploads it.

The log goes into a file, which has no memory limit. Indexes and chunk table are built while the batches pass
(formats: docs/formats/remote.md). The caller knows what batches do not tell: the range of offsets, leader
epochs, aborted transactions, and the producer state at the end. `put_segment` puts both objects under keys
that no object has. Called on executors, by jobs that rewrite history.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO
from uuid import UUID

from crc32c import crc32c

from tierlog.base.leader_epochs import EpochEntry
from tierlog.base.types import NO_TIMESTAMP, TopicIdPartition
from tierlog.metadata.records import RemoteSegment
from tierlog.records.batch import BatchHeader, Buffer
from tierlog.records.chunks import ChunkBuilder
from tierlog.records.errors import RecordsError, RecordsFault
from tierlog.records.indexes import (
    AbortedTxn,
    encode_offset_entry,
    encode_time_entry,
    encode_txn_index,
)
from tierlog.spark.history.bucket import Bucket
from tierlog.tiering.format.bundle import ChunkTable, IndexBundle, encode_bundle
from tierlog.tiering.format.keys import Keys


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEnd:
    """Properties of a segment which its batches do not show.

    `uuid`, `leader_epoch`: as announced to the quorum. `end_offset`: of its logical range. `leader_epochs`:
    all up to its end. `max_timestamp`: instead of that of the batches, as segments without timestamps have
    the time of their last write.
    """

    uuid: UUID
    leader_epoch: int
    end_offset: int
    leader_epochs: tuple[EpochEntry, ...]
    aborted: Iterable[AbortedTxn] = ()
    producer_snapshot: bytes = b""
    max_timestamp: int | None = None
    tags: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class FinishedSegment:
    """The manifest entry of a segment, and its index bundle."""

    entry: RemoteSegment
    bundle: bytes


class SegmentWriter:
    """Writes the batches of one segment to a file, which is empty."""

    def __init__(self, file: IO[bytes], base_offset: int, index_interval_bytes: int) -> None:
        self._file = file
        self._base_offset = self._next_offset = base_offset
        self._interval_bytes = index_interval_bytes
        self._chunks = ChunkBuilder()
        self._offset_index, self._time_index = bytearray(), bytearray()
        self._bytes_since_entry = 0
        self._first_timestamp = self._max_timestamp = self._indexed_timestamp = NO_TIMESTAMP
        self._newest_offset = base_offset  # last offset of the first batch with the maximum timestamp
        self._has_transactions = False
        self.size = 0

    def add(self, batch: Buffer, header: BatchHeader) -> None:
        """Add a batch, whose CRC the caller has checked or computed. Raises INVALID if offsets do not ascend
        or do not fit into the indexes."""
        if header.base_offset < self._next_offset:
            message = f"offset {header.base_offset} follows {self._next_offset - 1}"
            raise RecordsError(RecordsFault.INVALID, message)
        if header.record_count and header.max_timestamp > self._max_timestamp:
            self._max_timestamp, self._newest_offset = header.max_timestamp, header.last_offset
        if self._first_timestamp <= 0:
            self._first_timestamp = max(header.first_timestamp, NO_TIMESTAMP)
        self._has_transactions = self._has_transactions or header.is_transactional
        if self._bytes_since_entry > self._interval_bytes:
            self._offset_index += encode_offset_entry(self._base_offset, header.last_offset, self.size)
            self._add_time_entry()
            self._bytes_since_entry = 0
        self._file.write(batch)
        self._chunks.add(header, memoryview(batch))
        self._bytes_since_entry += len(batch)
        self._next_offset = header.next_offset
        self.size += len(batch)

    @property
    def has_timestamps(self) -> bool:
        """Whether a record has a timestamp."""
        return self._max_timestamp > 0

    def finish(self, end: SegmentEnd) -> FinishedSegment:
        """Complete the file, and return the entry and bundle of the segment. Raises INVALID if it is empty or
        has offsets above its end."""
        if not self.size or self._next_offset > end.end_offset:
            message = (
                f"{self.size} bytes up to offset {self._next_offset} in a segment up to {end.end_offset}"
            )
            raise RecordsError(RecordsFault.INVALID, message)
        self._add_time_entry()
        self._file.flush()
        chunks = self._chunks
        aborted = sorted(set(end.aborted), key=lambda txn: (txn.last_offset, txn.producer_id))
        bundle = encode_bundle(
            IndexBundle(
                offset_index=bytes(self._offset_index),
                time_index=bytes(self._time_index),
                txn_index=encode_txn_index(aborted),
                producer_snapshot=end.producer_snapshot,
                leader_epochs=end.leader_epochs,
                chunk_table=ChunkTable(end.uuid, self.size, chunks.checksum, chunks.chunks),
            )
        )
        entry = RemoteSegment(
            uuid=end.uuid,
            base_offset=self._base_offset,
            last_offset=end.end_offset - 1,
            leader_epochs=_epochs_within(end.leader_epochs, self._base_offset, end.end_offset),
            log_bytes=self.size,
            index_bytes=len(bundle),
            records=chunks.records,
            first_timestamp=self._first_timestamp,
            max_timestamp=self._max_timestamp if end.max_timestamp is None else end.max_timestamp,
            has_transactions=self._has_transactions,
            has_aborts=bool(aborted),
            log_crc32c=chunks.checksum,
            index_crc32c=crc32c(bundle),
            leader_epoch=end.leader_epoch,
            control_records=chunks.control_records,
            min_timestamp=chunks.min_timestamp,
            tags=end.tags,
        )
        return FinishedSegment(entry, bundle)

    def _add_time_entry(self) -> None:
        if self._max_timestamp > self._indexed_timestamp:
            self._indexed_timestamp = self._max_timestamp
            self._time_index += encode_time_entry(self._base_offset, self._max_timestamp, self._newest_offset)


def put_segment(
    bucket: Bucket, keys: Keys, where: TopicIdPartition, file: IO[bytes], finished: FinishedSegment
) -> None:
    """Put the `.log` and then the `.idx` object. An attempt of the same task may have done so before: then
    the objects must be the same. Raises CorruptObject if they are not, or another ObjectStoreError."""
    entry = finished.entry
    file.seek(0)
    bucket.put_new(keys.log(where, entry), file, entry.log_bytes, entry.log_crc32c)
    bucket.put_new(keys.index(where, entry), finished.bundle, entry.index_bytes, entry.index_crc32c)


def _epochs_within(
    epochs: tuple[EpochEntry, ...], base_offset: int, end_offset: int
) -> tuple[tuple[int, int], ...]:
    """Epochs of the segment's own offsets only, so that entries stay small."""
    first = max((at for at, (_, start) in enumerate(epochs) if start <= base_offset), default=0)
    return tuple((epoch, start) for epoch, start in epochs[first:] if start < end_offset)
