"""Record formats of consumer groups (KIP-848) in `__consumer_offsets`: Kafka's own.

A key begins with an int16 type: 3 for the group's epoch, 4 for the partitions of its topics, 5 for a member,
6 for the epoch of the target assignment, 7 for a member's target assignment, 8 for its current assignment, 16
for the topics of a regular expression. A value begins with an int16 version, which is 0. A value of None is a
tombstone. Type 4 is only read: since Kafka 4.1 the group's `metadata_hash` replaces it (KIP-1101), and a
tombstone deletes what an older Kafka left.

Encoding sorts the partitions of a topic and keeps the order of topics. Records that Kafka 4.3 wrote are
therefore the same bytes after decoding and encoding.

Schemas: group-coordinator/src/main/resources/common/message/ConsumerGroup*{Key,Value}.json of Kafka 4.3.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from tierlog.broker.coordinators.core.stored import decode_stored, encode_stored, stored_version
from tierlog.broker.groups.core.consumer.group_spec import Partitions
from tierlog.protocol.schema import Bytes, Int8, Int32, Int64, Message, String, Struct, Uuid, struct, versions

PartitionEpochs = Mapping[UUID, Mapping[int, int]]
"""Topic id -> partition -> the member's epoch when it was assigned (KIP-1251)."""


# ---- keys -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadataKey:
    group_id: str


@dataclass(frozen=True, slots=True)
class PartitionMetadataKey:
    group_id: str


@dataclass(frozen=True, slots=True)
class MemberMetadataKey:
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class TargetAssignmentMetadataKey:
    group_id: str


@dataclass(frozen=True, slots=True)
class TargetAssignmentMemberKey:
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class CurrentMemberAssignmentKey:
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class RegularExpressionKey:
    group_id: str
    regular_expression: str


GroupKey = ConsumerGroupMetadataKey | PartitionMetadataKey | TargetAssignmentMetadataKey
MemberKey = MemberMetadataKey | TargetAssignmentMemberKey | CurrentMemberAssignmentKey
ConsumerKey = GroupKey | MemberKey | RegularExpressionKey


# ---- values ---------------------------------------------------------------------------------------


@struct
class ConsumerGroupMetadata(Message):
    """`metadata_hash`: of the subscribed topics; 0 if there are none."""

    VERSIONS = (0, 0)
    FLEXIBLE = 0

    epoch: Int32 = versions(0, 0)
    metadata_hash: Int64 = versions(0, 0, tag=0)


@struct
class PartitionRacks(Struct):
    partition: Int32 = versions(0, 0)
    racks: list[String] = versions(0, 0)


@struct
class TopicMetadata(Struct):
    topic_id: Uuid = versions(0, 0)
    topic_name: String = versions(0, 0)
    num_partitions: Int32 = versions(0, 0)
    partition_metadata: list[PartitionRacks] = versions(0, 0)


