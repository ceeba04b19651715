"""Group offsets: the committed offsets of all groups of a shard: commits, deletions and expiry.

An offset counts once it is durable. Offsets of deleted topics are removed from memory at once: if the append
fails, the next coordinator removes them again when it loads. Owned by coordinator.py, which also owns the
groups.
"""

from collections.abc import Callable, Iterable, MutableMapping, Set
from dataclasses import replace
from typing import NamedTuple

from tierlog.base.safeguards import safeguard
from tierlog.base.types import TopicPartition
from tierlog.broker.coordinators.core.effects import Appended, ErrorResponse, WriteId
from tierlog.broker.coordinators.core.turn import response_error
from tierlog.broker.groups.core.classic.group import Group
from tierlog.broker.groups.core.classic.rebalance import restart_session
from tierlog.broker.groups.core.consumer.group import ConsumerGroup
from tierlog.broker.groups.core.events import Commit, DeleteOffsets, EndTransaction, OffsetsResponse
from tierlog.broker.groups.core.formats import CommittedOffset
from tierlog.broker.groups.core.offsets import (
    Offsets,
    OffsetsByPartition,
    check_commit,
    check_consumer_commit,
    commit_record,
    expired_partitions,
    is_of_deleted_topic,
    new_committed_offset,
    tombstone,
)
from tierlog.broker.groups.core.topic_view import NoTopics, TopicView
from tierlog.broker.groups.core.transactional_offsets import TransactionalOffsets
from tierlog.broker.groups.core.turn import GroupSettings, Turn
from tierlog.broker.storage.core.producer_state import NO_PRODUCER_ID
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.schema import ZERO_UUID

AnyGroup = Group | ConsumerGroup
NO_TOPICS: frozenset[str] = frozenset()


class _Committing(NamedTuple):
    """A commit that is appended and not durable yet."""

    group_id: str
    offsets: OffsetsByPartition
    in_transaction: bool


