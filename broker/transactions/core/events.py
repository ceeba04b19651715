"""Transaction events: the requests, other events, effects and responses of the transaction coordinator's
core. All coordinators share the effects of coordinators/core/effects.py.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from tierlog.base.types import TopicPartition
from tierlog.broker.coordinators.core.effects import (
    Appended,
    AppendTimedOut,
    ErrorResponse,
    ServiceEffect,
    TimerFired,
    Token,
)
from tierlog.broker.storage.core.producer_state import NO_PRODUCER_ID
from tierlog.broker.transactions.core.transaction import NO_EPOCH
from tierlog.protocol.errors import ErrorCode


class TimerKind(StrEnum):
    TRANSACTION = "transaction"  # the timeout of an open transaction
    WAITING = "waiting"  # limits the wait of requests for a change
    RETRY = "retry"  # stores the end of a transaction again, after that failed


class TimerKey(NamedTuple):
    kind: TimerKind
    transactional_id: str


# ---- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerId:
    """`expected`: the producer id and epoch that the client already has. `keep`: keep an open transaction for
    the client to end it (KIP-939). `spare_producer_id`: an unused id."""

    token: Token
    transactional_id: str
    timeout_ms: int
    expected: tuple[int, int] | None = None
    two_phase_commit: bool = False
    keep: bool = False
    spare_producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """`verify_only`: add nothing, and check that the partitions are in the open transaction (KIP-890)."""

    token: Token
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    verify_only: bool = False
    client_version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    token: Token
    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    client_version: int = 0
    spare_producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkersWritten:
    """Every partition of the prepared transaction has its marker, or is deleted."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireIds:
    """Submitted every transaction.remove.expired.transaction.cleanup.interval.ms."""


Request = InitProducerId | AddPartitions | EndTransaction
Event = Request | MarkersWritten | ExpireIds | TimerFired | Appended | AppendTimedOut


# ---- effects --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteMarkers(ServiceEffect):
    """Write a marker to each partition, retried until all are written; then submit `MarkersWritten`. The
    record of the prepared transaction is durable."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    client_version: int
    partitions: frozenset[TopicPartition]


# ---- responses ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerResponse:
    """For InitProducerId and EndTransaction. `ongoing_…`: of the transaction that was kept."""

    error: ErrorCode = ErrorCode.NONE
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH
    ongoing_producer_id: int = NO_PRODUCER_ID
    ongoing_producer_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsResponse:
    """For AddPartitions: one error for all partitions, or those of the partitions that failed."""

    error: ErrorCode = ErrorCode.NONE
    failed: frozenset[TopicPartition] = frozenset()


Response = ProducerResponse | PartitionsResponse | ErrorResponse
