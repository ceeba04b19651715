"""Commands that change metadata, and their replies. Nodes send them to the leader over HTTP.

They are msgpack maps with a tag. New fields have defaults, so that nodes of neighbouring versions understand
each other. Errors are values: a Kafka error code and a message for people. Sent by the handlers (topics,
settings, producer ids), the broker lifecycle (registration) and the tiering manager (copies, log start,
deletes).
"""

from enum import IntEnum
from typing import Any, Generic, TypeVar
from uuid import UUID

import msgspec

from tierlog.base.types import NO_LEADER
from tierlog.metadata.acls import AccessControlEntry, AclFilter
from tierlog.metadata.balance_plan import BalancePlan
from tierlog.metadata.delegation_tokens import DelegationToken
from tierlog.metadata.records import ConfigScope, Endpoint, PageRef, RemoteSegment
from tierlog.metadata.scram import ScramVerifier
from tierlog.protocol.errors import ErrorCode

USE_DEFAULT = -1  # partitions or replication factor of the cluster's settings (KIP-464)
PRODUCER_ID_BLOCK = 1000


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag_field="reply"):
    """Base of all replies."""


R_co = TypeVar("R_co", bound=Reply, covariant=True)


class Command(msgspec.Struct, Generic[R_co], frozen=True, kw_only=True, tag_field="command"):
    """Base of all commands, with the type of their reply."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of one item: NONE, or an error."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


OK = Outcome()


class Acknowledged(Reply, frozen=True, kw_only=True, tag=True):
    """Reply of commands about a single item; base of replies with further results."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


# --- brokers


class RegisterBroker(Command["BrokerRegistered"], frozen=True, kw_only=True, tag=True):
    """A broker process started (KIP-631). The same incarnation again is a retry and keeps its broker epoch.

    `may_have_lost`: unsynced data may be lost, so the broker may lack acknowledged records. `min_in_sync`,
    `unclean_election`: min.insync.replicas and unclean.leader.election.enable of its configuration file,
    which apply if it is the first broker of a new cluster. `previous_epoch`: the broker epoch under which all
    of its directories were last used (KIP-966), -1 if a directory does not record one. None: the broker
    records no epochs, because it is the only broker of a quorum of one, or of an older version. The record
    BrokerRegistration has eleven of these fields too: it is stored as an array, and this is sent with names.
    `first_users`: credentials that a new cluster gets from its first broker.
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
    endpoints: tuple[Endpoint, ...] = ()
    previous_epoch: int | None = None
    first_users: tuple["CredentialChange", ...] = ()


class BrokerRegistered(Acknowledged, frozen=True, kw_only=True, tag=True):
    """`message` without an error: why the broker's replicas are considered incomplete."""

    broker_epoch: int = -1


class UnregisterBroker(Command[Acknowledged], frozen=True, kw_only=True, tag=True):
    broker_id: int


class StopBroker(Command["BrokerStopping"], frozen=True, kw_only=True, tag=True):
    """Controlled shutdown: leadership moves to other in-sync replicas. Repeated until the broker leads no
    partition that another broker could lead."""

    broker_id: int
    broker_epoch: int


class BrokerStopping(Acknowledged, frozen=True, kw_only=True, tag=True):
    """`leads`: number of partitions that the broker still leads although another active broker has a
    replica."""

    leads: int = 0


class FenceBroker(Command[Acknowledged], frozen=True, kw_only=True, tag=True):
    """Fence or unfence a broker, with the elections that follow."""

    broker_id: int
    broker_epoch: int
    fenced: bool


class ReportReplicas(Command[Acknowledged], frozen=True, kw_only=True, tag=True):
    """State of the broker's replicas, as (topic id, partition): the disk of `failed` ones has failed
    (KIP-858), `emptied` ones had no log at the start and begin with an empty one, `full` ones have no disk
    space, and `has_space` ones have it again.
    """

    broker_id: int
    broker_epoch: int
    failed: tuple[tuple[UUID, int], ...] = ()
    emptied: tuple[tuple[UUID, int], ...] = ()
    full: tuple[tuple[UUID, int], ...] = ()
    has_space: tuple[tuple[UUID, int], ...] = msgspec.field(default=(), name="has_room")  # on the wire


