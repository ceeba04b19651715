"""Every command that changes metadata, and its reply: values that travel over HTTP to the leader.

They are msgpack maps with a tag, so that nodes of neighbouring versions understand each other: new fields
have defaults. Errors are values: a Kafka error code and a message for people. Who sends what: handlers
(topics, configs, producer ids), the broker's own lifecycle (registration), the tiering manager (copies, log
start, deletes).
"""

from enum import IntEnum
from uuid import UUID

import msgspec

from tierlog.metadata.records import ConfigScope, PageRef, RemoteSegment
from tierlog.protocol.errors import ErrorCode

USE_DEFAULT = -1  # partitions or replication factor: as the cluster's settings say (KIP-464)
PRODUCER_ID_BLOCK = 1000


class Command(msgspec.Struct, frozen=True, kw_only=True, tag_field="command"):
    """Base of all commands."""


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag_field="reply"):
    """Base of all replies."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Of one item: NONE, or why not."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


OK = Outcome()


class Acknowledged(Reply, frozen=True, kw_only=True, tag=True):
    """The reply of commands about one thing that return nothing more."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


# --- brokers


class RegisterBroker(Command, frozen=True, kw_only=True, tag=True):
    """A broker process started (KIP-631). The same incarnation again is a retry and keeps its epoch.

    `may_have_lost`: what it had not synced may be gone, so it may miss what was acknowledged. `min_in_sync`,
    `unclean_election`: min.insync.replicas and unclean.leader.election.enable of its file, which count if it
    is the first broker of a new cluster.
    `previous_epoch`: under which all of its directories were used last (KIP-966), -1 if one does not know;
    None: it keeps no epochs, as the only broker of a quorum of one, or a broker of an older version.
    """

    broker_id: int
    incarnation: UUID
    host: str
    port: int
    admin_url: str
    rack: str | None = None
    start_fenced: bool = False
    may_have_lost: bool = False
    directories: tuple[UUID, ...] = ()
    min_in_sync: int = 1
    unclean_election: bool = False
    formats: tuple[int, int] = (1, 1)
    previous_epoch: int | None = None


class BrokerRegistered(Reply, frozen=True, kw_only=True, tag=True):
    """`message`: of an error; without one, why its replicas are taken for incomplete."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    broker_epoch: int = -1


class UnregisterBroker(Command, frozen=True, kw_only=True, tag=True):
    broker_id: int


class StopBroker(Command, frozen=True, kw_only=True, tag=True):
    """Controlled shutdown: leadership moves to other in-sync replicas. Asked again until it leads nothing
    that another could take over."""

    broker_id: int
    broker_epoch: int


class BrokerStopping(Reply, frozen=True, kw_only=True, tag=True):
    """`leads`: partitions that it still leads although another live broker has a replica."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    leads: int = 0


class FenceBroker(Command, frozen=True, kw_only=True, tag=True):
    """Takes a broker out of service, or lets it in; leaders move accordingly."""

    broker_id: int
    broker_epoch: int
    fenced: bool


class ReportReplicas(Command, frozen=True, kw_only=True, tag=True):
    """Of the broker's own replicas, (topic id, partition): the disk of `failed` has failed, so that others
    must lead (KIP-858); `emptied` were nowhere to be found when it started, and begin anew. `full` have no
    room for records, `has_room` have it again.
    """

    broker_id: int
    broker_epoch: int
    failed: tuple[tuple[UUID, int], ...] = ()
    emptied: tuple[tuple[UUID, int], ...] = ()
    full: tuple[tuple[UUID, int], ...] = ()
    has_room: tuple[tuple[UUID, int], ...] = ()


class UpdateFormat(Command, frozen=True, kw_only=True, tag=True):
    """The version of the formats that the quorum writes (KIP-584); every registered broker must know it."""

    version: int
    validate_only: bool = False


# --- heartbeats: never logged; the leader keeps what it hears in memory


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """`image_index`: of the image that the broker works by. `want_fence`: do not let me in yet."""

    broker_id: int
    broker_epoch: int
    image_index: int
    want_fence: bool = False
    want_stop: bool = False


class HeartbeatReply(msgspec.Struct, frozen=True, kw_only=True):
    """The broker may serve until `lease_ms` after it sent the heartbeat; 0: not at all."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    fenced: bool = True
    may_stop: bool = False
    lease_ms: int = 0


# --- leaders and replicas


class InSync(msgspec.Struct, frozen=True, gc=False):
    """A member of an in-sync set, with the epoch that the leader knows it by (KIP-903); -1: unknown."""

    broker_id: int
    broker_epoch: int = -1


class IsrChange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    in_sync: tuple[InSync, ...]


class AlterPartitions(Command, frozen=True, kw_only=True, tag=True):
    """The in-sync sets that a leader wants (AlterPartition, KIP-497)."""

    broker_id: int
    broker_epoch: int
    changes: tuple[IsrChange, ...]


class PartitionOutcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Of one partition, with its state after the command as far as the partition is known."""

    topic_id: UUID
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    in_sync: tuple[int, ...] = ()
    leader: int = -1
    leader_epoch: int = -1
    partition_epoch: int = -1


