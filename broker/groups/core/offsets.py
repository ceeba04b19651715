"""Committed offsets: the checks of a commit, the offsets of all groups, and their expiry.

`Offsets` holds only durable offsets: coordinator.py changes it once their records are durable. Expiry follows
KIP-211: offsets.retention.minutes run from the time at which the group lost its last member. For a topic to
which no member subscribes, and for consumers without group management, they run from the commit.
"""

from collections.abc import Iterator

from tierlog.base.safeguards import safeguard
from tierlog.base.types import TopicPartition
from tierlog.broker.coordinators.core.stored import StoredRecord
from tierlog.broker.groups.core.classic.group import Group
from tierlog.broker.groups.core.classic.states import GroupState
from tierlog.broker.groups.core.consumer.group import ConsumerGroup
from tierlog.broker.groups.core.events import (
    NO_MEMBER_ID,
    Commit,
    OffsetToCommit,
)
from tierlog.broker.groups.core.formats import (
    NO_EXPIRY,
    CommittedOffset,
    OffsetKey,
    encode_key,
    encode_offset,
)
from tierlog.broker.groups.core.topic_view import TopicView
from tierlog.broker.groups.core.turn import GroupSettings
from tierlog.protocol.errors import ErrorCode

MAX_TIMESTAMP_MS = 2**63 - 1  # an int64

OffsetsByPartition = dict[TopicPartition, CommittedOffset]


class Offsets:
    """Group id -> partition -> committed offset. Groups without offsets have no entry."""

    def __init__(self) -> None:
        self._groups: dict[str, OffsetsByPartition] = {}

    def of(self, group_id: str) -> OffsetsByPartition:
        """The offsets of one group. Read-only."""
        return self._groups.get(group_id, {})

    def groups(self) -> Iterator[str]:
        return iter(self._groups)

    def put(self, group_id: str, partition: TopicPartition, committed: CommittedOffset) -> None:
        self._groups.setdefault(group_id, {})[partition] = committed

    def remove(self, group_id: str, partition: TopicPartition) -> None:
        kept = self._groups.get(group_id, {})
        kept.pop(partition, None)
        if not kept:
            self._groups.pop(group_id, None)


@safeguard("offset commits check the group generation")
def check_commit(group: Group | None, request: Commit) -> ErrorCode:
    """Members may commit in the current generation; other clients only while the group has no members. A
    transaction of a client which names no member may always commit: older clients name none (KIP-447)."""
    if group is None:
        # A consumer without group management, or an admin: its first commit creates the group.
        if request.generation < 0:
            return ErrorCode.NONE
        return ErrorCode.GROUP_ID_NOT_FOUND if request.has_epochs else ErrorCode.ILLEGAL_GENERATION
    if request.generation < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    has_identity = request.member_id != NO_MEMBER_ID or request.group_instance_id is not None
    if request.generation < 0 and not has_identity:
        return ErrorCode.UNKNOWN_MEMBER_ID if request.producer is None else ErrorCode.NONE
    error = group.validate(request.member_id, request.group_instance_id)
    if error == ErrorCode.NONE and not group.has_generation(request.member_id, request.generation):
        return ErrorCode.ILLEGAL_GENERATION
    if error == ErrorCode.NONE and group.awaits_assignment and request.producer is None:
        # The member does not know its new assignment: another member may own these partitions.
        return ErrorCode.REBALANCE_IN_PROGRESS
    return error


