"""Transaction: the state of one transactional id, and what follows from each request (KIP-98, KIP-360,
KIP-890).

The functions decide and change nothing: they return the transaction to store, or the error for the client. A
transaction version of 2 or later (KIP-890) bumps the epoch with every end of a transaction, so that a delayed
request of an earlier transaction is fenced.
"""

from collections.abc import Set
from dataclasses import dataclass, replace

from tierlog.base.types import TopicPartition
from tierlog.broker.transactions.core.states import Cause, TransactionState, next_state
from tierlog.protocol.errors import ErrorCode

NO_PRODUCER_ID, NO_EPOCH, NO_TIMESTAMP = -1, -1, -1
MAX_EPOCH = 2**15 - 1
"""No client gets this epoch: the coordinator can always fence a producer with one more."""

NO_TIMEOUT_MS = 2**31 - 1
"""The timeout of a transaction with two-phase commit (KIP-939): only its client ends it."""

EPOCH_BUMP_VERSION = 2
"""The first transaction version whose transactions have an epoch of their own (KIP-890)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """`previous_producer_id`: before the last change. `next_producer_id`: after the markers, if the epochs of
    the current one are exhausted. `last_epoch`: the epoch whose request led to the current one, so that its
    retry is recognized; it is not stored.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    last_epoch: int = NO_EPOCH
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIMESTAMP
    updated_ms: int
    client_version: int = 0

    @property
    def is_exhausted(self) -> bool:
        return self.producer_epoch >= MAX_EPOCH - 1

    @property
    def bumps_epochs(self) -> bool:
        return self.client_version >= EPOCH_BUMP_VERSION

    @property
    def has_timeout(self) -> bool:
        return self.timeout_ms != NO_TIMEOUT_MS


def initialized(
    known: Transaction, expected: tuple[int, int] | None, timeout_ms: int, spare_producer_id: int, now_ms: int
) -> Transaction | ErrorCode:
    """InitProducerId without an open transaction. `expected`: the producer id and epoch which the client
    already has (KIP-360). `spare_producer_id`: used if the epochs of the current one are exhausted."""
    if expected is not None and not _may_continue(known, expected):
        return ErrorCode.PRODUCER_FENCED
    base = replace(
        known,
        state=next_state(known.state, Cause.INITIALIZED),
        partitions=frozenset(),
        started_ms=NO_TIMESTAMP,
        updated_ms=now_ms,
        timeout_ms=timeout_ms,
        previous_producer_id=known.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )
    if known.is_exhausted and (expected is None or expected[1] == known.producer_epoch):
        last_epoch = NO_EPOCH if expected is None else known.producer_epoch
        return replace(base, producer_id=spare_producer_id, producer_epoch=0, last_epoch=last_epoch)
    if expected is None:
        return replace(base, producer_epoch=known.producer_epoch + 1, last_epoch=NO_EPOCH)
    if expected[1] == known.producer_epoch:
        return replace(base, producer_epoch=known.producer_epoch + 1, last_epoch=known.producer_epoch)
    if expected[1] == known.last_epoch:
        return replace(base, previous_producer_id=known.previous_producer_id)  # a retry
    return ErrorCode.PRODUCER_FENCED


def _may_continue(known: Transaction, expected: tuple[int, int]) -> bool:
    """An exhausted producer may retry with its previous id."""
    producer_id, epoch = expected
    if producer_id == known.producer_id:
        return True
    return producer_id == known.previous_producer_id and epoch >= MAX_EPOCH - 1


def check_producer(known: Transaction | None, producer_id: int, epoch: int) -> ErrorCode:
    if known is None or known.producer_id != producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    is_current = known.producer_epoch == epoch < MAX_EPOCH
    return ErrorCode.NONE if is_current else ErrorCode.PRODUCER_FENCED