class PartitionsAltered(Reply, frozen=True, kw_only=True, tag=True):
    """One outcome per change, in order; none if `error` refuses the whole."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    partitions: tuple[PartitionOutcome, ...] = ()


class ElectionKind(IntEnum):
    """Numbered as in ElectLeaders (KIP-460)."""

    PREFERRED = 0
    UNCLEAN = 1


class ElectLeaders(Command, frozen=True, kw_only=True, tag=True):
    """`partitions`: (topic name, number); None: all that need it."""

    partitions: tuple[tuple[str, int], ...] | None
    kind: ElectionKind = ElectionKind.PREFERRED


class NamedOutcome(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class LeadersElected(Reply, frozen=True, kw_only=True, tag=True):
    """One outcome per partition asked for, in order; of all partitions, only those that were elected for or
    could not be."""

    partitions: tuple[NamedOutcome, ...]


class Reassign(Command, frozen=True, kw_only=True, tag=True):
    """(topic name, number, replicas with the preferred leader first, or None to cancel) (KIP-455).

    `may_change_factor`: a partition may get more or fewer replicas than it has (KIP-860). `throttle`: bytes
    per second for those that begin (KIP-73), set in the same decision: what is refused changes no rate.
    """

    changes: tuple[tuple[str, int, tuple[int, ...] | None], ...]
    may_change_factor: bool = True
    throttle: int | None = None


class Reassigned(Reply, frozen=True, kw_only=True, tag=True):
    """One outcome per change, in order. NONE: it is under way, or done where nothing has to be copied."""

    partitions: tuple[NamedOutcome, ...]


# --- topics


class NewTopic(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`assignments`: (partition, replicas with the preferred leader first), or empty for placement by us."""

    name: str
    partitions: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    assignments: tuple[tuple[int, tuple[int, ...]], ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()


class CreateTopics(Command, frozen=True, kw_only=True, tag=True):
    topics: tuple[NewTopic, ...]
    default_partitions: int = 1
    default_replication_factor: int = 1
    validate_only: bool = False


class TopicOutcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    name: str
    topic_id: UUID = UUID(int=0)
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    partitions: int = -1
    replication_factor: int = -1


class TopicsChanged(Reply, frozen=True, kw_only=True, tag=True):
    """One outcome per topic asked for, in the order of the command."""

    topics: tuple[TopicOutcome, ...]


class TopicRef(msgspec.Struct, frozen=True, kw_only=True):
    """A topic by name or by id, not both."""

    name: str | None = None
    topic_id: UUID | None = None


class DeleteTopics(Command, frozen=True, kw_only=True, tag=True):
    topics: tuple[TopicRef, ...]


class MorePartitions(msgspec.Struct, frozen=True, kw_only=True):
    """`count` is the new total; `assignments` the replicas of each added partition, or empty."""

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] = ()


class CreatePartitions(Command, frozen=True, kw_only=True, tag=True):
    topics: tuple[MorePartitions, ...]
    validate_only: bool = False


# --- settings


class ConfigOperation(IntEnum):
    """Numbered as in IncrementalAlterConfigs (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    operation: ConfigOperation
    value: str | None = None


class ConfigResource(msgspec.Struct, frozen=True, kw_only=True):
    """`name`: a topic's name, a broker's id as text, or "" for the cluster."""

    scope: ConfigScope
    name: str
    changes: tuple[ConfigChange, ...]


class AlterConfigs(Command, frozen=True, kw_only=True, tag=True):
    resources: tuple[ConfigResource, ...]
    validate_only: bool = False


class ConfigsAltered(Reply, frozen=True, kw_only=True, tag=True):
    """One outcome per resource, in the order of the command."""

    resources: tuple[Outcome, ...]


# --- quotas (KIP-546)


class QuotaChange(msgspec.Struct, frozen=True, kw_only=True):
    """A new value, or None to remove the quota."""

    key: str
    value: float | None


class QuotaAlteration(msgspec.Struct, frozen=True, kw_only=True):
    """`entity`: (type, name) pairs as they came, in any order; of a type named twice the last counts."""

    entity: tuple[tuple[str, str | None], ...]
    changes: tuple[QuotaChange, ...]


class AlterQuotas(Command, frozen=True, kw_only=True, tag=True):
    alterations: tuple[QuotaAlteration, ...]
    validate_only: bool = False


class QuotaOutcome(msgspec.Struct, frozen=True, kw_only=True):
    entity: tuple[tuple[str, str | None], ...]
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class QuotasAltered(Reply, frozen=True, kw_only=True, tag=True):
    """One outcome per entity, in the order in which they were first named."""

    entities: tuple[QuotaOutcome, ...]


# --- producer ids


class AllocateProducerIds(Command, frozen=True, kw_only=True, tag=True):
    """A block of ids that no other broker ever gets (KIP-730)."""

    broker_id: int
    broker_epoch: int
    count: int = PRODUCER_ID_BLOCK


class ProducerIdsAllocated(Reply, frozen=True, kw_only=True, tag=True):
    """Ids [first_id, first_id + count)."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    first_id: int = -1
    count: int = 0


