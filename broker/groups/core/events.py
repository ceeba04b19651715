"""Group events: the requests, other events and responses of the group coordinator's core. All coordinators
share the effects of coordinators/core/effects.py."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from tierlog.base.types import TopicPartition
from tierlog.broker.coordinators.core.effects import (
    Appended,
    AppendTimedOut,
    ErrorResponse,
    Producer,
    TimerFired,
    Token,
)
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.schema import ZERO_UUID

Protocol = tuple[str, bytes]  # name, metadata

NO_MEMBER_ID = ""
NO_GENERATION = -1
UNLIMITED = 1 << 62


class TimerKind(StrEnum):
    SESSION = "session"  # one per member, including pending members
    JOIN = "join"  # the join phase of a group
    SYNC = "sync"  # the time for members of a new generation to send SyncGroup


class TimerKey(NamedTuple):
    kind: TimerKind
    group_id: str
    member_id: str = NO_MEMBER_ID


# ---- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """JoinGroup. `generated_member_id`: the id of a member that has none yet; the driver generates it."""

    token: Token
    group_id: str
    member_id: str
    generated_member_id: str
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    member_id_required: bool = False  # version 4 and later: new dynamic members join twice (KIP-394)
    may_skip_assignment: bool = False  # version 9 and later (KIP-814)
    reason: str = ""  # KIP-800
    free_bytes: int = UNLIMITED  # memory left for members of groups on this broker


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    token: Token
    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()
    free_bytes: int = UNLIMITED


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    token: Token
    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None = None


class Leaver(NamedTuple):
    member_id: str
    group_instance_id: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    token: Token
    group_id: str
    leavers: tuple[Leaver, ...]


class OffsetToCommit(NamedTuple):
    partition: TopicPartition
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    topic_id: UUID = ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    token: Token
    group_id: str
    generation: int = NO_GENERATION
    member_id: str = NO_MEMBER_ID
    group_instance_id: str | None = None
    retention_ms: int = -1  # versions 2 to 4; -1: the broker's
    producer: Producer | None = None  # TxnOffsetCommit: the offsets count once its transaction is committed
    offsets: tuple[OffsetToCommit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """WriteTxnMarkers for this partition."""

    token: Token
    producer: Producer
    committed: bool
    coordinator_epoch: int
    transaction_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOffsets:
    token: Token
    group_id: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup:
    token: Token
    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireOffsets:
    """Submitted every offsets.retention.check.interval.ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsChanged:
    """Topics were created or deleted. `ids` has all topics; `deleted` has the names of deleted topics, which
    may exist again under another id.
    """

    ids: Mapping[str, UUID]
    deleted: frozenset[str] = frozenset()


Request = Join | Sync | Heartbeat | Leave | Commit | EndTransaction | DeleteOffsets | DeleteGroup
Event = Request | TimerFired | ExpireOffsets | TopicsChanged | Appended | AppendTimedOut


# ---- responses ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResponse:
    """`members` (id, group instance id, metadata) is set only for the leader."""

    error: ErrorCode = ErrorCode.NONE
    member_id: str = NO_MEMBER_ID
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = NO_MEMBER_ID
    skip_assignment: bool = False
    members: tuple[tuple[str, str | None, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResponse:
    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveResponse:
    """One result per leaver, in the order of the request."""

    members: tuple[tuple[Leaver, ErrorCode], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsResponse:
    """For Commit and DeleteOffsets: one `error` for the request, or one per partition, in the request's
    order."""

    error: ErrorCode = ErrorCode.NONE
    partitions: tuple[tuple[TopicPartition, ErrorCode], ...] = ()


Response = JoinResponse | SyncResponse | ErrorResponse | LeaveResponse | OffsetsResponse