def with_partitions(
    known: Transaction, partitions: Set[TopicPartition], client_version: int, now_ms: int
) -> Transaction:
    is_new = known.state is not TransactionState.ONGOING
    return replace(
        known,
        state=next_state(known.state, Cause.PARTITIONS_ADDED),
        partitions=frozenset(partitions) if is_new else known.partitions | partitions,
        started_ms=now_ms if is_new else known.started_ms,
        updated_ms=now_ms,
        client_version=client_version,
        previous_producer_id=known.producer_id,
    )


def ended(
    known: Transaction,
    producer_id: int,
    epoch: int,
    *,
    commit: bool,
    client_version: int,
    spare_producer_id: int,
    now_ms: int,
) -> Transaction | ErrorCode:
    """EndTxn, while no markers are being written. NONE for a retry of a request that was carried out."""
    bumps = client_version >= EPOCH_BUMP_VERSION
    if bumps and _is_retry(known, producer_id, epoch):
        done = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
        return ErrorCode.NONE if known.state is done else ErrorCode.INVALID_TXN_STATE
    if (error := check_producer(known, producer_id, epoch)) != ErrorCode.NONE:
        return error
    if known.state is TransactionState.ONGOING:
        return prepared(known, commit, client_version, spare_producer_id, now_ms)
    if bumps:
        # The client aborts before any partition was added, or does not know whether one was.
        return (
            ErrorCode.INVALID_TXN_STATE
            if commit
            else prepared(known, False, client_version, spare_producer_id, now_ms)
        )
    done = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
    return ErrorCode.NONE if known.state is done else ErrorCode.INVALID_TXN_STATE


def _is_retry(known: Transaction, producer_id: int, epoch: int) -> bool:
    """Whether the request led to the current epoch, or to the current producer id (its epoch is then 0). The
    end of a transaction of an earlier version led to no epoch: InitProducerId did, for another producer."""
    is_complete = known.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
    if not is_complete or not known.bumps_epochs:
        return False
    if producer_id == known.producer_id:
        return epoch + 1 == known.producer_epoch < MAX_EPOCH
    return (producer_id, epoch, known.producer_epoch) == (known.previous_producer_id, MAX_EPOCH - 1, 0)


def prepared(
    known: Transaction, commit: bool, client_version: int, spare_producer_id: int, now_ms: int
) -> Transaction:
    """The transaction whose outcome is decided. Its epoch is that of the markers."""
    bumps = client_version >= EPOCH_BUMP_VERSION
    return replace(
        known,
        state=next_state(known.state, Cause.COMMITTED if commit else Cause.ABORTED),
        producer_epoch=min(known.producer_epoch + 1, MAX_EPOCH) if bumps else known.producer_epoch,
        last_epoch=known.producer_epoch if bumps else known.last_epoch,
        next_producer_id=spare_producer_id if bumps and known.is_exhausted else NO_PRODUCER_ID,
        previous_producer_id=known.producer_id,
        started_ms=known.started_ms if known.state is TransactionState.ONGOING else now_ms,
        updated_ms=now_ms,
        client_version=client_version,
    )


def fenced(known: Transaction, spare_producer_id: int, now_ms: int) -> Transaction:
    """Abort an open transaction against the will of its producer, which can do nothing more with its
    epoch."""
    aborted = prepared(known, False, known.client_version, spare_producer_id, now_ms)
    if known.bumps_epochs:
        is_last = aborted.producer_epoch == MAX_EPOCH and aborted.next_producer_id == NO_PRODUCER_ID
        return replace(aborted, last_epoch=NO_EPOCH) if is_last else aborted
    return replace(aborted, producer_epoch=min(known.producer_epoch + 1, MAX_EPOCH), last_epoch=NO_EPOCH)


def completed(known: Transaction, now_ms: int) -> Transaction:
    """All markers are written."""
    rotates = known.next_producer_id != NO_PRODUCER_ID
    return replace(
        known,
        state=next_state(known.state, Cause.MARKERS_WRITTEN),
        producer_id=known.next_producer_id if rotates else known.producer_id,
        producer_epoch=0 if rotates else known.producer_epoch,
        previous_producer_id=known.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        partitions=frozenset(),
        updated_ms=now_ms,
    )
