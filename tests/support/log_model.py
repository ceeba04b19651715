"""A model of a replica without files: the expected content of a partition.

It keeps every batch that was appended and not truncated since. It says which records compaction may have
removed, how each transaction ended, and which producer state must exist. The state machine that drives both
is in tests/property/test_replica_model.py.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from tierlog.base.files import FileSlice
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.core.producer_state import BATCHES_KEPT
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import iter_batches
from tierlog.records.record import Record, iter_records

OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


@dataclass(frozen=True, slots=True)
class Batch:
    """One appended batch; `ends` is what a transaction marker says, and None for other batches."""

    records: tuple[Record, ...]
    leader_epoch: int
    appended_ms: int
    producer: int = -1
    producer_epoch: int = -1
    sequence: int = -1
    transactional: bool = False
    ends: str | None = None

    @property
    def base(self) -> int:
        return self.records[0].offset

    @property
    def last(self) -> int:
        return self.records[-1].offset


class LogModel:
    def __init__(self, start: int, delete_retention_ms: int) -> None:
        self.batches: list[Batch] = []
        self.start = start
        self.cleaned = start
        """Compaction has cleaned, or may have cleaned, below this offset."""
        self.truncation_floor = start
        """A compaction has relied on the markers and last values below this offset, so it is never truncated.
        """
        self._begin = start
        self._delete_retention_ms = delete_retention_ms
        self._first_cleaned_ms: dict[int, int] = {}

    @property
    def end(self) -> int:
        return self.batches[-1].last + 1 if self.batches else self._begin

    def append(self, batch: Batch) -> None:
        assert batch.base == self.end
        self.batches.append(batch)

    def boundary(self, offset: int) -> int:
        """The log end offset after truncation to `offset`: the base offset of the batch that holds it."""
        return next((batch.base for batch in self.batches if batch.base <= offset <= batch.last), self.end)

    def truncate(self, end: int) -> None:
        """Remove all records at or above `end`; batches are removed as a whole."""
        self.batches = [batch for batch in self.batches if batch.last < end]
        if not self.batches:
            self._begin = end
        self.start = min(self.start, self.end)
        self.cleaned = min(self.cleaned, self.end)
        self.truncation_floor = min(self.truncation_floor, self.end)
        self._first_cleaned_ms = {at: ms for at, ms in self._first_cleaned_ms.items() if at < end}

    def cleaning(self, end: int, now_ms: int) -> None:
        """Begin a compaction up to `end`."""
        self.cleaned = max(self.cleaned, end)
        self.truncation_floor = self.end
        for record in self.records():
            if record.offset < end and record.value is None:
                self._first_cleaned_ms.setdefault(record.offset, now_ms)

    # -- records --

    def records(self) -> Iterable[Record]:
        """All records except markers."""
        return (record for batch in self.batches if batch.ends is None for record in batch.records)

    def fates(self) -> dict[int, str]:
        """The fate of each record, by offset."""
        fates: dict[int, str] = {}
        under_way: dict[int, list[int]] = {}
        for batch in self.batches:
            if batch.ends is not None:
                fates.update(dict.fromkeys(under_way.pop(batch.producer, ()), batch.ends))
                continue
            offsets = [record.offset for record in batch.records]
            fates.update(dict.fromkeys(offsets, OPEN if batch.transactional else COMMITTED))
            if batch.transactional:
                under_way.setdefault(batch.producer, []).extend(offsets)
        return fates

    def first_unstable(self) -> int | None:
        return min((offset for offset, fate in self.fates().items() if fate == OPEN), default=None)

    def check_stored(self, stored: list[Record], now_ms: int) -> None:
        """`stored`: the log's records in [start, end), without markers."""
        known = {record.offset: record for record in self.records() if record.offset >= self.start}
        for record in stored:
            assert record == known[record.offset], (record, known[record.offset])
        there = {record.offset for record in stored}
        fates = self.fates()
        newest = {
            record.key: record.offset
            for record in known.values()
            if record.offset < self.cleaned and fates[record.offset] == COMMITTED
        }
        for offset, record in known.items():
            if offset not in there:
                assert offset < self.cleaned, f"record {offset} is lost"
                assert (
                    fates[offset] == ABORTED
                    or newest[record.key] > offset
                    or (
                        record.value is None
                        and now_ms >= self._first_cleaned_ms[offset] + self._delete_retention_ms
                    )
                ), f"record {offset} must not be compacted away"

    def check_visible(self, visible: list[Record], stored: list[Record]) -> None:
        """`visible`: the records that a read_committed consumer gets."""
        fates, unstable = self.fates(), self.first_unstable()
        stable = self.end if unstable is None else unstable
        expected = [r for r in stored if r.offset < stable and fates[r.offset] == COMMITTED]
        assert visible == expected

    # -- producers and epochs --

    def data_of(self, producer: int) -> list[Batch]:
        return [batch for batch in self.batches if batch.producer == producer and batch.ends is None]

    def kept_of(self, producer: int) -> list[Batch]:
        """The batches whose retry must be recognised: at most five, of the producer's last epoch."""
        epochs = [batch.producer_epoch for batch in self.batches if batch.producer == producer]
        data = [batch for batch in self.data_of(producer) if batch.producer_epoch == epochs[-1]]
        return data[-BATCHES_KEPT:]

    def epochs(self, stored: Iterable[Record]) -> dict[int, int]:
        """Offset -> leader epoch of the records that compaction has left."""
        there = {record.offset for record in stored}
        return {
            record.offset: batch.leader_epoch
            for batch in self.batches
            for record in batch.records
            if record.offset in there
        }


def fetch_all(replica: Replica, max_bytes: int, *, committed_only: bool) -> list[Record]:
    """All data from the log start, fetch by fetch. Aborted data is filtered out, as clients do."""
    found: list[Record] = []
    offset = replica.log_start_offset
    while True:
        result = replica.read(offset, max_bytes, committed_only=committed_only)
        assert result.error == ErrorCode.NONE and not result.remote
        if result.slice is None or not result.slice.parts:
            return found
        data = b"".join(part.read() for part in result.slice.parts if isinstance(part, FileSlice))
        aborted = sorted(result.aborted, key=lambda each: each[1])
        inside: set[int] = set()
        for at, header in iter_batches(data):
            while aborted and aborted[0][1] <= header.last_offset:
                inside.add(aborted.pop(0)[0])
            records = [r for r in iter_records(data, at, max_bytes=1 << 20) if r.offset >= offset]
            if header.is_control:
                if records and struct.unpack(">hh", records[0].key or b"")[1] == 0:
                    inside.discard(header.producer_id)
            elif not (committed_only and header.is_transactional and header.producer_id in inside):
                found += records
        assert result.slice.end_offset > offset
        offset = result.slice.end_offset