# --- remote segments (KIP-405; the rules are DESIGN 6). Offsets inclusive, as in the keys.


class StartCopy(Command, frozen=True, kw_only=True, tag=True):
    """Asked before the first PUT. Replaces unfinished copies of older epochs and of the same offsets."""

    topic_id: UUID
    partition: int
    broker_id: int
    leader_epoch: int
    uuid: UUID
    base_offset: int
    last_offset: int


class FinishCopy(Command, frozen=True, kw_only=True, tag=True):
    """Asked once the objects are in the store and verified; `segment.leader_epoch` must be current."""

    topic_id: UUID
    partition: int
    broker_id: int
    segment: RemoteSegment


class AbandonCopy(Command, frozen=True, kw_only=True, tag=True):
    topic_id: UUID
    partition: int
    leader_epoch: int
    uuid: UUID


class MoveLogStart(Command, frozen=True, kw_only=True, tag=True):
    """Retention or DeleteRecords. An offset below the log start changes nothing and is no error."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    log_start_offset: int


class LogStartReply(Reply, frozen=True, kw_only=True, tag=True):
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    log_start_offset: int = -1


class StartRemoteDeletes(Command, frozen=True, kw_only=True, tag=True):
    """Marks the lines of the delete queue that have been in it for `grace_ms`, the oldest first and a bounded
    number: from then on their objects may be deleted, and not before. Where none has, the quorum's time alone
    moves on, so that little of it is lost when another controller takes over."""

    grace_ms: int


class ConfirmRemoteDeleted(Command, frozen=True, kw_only=True, tag=True):
    """The objects of these lines of the delete queue are gone from the store. Unknown lines are no error."""

    uuids: tuple[UUID, ...]


class StartSpill(Command, frozen=True, kw_only=True, tag=True):
    """Asked before a page with the oldest entries is put."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    uuid: UUID
    base_offset: int
    last_offset: int


class SpillEntries(Command, frozen=True, kw_only=True, tag=True):
    """The page with the oldest entries is in the store; the quorum may forget them. StartSpill must have
    announced it, and its deletion must not have begun."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    page: PageRef


AnyCommand = (
    RegisterBroker
    | UnregisterBroker
    | FenceBroker
    | StopBroker
    | ReportReplicas
    | UpdateFormat
    | AlterPartitions
    | ElectLeaders
    | Reassign
    | CreateTopics
    | DeleteTopics
    | CreatePartitions
    | AlterConfigs
    | AlterQuotas
    | AllocateProducerIds
    | StartCopy
    | FinishCopy
    | AbandonCopy
    | MoveLogStart
    | ConfirmRemoteDeleted
    | StartSpill
    | SpillEntries
    | StartRemoteDeletes
)
AnyReply = (
    Acknowledged
    | BrokerRegistered
    | TopicsChanged
    | ConfigsAltered
    | QuotasAltered
    | ProducerIdsAllocated
    | LogStartReply
    | BrokerStopping
    | PartitionsAltered
    | LeadersElected
    | Reassigned
)

_encoder = msgspec.msgpack.Encoder()
_command_decoder = msgspec.msgpack.Decoder(AnyCommand)
_heartbeat_decoder = msgspec.msgpack.Decoder(Heartbeat)
_heartbeat_reply_decoder = msgspec.msgpack.Decoder(HeartbeatReply)
_reply_decoder = msgspec.msgpack.Decoder(AnyReply)


def encode_command(command: AnyCommand) -> bytes:
    return _encoder.encode(command)


def decode_command(body: bytes | memoryview) -> AnyCommand:
    """Raises msgspec.DecodeError (ValidationError among them)."""
    return _command_decoder.decode(body)  # type: ignore[no-any-return]


def encode_reply(reply: AnyReply) -> bytes:
    return _encoder.encode(reply)


def decode_reply(body: bytes | memoryview) -> AnyReply:
    """Raises msgspec.DecodeError (ValidationError among them)."""
    return _reply_decoder.decode(body)  # type: ignore[no-any-return]


def encode_heartbeat(heartbeat: Heartbeat | HeartbeatReply) -> bytes:
    return _encoder.encode(heartbeat)


def decode_heartbeat(body: bytes | memoryview) -> Heartbeat:
    """Raises msgspec.DecodeError (ValidationError among them)."""
    return _heartbeat_decoder.decode(body)


def decode_heartbeat_reply(body: bytes | memoryview) -> HeartbeatReply:
    """Raises msgspec.DecodeError (ValidationError among them)."""
    return _heartbeat_reply_decoder.decode(body)
