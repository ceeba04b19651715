"""Producer state of one partition: what makes retries idempotent and transactions visible (KIP-98,
KIP-360).

Per producer id: its epoch, its last five batches, and the first offset of its open transaction. `judge`
decides and changes nothing; `apply` records what was written. The log owns one instance, snapshots it at
each roll in Kafka's `.snapshot` format, and rebuilds it from a snapshot and the batches after it.

Invariants: a producer's kept batches follow each other in sequence and offset; a transaction is open or
complete, never both; nothing at or above the first unstable offset is stable.
"""

import struct
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from tierlog.broker.ports.types import NO_TIMESTAMP, require
from tierlog.broker.records.batch import BatchHeader
from tierlog.broker.wire.errors import ErrorCode

BATCHES_KEPT = 5
"""Kafka clients keep at most five batches in flight with idempotence on; any of them may be sent again."""

LARGEST_SEQUENCE = 2**31 - 1
NO_PRODUCER_ID = -1

_SNAPSHOT_VERSION = 1
_PROLOGUE = struct.Struct(">hIi")  # version, crc32c of what follows it, number of entries
_CRC_FROM = 6
_ENTRY = struct.Struct(">qhiqiqiq")


class MalformedSnapshot(ValueError):
    """The bytes are not a producer snapshot; the log falls back to an older one and replays more batches."""


class KeptBatch(NamedTuple):
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class Duplicate(NamedTuple):
    """A retry of a batch that was written before: answer with its offsets, write nothing."""

    base_offset: int
    last_offset: int
    timestamp: int


class BadRecord(NamedTuple):
    """One record on whose account a batch is refused (KIP-467)."""

    number: int
    """Its place in the batch, from 0."""
    message: str


class Refused(NamedTuple):
    """Definitely not written."""

    error: ErrorCode
    message: str
    records: tuple[BadRecord, ...] = ()


class EndMarker(NamedTuple):
    """What a control record says of a transaction."""

    committed: bool
    coordinator_epoch: int


class CompletedTransaction(NamedTuple):
    """Offsets inclusive; `last_offset` is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


class Producer:
    """State of one producer id. `transaction_first_offset` is -1 outside a transaction."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "producer_id",
        "timestamp",
        "transaction_first_offset",
    )

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.epoch = -1
        self.batches: deque[KeptBatch] = deque(maxlen=BATCHES_KEPT)
        self.coordinator_epoch = -1
        self.timestamp = NO_TIMESTAMP
        self.transaction_first_offset = -1

    def begin_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.batches.clear()
            self.epoch = epoch


