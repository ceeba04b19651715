"""Compaction rules for batches: which records of each batch are kept. Pure.

As in Kafka, the last record of each key below the end of the offset map is kept, offsets and order never
change, a tombstone is kept for delete.retention.ms after the first cleaning that saw it (KIP-534), and a
batch without records is kept as an empty batch if a reader or a producer still needs it. Called by the log
cleaner, the remote compactor and Spark's job `compact`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop
from typing import NamedTuple

from tierlog.base.safeguards import safeguard
from tierlog.records.batch import HEADER_SIZE, BatchHeader
from tierlog.records.indexes import AbortedTxn
from tierlog.records.markers import EndMarker
from tierlog.records.offset_map import OffsetMap
from tierlog.records.rewrite import Span, emptied, rewritten, spans

# -- transactions --


class CleanedTransactionMetadata:
    """Transactions seen while reading the log in order: identifies aborted data and markers without data.

    A marker is kept as long as data of its transaction is in the log, since readers of that data need it. The
    aborted transactions that are given may include some whose markers are gone: each ends at its last offset.
    """

    __slots__ = ("_aborted", "_committed", "_met", "_upcoming", "kept")

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._upcoming = [(entry.first_offset, entry) for entry in aborted]
        heapify(self._upcoming)
        self._aborted: dict[int, AbortedTxn] = {}  # by producer id, until their markers are read
        self._met: set[int] = set()  # producers with a data batch in an aborted transaction
        self._committed: set[int] = set()
        self.kept: list[AbortedTxn] = []
        """Entries for the transaction index of the segment being written: their marker is kept."""

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a data batch belongs to an aborted transaction."""
        self._reach(header)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._met.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def can_discard(self, header: BatchHeader, marker: EndMarker | None) -> bool:
        """Whether no data of a control batch's transaction has been read. Also True for a batch without
        records.
        """
        self._reach(header)
        if header.record_count == 0:
            return True
        if marker is None:
            return False  # an unknown control type
        if marker.committed:
            has_no_data = header.producer_id not in self._committed
            self._committed.discard(header.producer_id)
            return has_no_data
        entry = self._aborted.pop(header.producer_id, None)
        if entry is None or header.producer_id not in self._met:
            return True
        self._met.discard(header.producer_id)
        self.kept.append(entry)
        return False

    def _reach(self, header: BatchHeader) -> None:
        while self._upcoming and self._upcoming[0][0] <= header.last_offset:
            entry = heappop(self._upcoming)[1]
            self._end_below(entry.first_offset, entry.producer_id)
            self._aborted.setdefault(entry.producer_id, entry)
        self._end_below(header.base_offset, header.producer_id)

    def _end_below(self, offset: int, producer_id: int) -> None:
        """End a producer's transaction whose marker was to come before an offset."""
        entry = self._aborted.get(producer_id)
        if entry is not None and entry.last_offset < offset:
            del self._aborted[producer_id]
            self._met.discard(producer_id)


# -- retained batches --


class LastRecord(NamedTuple):
    """The last data offset of a producer, or -1 if the producer wrote only markers in this epoch."""

    epoch: int
    offset: int


@dataclass(slots=True)
class BatchFilter:
    """Decides what to keep of each batch of a log, in order."""

    keys: OffsetMap
    transactions: CleanedTransactionMetadata
    producers: Mapping[int, LastRecord]
    now_ms: int
    delete_retention_ms: int

    def control(self, batch: bytes, header: BatchHeader, marker: EndMarker | None, *, stays: bool) -> bytes:
        """The bytes to write for a control batch, empty to drop it. With `stays`, an empty batch is written
        instead.
        """
        discard = self.transactions.can_discard(header, marker)
        horizon = header.delete_horizon_ms
        if header.record_count == 0 or (discard and horizon is not None and horizon <= self.now_ms):
            return emptied(header) if stays or self._is_last_of_producer(header) else b""
        if discard and horizon is None:
            return _with_horizon(batch, header, self.now_ms + self.delete_retention_ms)
        return batch

    def data(
        self,
        batch: bytes,
        header: BatchHeader,
        plain: bytes,
        records: Callable[[], Iterable[Span]],
        *,
        stays: bool,
    ) -> bytes:
        """The bytes to write for a data batch whose uncompressed records are in `plain`, empty to drop it.

        Records are walked twice where some are removed. A list of the kept ones would take thirty times the
        memory of the smallest records.
        """
        aborted = self.transactions.is_aborted(header)
        if not aborted and header.base_offset >= self.keys.end_offset:
            return batch
        horizon = header.delete_horizon_ms
        expired = _is_past(horizon, self.now_ms)
        count, begins = 0, False
        for record in () if aborted else records():
            if self._keeps(record, expired):
                count += 1
                begins = begins or (horizon is None and record.is_tombstone)
        if not count:
            return emptied(header) if stays or self._is_last_of_producer(header) else b""
        if count == header.record_count and not begins:
            return batch
        kept = (record for record in records() if self._keeps(record, expired))
        return rewritten(header, plain, kept, self.now_ms + self.delete_retention_ms if begins else None)

    @safeguard("compaction keeps the last record of each key")
    def _keeps(self, record: Span, expired: bool) -> bool:
        if record.offset >= self.keys.end_offset:
            return True
        if record.key is None:
            return False  # written before the topic was compacted
        return self.keys.is_last(record.key, record.offset) and not (expired and record.is_tombstone)

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self.producers.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return False
        if last.offset >= 0:
            return not header.is_control and header.last_offset == last.offset
        return header.is_control and header.producer_epoch == last.epoch


@safeguard("a tombstone stays for delete.retention.ms")
def _is_past(horizon_ms: int | None, now_ms: int) -> bool:
    return horizon_ms is not None and horizon_ms <= now_ms


def _with_horizon(batch: bytes, header: BatchHeader, delete_horizon_ms: int) -> bytes:
    """Set the delete horizon of a control batch, which is never compressed."""
    plain = batch[HEADER_SIZE:]
    return rewritten(header, plain, spans(plain, header), delete_horizon_ms)
