"""Group events: the requests, other events and responses of the group coordinator's core. All coordinators
share the effects of coordinators/core/effects.py."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from tierlog.base.types import TopicPartition
from tierlog.broker.coordinators.core.effects import (
    Appended,
    AppendTimedOut,
    ErrorResponse,
    Producer,
    ServiceEffect,
    TimerFired,
    Token,
)
from tierlog.broker.coordinators.core.stored import StoredRecord
from tierlog.broker.groups.core.consumer.group_spec import (
    Assignment,
    Assignor,
    MemberSpec,
    Partitions,
    TopicSpec,
)
from tierlog.broker.groups.core.topic_view import TopicView
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.schema import ZERO_UUID

Protocol = tuple[str, bytes]  # name, metadata

NO_MEMBER_ID = ""
NO_GENERATION = -1
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2  # a static member that will return within its session timeout
UNLIMITED = 1 << 62


class TimerKind(StrEnum):
    SESSION = "session"  # one per member, including pending members
    JOIN = "join"  # the join phase of a group
    SYNC = "sync"  # the time for members of a new generation to send SyncGroup
    REVOCATION = "revocation"  # the time for a member of a consumer group to give partitions up
    ASSIGNMENT = "assignment"  # the pause before the next target assignment of a consumer group
    RESUMPTION = "resumption"  # more requests wait for a target assignment that is computed


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
    by_name: bool = False  # the request has no topic ids, so those of `offsets` are of the present topics
    has_epochs: bool = False  # OffsetCommit version 9 and later: members of consumer groups may commit
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
class ConsumerHeartbeat:
    """ConsumerGroupHeartbeat (KIP-848). A field that is None, or a rebalance timeout of -1, is unchanged.

    `member_epoch`: of the last response; JOIN_EPOCH to join, LEAVE_EPOCH or STATIC_LEAVE_EPOCH to leave.
    `generated_member_id`: the id of a member that has none yet (version 0); the driver generates it.
    `may_describe`: whether the client may describe a topic; None if it may describe all.
    """

    token: Token
    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topics: tuple[str, ...] | None = None
    subscribed_regex: str | None = None
    server_assignor: str | None = None
    owned: tuple[tuple[UUID, tuple[int, ...]], ...] | None = None
    client_id: str = ""
    client_host: str = ""
    free_bytes: int = UNLIMITED  # memory left for members of groups on this broker
    generated_member_id: str = NO_MEMBER_ID
    may_describe: Callable[[str], bool] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsChanged:
    """Topics were created or deleted, or got more partitions. `deleted` has the names of deleted topics,
    which may exist again under another id.
    """

    topics: TopicView
    deleted: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentComputed:
    """The result of ComputeAssignment. None: the assignor failed.

    `request`: the same object as in the effect. A group which has begun another computation since, or has
    taken the place of a group with the same id, ignores the result.
    """

    request: "ComputeAssignment"
    assignment: Assignment | None
    records: Mapping[str, StoredRecord] = field(default_factory=dict)
    """The records of the targets that differ from the members' targets before, by member id. The driver
    encodes them, because a thousand take longer than a turn may. The core encodes those that are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegexesResolved:
    """The result of ResolveRegexes: the names of the topics that each regular expression matches. `request`
    is the same object as in the effect."""

    request: "ResolveRegexes"
    topics: Mapping[str, frozenset[str]]


MembershipRequest = Join | Sync | Heartbeat | Leave | ConsumerHeartbeat
Request = MembershipRequest | Commit | EndTransaction | DeleteOffsets | DeleteGroup
Event = (
    Request
    | TimerFired
    | ExpireOffsets
    | TopicsChanged
    | AssignmentComputed
    | RegexesResolved
    | Appended
    | AppendTimedOut
)


# ---- effects --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeAssignment(ServiceEffect):
    """Compute the target assignment of a group's epoch, and submit AssignmentComputed. A large group is
    computed in a thread: the arguments never change."""

    group_id: str
    epoch: int
    assignor: Assignor
    members: Mapping[str, MemberSpec]
    topics: Mapping[UUID, TopicSpec]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveRegexes(ServiceEffect):
    """Match the regular expressions of a group with the names of all topics, and submit RegexesResolved.

    `may_describe`: as in ConsumerHeartbeat. It may only be called by the event loop."""

    group_id: str
    version: int
    patterns: frozenset[str]
    names: Collection[str]
    may_describe: Callable[[str], bool] | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatResponse:
    """`assignment`: None if it is unchanged since the last response."""

    error: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    member_id: str = NO_MEMBER_ID
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


Response = (
    JoinResponse | SyncResponse | ErrorResponse | LeaveResponse | OffsetsResponse | ConsumerHeartbeatResponse
)
