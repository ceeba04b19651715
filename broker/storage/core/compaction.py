"""What compaction does to a log: how far it may go, which segments it merges, what it keeps of each batch.

The rules alone, over values; `broker/storage/cleaner.py` reads and writes the files. As in Kafka: of a key's
records below the mapped end the last one stays, offsets and order never change, a tombstone stays for
delete.retention.ms after the first cleaning that saw it (KIP-534), and what a reader or a producer still
needs of a batch without records stays as an empty batch.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop
from typing import NamedTuple

from tierlog.base.segments import SegmentInfo
from tierlog.broker.storage.core.key_map import KeyMap
from tierlog.broker.storage.core.producer_state import EndMarker, ProducerState
from tierlog.broker.storage.core.retention import LARGEST_RELATIVE_OFFSET
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import HEADER_SIZE, BatchHeader
from tierlog.records.indexes import AbortedTxn
from tierlog.records.rewrite import Span, emptied, rewritten, spans

# -- how far --


class Dirty(NamedTuple):
    """[first_offset, end_offset) has not been compacted and may be; bytes of segments below and in it."""

    first_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool
    """A record in it is older than max.compaction.lag.ms (KIP-354)."""

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def must_be_cleaned(self, config: TopicConfig) -> bool:
        return self.dirty_bytes > 0 and (self.overdue or self.ratio > config.min_cleanable_dirty_ratio)


def dirty_part(
    segments: Sequence[SegmentInfo],
    config: TopicConfig,
    *,
    cleaned_to: int,
    log_start_offset: int,
    last_stable_offset: int,
    now_ms: int,
) -> Dirty:
    """Rolled segments wholly below the last stable offset (hence the high watermark), and old enough."""
    first = max(cleaned_to, log_start_offset)
    end, clean_bytes, dirty_bytes, oldest = first, 0, 0, None
    for segment in segments:
        if segment.end_offset <= first:
            clean_bytes += segment.size_bytes
            continue
        young = config.min_compaction_lag_ms > 0 and (
            segment.max_timestamp > now_ms - config.min_compaction_lag_ms
        )
        if not segment.rolled or segment.end_offset > last_stable_offset or young:
            break
        end = segment.end_offset
        dirty_bytes += segment.size_bytes
        if segment.first_timestamp > 0:
            oldest = min(oldest or segment.first_timestamp, segment.first_timestamp)
    overdue = oldest is not None and oldest < now_ms - config.max_compaction_lag_ms
    return Dirty(first, end, clean_bytes, dirty_bytes, overdue)


class SegmentSize(NamedTuple):
    base_offset: int
    end_offset: int
    log_bytes: int
    offset_index_bytes: int
    time_index_bytes: int


def grouped(segments: Iterable[SegmentSize], config: TopicConfig) -> list[list[SegmentSize]]:
    """Neighbours that become one segment: together no larger than one may be."""
    groups: list[list[SegmentSize]] = []
    for segment in segments:
        group = groups[-1] if groups else []
        together = [*group, segment]
        if (
            group
            and sum(one.log_bytes for one in together) <= config.segment_bytes
            and sum(one.offset_index_bytes for one in together) <= config.segment_index_bytes
            and sum(one.time_index_bytes for one in together) <= config.segment_index_bytes
            and segment.end_offset - 1 - group[0].base_offset <= LARGEST_RELATIVE_OFFSET
        ):
            group.append(segment)
        else:
            groups.append([segment])
    return groups


# -- transactions --


class TransactionFates:
    """Which transactions a walk over the log has met; it tells aborted data, and markers without data.

    A marker stays for as long as the walk meets data of its transaction: a reader of that data needs it.
    """

    __slots__ = ("_aborted", "_committed", "_met", "_upcoming", "kept")

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._upcoming = [(entry.first_offset, entry) for entry in aborted]
        heapify(self._upcoming)
        self._aborted: dict[int, AbortedTxn] = {}  # by producer: those whose marker lies ahead
        self._met: set[int] = set()  # producers of those of which a batch was met
        self._committed: set[int] = set()
        self.kept: list[AbortedTxn] = []
        """Entries for the index of the segment that is written: the marker is there, and data was met."""

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a data batch belongs to an aborted transaction."""
        self._reach(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._met.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def is_superfluous(self, header: BatchHeader, marker: EndMarker | None) -> bool:
        """Whether no data of a control batch's transaction was met; so for one that was emptied before."""
        self._reach(header.last_offset)
        if header.record_count == 0:
            return True
        if marker is None:
            return False  # of a kind that we do not know
        if marker.committed:
            superfluous = header.producer_id not in self._committed
            self._committed.discard(header.producer_id)
            return superfluous
        entry = self._aborted.pop(header.producer_id, None)
        if entry is None or header.producer_id not in self._met:
            return True
        self._met.discard(header.producer_id)
        self.kept.append(entry)
        return False

    def _reach(self, offset: int) -> None:
        while self._upcoming and self._upcoming[0][0] <= offset:
            entry = heappop(self._upcoming)[1]
            self._aborted.setdefault(entry.producer_id, entry)


# -- what is kept --


class LastOfProducer(NamedTuple):
    """`offset` is the last one of its last data batch, -1 if it wrote only markers in this epoch."""

    epoch: int
    offset: int


def last_of_producers(state: ProducerState) -> dict[int, LastOfProducer]:
    """The batches that carry each live producer's last sequence (or its epoch): they stay, be it empty."""
    return {
        producer.producer_id: LastOfProducer(
            producer.epoch, producer.batches[-1].last_offset if producer.batches else -1
        )
        for producer in state
    }


@dataclass(slots=True)
class BatchFilter:
    """What becomes of each batch of a log, in order."""

    keys: KeyMap
    transactions: TransactionFates
    producers: Mapping[int, LastOfProducer]
    now_ms: int
    delete_retention_ms: int

    def control(self, batch: bytes, header: BatchHeader, marker: EndMarker | None, *, stays: bool) -> bytes:
        """The bytes of a marker's batch to write, maybe none. `stays`: in no case none."""
        superfluous = self.transactions.is_superfluous(header, marker)
        horizon = header.delete_horizon_ms
        if header.record_count == 0 or (superfluous and horizon is not None and horizon <= self.now_ms):
            return emptied(header) if stays or self._is_last_of_producer(header) else b""
        if superfluous and horizon is None:
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
        """The same for records, which lie in their uncompressed bytes `plain`. They are walked twice where
        some of them go: a list of those that stay would take thirty times the memory of the smallest.
        """
        aborted = self.transactions.is_aborted(header)
        if not aborted and header.base_offset >= self.keys.end_offset:
            return batch
        horizon = header.delete_horizon_ms
        expired = horizon is not None and horizon <= self.now_ms
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

    def _keeps(self, record: Span, expired: bool) -> bool:
        if record.offset >= self.keys.end_offset:
            return True
        if record.key is None:
            return False  # from before the topic was compacted: nothing tells what would replace it
        return self.keys.is_last(record.key, record.offset) and not (expired and record.is_tombstone)

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self.producers.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return False
        if last.offset >= 0:
            return not header.is_control and header.last_offset == last.offset
        return header.is_control and header.producer_epoch == last.epoch


def _with_horizon(batch: bytes, header: BatchHeader, delete_horizon_ms: int) -> bytes:
    """A marker's batch, which is never compressed, with a delete horizon."""
    plain = batch[HEADER_SIZE:]
    return rewritten(header, plain, spans(plain, header), delete_horizon_ms)