class UpdateFormat(Command[Acknowledged], frozen=True, kw_only=True, tag=True):
    """Set the format version that the quorum writes (KIP-584). Every registered broker must support it."""

    version: int
    validate_only: bool = False


class UpdateFeatures(Command[Acknowledged], frozen=True, kw_only=True, tag=True):
    """Set levels of features (KIP-584), among them the format version: all or none."""

    levels: dict[str, int]
    validate_only: bool = False


# --- heartbeats: never logged; the leader keeps sessions in memory


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """`image_index`: index of the broker's image. `want_fence`: do not unfence the broker yet."""

    broker_id: int
    broker_epoch: int
    image_index: int
    want_fence: bool = False
    want_stop: bool = False


class HeartbeatReply(msgspec.Struct, frozen=True, kw_only=True):
    """The lease ends `lease_ms` after the broker sent the heartbeat; 0: no lease."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    fenced: bool = True
    may_stop: bool = False
    lease_ms: int = 0


# --- leaders and replicas


class InSync(msgspec.Struct, frozen=True, gc=False):
    """A member of an in-sync set, with its broker epoch as the leader knows it (KIP-903); -1: unknown."""

    broker_id: int
    broker_epoch: int = -1


class IsrChange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    in_sync: tuple[InSync, ...]


class AlterPartitions(Command["PartitionsAltered"], frozen=True, kw_only=True, tag=True):
    """Change of in-sync sets, requested by their leader (AlterPartition, KIP-497)."""

    broker_id: int
    broker_epoch: int
    changes: tuple[IsrChange, ...]


class PartitionOutcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Outcome of one partition, with its state after the command unless the partition is unknown."""

    topic_id: UUID
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    in_sync: tuple[int, ...] = ()
    leader: int = NO_LEADER
    leader_epoch: int = -1
    partition_epoch: int = -1


class PartitionsAltered(Acknowledged, frozen=True, kw_only=True, tag=True):
    """One outcome per change, in order; none if `error` refuses the whole command."""

    partitions: tuple[PartitionOutcome, ...] = ()


class ElectionKind(IntEnum):
    """Numbered as in ElectLeaders (KIP-460)."""

    PREFERRED = 0
    UNCLEAN = 1


class ElectLeaders(Command["LeadersElected"], frozen=True, kw_only=True, tag=True):
    """`partitions`: (topic name, number); None: all that need an election."""

    partitions: tuple[tuple[str, int], ...] | None
    kind: ElectionKind = ElectionKind.PREFERRED