class ProducerState:
    __slots__ = ("_complete", "_open", "_producers")

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}
        self._open: dict[int, int] = {}  # producer id -> first offset of its open transaction
        self._complete: dict[
            int, int
        ] = {}  # marker offset -> first offset, until the high watermark has passed it

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[Producer]:
        return iter(self._producers.values())

    def get(self, producer_id: int) -> Producer | None:
        return self._producers.get(producer_id)

    def judge(self, header: BatchHeader) -> Duplicate | Refused | None:
        """Whether a client's batch may be appended: None means yes. Changes nothing."""
        known = self._producers.get(header.producer_id)
        if known is None or known.epoch < 0:
            return None  # state may have expired: accept any sequence (KIP-360)
        if header.producer_epoch < known.epoch:
            return Refused(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {known.epoch}, the batch {header.producer_epoch}",
            )
        if header.producer_epoch > known.epoch:
            if header.base_sequence == 0:
                return None
            return _gap(header, expected=0)
        return _judge_sequence(known, header) or _judge_transaction(known, header)

    def apply(
        self,
        header: BatchHeader,
        base_offset: int,
        marker: EndMarker | None = None,
        *,
        now_ms: int = NO_TIMESTAMP,
    ) -> CompletedTransaction | None:
        """Records an appended batch (its header's own base offset is not read); a marker ends its
        transaction.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            producer = self._producers[header.producer_id] = Producer(header.producer_id)
        producer.begin_epoch(header.producer_epoch)
        # The broker's time, not the records': who writes history is not idle, and the future never expires.
        producer.timestamp = header.max_timestamp if now_ms == NO_TIMESTAMP else now_ms
        if header.is_control:
            return self._end_transaction(producer, base_offset, marker)
        delta = header.last_offset_delta
        last_sequence = advance_sequence(header.base_sequence, delta)
        producer.batches.append(KeptBatch(last_sequence, base_offset + delta, delta, header.max_timestamp))
        if header.is_transactional and producer.transaction_first_offset < 0:
            producer.transaction_first_offset = base_offset
            self._open[producer.producer_id] = base_offset
        return None

    def first_unstable_offset(self) -> int | None:
        """First offset of a transaction that is open, or whose marker is not yet below the high watermark."""
        if not self._open and not self._complete:
            return None
        return min((*self._open.values(), *self._complete.values()))

    def stable_offset_after(self, completed: CompletedTransaction) -> int:
        """The last stable offset once that transaction is gone; the transaction index stores it."""
        others = [first for producer_id, first in self._open.items() if producer_id != completed.producer_id]
        return min(others, default=completed.last_offset + 1)

    def high_watermark_moved(self, high_watermark: int) -> None:
        """Transactions whose markers are replicated no longer hold the last stable offset."""
        if self._complete:
            self._complete = {at: first for at, first in self._complete.items() if at >= high_watermark}

    def expire(self, now_ms: int, after_ms: int) -> int:
        """Forgets producers outside a transaction that wrote nothing for `after_ms`; returns how many."""
        gone = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.transaction_first_offset < 0 and now_ms - producer.timestamp >= after_ms
        ]
        for producer_id in gone:
            del self._producers[producer_id]
        return len(gone)

    def encode(self) -> bytes:
        """Kafka's snapshot, version 1. It keeps only the last batch of each producer, as Kafka's does."""
        body = b"".join(_ENTRY.pack(*_snapshot_fields(producer)) for producer in self._producers.values())
        crc = crc32c(struct.pack(">i", len(self._producers)) + body)
        return _PROLOGUE.pack(_SNAPSHOT_VERSION, crc, len(self._producers)) + body

    @classmethod
    def decode(cls, content: bytes) -> "ProducerState":
        """Raises MalformedSnapshot."""
        if len(content) < _PROLOGUE.size:
            raise MalformedSnapshot("too short")
        version, crc, count = _PROLOGUE.unpack_from(content)
        if version != _SNAPSHOT_VERSION:
            raise MalformedSnapshot(f"version {version}")
        if crc32c(content[_CRC_FROM:]) != crc or len(content) != _PROLOGUE.size + count * _ENTRY.size:
            raise MalformedSnapshot("checksum or length is wrong")
        state = cls()
        for (
            producer_id,
            epoch,
            sequence,
            offset,
            delta,
            timestamp,
            coordinator_epoch,
            txn_first,
        ) in _ENTRY.iter_unpack(content[_PROLOGUE.size :]):
            producer = state._producers[producer_id] = Producer(producer_id)
            producer.epoch, producer.timestamp, producer.coordinator_epoch = (
                epoch,
                timestamp,
                coordinator_epoch,
            )
            if offset >= 0:
                producer.batches.append(KeptBatch(sequence, offset, delta, timestamp))
            producer.transaction_first_offset = txn_first
            if txn_first >= 0:
                state._open[producer_id] = txn_first
        return state

    def check(self) -> None:
        """Raises InvariantViolation if a producer's batches do not follow each other."""
        for producer in self._producers.values():
            for before, after in zip(producer.batches, list(producer.batches)[1:], strict=False):
                require(
                    before.last_offset < after.first_offset,
                    f"producer {producer.producer_id}: {before}, {after}",
                )
            open_at = self._open.get(producer.producer_id, -1)
            require(
                open_at == producer.transaction_first_offset, f"producer {producer.producer_id}: transaction"
            )

    def _end_transaction(
        self, producer: Producer, marker_offset: int, marker: EndMarker | None
    ) -> CompletedTransaction | None:
        if marker is None:
            return None
        producer.coordinator_epoch = marker.coordinator_epoch
        first = self._open.pop(producer.producer_id, None)
        producer.transaction_first_offset = -1
        if first is None:
            return None  # an empty transaction: the producer wrote nothing to this partition
        self._complete[marker_offset] = first
        return CompletedTransaction(producer.producer_id, first, marker_offset, not marker.committed)


def advance_sequence(sequence: int, by: int) -> int:
    """Sequences wrap from 2^31-1 to 0; a batch without sequences (-1, the coordinator's own) keeps that."""
    return sequence if sequence < 0 else (sequence + by) & LARGEST_SEQUENCE


def _judge_sequence(known: Producer, header: BatchHeader) -> Duplicate | Refused | None:
    if not known.batches:
        # Only markers were written in this epoch: the producer starts from 0 again.
        return None if header.base_sequence == 0 else _gap(header, expected=0)
    expected = advance_sequence(known.batches[-1].last_sequence, 1)
    if header.base_sequence == expected:
        return None
    last_sequence = advance_sequence(header.base_sequence, header.last_offset_delta)
    for batch in known.batches:
        if batch.last_sequence == last_sequence and batch.offset_delta == header.last_offset_delta:
            return Duplicate(batch.first_offset, batch.last_offset, batch.timestamp)
    return _gap(header, expected)


def _judge_transaction(known: Producer, header: BatchHeader) -> Refused | None:
    if known.transaction_first_offset >= 0 and not header.is_transactional:
        return Refused(ErrorCode.INVALID_TXN_STATE, f"producer {header.producer_id} has an open transaction")
    return None


def _gap(header: BatchHeader, expected: int) -> Refused:
    return Refused(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} sent sequence {header.base_sequence}, expected {expected}",
    )


def _snapshot_fields(producer: Producer) -> tuple[int, ...]:
    last = producer.batches[-1] if producer.batches else KeptBatch(-1, -1, 0, -1)
    return (
        producer.producer_id,
        producer.epoch,
        last.last_sequence,
        last.last_offset,
        last.offset_delta,
        producer.timestamp,
        producer.coordinator_epoch,
        producer.transaction_first_offset,
    )