@struct
class PartitionMetadata(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    topics: list[TopicMetadata] = versions(0, 0)


@struct
class ClassicProtocol(Struct):
    name: String = versions(0, 0)
    metadata: Bytes = versions(0, 0)


@struct
class ClassicMemberMetadata(Struct):
    session_timeout_ms: Int32 = versions(0, 0)
    supported_protocols: list[ClassicProtocol] = versions(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberMetadata:
    """`subscribed_topic_regex`: empty if the member has no regular expression.

    `classic_member_metadata`: only for a member that uses the classic protocol, while its group is upgraded.
    """

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...] = ()
    subscribed_topic_regex: str = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic_member_metadata: ClassicMemberMetadata | None = None


@struct
class TargetAssignmentMetadata(Message):
    """`assignment_timestamp`: when the assignment was computed (KIP-1263), in ms; 0 if it is not known."""

    VERSIONS = (0, 0)
    FLEXIBLE = 0

    assignment_epoch: Int32 = versions(0, 0)
    assignment_timestamp: Int64 = versions(0, 0, tag=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetAssignmentMember:
    partitions: Partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentMemberAssignment:
    """`state`: 0 stable, 1 unrevoked partitions, 2 unreleased partitions. `member_epoch`: -2 for a static
    member that left for a while."""

    member_epoch: int
    previous_member_epoch: int
    state: int
    assigned_partitions: PartitionEpochs
    partitions_pending_revocation: PartitionEpochs


@struct
class RegularExpression(Message):
    """The topics that a regular expression matched. `version`: of the metadata image; `timestamp` in ms."""

    VERSIONS = (0, 0)
    FLEXIBLE = 0

    topics: list[String] = versions(0, 0)
    version: Int64 = versions(0, 0)
    timestamp: Int64 = versions(0, 0)


ConsumerValue = (
    ConsumerGroupMetadata
    | PartitionMetadata
    | MemberMetadata
    | TargetAssignmentMetadata
    | TargetAssignmentMember
    | CurrentMemberAssignment
    | RegularExpression
)


# ---- encoding and decoding ------------------------------------------------------------------------


def encode_key(key: ConsumerKey) -> bytes:
    kind = _TYPES[type(key)]
    match key:
        case RegularExpressionKey(group_id, name):
            return encode_stored(_NamedKey(group_id=group_id, name=name), kind)
        case MemberMetadataKey() | TargetAssignmentMemberKey() | CurrentMemberAssignmentKey():
            return encode_stored(_NamedKey(group_id=key.group_id, name=key.member_id), kind)
        case _:
            return encode_stored(_GroupKey(group_id=key.group_id), kind)


def decode_key(data: bytes | memoryview) -> ConsumerKey | None:
    """None for a key type that is not listed here. Raises FormatError for a malformed key."""
    kind = stored_version(data)
    if kind in _GROUP_KEYS:
        return _GROUP_KEYS[kind](decode_stored(_GroupKey, kind, data).group_id)
    if kind in _NAMED_KEYS:
        named = decode_stored(_NamedKey, kind, data)
        return _NAMED_KEYS[kind](named.group_id, named.name)
    return None


def encode_value(value: ConsumerValue) -> bytes:
    match value:
        case TargetAssignmentMember():
            return encode_stored(_target(value), 0)
        case CurrentMemberAssignment():
            return encode_stored(_current(value), 0)
        case MemberMetadata():
            return encode_stored(_stored_member(value), 0)
        case _:
            return encode_stored(value, 0)


def decode_value(key: ConsumerKey, data: bytes | memoryview) -> ConsumerValue:
    """Decode the value of a key. Raises FormatError."""
    version = stored_version(data)
    match key:
        case ConsumerGroupMetadataKey():
            return decode_stored(ConsumerGroupMetadata, version, data)
        case PartitionMetadataKey():
            return decode_stored(PartitionMetadata, version, data)
        case MemberMetadataKey():
            return _member(decode_stored(_MemberMetadata, version, data))
        case TargetAssignmentMetadataKey():
            return decode_stored(TargetAssignmentMetadata, version, data)
        case TargetAssignmentMemberKey():
            target = decode_stored(_TargetAssignmentMember, version, data)
            return TargetAssignmentMember(
                partitions={each.topic_id: frozenset(each.partitions) for each in target.topic_partitions}
            )
        case CurrentMemberAssignmentKey():
            current = decode_stored(_CurrentMemberAssignment, version, data)
            return CurrentMemberAssignment(
                member_epoch=current.member_epoch,
                previous_member_epoch=current.previous_member_epoch,
                state=current.state,
                assigned_partitions=_epochs(current.assigned_partitions, current.member_epoch),
                partitions_pending_revocation=_epochs(
                    current.partitions_pending_revocation, current.member_epoch
                ),
            )
        case RegularExpressionKey():
            return decode_stored(RegularExpression, version, data)


@struct
class _GroupKey(Message):
    VERSIONS = (3, 6)

    group_id: String = versions(3, 6)


@struct
class _NamedKey(Message):
    """`name`: a member id or a regular expression."""

    VERSIONS = (5, 16)

    group_id: String = versions(5, 16)
    name: String = versions(5, 16)


_GROUP_KEYS: dict[int, type[GroupKey]] = {
    3: ConsumerGroupMetadataKey,
    4: PartitionMetadataKey,
    6: TargetAssignmentMetadataKey,
}
_NAMED_KEYS: dict[int, type[MemberKey] | type[RegularExpressionKey]] = {
    5: MemberMetadataKey,
    7: TargetAssignmentMemberKey,
    8: CurrentMemberAssignmentKey,
    16: RegularExpressionKey,
}
_TYPES: dict[type, int] = {kind: number for number, kind in (_GROUP_KEYS | _NAMED_KEYS).items()}


@struct
class _MemberMetadata(Message):
    """In Kafka `classic_member_metadata` is an empty struct by default. Null is written explicitly."""

    VERSIONS = (0, 0)
    FLEXIBLE = 0

    instance_id: String | None = versions(0, 0)
    rack_id: String | None = versions(0, 0)
    client_id: String = versions(0, 0)
    client_host: String = versions(0, 0)
    subscribed_topic_names: list[String] = versions(0, 0)
    subscribed_topic_regex: String | None = versions(0, 0)
    rebalance_timeout_ms: Int32 = versions(0, 0, default=-1)
    server_assignor: String | None = versions(0, 0)
    classic_member_metadata: ClassicMemberMetadata | None = versions(0, 0, tag=0)


@struct
class _TopicPartition(Struct):
    topic_id: Uuid = versions(0, 0)
    partitions: list[Int32] = versions(0, 0)


@struct
class _TargetAssignmentMember(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    topic_partitions: list[_TopicPartition] = versions(0, 0)


@struct
class _TopicPartitions(Struct):
    topic_id: Uuid = versions(0, 0)
    partitions: list[Int32] = versions(0, 0)
    assignment_epochs: list[Int32] | None = versions(0, 0, default=None, tag=0)


@struct
class _CurrentMemberAssignment(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    member_epoch: Int32 = versions(0, 0)
    previous_member_epoch: Int32 = versions(0, 0)
    state: Int8 = versions(0, 0)
    assigned_partitions: list[_TopicPartitions] = versions(0, 0)
    partitions_pending_revocation: list[_TopicPartitions] = versions(0, 0)


def _stored_member(member: MemberMetadata) -> _MemberMetadata:
    return _MemberMetadata(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.subscribed_topic_names),
        subscribed_topic_regex=member.subscribed_topic_regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.server_assignor,
        classic_member_metadata=member.classic_member_metadata,
    )


def _member(stored: _MemberMetadata) -> MemberMetadata:
    classic = stored.classic_member_metadata
    for protocol in classic.supported_protocols if classic else ():
        protocol.metadata = bytes(protocol.metadata)  # not a view, which would keep the whole batch
    return MemberMetadata(
        instance_id=stored.instance_id,
        rack_id=stored.rack_id,
        client_id=stored.client_id,
        client_host=stored.client_host,
        subscribed_topic_names=tuple(stored.subscribed_topic_names),
        subscribed_topic_regex=stored.subscribed_topic_regex or "",
        rebalance_timeout_ms=stored.rebalance_timeout_ms,
        server_assignor=stored.server_assignor,
        classic_member_metadata=classic if classic and classic.supported_protocols else None,
    )


def _target(value: TargetAssignmentMember) -> _TargetAssignmentMember:
    return _TargetAssignmentMember(
        topic_partitions=[
            _TopicPartition(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in value.partitions.items()
        ]
    )


def _current(value: CurrentMemberAssignment) -> _CurrentMemberAssignment:
    return _CurrentMemberAssignment(
        member_epoch=value.member_epoch,
        previous_member_epoch=value.previous_member_epoch,
        state=value.state,
        assigned_partitions=_topic_partitions(value.assigned_partitions),
        partitions_pending_revocation=_topic_partitions(value.partitions_pending_revocation),
    )


def _topic_partitions(epochs: PartitionEpochs) -> list[_TopicPartitions]:
    return [
        _TopicPartitions(
            topic_id=topic_id,
            partitions=sorted(partitions),
            assignment_epochs=[partitions[each] for each in sorted(partitions)],
        )
        for topic_id, partitions in epochs.items()
    ]


def _epochs(stored: list[_TopicPartitions], member_epoch: int) -> dict[UUID, dict[int, int]]:
    """Kafka before 4.3 wrote no assignment epochs. Like Kafka, the member's epoch stands for them."""
    found = {}
    for each in stored:
        epochs = each.assignment_epochs
        if epochs is None or len(epochs) != len(each.partitions):
            epochs = [max(member_epoch, 0)] * len(each.partitions)
        found[each.topic_id] = dict(zip(each.partitions, epochs, strict=True))
    return found