class NamedOutcome(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class LeadersElected(Reply, frozen=True, kw_only=True, tag=True):
    """One outcome per requested partition, in order. If all were requested, only those that needed an
    election."""

    partitions: tuple[NamedOutcome, ...]


class Reassign(Command["Reassigned"], frozen=True, kw_only=True, tag=True):
    """`changes`: (topic name, number, replicas with the preferred leader first, or None to cancel) (KIP-455).

    `may_change_factor`: the replication factor may change (KIP-860). `throttle`: replication rate in bytes
    per second (KIP-73) for those that begin, set in the same decision. `plan`: if it balances the load."""

    changes: tuple[tuple[str, int, tuple[int, ...] | None], ...]
    may_change_factor: bool = True
    throttle: int | None = None
    plan: BalancePlan | None = None


class Reassigned(Reply, frozen=True, kw_only=True, tag=True):
    """One outcome per change, in order. NONE: it began, or completed because nothing must be copied."""

    partitions: tuple[NamedOutcome, ...]


# --- topics


class NewTopic(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`assignments`: (partition, replicas with the preferred leader first); empty: the controller places
    them."""

    name: str
    partitions: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    assignments: tuple[tuple[int, tuple[int, ...]], ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()


class CreateTopics(Command["TopicsChanged"], frozen=True, kw_only=True, tag=True):
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
    """One outcome per topic, in the order of the command."""

    topics: tuple[TopicOutcome, ...]


class TopicRef(msgspec.Struct, frozen=True, kw_only=True):
    """A topic by name or by id, not both."""

    name: str | None = None
    topic_id: UUID | None = None


class DeleteTopics(Command[TopicsChanged], frozen=True, kw_only=True, tag=True):
    topics: tuple[TopicRef, ...]


class MorePartitions(msgspec.Struct, frozen=True, kw_only=True):
    """`count`: the new total. `assignments`: replicas of each added partition; empty: the controller places
    them."""

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] = ()


class CreatePartitions(Command[TopicsChanged], frozen=True, kw_only=True, tag=True):
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
    """`name`: name of a topic, group or subscription, id of a broker, or "" for the cluster."""

    scope: ConfigScope
    name: str
    changes: tuple[ConfigChange, ...]


class AlterConfigs(Command["ConfigsAltered"], frozen=True, kw_only=True, tag=True):
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
    """`entity`: (type, name) pairs in any order. If a type is named twice, the last pair applies."""

    entity: tuple[tuple[str, str | None], ...]
    changes: tuple[QuotaChange, ...]


class AlterQuotas(Command["QuotasAltered"], frozen=True, kw_only=True, tag=True):
    alterations: tuple[QuotaAlteration, ...]
    validate_only: bool = False


class QuotaOutcome(msgspec.Struct, frozen=True, kw_only=True):
    entity: tuple[tuple[str, str | None], ...]
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class QuotasAltered(Reply, frozen=True, kw_only=True, tag=True):
    """One outcome per entity, in the order in which they were first named."""

    entities: tuple[QuotaOutcome, ...]


# --- users


class CredentialChange(msgspec.Struct, frozen=True, kw_only=True):
    """`mechanism`: a number of ScramMechanism. `verifier`: None to remove the credential."""

    user: str
    mechanism: int
    verifier: ScramVerifier | None


class AlterUsers(Command["UsersAltered"], frozen=True, kw_only=True, tag=True):
    changes: tuple[CredentialChange, ...]


class UserOutcome(msgspec.Struct, frozen=True, kw_only=True):
    user: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class UsersAltered(Reply, frozen=True, kw_only=True, tag=True):
    """One outcome per user, in the order in which they were first named."""

    users: tuple[UserOutcome, ...]


# --- ACLs (KIP-140, KIP-290)


class CreateAcls(Command["AclsCreated"], frozen=True, kw_only=True, tag=True):
    """Add ACLs. One that exists is no error. Since format version 3."""

    entries: tuple[AccessControlEntry, ...]


class AclsCreated(Acknowledged, frozen=True, kw_only=True, tag=True):
    """One outcome per ACL, in the order of the command. None if the command is refused."""

    entries: tuple[Outcome, ...] = ()


class DeleteAcls(Command["AclsDeleted"], frozen=True, kw_only=True, tag=True):
    """Remove the ACLs that filters select: a bounded number in each command. Since format version 3."""

    filters: tuple[AclFilter, ...]


class FilterOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """`deleted`: what the filter selected. `has_more`: it selects others, which the same command again
    removes."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    deleted: tuple[AccessControlEntry, ...] = ()
    has_more: bool = False


class AclsDeleted(Acknowledged, frozen=True, kw_only=True, tag=True):
    """One outcome per filter, in the order of the command. None if the command is refused."""

    filters: tuple[FilterOutcome, ...] = ()


# --- delegation tokens (KIP-48), since format version 3


class CreateToken(Command[Acknowledged], frozen=True, kw_only=True, tag=True):
    token: DelegationToken


class AlterToken(Command[Acknowledged], frozen=True, kw_only=True, tag=True):
    """Have a token expire at `expires_ms`, or at its maximum if that is earlier; None removes it.
    `principal`: of the client. `now_ms`: by the wall clock of the broker. `renews`: by
    RenewDelegationToken."""

    token_id: str
    principal: str
    now_ms: int
    expires_ms: int | None
    renews: bool


class RemoveExpiredTokens(Command[Acknowledged], frozen=True, kw_only=True, tag=True):
    now_ms: int


# --- producer ids


class AllocateProducerIds(Command["ProducerIdsAllocated"], frozen=True, kw_only=True, tag=True):
    """A block of ids that no other broker ever gets (KIP-730)."""

    broker_id: int
    broker_epoch: int
    count: int = PRODUCER_ID_BLOCK


class ProducerIdsAllocated(Acknowledged, frozen=True, kw_only=True, tag=True):
    """Ids [first_id, first_id + count)."""

    first_id: int = -1
    count: int = 0


# --- remote log segments (KIP-405). Offsets are inclusive, as in the object keys.


class StartCopy(Command[Acknowledged], frozen=True, kw_only=True, tag=True):
    """Sent before the first PUT. Replaces unfinished copies of older leader epochs and of the same offsets.

    `replaces`: the copy is announced for ReplaceSegments, and its offsets are remote already. `loads`: for
    LoadSegments. Copies of loads may overlap, as several attempts of one task do.
    """

    topic_id: UUID
    partition: int
    broker_id: int
    leader_epoch: int
    uuid: UUID
    base_offset: int
    last_offset: int
    replaces: bool = False
    loads: bool = False


class RemoveDiverged(Command[Acknowledged], frozen=True, kw_only=True, tag=True):
    """Sent by a leader that was elected uncleanly, before it leads: its log has other records than the
    manifest entries from the base offset `from_offset` on (docs/adr/0027)."""

    topic_id: UUID
    partition: int
    broker_id: int
    leader_epoch: int
    from_offset: int


class AdoptManifest(Command[Acknowledged], frozen=True, kw_only=True, tag=True):
    """Sent by an elected leader before it leads, after the quorum was recovered: the partition's manifest is
    the newer one of the recovered manifest and the one in the bucket (docs/adr/0035)."""

    topic_id: UUID
    partition: int
    broker_id: int
    leader_epoch: int
    log_start_offset: int
    pages: tuple[PageRef, ...]
    entries: tuple[RemoteSegment, ...]


class FinishCopy(Command[Acknowledged], frozen=True, kw_only=True, tag=True):
    """Sent once the objects are in the store and verified. `segment.leader_epoch` must be current."""

    topic_id: UUID
    partition: int
    broker_id: int
    segment: RemoteSegment


class AbandonCopy(Command[Acknowledged], frozen=True, kw_only=True, tag=True):
    topic_id: UUID
    partition: int
    leader_epoch: int
    uuid: UUID


class MoveLogStart(Command["LogStartReply"], frozen=True, kw_only=True, tag=True):
    """Raise the log start offset, for retention or DeleteRecords. A lower offset changes nothing and is no
    error."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    log_start_offset: int


class DropRemoteLog(Command["LogStartReply"], frozen=True, kw_only=True, tag=True):
    """Delete everything remote, after tiering of the topic was switched off (KIP-950). The log then starts at
    the offset, where the leader's local log starts. A repetition changes nothing and is no error."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    log_start_offset: int


class LogStartReply(Acknowledged, frozen=True, kw_only=True, tag=True):
    log_start_offset: int = -1


class StartRemoteDeletes(Command[Acknowledged], frozen=True, kw_only=True, tag=True):
    """Mark those of these deletions that have been queued for `grace_ms`, the first MAX_DELETES at most. Only
    then may the objects be deleted. Without any, only the quorum's time advances, so that a new controller
    loses little of it. The storage cleaner chooses them, because it knows what snapshots hold."""

    grace_ms: int
    uuids: tuple[UUID, ...] = ()


class ConfirmRemoteDeleted(Command[Acknowledged], frozen=True, kw_only=True, tag=True):
    """The objects of these queued deletions are gone from the store. Unknown ids are no error."""

    uuids: tuple[UUID, ...]


class StartSpill(Command[Acknowledged], frozen=True, kw_only=True, tag=True):
    """Sent before a page is put, by SpillEntries, ReplaceSegments and TrimPages."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    uuid: UUID
    base_offset: int
    last_offset: int


class SpillEntries(Command[Acknowledged], frozen=True, kw_only=True, tag=True):
    """The page is in the store, so the quorum may drop what it contains. StartSpill must have announced the
    page, and its deletion must not have begun.

    Without `replaced`, the page has the oldest entries. Since format version 2, `replaced` are the successive
    nodes whose place the page takes: entries or pages of the next lower level, and before them possibly one
    page of the same level, which the new one continues.
    """

    topic_id: UUID
    partition: int
    leader_epoch: int
    page: PageRef
    replaced: tuple[UUID, ...] = ()


class ReplaceSegments(Command[Acknowledged], frozen=True, kw_only=True, tag=True):
    """Successive segments `old` leave the manifest; `new` ones have the same range of offsets. StartCopy has
    announced each new segment, with `replaces`, and StartSpill each new page. Since format version 2.

    If the old segments are entries of the quorum, `page` is None. Otherwise `replaced_page` is the page of
    the quorum that leads to them, and `page` is its new version. `inner_pages` are the new versions of the
    pages between, and `old_inner_pages` those that they replace.
    """

    topic_id: UUID
    partition: int
    broker_id: int
    leader_epoch: int
    old: tuple[RemoteSegment, ...]
    new: tuple[RemoteSegment, ...]
    replaced_page: UUID | None = None
    page: PageRef | None = None
    inner_pages: tuple[PageRef, ...] = ()
    old_inner_pages: tuple[PageRef, ...] = ()


class LoadSegments(Command[Acknowledged], frozen=True, kw_only=True, tag=True):
    """A bulk load adds successive segments at the end of the manifest, where the log of every in-sync replica
    ends, too. StartCopy has announced each, with `loads`. The leader epoch grows. A repetition with the same
    `load_id` changes nothing and is no error, whatever its segments. Since format version 2."""

    topic_id: UUID
    partition: int
    broker_id: int
    leader_epoch: int
    load_id: UUID
    segments: tuple[RemoteSegment, ...]


class TrimPages(Command[Acknowledged], frozen=True, kw_only=True, tag=True):
    """The oldest page of the quorum gets a new version without the pages completely below the log start,
    `dropped`, which are deleted with their segments. StartSpill has announced each new page. Since format
    version 2. The other fields are those of ReplaceSegments."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    replaced_page: UUID
    page: PageRef
    dropped: tuple[PageRef, ...]
    inner_pages: tuple[PageRef, ...] = ()
    old_inner_pages: tuple[PageRef, ...] = ()


AnyCommand = (
    RegisterBroker
    | UnregisterBroker
    | FenceBroker
    | StopBroker
    | ReportReplicas
    | UpdateFormat
    | UpdateFeatures
    | AlterPartitions
    | ElectLeaders
    | Reassign
    | CreateTopics
    | DeleteTopics
    | CreatePartitions
    | AlterConfigs
    | AlterQuotas
    | AlterUsers
    | CreateAcls
    | DeleteAcls
    | CreateToken
    | AlterToken
    | RemoveExpiredTokens
    | AllocateProducerIds
    | StartCopy
    | FinishCopy
    | AbandonCopy
    | MoveLogStart
    | DropRemoteLog
    | ConfirmRemoteDeleted
    | RemoveDiverged
    | AdoptManifest
    | StartSpill
    | SpillEntries
    | ReplaceSegments
    | LoadSegments
    | TrimPages
    | StartRemoteDeletes
)
AnyReply = (
    Acknowledged
    | BrokerRegistered
    | TopicsChanged
    | ConfigsAltered
    | QuotasAltered
    | UsersAltered
    | AclsCreated
    | AclsDeleted
    | ProducerIdsAllocated
    | LogStartReply
    | BrokerStopping
    | PartitionsAltered
    | LeadersElected
    | Reassigned
)

_encoder = msgspec.msgpack.Encoder()
_command_decoder = msgspec.msgpack.Decoder(AnyCommand)
_reply_decoder = msgspec.msgpack.Decoder(AnyReply)


def encode_command(command: Command[Any]) -> bytes:
    return _encoder.encode(command)


def decode_command(body: bytes | memoryview) -> Command[Any]:
    """Raises msgspec.DecodeError (ValidationError among them)."""
    return _command_decoder.decode(body)  # type: ignore[no-any-return]


def encode_reply(reply: Reply) -> bytes:
    return _encoder.encode(reply)


def decode_reply(body: bytes | memoryview) -> AnyReply:
    """Raises msgspec.DecodeError (ValidationError among them)."""
    return _reply_decoder.decode(body)  # type: ignore[no-any-return]
