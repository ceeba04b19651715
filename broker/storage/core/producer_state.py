"""Producer state of one partition: makes retries idempotent and transactions visible (KIP-98, KIP-360).

For each producer id it keeps the epoch, the last five batches and the first offset of the open transaction.
`validate` and its like decide and change nothing; `apply` records an appended batch. The log owns one
instance, writes a snapshot at each roll, and rebuilds the state from a snapshot and the batches after it.

A snapshot has Kafka's format, which holds one batch per producer, followed by what Kafka leaves out: the
earlier batches and how long each producer has been idle (docs/adr/0012-what-a-restart-knows-of-producers.md),
and the complete transactions whose markers were not committed yet.

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
from tierlog.broker.storage.core.complete_transactions import CompleteTransactions
from tierlog.broker.storage.core.verification import VerificationGuard, Verifications
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import BatchHeader
from tierlog.records.markers import EndMarker

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


class ActiveProducer(NamedTuple):
    """A row of DescribeProducers (KIP-664). `last_timestamp`: when the last batch was written, by this
    broker's clock. -1 stands for no sequence, no coordinator and no open transaction."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_first_offset: int


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
    __slots__ = (
        "_complete",
        "_expired_at_ms",
        "_first_open",
        "_first_unstable",
        "_open",
        "_producers",
        "has_all_batches",
        "verifications",
    )

    def __init__(self) -> None:
        self.has_all_batches = True
        """Whether it has the last five batches of each producer. False after loading a snapshot written by
        Kafka.
        """
        self.verifications = Verifications()
        self._expired_at_ms: int | None = None  # monotonic time of the last call of `expire`
        self._producers: dict[int, ProducerStateEntry] = {}
        self._open: dict[int, int] = {}  # producer id -> first offset of its open transaction, ascending
        self._complete = CompleteTransactions()
        self._first_open = -1  # the first value of `_open`
        self._first_unstable = -1  # the smallest value of both; each read asks for it

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[ProducerStateEntry]:
        return iter(self._producers.values())

    def get(self, producer_id: int) -> ProducerStateEntry | None:
        return self._producers.get(producer_id)

    def active(self) -> Iterator[ActiveProducer]:
        """The producers of now. Batches may be appended before the caller reaches the end."""
        for producer in list(self._producers.values()):
            yield ActiveProducer(
                producer.producer_id,
                producer.epoch,
                producer.batches[-1].last_sequence if producer.batches else -1,
                producer.timestamp,
                producer.coordinator_epoch,
                producer.transaction_first_offset,
            )

    # -- decisions --

    def validate(
        self, header: BatchHeader, guard: VerificationGuard | None = None, *, must_verify: bool = True
    ) -> Duplicate | Rejection | None:
        """Check whether a client's batch can be appended: None means yes. Changes nothing.

        A transactional batch that would open a transaction needs a valid guard, unless `must_verify` is
        False."""
        known = self._producers.get(header.producer_id)
        if header.is_transactional:
            return self._validate_transactional(known, header, guard, must_verify)
        if known is None or known.epoch < 0:
            return None  # the state may have expired: any sequence is accepted (KIP-360)
        if header.producer_epoch < known.epoch:
            return _stale_epoch(known, header.producer_epoch)
        if header.producer_epoch > known.epoch:
            if header.base_sequence != 0:
                return _gap(header, expected=0)
        elif (verdict := _validate_sequence(known, header)) is not None:
            return verdict
        if known.transaction_first_offset >= 0:
            return Rejection(
                ErrorCode.INVALID_TXN_STATE, f"producer {header.producer_id} has an open transaction"
            )
        return None

    def validate_coordinator(
        self, header: BatchHeader, guard: VerificationGuard | None, *, must_verify: bool
    ) -> Rejection | None:
        """As `validate`, for a batch of the group coordinator, which has no sequence."""
        known = self._producers.get(header.producer_id)
        if known is not None and header.producer_epoch < known.epoch:
            return _stale_epoch(known, header.producer_epoch)
        if not header.is_transactional or header.is_control:
            return None
        return self._validate_opening(known, header, guard, must_verify)

    def validate_marker(
        self, producer_id: int, epoch: int, marker: EndMarker, transaction_version: int
    ) -> Rejection | None:
        """Check whether a marker can be appended.

        From transaction version 2 on, the coordinator increments the epoch at the end of each transaction, so
        the marker's epoch is higher than that of the data. An equal epoch then belongs to a retry of a marker
        that was written, or to the next transaction, which it must not end (KIP-890)."""
        known = self._producers.get(producer_id)
        if known is None:
            return None
        is_open = known.transaction_first_offset >= 0
        if epoch < known.epoch or (transaction_version >= 2 and epoch == known.epoch and is_open):
            return _stale_epoch(known, epoch)
        if marker.coordinator_epoch < known.coordinator_epoch:
            return Rejection(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {marker.coordinator_epoch} in the marker of producer {producer_id} is"
                f" older than {known.coordinator_epoch}",
            )
        return None

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, *, supports_epoch_bump: bool
    ) -> VerificationGuard | Rejection | None:
        """The guard for the first batch of a transaction; None if the transaction is open in this
        partition."""
        known = self._producers.get(producer_id)
        if known is not None and epoch < known.epoch:
            return _stale_epoch(known, epoch)
        if known is not None and _is_open(known, epoch):
            return None
        return self.verifications.begin(producer_id, epoch, sequence, supports_epoch_bump=supports_epoch_bump)

    def _validate_transactional(
        self,
        known: ProducerStateEntry | None,
        header: BatchHeader,
        guard: VerificationGuard | None,
        must_verify: bool,
    ) -> Duplicate | Rejection | None:
        """The checks in Kafka's order, but Kafka also acknowledges a retry of an ended transaction."""
        verdict: Duplicate | Rejection | None = None
        if known is not None and known.epoch >= 0:
            if header.producer_epoch < known.epoch:
                return _stale_epoch(known, header.producer_epoch)
            if header.producer_epoch == known.epoch:
                verdict = _validate_sequence(known, header)
            elif header.base_sequence != 0:
                verdict = _gap(header, expected=0)
        if known is not None and isinstance(verdict, Duplicate):
            return _of_ended_transaction(known, verdict) or verdict
        return (
            self._validate_opening(known, header, guard, must_verify)
            or verdict
            or self._wait_for_earlier(known, header)
        )

    def _validate_opening(
        self,
        known: ProducerStateEntry | None,
        header: BatchHeader,
        guard: VerificationGuard | None,
        must_verify: bool,
    ) -> Rejection | None:
        """Check that the batch belongs to an open transaction, or may open one (KIP-890)."""
        if not must_verify or (known is not None and _is_open(known, header.producer_epoch)):
            return None
        if self.verifications.is_valid(header.producer_id, guard):
            return None
        return Rejection(
            ErrorCode.INVALID_TXN_STATE,
            f"the batch of producer {header.producer_id} is not part of an ongoing transaction",
        )

    def _wait_for_earlier(self, known: ProducerStateEntry | None, header: BatchHeader) -> Rejection | None:
        """Refuse a batch while an earlier one of the same transaction has yet to be verified again."""
        pending = self.verifications.get(header.producer_id)
        if pending is None or pending.epoch != header.producer_epoch:
            return None
        has_batches = known is not None and len(known.batches) > 0
        if pending.supports_epoch_bump and header.base_sequence != 0 and not has_batches:
            return _gap(header, expected=0)
        if header.base_sequence > pending.lowest_sequence:
            return _gap(header, expected=pending.lowest_sequence)
        return None

    def drop_verifications(self) -> None:
        """Invalidate all guards: the partition has another leader, which takes the markers now."""
        self.verifications = Verifications()

    # -- changes --

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
        if header.is_transactional:
            self.verifications.end(producer.producer_id)
            if producer.transaction_first_offset < 0:
                producer.transaction_first_offset = base_offset
                self._open[producer.producer_id] = base_offset
                if self._first_open < 0:
                    self._set_first_open()
        return None

    def first_unstable_offset(self) -> int | None:
        """First offset of a transaction that is open, or whose marker is not yet below the high watermark."""
        return self._first_unstable if self._first_unstable >= 0 else None

    def last_stable_offset_after(self, completed: CompletedTransaction) -> int:
        """The last stable offset once that transaction is complete; stored in the transaction index. Call it
        right after `apply`."""
        return self._first_open if self._first_open >= 0 else completed.last_offset + 1

    def on_high_watermark_updated(self, high_watermark: int) -> None:
        """Stop holding the last stable offset for transactions whose markers are committed."""
        if self._complete.drop_below(high_watermark):
            self._set_first_unstable()

    def _set_first_open(self) -> None:
        self._first_open = next(iter(self._open.values()), -1)
        self._set_first_unstable()

    def _set_first_unstable(self) -> None:
        first = self._complete.first_offset
        is_open = self._first_open >= 0 and (first < 0 or self._first_open < first)
        self._first_unstable = self._first_open if is_open else first

    def expire(self, monotonic_ms: int, after_ms: int) -> int:
        """Remove producers without an open transaction that have been idle for `after_ms`; returns their
        number.

        Idle time is summed from call to call with a monotonic clock and stored in snapshots, so it does not
        depend on the wall clock. Time since the last snapshot before a crash, and time while the broker is
        down, is not counted.
        """
        passed_ms = 0 if self._expired_at_ms is None else max(0, monotonic_ms - self._expired_at_ms)
        self._expired_at_ms = monotonic_ms
        if len(self.verifications):
            self.verifications.expire(passed_ms, after_ms)
        gone = []
        for producer in self._producers.values():
            producer.idle_ms = 0 if producer.idle_ms < 0 else producer.idle_ms + passed_ms
            if _is_expired(producer, after_ms):
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
        if self.has_all_batches:
            yield from self._complete.encode()

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
        with_transaction = [one for one in state if one.transaction_first_offset >= 0]
        for producer in sorted(with_transaction, key=lambda one: one.transaction_first_offset):
            state._open[producer.producer_id] = producer.transaction_first_offset
        state._decode_rest(content[end:])
        state._set_first_open()
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
            self._complete.decode(rest, at)
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
        first_offsets = list(self._open.values())
        require(first_offsets == sorted(first_offsets), "open transactions are not in the order of offsets")
        self._complete.check()
        unstable = min(
            (*first_offsets, *filter(lambda at: at >= 0, [self._complete.first_offset])), default=-1
        )
        require(unstable == self._first_unstable, f"first unstable offset {unstable}, {self._first_unstable}")

    def _end_transaction(
        self, producer: ProducerStateEntry, marker_offset: int, marker: EndMarker | None
    ) -> CompletedTransaction | None:
        self.verifications.end(producer.producer_id)
        if marker is None:
            return None
        producer.coordinator_epoch = marker.coordinator_epoch
        first = self._open.pop(producer.producer_id, None)
        producer.transaction_first_offset = -1
        if first is None:
            return None  # the transaction has no records in this partition
        self._complete.add(marker_offset, first)
        if first == self._first_open:
            self._set_first_open()
        return CompletedTransaction(producer.producer_id, first, marker_offset, not marker.committed)


