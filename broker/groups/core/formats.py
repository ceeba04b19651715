"""Record formats of `__consumer_offsets`: Kafka's own, so that Kafka's tools can read the topic.

A key begins with an int16 type: 0 and 1 for a committed offset, 2 for the metadata of a classic group. A
value begins with an int16 version. The written versions are those of Kafka 4.3: offsets in version 4, which
has the topic id, or in version 1 if the offset has its own expiry; groups in version 3. Versions 0 to 4 are
read. A value of None is a tombstone. Records with other key types (among them those of KIP-848 groups) decode
to None and are skipped, as Kafka does after a downgrade (KIP-915).

Schemas: group-coordinator/src/main/resources/common/message/{OffsetCommit,GroupMetadata}{Key,Value}.json of
Kafka.
"""

from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from tierlog.base.safeguards import safeguard
from tierlog.broker.coordinators.core.stored import decode_stored, encode_stored, stored_version
from tierlog.protocol.schema import (
    ZERO_UUID,
    Bytes,
    Int32,
    Int64,
    Message,
    String,
    Struct,
    Uuid,
    struct,
    versions,
)

NO_EXPIRY = -1


class OffsetKey(NamedTuple):
    group_id: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    group_id: str


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """`expire_timestamp_ms` is set only if the client sent a retention (OffsetCommit 2 to 4).

    `topic_id` is ZERO_UUID for a record without a topic id: one with an expiry, or of a version before 4.
    `order`: position among the commits of its partition, not stored. The end of a transaction must not
    replace an offset that was committed after the transaction's own.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_EXPIRY
    topic_id: UUID = ZERO_UUID
    order: int = field(default=0, compare=False)


# ---- schemas --------------------------------------------------------------------------------------


@struct
class _OffsetCommitKey(Message):
    VERSIONS = (0, 1)

    group_id: String = versions(0, 1)
    topic: String = versions(0, 1)
    partition: Int32 = versions(0, 1)


@struct
class _GroupMetadataKey(Message):
    VERSIONS = (2, 2)

    group_id: String = versions(2, 2)


@struct
class _OffsetCommitValue(Message):
    VERSIONS = (0, 4)
    FLEXIBLE = 4

    offset: Int64 = versions(0, 4)
    leader_epoch: Int32 = versions(3, 4, default=-1)
    metadata: String = versions(0, 4)
    commit_timestamp_ms: Int64 = versions(0, 4)
    expire_timestamp_ms: Int64 = versions(1, 1, default=NO_EXPIRY)
    topic_id: Uuid = versions(4, 4, tag=0)


@struct
class StoredMember(Struct):
    member_id: String = versions(0, 4)
    group_instance_id: String | None = versions(3, 4, default=None)
    client_id: String = versions(0, 4)
    client_host: String = versions(0, 4)
    rebalance_timeout_ms: Int32 = versions(1, 4, default=-1)
    session_timeout_ms: Int32 = versions(0, 4)
    subscription: Bytes | None = versions(0, 4)
    assignment: Bytes | None = versions(0, 4)


@struct
class StoredGroup(Message):
    VERSIONS = (0, 4)
    FLEXIBLE = 4

    protocol_type: String = versions(0, 4)
    generation: Int32 = versions(0, 4)
    protocol: String | None = versions(0, 4, default=None)
    leader: String | None = versions(0, 4, default=None)
    state_timestamp_ms: Int64 = versions(2, 4, default=-1)
    members: list[StoredMember] = versions(0, 4)


# ---- keys and values ------------------------------------------------------------------------------


def encode_key(key: OffsetKey | GroupKey) -> bytes:
    if isinstance(key, GroupKey):
        return encode_stored(_GroupMetadataKey(group_id=key.group_id), 2)
    return encode_stored(_OffsetCommitKey(group_id=key.group_id, topic=key.topic, partition=key.partition), 1)


def decode_key(data: bytes | memoryview) -> OffsetKey | GroupKey | None:
    """None for an unknown key type. Raises FormatError for an incomplete or malformed key."""
    version = stored_version(data)
    if version in (0, 1):
        offset = decode_stored(_OffsetCommitKey, version, data)
        return OffsetKey(offset.group_id, offset.topic, offset.partition)
    return GroupKey(decode_stored(_GroupMetadataKey, version, data).group_id) if version == 2 else None


def encode_offset(committed: CommittedOffset) -> bytes:
    """Encode in version 4, or, if the commit has its own expiry, in version 1, without leader epoch and topic
    id."""
    value = _OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp_ms=committed.commit_timestamp_ms,
        expire_timestamp_ms=committed.expire_timestamp_ms,
        topic_id=committed.topic_id,
    )
    return encode_stored(value, 4 if committed.expire_timestamp_ms == NO_EXPIRY else 1)


@safeguard("committed offsets are stored with the topic id")
def decode_offset(data: bytes | memoryview) -> CommittedOffset:
    found = decode_stored(_OffsetCommitValue, stored_version(data), data)
    return CommittedOffset(
        found.offset,
        found.leader_epoch,
        found.metadata,
        found.commit_timestamp_ms,
        found.expire_timestamp_ms,
        found.topic_id,
    )


def encode_group(group: StoredGroup) -> bytes:
    return encode_stored(group, 3)


def decode_group(data: bytes | memoryview) -> StoredGroup:
    group = decode_stored(StoredGroup, stored_version(data), data)
    for member in group.members:
        if member.rebalance_timeout_ms < 0:
            member.rebalance_timeout_ms = member.session_timeout_ms
    return group