class GroupOffsets:
    def __init__(
        self,
        settings: GroupSettings,
        groups: MutableMapping[str, AnyGroup],
        new_group: Callable[[str], AnyGroup],
    ) -> None:
        """`groups`: of the coordinator. A commit to a group that does not exist adds a `new_group`."""
        self.topics: TopicView = NoTopics()
        self._settings = settings
        self._groups = groups
        self._new_group = new_group
        self._offsets = Offsets()
        self._transactional = TransactionalOffsets()
        self._commits = 0
        self._committing: dict[WriteId, _Committing] = {}

    # ---- queries ----

    def group_ids(self) -> list[str]:
        return list(self._offsets.groups())

    def of(self, group_id: str) -> OffsetsByPartition:
        """Committed, durable offsets. Read-only."""
        return self._offsets.of(group_id)

    def unstable_partitions(self, group_id: str) -> list[TopicPartition]:
        """Partitions whose offsets an open transaction may change (KIP-447). As in Kafka, also if its commit
        is not durable yet: the next owner must not begin before it."""
        in_flight = [
            partition
            for commit in self._committing.values()
            if commit.in_transaction and commit.group_id == group_id
            for partition in commit.offsets
        ]
        return list(dict.fromkeys([*self._transactional.partitions(group_id), *in_flight]))

    def is_used(self, group_id: str) -> bool:
        """Whether the group has offsets, or may get some from an open transaction."""
        return bool(self._offsets.of(group_id)) or self._transactional.has(group_id)

    def groups(self) -> set[str]:
        return {*self._offsets.groups(), *self._transactional.groups()}

    # ---- replay ----

    def replay(
        self, group_id: str, partition: TopicPartition, committed: CommittedOffset | None, producer_id: int
    ) -> None:
        if committed is None:
            self.remove(group_id, [partition])
        else:
            self._put(group_id, partition, self._ordered(committed), producer_id)

    # ---- commits ----

    def commit(self, request: Commit, turn: Turn) -> None:
        group = self._groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            error = check_consumer_commit(group, request)
        else:
            error = check_commit(group, request)
        if error != ErrorCode.NONE:
            turn.reply(request.token, OffsetsResponse(error=error))
            return
        if isinstance(group, Group) and request.member_id in group.members:
            restart_session(group, group.members[request.member_id], turn)
        producer_id = NO_PRODUCER_ID if request.producer is None else request.producer.producer_id
        accepted: OffsetsByPartition = {}
        results = []
        for item in request.offsets:
            if isinstance(group, ConsumerGroup) and is_of_deleted_topic(group, request, item, self.topics):
                results.append((item.partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
                continue
            committed = new_committed_offset(request, item, self._settings, turn.now_ms)
            if committed is not None:
                accepted[item.partition] = self._ordered(committed)
            results.append(
                (item.partition, ErrorCode.NONE if committed else ErrorCode.OFFSET_METADATA_TOO_LARGE)
            )

        def stored(turn: Turn, error: ErrorCode) -> None:
            if error != ErrorCode.NONE:
                turn.reply(request.token, OffsetsResponse(error=response_error(error)))
                return
            self._groups.setdefault(request.group_id, self._new_group(request.group_id))
            for partition, committed in accepted.items():
                if not self._is_of_another_topic(partition, committed):  # deleted during the append
                    self._put(request.group_id, partition, committed, producer_id)
            turn.reply(request.token, OffsetsResponse(partitions=tuple(results)))

        if accepted:
            records = [commit_record(request.group_id, *item) for item in accepted.items()]
            write_id = turn.append(records, stored, request.producer)
            self._committing[write_id] = _Committing(request.group_id, accepted, producer_id >= 0)
        else:
            turn.reply(request.token, OffsetsResponse(partitions=tuple(results)))

    def appended(self, event: Appended) -> None:
        self._committing.pop(event.write_id, None)

    @safeguard("offsets of a transaction count after its marker")
    def _put(
        self, group_id: str, partition: TopicPartition, committed: CommittedOffset, producer_id: int
    ) -> None:
        if producer_id < 0:
            self._offsets.put(group_id, partition, committed)
        else:
            self._transactional.put(producer_id, group_id, partition, committed)

    def _ordered(self, committed: CommittedOffset) -> CommittedOffset:
        self._commits += 1
        return replace(committed, order=self._commits)

    def end_transaction(self, request: EndTransaction, turn: Turn) -> None:
        def stored(turn: Turn, error: ErrorCode) -> None:
            if error == ErrorCode.NONE:
                self.apply_end(request.producer.producer_id, request.committed)
            turn.reply(request.token, ErrorResponse(error=error))

        turn.append_marker(
            request.producer,
            stored,
            committed=request.committed,
            coordinator_epoch=request.coordinator_epoch,
            transaction_version=request.transaction_version,
        )

    def apply_end(self, producer_id: int, committed: bool) -> None:
        for (group_id, partition), offset in self._transactional.end(producer_id).items():
            known = self._offsets.of(group_id).get(partition)
            is_last = known is None or known.order < offset.order
            if committed and is_last and not self._is_of_another_topic(partition, offset):
                self._groups.setdefault(group_id, self._new_group(group_id))
                self._offsets.put(group_id, partition, offset)

    # ---- deletions ----

    def delete(self, request: DeleteOffsets, turn: Turn) -> None:
        group = self._groups.get(request.group_id)
        if group is None:
            error = ErrorCode.GROUP_ID_NOT_FOUND if request.group_id else ErrorCode.INVALID_GROUP_ID
            turn.reply(request.token, OffsetsResponse(error=error))
            return
        if isinstance(group, Group) and group.members and group.subscribed_topics is None:
            turn.reply(request.token, OffsetsResponse(error=ErrorCode.NON_EMPTY_GROUP))
            return
        in_use = topics_in_use(group)
        results = tuple(
            (partition, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if partition.topic in in_use else ErrorCode.NONE)
            for partition in request.partitions
        )
        kept = {*self._offsets.of(request.group_id), *self._transactional.partitions(request.group_id)}
        to_remove = [
            partition for partition, error in results if error == ErrorCode.NONE and partition in kept
        ]
        response = OffsetsResponse(partitions=results)
        if not to_remove:
            turn.reply(request.token, response)
            return

        def stored(turn: Turn, error: ErrorCode) -> None:
            if error == ErrorCode.NONE:
                self.remove(request.group_id, to_remove)
            turn.reply(
                request.token,
                response if error == ErrorCode.NONE else OffsetsResponse(error=response_error(error)),
            )

        turn.append([tombstone(request.group_id, partition) for partition in to_remove], stored)

    def remove_of_deleted_topics(self, turn: Turn, is_deleted: Callable[[str], bool]) -> None:
        """Remove offsets of deleted topics: consumers of a new topic of the same name must not get them.

        The offsets are removed from memory at once. If writing the tombstones fails, the next coordinator
        removes the offsets again when it loads. `is_deleted` decides for offsets without a topic id. A
        partition with a later commit, which may be one for the new topic, gets no tombstone: it would delete
        that.
        """
        committing = self._partitions_being_committed()
        for group_id in list(self._offsets.groups()):
            to_remove = [
                partition
                for partition, committed in self._offsets.of(group_id).items()
                if self._is_of_another_topic(partition, committed)
                or (committed.topic_id == ZERO_UUID and is_deleted(partition.topic))
            ]
            for partition in to_remove:
                self._offsets.remove(group_id, partition)
            last = [each for each in to_remove if not self._has_later_commit(group_id, each, committing)]
            self._append_tombstones(group_id, last, turn)

    def _partitions_being_committed(self) -> set[tuple[str, TopicPartition]]:
        """The groups and partitions with commits that are appended and not durable yet."""
        return {
            (commit.group_id, partition)
            for commit in self._committing.values()
            for partition in commit.offsets
        }

    def _has_later_commit(
        self, group_id: str, partition: TopicPartition, committing: Set[tuple[str, TopicPartition]]
    ) -> bool:
        """Whether a commit that does not count yet follows the offset in the log. A tombstone would delete it
        after the client saw it acknowledged. Kafka checks pending commits, too."""
        return (group_id, partition) in committing or self._transactional.holds(group_id, partition)

    def _is_of_another_topic(self, partition: TopicPartition, committed: CommittedOffset) -> bool:
        """Whether the offset was committed for an earlier topic of the same name. False during the replay,
        before the topics are known: its end removes these offsets."""
        if isinstance(self.topics, NoTopics):
            return False
        return committed.topic_id not in (ZERO_UUID, self.topics.id_of(partition.topic))

    def expire(self, turn: Turn) -> list[AnyGroup]:
        """Remove expired offsets. Returns the groups that have nothing left and no members."""
        committing = self._partitions_being_committed()
        unused_groups = []
        for group in list(self._groups.values()):
            offsets = self._offsets.of(group.group_id)
            unused = expired_partitions(group, offsets, self._settings.offsets_retention_ms, turn.now_ms)
            to_remove = [
                partition
                for partition in unused
                if not self._has_later_commit(group.group_id, partition, committing)
            ]
            is_last = len(to_remove) == len(offsets) and not self._transactional.has(group.group_id)
            if is_last and group.is_empty:
                unused_groups.append(group)
            else:
                self._append_tombstones(group.group_id, to_remove, turn)
        return unused_groups

    def _append_tombstones(self, group_id: str, to_remove: list[TopicPartition], turn: Turn) -> None:
        def stored(turn: Turn, error: ErrorCode) -> None:
            if error == ErrorCode.NONE:
                self.remove(group_id, to_remove)

        if to_remove:
            turn.append([tombstone(group_id, partition) for partition in to_remove], stored)

    def partitions(self, group_id: str) -> list[TopicPartition]:
        """All partitions of which the group has an offset, also in open transactions."""
        return list(dict.fromkeys([*self._offsets.of(group_id), *self._transactional.partitions(group_id)]))

    def remove(self, group_id: str, to_remove: Iterable[TopicPartition]) -> None:
        for partition in to_remove:
            self._offsets.remove(group_id, partition)
            self._transactional.remove(group_id, partition)


def topics_in_use(group: AnyGroup) -> Iterable[str]:
    """Topics that members consume: their offsets must stay."""
    if isinstance(group, ConsumerGroup):
        return group.subscribed_names()
    return group.subscribed_topics if group.members and group.subscribed_topics else NO_TOPICS
