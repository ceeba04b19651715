"""Producer state of one partition: makes retries idempotent and transactions visible (KIP-98, KIP-360).

For each producer id it keeps the epoch, the last five batches and the first offset of the open transaction.
`validate` decides and changes nothing; `apply` records an appended batch. The log owns one instance, writes a
snapshot at each roll, and rebuilds the state from a snapshot and the batches after it.

A snapshot has Kafka's format, which holds one batch per producer, followed by what Kafka leaves out: the
earlier batches and how long each producer has been idle (docs/adr/0012-what-a-restart-knows-of-producers.md).

Invariants: a producer's kept batches follow each other in sequence and offset; a transaction is open or
complete, never both; no offset at or above the first unstable offset is stable.
"""

import struct
from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from typing import NamedTuple

from crc32c import crc32c

from tierlog.base.safeguards import safeguard
from tierlog.base.types import NO_TIMESTAMP, require
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import BatchHeader

BATCHES_KEPT = 5
"""Kafka clients have at most five batches in flight with idempotence enabled. Any of them may be retried."""

LARGEST_SEQUENCE = 2**31 - 1
NO_PRODUCER_ID = -1

_SNAPSHOT_VERSION = 1
_PROLOGUE = struct.Struct(">hIi")  # version, crc32c of the rest, number of entries
_CRC_FROM = 6
_ENTRY = struct.Struct(">qhiqiqiq")
_REST = struct.Struct(">4sH")  # after Kafka's entries: magic, version, then one entry for each of them
_REST_MAGIC, _REST_VERSION = b"TLPB", 1
_EARLIER = tuple(struct.Struct(">Bqq" + "iqiq" * count) for count in range(BATCHES_KEPT))
"""Layouts by number of earlier batches: that number, idle milliseconds, the timestamp of the last batch
(Kafka's entry has the time at which it was written), and the earlier batches.
"""


class MalformedSnapshot(ValueError):
    """The bytes are not a producer snapshot. The log falls back to an older one and replays more batches."""


class BatchMetadata(NamedTuple):
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class Duplicate(NamedTuple):
    """A retry of a batch that has been appended: acknowledge its offsets, append nothing."""

    base_offset: int
    last_offset: int
    timestamp: int


class InvalidRecord(NamedTuple):
    """A record because of which the batch is rejected (KIP-467)."""

    number: int
    """Index in the batch, from 0."""
    message: str


class Rejection(NamedTuple):
    """The batch has not been appended and never will be."""

    error: ErrorCode
    message: str
    records: tuple[InvalidRecord, ...] = ()


class EndMarker(NamedTuple):
    """Content of a control record that ends a transaction."""

    committed: bool
    coordinator_epoch: int


class CompletedTransaction(NamedTuple):
    """Offsets are inclusive; `last_offset` is that of the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


class ProducerStateEntry:
    """State of one producer id.

    `transaction_first_offset` is -1 outside a transaction. `idle_ms` is the time since its last batch as
    observed by `ProducerStateManager.expire`, never more than the true time; -1 before the first observation.
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
        self.batches: deque[BatchMetadata] = deque(maxlen=BATCHES_KEPT)
        self.coordinator_epoch = -1
        self.timestamp = NO_TIMESTAMP
        self.idle_ms = -1
        self.transaction_first_offset = -1

    def begin_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.batches.clear()
            self.epoch = epoch