safeguard("the leader checks producer sequence numbers")(ProducerStateManager.validate)
safeguard("a producer snapshot holds five batches of each producer")(ProducerStateManager._decode_rest)
safeguard("a producer snapshot holds open transactions")(ProducerStateManager._decode_rest)
safeguard("a marker needs the epoch of its transaction")(ProducerStateManager.validate_marker)
safeguard("the transaction index says how far to search")(ProducerStateManager.last_stable_offset_after)


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


def _of_ended_transaction(known: ProducerStateEntry, retry: Duplicate) -> Rejection | None:
    """Refuse a retry of a batch whose transaction has ended: no client waits for its response. But librdkafka
    aborts a transaction of version 1 without batches that it would have sent again, and gives their sequences
    to other records, which would be lost. A sequence gap would be a fatal error to it."""
    if 0 <= known.transaction_first_offset <= retry.base_offset:
        return None
    message = f"producer {known.producer_id} repeats a sequence of an ended transaction ({retry.base_offset})"
    return Rejection(ErrorCode.INVALID_TXN_STATE, message)


safeguard("a batch of an ended transaction is not acknowledged again")(_of_ended_transaction)


def _is_expired(producer: ProducerStateEntry, after_ms: int) -> bool:
    """Whether the producer may be forgotten. Without its state, an open transaction would seem to have
    ended."""
    return producer.idle_ms >= after_ms and producer.transaction_first_offset < 0


def _is_open(known: ProducerStateEntry, epoch: int) -> bool:
    """Whether the producer has an open transaction of that epoch. With a newer epoch the marker of the open
    one is on its way."""
    return known.transaction_first_offset >= 0 and known.epoch == epoch


def _stale_epoch(known: ProducerStateEntry, epoch: int) -> Rejection:
    return Rejection(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {known.producer_id} has epoch {known.epoch}, the batch {epoch}",
    )


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