def check_consumer_commit(group: ConsumerGroup, request: Commit) -> ErrorCode:
    """Members may commit in their epoch (`generation`). KIP-1251: for a partition that a member has had for
    longer, also in an earlier one. Other clients may commit only while the group has no members. Producers do
    not know STALE_MEMBER_EPOCH, and would fail for good: their transactions get ILLEGAL_GENERATION."""
    if request.generation < 0 and group.is_empty:
        return ErrorCode.NONE
    has_identity = request.member_id != NO_MEMBER_ID or request.group_instance_id is not None
    if request.producer is not None and request.generation < 0 and not has_identity:
        return ErrorCode.NONE  # a transaction of an older client, as in a classic group
    member = group.members.get(request.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if member.is_classic:
        same = request.generation == member.epoch
        return ErrorCode.NONE if same else ErrorCode.ILLEGAL_GENERATION
    if request.producer is None and not request.has_epochs:
        return ErrorCode.UNSUPPORTED_VERSION
    accepted = request.generation == member.epoch or all(
        member.accepts_commit(request.generation, item.topic_id, item.partition.partition)
        for item in request.offsets
    )
    if accepted:
        return ErrorCode.NONE
    return ErrorCode.STALE_MEMBER_EPOCH if request.producer is None else ErrorCode.ILLEGAL_GENERATION


def is_of_deleted_topic(
    group: ConsumerGroup, request: Commit, item: OffsetToCommit, topics: TopicView
) -> bool:
    """Whether a member names a topic of which it still has a deleted predecessor.

    A name says nothing of the topic's id. The member's assignment does: until the member has given the
    deleted topic up, and has got the new one, its offsets are those of the deleted topic.
    """
    member = group.members.get(request.member_id)
    name = item.partition.topic
    if member is None or not request.by_name or name not in group.names_of(member):
        return False
    has = {**member.assigned, **member.pending_revocation}
    return item.topic_id not in has and any(
        topic_id != item.topic_id and topics.name_of(topic_id) in (None, name) for topic_id in has
    )


def check_fetch(group: ConsumerGroup, member_id: str, member_epoch: int) -> ErrorCode:
    """Whether a member may fetch offsets in this epoch: it must not start from those of an earlier one."""
    if member_id == NO_MEMBER_ID and member_epoch < 0:
        return ErrorCode.NONE  # an admin, or an older client
    member = group.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if member_epoch == member.epoch:
        return ErrorCode.NONE
    return ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH


def new_committed_offset(
    request: Commit, item: OffsetToCommit, settings: GroupSettings, now_ms: int
) -> CommittedOffset | None:
    """The offset to store, or None if its metadata is longer than offset.metadata.max.bytes."""
    if len(item.metadata.encode()) > settings.offset_metadata_max_bytes:
        return None
    expires_ms = (
        min(now_ms + request.retention_ms, MAX_TIMESTAMP_MS) if request.retention_ms >= 0 else NO_EXPIRY
    )
    return CommittedOffset(item.offset, item.leader_epoch, item.metadata, now_ms, expires_ms, item.topic_id)


def commit_record(group_id: str, partition: TopicPartition, committed: CommittedOffset) -> StoredRecord:
    return StoredRecord(encode_key(OffsetKey(group_id, *partition)), encode_offset(committed))


def tombstone(group_id: str, partition: TopicPartition) -> StoredRecord:
    return StoredRecord(encode_key(OffsetKey(group_id, *partition)), None)


def expired_partitions(
    group: Group | ConsumerGroup, offsets: OffsetsByPartition, retention_ms: int, now_ms: int
) -> list[TopicPartition]:
    """The partitions whose offsets have expired (KIP-211)."""
    in_use = group.subscribed_names() if isinstance(group, ConsumerGroup) else ()
    return [
        partition
        for partition, committed in offsets.items()
        if partition.topic not in in_use
        and (since_ms := _unused_since_ms(group, partition, committed)) is not None
        and now_ms
        >= (
            since_ms + retention_ms
            if committed.expire_timestamp_ms == NO_EXPIRY
            else committed.expire_timestamp_ms
        )
    ]


def _unused_since_ms(
    group: Group | ConsumerGroup, partition: TopicPartition, committed: CommittedOffset
) -> int | None:
    """When the retention time of an offset began, or None while a member may use the offset."""
    if isinstance(group, ConsumerGroup):
        # Kafka takes the commit's: a group that restarts loses the offsets of partitions without new records.
        return max(group.emptied_ms, committed.commit_timestamp_ms)
    if group.protocol_type is None:  # simple consumers only, never members
        return committed.commit_timestamp_ms
    if group.state is GroupState.EMPTY:
        return max(group.state_timestamp_ms, committed.commit_timestamp_ms)
    if (
        group.state is GroupState.STABLE
        and group.subscribed_topics is not None
        and partition.topic not in group.subscribed_topics
    ):
        return committed.commit_timestamp_ms
    return None