class ProducerStateManager:
    __slots__ = ("_complete", "_expired_at_ms", "_open", "_producers", "has_all_batches")

    def __init__(self) -> None:
        self.has_all_batches = True
        """Whether it has the last five batches of each producer. False after loading a snapshot written by
        Kafka.
        """
        self._expired_at_ms: int | None = None  # monotonic time of the last call of `expire`
        self._producers: dict[int, ProducerStateEntry] = {}
        self._open: dict[int, int] = {}  # producer id -> first offset of its open transaction
        self._complete: dict[int, int] = {}  # marker offset -> first offset, until below the high watermark

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[ProducerStateEntry]:
        return iter(self._producers.values())

    def get(self, producer_id: int) -> ProducerStateEntry | None:
        return self._producers.get(producer_id)

    def validate(self, header: BatchHeader) -> Duplicate | Rejection | None:
        """Check whether a client's batch can be appended: None means yes. Changes nothing."""
        known = self._producers.get(header.producer_id)
        if known is None or known.epoch < 0:
            return None  # the state may have expired: any sequence is accepted (KIP-360)
        if header.producer_epoch < known.epoch:
            return Rejection(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {known.epoch}, the batch {header.producer_epoch}",
            )
        if header.producer_epoch > known.epoch:
            if header.base_sequence == 0:
                return None
            return _gap(header, expected=0)
        return _validate_sequence(known, header) or _validate_transaction(known, header)

    def apply(
        self,
        header: BatchHeader,
        base_offset: int,
        marker: EndMarker | None = None,
        *,
        now_ms: int = NO_TIMESTAMP,
    ) -> CompletedTransaction | None:
        """Record an appended batch. A marker ends its transaction. The base offset in the header
        is ignored.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            producer = self._producers[header.producer_id] = ProducerStateEntry(header.producer_id)
        producer.begin_epoch(header.producer_epoch)
        producer.timestamp = header.max_timestamp if now_ms == NO_TIMESTAMP else now_ms
        producer.idle_ms = -1
        if header.is_control:
            return self._end_transaction(producer, base_offset, marker)
        delta = header.last_offset_delta
        last_sequence = advance_sequence(header.base_sequence, delta)
        producer.batches.append(
            BatchMetadata(last_sequence, base_offset + delta, delta, header.max_timestamp)
        )
        if header.is_transactional and producer.transaction_first_offset < 0:
            producer.transaction_first_offset = base_offset
            self._open[producer.producer_id] = base_offset
        return None

    def first_unstable_offset(self) -> int | None:
        """First offset of a transaction that is open, or whose marker is not yet below the high watermark."""
        if not self._open and not self._complete:
            return None
        return min((*self._open.values(), *self._complete.values()))

    def last_stable_offset_after(self, completed: CompletedTransaction) -> int:
        """The last stable offset once that transaction is complete; stored in the transaction index."""
        others = [first for producer_id, first in self._open.items() if producer_id != completed.producer_id]
        return min(others, default=completed.last_offset + 1)

    def on_high_watermark_updated(self, high_watermark: int) -> None:
        """Stop holding the last stable offset for transactions whose markers are committed."""
        if self._complete:
            self._complete = {at: first for at, first in self._complete.items() if at >= high_watermark}

    def expire(self, monotonic_ms: int, after_ms: int) -> int:
        """Remove producers without an open transaction that have been idle for `after_ms`; returns their
        number.

        Idle time is summed from call to call with a monotonic clock and stored in snapshots, so it does not
        depend on the wall clock. Time since the last snapshot before a crash, and time while the broker is
        down, is not counted.
        """
        passed_ms = 0 if self._expired_at_ms is None else max(0, monotonic_ms - self._expired_at_ms)
        self._expired_at_ms = monotonic_ms
        gone = []
        for producer in self._producers.values():
            producer.idle_ms = 0 if producer.idle_ms < 0 else producer.idle_ms + passed_ms
            if producer.idle_ms >= after_ms and producer.transaction_first_offset < 0:
                gone.append(producer.producer_id)
        for producer_id in gone:
            del self._producers[producer_id]
        return len(gone)

    def encode(self) -> bytes:
        """Kafka's snapshot, version 1, followed by data that Kafka's tools and brokers ignore."""
        entries = [_ENTRY.pack(*_snapshot_fields(producer)) for producer in self._producers.values()]
        body = b"".join([struct.pack(">i", len(entries)), *entries, *self._rest()])
        return _PROLOGUE.pack(_SNAPSHOT_VERSION, crc32c(body), len(entries)) + body[4:]

    def _rest(self) -> Iterator[bytes]:
        if self._producers and self.has_all_batches:
            yield _REST.pack(_REST_MAGIC, _REST_VERSION)
        for producer in self._producers.values() if self.has_all_batches else ():
            batches = producer.batches
            count = max(len(batches) - 1, 0)
            timestamp = batches[-1].timestamp if batches else NO_TIMESTAMP
            earlier = chain.from_iterable(islice(batches, count))
            yield _EARLIER[count].pack(count, max(producer.idle_ms, 0), timestamp, *earlier)

    @classmethod
    def decode(cls, content: bytes) -> "ProducerStateManager":
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
            producer = state._producers[producer_id] = ProducerStateEntry(producer_id)
            producer.epoch, producer.timestamp, producer.coordinator_epoch = (
                epoch,
                timestamp,
                coordinator_epoch,
            )
            if offset >= 0:
                producer.batches.append(BatchMetadata(sequence, offset, delta, timestamp))
            producer.transaction_first_offset = txn_first
            if txn_first >= 0:
                state._open[producer_id] = txn_first
        state._decode_rest(content[end:])
        return state

    def _decode_rest(self, rest: bytes) -> None:
        """Read the part after Kafka's entries. Unknown versions are ignored."""
        self.has_all_batches = not self._producers
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
                earlier = [BatchMetadata(*fields[n : n + 4]) for n in range(0, len(fields), 4)]
                producer.batches.extendleft(reversed(earlier))
        except (struct.error, IndexError):
            raise MalformedSnapshot("the part after Kafka's entries is truncated") from None
        self.has_all_batches = True

    def check(self) -> None:
        """Raise InvariantViolation if a producer's batches do not follow each other."""
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
        self, producer: ProducerStateEntry, marker_offset: int, marker: EndMarker | None
    ) -> CompletedTransaction | None:
        if marker is None:
            return None
        producer.coordinator_epoch = marker.coordinator_epoch
        first = self._open.pop(producer.producer_id, None)
        producer.transaction_first_offset = -1
        if first is None:
            return None  # the transaction has no records in this partition
        self._complete[marker_offset] = first
        return CompletedTransaction(producer.producer_id, first, marker_offset, not marker.committed)


