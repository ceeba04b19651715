"""Producer state of one partition: what makes retries idempotent and transactions visible (KIP-98,
KIP-360).

Per producer id: its epoch, its last five batches, and the first offset of its open transaction. `judge`
decides and changes nothing; `apply` records what was written. The log owns one instance, snapshots it at
each roll, and rebuilds it from a snapshot and the batches after it.

A snapshot is Kafka's, which holds one batch of each producer, and behind it what Kafka's leaves out: the
batches before, and how long each producer has been idle (docs/adr/0012-what-a-restart-knows-of-producers.md).

Invariants: a producer's kept batches follow each other in sequence and offset; a transaction is open or
complete, never both; nothing at or above the first unstable offset is stable.
"""

import struct
from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from typing import NamedTuple

from crc32c import crc32c

from tierlog.base.types import NO_TIMESTAMP, require
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import BatchHeader

BATCHES_KEPT = 5
"""Kafka clients keep at most five batches in flight with idempotence on; any of them may be sent again."""

LARGEST_SEQUENCE = 2**31 - 1
NO_PRODUCER_ID = -1

_SNAPSHOT_VERSION = 1
_PROLOGUE = struct.Struct(">hIi")  # version, crc32c of what follows it, number of entries
_CRC_FROM = 6
_ENTRY = struct.Struct(">qhiqiqiq")
_REST = struct.Struct(
    ">4sH"
)  # behind Kafka's entries: magic, version; then for each of them, in their order:
_REST_MAGIC, _REST_VERSION = b"TLPB", 1
_EARLIER = tuple(struct.Struct(">Bqq" + "iqiq" * count) for count in range(BATCHES_KEPT))
"""By how many batches before the last one follow: that number, milliseconds without a batch, the timestamp of
the last one (in Kafka's entry is the time at which it was written), and those before."""


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
    """State of one producer id. `transaction_first_offset` is -1 outside a transaction. `idle_ms`: what
    `ProducerState.expire` has seen to pass since its last batch, never more; -1 before it has seen any.
    """

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "idle_ms",
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
        self.idle_ms = -1
        self.transaction_first_offset = -1

    def begin_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.batches.clear()
            self.epoch = epoch


class ProducerState:
    __slots__ = ("_complete", "_looked_ms", "_open", "_producers", "is_whole")

    def __init__(self) -> None:
        self.is_whole = True
        """Whether it knows the last five batches of each producer; not so after Kafka's snapshot alone."""
        self._looked_ms: int | None = None  # the monotonic clock at the last look for idle ones
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
        producer.timestamp = header.max_timestamp if now_ms == NO_TIMESTAMP else now_ms
        producer.idle_ms = -1
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

    def expire(self, monotonic_ms: int, after_ms: int) -> int:
        """Forgets producers outside a transaction that wrote nothing for `after_ms`; returns how many.

        Idle time is summed up from one call to the next, by a clock that does not jump, and kept in
        snapshots: no wall clock has a say in it, before or after a restart. What has passed since the last
        snapshot before a crash, and while the broker was away, is not counted.
        """
        passed_ms = 0 if self._looked_ms is None else max(0, monotonic_ms - self._looked_ms)
        self._looked_ms = monotonic_ms
        gone = []
        for producer in self._producers.values():
            producer.idle_ms = 0 if producer.idle_ms < 0 else producer.idle_ms + passed_ms
            if producer.idle_ms >= after_ms and producer.transaction_first_offset < 0:
                gone.append(producer.producer_id)
        for producer_id in gone:
            del self._producers[producer_id]
        return len(gone)

    def encode(self) -> bytes:
        """Kafka's snapshot, version 1, and the rest behind it, which Kafka's tools and brokers skip."""
        entries = [_ENTRY.pack(*_snapshot_fields(producer)) for producer in self._producers.values()]
        body = b"".join([struct.pack(">i", len(entries)), *entries, *self._rest()])
        return _PROLOGUE.pack(_SNAPSHOT_VERSION, crc32c(body), len(entries)) + body[4:]

    def _rest(self) -> Iterator[bytes]:
        if self._producers and self.is_whole:
            yield _REST.pack(_REST_MAGIC, _REST_VERSION)
        for producer in self._producers.values() if self.is_whole else ():
            batches = producer.batches
            count = max(len(batches) - 1, 0)
            timestamp = batches[-1].timestamp if batches else NO_TIMESTAMP
            earlier = chain.from_iterable(islice(batches, count))
            yield _EARLIER[count].pack(count, max(producer.idle_ms, 0), timestamp, *earlier)

    @classmethod
    def decode(cls, content: bytes) -> "ProducerState":
        """Raises MalformedSnapshot."""
        if len(content) < _PROLOGUE.size:
            raise MalformedSnapshot("too short")
        version, crc, count = _PROLOGUE.unpack_from(content)
        if version != _SNAPSHOT_VERSION:
            raise MalformedSnapshot(f"version {version}")
        end = _PROLOGUE.size + count * _ENTRY.size
        if crc32c(content[_CRC_FROM:]) != crc or not _PROLOGUE.size <= end <= len(content):
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
        ) in _ENTRY.iter_unpack(content[_PROLOGUE.size : end]):
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
        state._decode_rest(content[end:])
        return state

    def _decode_rest(self, rest: bytes) -> None:
        """What a newer tierlog writes there is skipped; Kafka writes nothing."""
        self.is_whole = not self._producers
        if len(rest) < _REST.size or _REST.unpack_from(rest) != (_REST_MAGIC, _REST_VERSION):
            return
        at = _REST.size
        try:
            for producer in self._producers.values():
                layout = _EARLIER[rest[at]]
                _, producer.idle_ms, timestamp, *fields = layout.unpack_from(rest, at)
                at += layout.size
                if producer.batches:
                    producer.batches[-1] = producer.batches[-1]._replace(timestamp=timestamp)
                earlier = [KeptBatch(*fields[n : n + 4]) for n in range(0, len(fields), 4)]
                producer.batches.extendleft(reversed(earlier))
        except (struct.error, IndexError):
            raise MalformedSnapshot("what lies behind Kafka's entries is cut short") from None
        self.is_whole = True

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
