"""Transaction: the state of one transactional id, and what follows from each request (KIP-98, KIP-360,
KIP-890, KIP-939).

The functions decide and change nothing: they return the transaction to store, or the error for the client. A
transaction version of 2 or later (KIP-890) bumps the epoch with every end of a transaction, so that a delayed
request of an earlier transaction is fenced.

A producer may also begin while a transaction of its predecessor is open, and end that one (KIP-939). The
transaction then has two producer ids and epochs: those of its records in the logs, and those of its client.
"""

from collections.abc import Set
from dataclasses import dataclass, replace

from tierlog.base.safeguards import safeguard
from tierlog.base.types import TopicPartition
from tierlog.broker.storage.core.producer_state import NO_PRODUCER_ID
from tierlog.broker.transactions.core.states import Cause, TransactionState, next_state
from tierlog.protocol.errors import ErrorCode

NO_EPOCH, NO_TIMESTAMP = -1, -1
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

    `next_producer_epoch`: if set, the transaction was kept by a later producer (KIP-939), which has the next
    producer id with this epoch.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    next_producer_epoch: int = NO_EPOCH
    last_epoch: int = NO_EPOCH
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIMESTAMP
    updated_ms: int
    client_version: int = 0

    @property
    def client(self) -> tuple[int, int]:
        """The producer id and epoch of the client: for its requests now, or once the markers are written."""
        if self.next_producer_id == NO_PRODUCER_ID:
            return self.producer_id, self.producer_epoch
        return self.next_producer_id, max(self.next_producer_epoch, 0)

    @property
    def is_kept(self) -> bool:
        return self.next_producer_epoch != NO_EPOCH

    @property
    def is_exhausted(self) -> bool:
        return self.client[1] >= MAX_EPOCH - 1

    @property
    def bumps_epochs(self) -> bool:
        return self.client_version >= EPOCH_BUMP_VERSION

    @property
    def has_timeout(self) -> bool:
        return self.timeout_ms != NO_TIMEOUT_MS


@safeguard("InitProducerId raises the epoch")
def initialized(
    known: Transaction, expected: tuple[int, int] | None, timeout_ms: int, spare_producer_id: int, now_ms: int
) -> Transaction | ErrorCode:
    """InitProducerId without an open transaction. `expected`: the producer id and epoch which the client
    already has (KIP-360). `spare_producer_id`: used if the epochs of the current one are exhausted. The error
    is CONCURRENT_TRANSACTIONS if there is none, as these ran out while the request waited."""
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
        next_producer_epoch=NO_EPOCH,
    )
    if known.is_exhausted and (expected is None or expected[1] == known.producer_epoch):
        if spare_producer_id == NO_PRODUCER_ID:
            return ErrorCode.CONCURRENT_TRANSACTIONS
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


def kept(
    known: Transaction, expected: tuple[int, int] | None, timeout_ms: int, spare_producer_id: int, now_ms: int
) -> Transaction | ErrorCode:
    """InitProducerId that keeps the open transaction, so that its client ends it as an external transaction
    ended (KIP-939). The client gets another epoch, which fences its predecessor. The timeout does not become
    shorter: the transaction is older than this client."""
    if expected not in (None, known.client):
        return ErrorCode.PRODUCER_FENCED
    if known.is_exhausted and spare_producer_id == NO_PRODUCER_ID:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    producer_id, epoch = known.client
    return replace(
        known,
        state=next_state(known.state, Cause.KEPT),
        next_producer_id=spare_producer_id if known.is_exhausted else producer_id,
        next_producer_epoch=0 if known.is_exhausted else epoch + 1,
        last_epoch=NO_EPOCH,
        timeout_ms=max(known.timeout_ms, timeout_ms),
        updated_ms=now_ms,
    )


@safeguard("requests of a replaced producer are refused")
def check_producer(known: Transaction | None, producer_id: int, epoch: int) -> ErrorCode:
    if known is None or known.client[0] != producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    is_current = known.client[1] == epoch < MAX_EPOCH
    return ErrorCode.NONE if is_current else ErrorCode.PRODUCER_FENCED


@safeguard("a transaction keeps all partitions that were added")
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


@safeguard("the end of an earlier transaction is refused")
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
    is_open = known.state is TransactionState.ONGOING
    if is_open or (bumps and not commit):
        # Version 2: a client aborts before any partition was added, or does not know whether one was.
        if bumps and known.is_exhausted and spare_producer_id == NO_PRODUCER_ID:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return prepared(known, commit, client_version, spare_producer_id, now_ms)
    if bumps:
        return ErrorCode.INVALID_TXN_STATE
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
    producer_id, epoch = known.client
    next_id, next_epoch = known.next_producer_id, known.next_producer_epoch
    if bumps and known.is_exhausted and spare_producer_id != NO_PRODUCER_ID:
        next_id, next_epoch = spare_producer_id, 0 if known.is_kept else NO_EPOCH
    elif bumps and known.is_kept:
        next_epoch = min(epoch + 1, MAX_EPOCH)
    return replace(
        known,
        state=next_state(known.state, Cause.COMMITTED if commit else Cause.ABORTED),
        producer_epoch=min(known.producer_epoch + 1, MAX_EPOCH) if bumps else known.producer_epoch,
        last_epoch=epoch if bumps else known.last_epoch,
        next_producer_id=next_id,
        next_producer_epoch=next_epoch,
        previous_producer_id=producer_id,
        started_ms=known.started_ms if known.state is TransactionState.ONGOING else now_ms,
        updated_ms=now_ms,
        client_version=client_version,
    )


@safeguard("an abort by the coordinator raises the epoch")
def fenced(known: Transaction, spare_producer_id: int, now_ms: int) -> Transaction:
    """Abort an open transaction against the will of its producer, which can do nothing more with its
    epoch."""
    aborted = prepared(known, False, known.client_version, spare_producer_id, now_ms)
    if known.bumps_epochs:
        return replace(aborted, last_epoch=NO_EPOCH) if aborted.client[1] == MAX_EPOCH else aborted
    return replace(
        aborted,
        producer_epoch=min(known.producer_epoch + 1, MAX_EPOCH),
        next_producer_epoch=min(known.next_producer_epoch + 1, MAX_EPOCH) if known.is_kept else NO_EPOCH,
        last_epoch=NO_EPOCH,
    )


def completed(known: Transaction, now_ms: int) -> Transaction:
    """All markers are written."""
    producer_id, epoch = known.client
    return replace(
        known,
        state=next_state(known.state, Cause.MARKERS_WRITTEN),
        producer_id=producer_id,
        producer_epoch=epoch,
        previous_producer_id=known.previous_producer_id if known.is_kept else known.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        next_producer_epoch=NO_EPOCH,
        partitions=frozenset(),
        updated_ms=now_ms,
    )