safeguard("the leader checks producer sequence numbers")(ProducerStateManager.validate)
safeguard("a producer snapshot holds five batches of each producer")(ProducerStateManager._decode_rest)


def advance_sequence(sequence: int, by: int) -> int:
    """Sequences wrap from 2^31-1 to 0. Batches of the coordinator have none (-1)."""
    return sequence if sequence < 0 else (sequence + by) & LARGEST_SEQUENCE


def _validate_sequence(known: ProducerStateEntry, header: BatchHeader) -> Duplicate | Rejection | None:
    if not known.batches:
        # Only markers were written in this epoch: the producer starts again from 0.
        return None if header.base_sequence == 0 else _gap(header, expected=0)
    expected = advance_sequence(known.batches[-1].last_sequence, 1)
    if header.base_sequence == expected:
        return None
    last_sequence = advance_sequence(header.base_sequence, header.last_offset_delta)
    for batch in known.batches:
        if batch.last_sequence == last_sequence and batch.offset_delta == header.last_offset_delta:
            return Duplicate(batch.first_offset, batch.last_offset, batch.timestamp)
    return _gap(header, expected)


def _validate_transaction(known: ProducerStateEntry, header: BatchHeader) -> Rejection | None:
    if known.transaction_first_offset >= 0 and not header.is_transactional:
        return Rejection(
            ErrorCode.INVALID_TXN_STATE, f"producer {header.producer_id} has an open transaction"
        )
    return None


def _gap(header: BatchHeader, expected: int) -> Rejection:
    return Rejection(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} sent sequence {header.base_sequence}, expected {expected}",
    )


def _snapshot_fields(producer: ProducerStateEntry) -> tuple[int, ...]:
    last = producer.batches[-1] if producer.batches else BatchMetadata(-1, -1, 0, -1)
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
