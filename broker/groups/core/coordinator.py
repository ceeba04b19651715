"""Coordinator core: the groups of one `__consumer_offsets` partition.

All events pass `handle(event, now_ms)`; its effects must be performed in order (`coordinators.core.effects`).
`replay` and `finish_replay` rebuild the core from its partition. Membership changes take effect in memory at
once, as in Kafka; they become durable with the assignment of the next generation. A committed offset counts
once it is durable. A deleted group and the offsets of a deleted topic are removed from memory at once; if the
append fails, the group is restored. Owned by a shard (`coordinators.shard`).
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from tierlog.base.types import TopicPartition, require
from tierlog.broker.coordinators.core.effects import (
    Appended,
    AppendTimedOut,
    Effect,
    ErrorResponse,
    TimerFired,
    WriteId,
)
from tierlog.broker.coordinators.core.stored import StoredRecord
from tierlog.broker.coordinators.core.turn import PendingWrites, response_error
from tierlog.broker.groups.core.classic import protocol as classic
from tierlog.broker.groups.core.classic.group import Group, MemberMemory, group_from_record
from tierlog.broker.groups.core.classic.rebalance import prepare_rebalance, restart_session
from tierlog.broker.groups.core.classic.states import Cause, GroupState
from tierlog.broker.groups.core.events import (
    NO_MEMBER_ID,
    Commit,
    DeleteGroup,
    DeleteOffsets,
    EndTransaction,
    Event,
    ExpireOffsets,
    Heartbeat,
    Join,
    JoinResponse,
    Leave,
    LeaveResponse,
    OffsetsResponse,
    Request,
    Sync,
    SyncResponse,
    TopicsChanged,
)
from tierlog.broker.groups.core.formats import (
    CommittedOffset,
    GroupKey,
    OffsetKey,
    decode_group,
    decode_key,
    decode_offset,
    encode_key,
)
from tierlog.broker.groups.core.offsets import (
    Offsets,
    OffsetsByPartition,
    check_commit,
    commit_record,
    expired_partitions,
    new_committed_offset,
    tombstone,
)
from tierlog.broker.groups.core.topic_view import NoTopics, TopicView
from tierlog.broker.groups.core.transactional_offsets import TransactionalOffsets
from tierlog.broker.groups.core.turn import (
    DEFAULT_CONSUMER_SETTINGS,
    ConsumerSettings,
    GroupSettings,
    Turn,
)
from tierlog.broker.storage.core.producer_state import NO_PRODUCER_ID
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import consumer_group_describe
from tierlog.protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember
from tierlog.protocol.schema import ZERO_UUID

CLASSIC = "classic"
CONSUMER = "consumer"
NO_TOPICS: frozenset[str] = frozenset()


class Coordinator:
    def __init__(
        self,
        settings: GroupSettings,
        consumer_settings: Callable[[str], ConsumerSettings] = lambda group_id: DEFAULT_CONSUMER_SETTINGS,
    ) -> None:
        """`consumer_settings`: the present settings of a consumer group."""
        self._settings = settings
        self._consumer_settings = consumer_settings
        self._groups: dict[str, Group] = {}
        self._offsets = Offsets()
        self._transactional = TransactionalOffsets()
        self._commits = 0
        self._memory = MemberMemory()
        self._topics: TopicView = NoTopics()
        self._writes = PendingWrites()
        self._committing: dict[WriteId, tuple[str, OffsetsByPartition]] = {}
        """Commits that are appended and not durable yet."""

    # ---- events ----

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        turn = Turn(now_ms, self._writes, self._settings)
        match event:
            case Heartbeat():
                self._heartbeat(event, turn)
            case Commit():
                self._commit(event, turn)
            case Appended():
                self._committing.pop(event.write_id, None)
                self._writes.appended(event, turn)
            case AppendTimedOut():
                self._writes.timed_out(event, turn)
            case Join():
                self._join(event, turn)
            case Sync():
                self._sync(event, turn)
            case Leave():
                self._leave(event, turn)
            case TimerFired():
                self._timer_fired(event, turn)
            case EndTransaction():
                self._end_transaction(event, turn)
            case DeleteOffsets():
                self._delete_offsets(event, turn)
            case DeleteGroup():
                self._delete_group(event, turn)
            case ExpireOffsets():
                self._expire_offsets(turn)
            case TopicsChanged():
                self._topics_changed(event, turn)
        return turn.effects

    # ---- replay ----

    def replay(
        self,
        record_key: bytes | memoryview,
        value: bytes | memoryview | None,
        producer_id: int = NO_PRODUCER_ID,
    ) -> None:
        """Apply one record of the partition, oldest first. `producer_id`: of the transaction to which it
        belongs, or negative. Raises FormatError if the record is unusable."""
        match decode_key(record_key):
            case OffsetKey(group_id, topic, partition):
                topic_partition = TopicPartition(topic, partition)
                if value is None:
                    self._remove_offsets(group_id, [topic_partition])
                else:
                    self._put(group_id, topic_partition, self._ordered(decode_offset(value)), producer_id)
            case GroupKey(group_id):
                if value is None:
                    self._groups.pop(group_id, None)
                else:
                    self._groups[group_id] = group_from_record(group_id, decode_group(value), self._memory)

    def replay_marker(self, producer_id: int, *, committed: bool) -> None:
        self._apply_end(producer_id, committed)

    def finish_replay(self, now_ms: int, topics: TopicView) -> list[Effect]:
        """Call this after the last record. Members keep their ids and assignments; each gets a new session.

        `topics` are those of this broker's image, which made it the leader of this partition. Earlier
        leaders accepted a commit only if they knew the topic, so its creation precedes that image. A topic
        that is not in the image was therefore deleted while another broker coordinated.
        """
        turn = Turn(now_ms, self._writes, self._settings)
        self._topics = topics
        self._remove_offsets_of_deleted_topics(turn, lambda name: topics.id_of(name) is None)
        for group_id in {*self._offsets.groups(), *self._transactional.groups()}:
            self._groups.setdefault(group_id, self._new_group(group_id))
        self._memory.used_bytes = sum(group.size for group in self._groups.values())
        for group in self._groups.values():
            for member in group.members.values():
                restart_session(group, member, turn)
            if len(group.members) > self._settings.group_max_size:
                prepare_rebalance(group, turn)
        return turn.effects

    # ---- membership ----

    def _join(self, request: Join, turn: Turn) -> None:
        error = classic.check_join(request, self._settings)
        group = self._groups.get(request.group_id)
        if error == ErrorCode.NONE and group is None and request.member_id != NO_MEMBER_ID:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if error != ErrorCode.NONE:
            turn.reply(request.token, JoinResponse(error=error, member_id=request.member_id))
            return
        group = group or self._groups.setdefault(request.group_id, self._new_group(request.group_id))
        classic.join(group, request, turn)
        self._remove_if_unused(group)

    def _sync(self, request: Sync, turn: Turn) -> None:
        group = self._groups.get(request.group_id)
        if group is None:
            turn.reply(request.token, SyncResponse(error=_no_group(request.group_id)))
        else:
            classic.sync(group, request, turn)

    def _heartbeat(self, request: Heartbeat, turn: Turn) -> None:
        group = self._groups.get(request.group_id)
        if group is None:
            turn.reply(request.token, ErrorResponse(error=_no_group(request.group_id)))
        else:
            classic.heartbeat(group, request, turn)

    def _leave(self, request: Leave, turn: Turn) -> None:
        group = self._groups.get(request.group_id)
        if group is None:
            error = _no_group(request.group_id)
            turn.reply(
                request.token, LeaveResponse(members=tuple((leaver, error) for leaver in request.leavers))
            )
        else:
            classic.leave(group, request, turn)
            self._remove_if_unused(group)

    def _timer_fired(self, event: TimerFired, turn: Turn) -> None:
        group = self._groups.get(event.key.group_id)
        if group is not None:
            classic.timer_fired(group, event.key, turn)
            self._remove_if_unused(group)

    def _remove_if_unused(self, group: Group) -> None:
        """Remove a group that never had members (a rejected join, an expired pending member)."""
        unused = group.state is GroupState.EMPTY and group.generation == 0 and not group.pending_members
        if unused and not (self._offsets.of(group.group_id) or self._is_in_transaction(group.group_id)):
            self._groups.pop(group.group_id, None)

    # ---- offsets ----

    def _commit(self, request: Commit, turn: Turn) -> None:
        group = self._groups.get(request.group_id)
        error = check_commit(group, request)
        if error != ErrorCode.NONE:
            turn.reply(request.token, OffsetsResponse(error=error))
            return
        if group is not None and request.member_id in group.members:
            restart_session(group, group.members[request.member_id], turn)
        producer_id = NO_PRODUCER_ID if request.producer is None else request.producer.producer_id
        accepted: OffsetsByPartition = {}
        results = []
        for item in request.offsets:
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
            self._committing[turn.append(records, stored, request.producer)] = request.group_id, accepted
        else:
            turn.reply(request.token, OffsetsResponse(partitions=tuple(results)))

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

    def _end_transaction(self, request: EndTransaction, turn: Turn) -> None:
        def stored(turn: Turn, error: ErrorCode) -> None:
            if error == ErrorCode.NONE:
                self._apply_end(request.producer.producer_id, request.committed)
            turn.reply(request.token, ErrorResponse(error=error))

        turn.append_marker(
            request.producer,
            stored,
            committed=request.committed,
            coordinator_epoch=request.coordinator_epoch,
            transaction_version=request.transaction_version,
        )

    def _apply_end(self, producer_id: int, committed: bool) -> None:
        for (group_id, partition), offset in self._transactional.end(producer_id).items():
            known = self._offsets.of(group_id).get(partition)
            is_last = known is None or known.order < offset.order
            if committed and is_last and not self._is_of_another_topic(partition, offset):
                self._groups.setdefault(group_id, self._new_group(group_id))
                self._offsets.put(group_id, partition, offset)

    def _delete_offsets(self, request: DeleteOffsets, turn: Turn) -> None:
        group = self._groups.get(request.group_id)
        if group is None:
            turn.reply(request.token, OffsetsResponse(error=_group_not_found(request.group_id)))
            return
        if group.members and group.subscribed_topics is None:
            turn.reply(request.token, OffsetsResponse(error=ErrorCode.NON_EMPTY_GROUP))
            return
        in_use = group.subscribed_topics if group.members and group.subscribed_topics else NO_TOPICS
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
                self._remove_offsets(request.group_id, to_remove)
            turn.reply(
                request.token,
                response if error == ErrorCode.NONE else OffsetsResponse(error=response_error(error)),
            )

        turn.append([tombstone(request.group_id, partition) for partition in to_remove], stored)

    def _topics_changed(self, event: TopicsChanged, turn: Turn) -> None:
        self._topics = event.topics
        if event.deleted:
            self._remove_offsets_of_deleted_topics(turn, event.deleted.__contains__)

    def _remove_offsets_of_deleted_topics(self, turn: Turn, is_deleted: Callable[[str], bool]) -> None:
        """Remove offsets of deleted topics: consumers of a new topic of the same name must not get them.

        The offsets are removed from memory at once. If writing the tombstones fails, the next coordinator
        removes the offsets again when it loads. `is_deleted` decides for offsets without a topic id.
        """
        for group_id in list(self._offsets.groups()):
            to_remove = [
                partition
                for partition, committed in self._offsets.of(group_id).items()
                if self._is_of_another_topic(partition, committed)
                or (committed.topic_id == ZERO_UUID and is_deleted(partition.topic))
            ]
            self._remove_offsets(group_id, to_remove)
            self._append_tombstones(group_id, to_remove, turn)

    def _is_of_another_topic(self, partition: TopicPartition, committed: CommittedOffset) -> bool:
        """Whether the offset was committed for an earlier topic of the same name."""
        return committed.topic_id not in (ZERO_UUID, self._topics.id_of(partition.topic))

    def _expire_offsets(self, turn: Turn) -> None:
        """Do not expire an offset with a pending commit. The tombstone would follow the commit in the log and
        delete the new offset after the client saw it acknowledged. Kafka checks pending commits too.
        """
        committing = {
            (group_id, partition)
            for group_id, partitions in self._committing.values()
            for partition in partitions
        }
        for group in list(self._groups.values()):
            offsets = self._offsets.of(group.group_id)
            unused = expired_partitions(group, offsets, self._settings.offsets_retention_ms, turn.now_ms)
            to_remove = [
                partition
                for partition in unused
                if (group.group_id, partition) not in committing
                and not self._transactional.holds(group.group_id, partition)
            ]
            if (
                group.state is GroupState.EMPTY
                and not group.pending_members
                and len(to_remove) == len(offsets)
                and not self._is_in_transaction(group.group_id)
            ):
                self._append_deletion(group, turn)
            else:
                self._append_tombstones(group.group_id, to_remove, turn)

    def _append_tombstones(self, group_id: str, to_remove: list[TopicPartition], turn: Turn) -> None:
        def stored(turn: Turn, error: ErrorCode) -> None:
            if error == ErrorCode.NONE:
                self._remove_offsets(group_id, to_remove)

        if to_remove:
            turn.append([tombstone(group_id, partition) for partition in to_remove], stored)

    def _remove_offsets(self, group_id: str, to_remove: Iterable[TopicPartition]) -> None:
        for partition in to_remove:
            self._offsets.remove(group_id, partition)
            self._transactional.remove(group_id, partition)

    # ---- groups ----

    def _delete_group(self, request: DeleteGroup, turn: Turn) -> None:
        group = self._groups.get(request.group_id)
        if group is None:
            turn.reply(request.token, ErrorResponse(error=ErrorCode.GROUP_ID_NOT_FOUND))
        elif group.state is not GroupState.EMPTY:
            turn.reply(request.token, ErrorResponse(error=ErrorCode.NON_EMPTY_GROUP))
        else:
            self._append_deletion(group, turn, request)

    def _append_deletion(self, group: Group, turn: Turn, request: DeleteGroup | None = None) -> None:
        """Remove the group at once: a member that joins now starts a new one. If the append fails, the group
        is restored without members."""
        pending = self._transactional.partitions(group.group_id)
        to_remove = list(dict.fromkeys([*self._offsets.of(group.group_id), *pending]))
        records = [tombstone(group.group_id, partition) for partition in to_remove]
        records.append(StoredRecord(encode_key(GroupKey(group.group_id)), None))
        timestamp_ms = group.state_timestamp_ms
        del self._groups[group.group_id]
        for member_id in list(group.pending_members):
            turn.cancel_timer(classic.session_key(group, member_id))
            group.drop_pending(member_id)
        group.move(Cause.GROUP_DELETED, turn.now_ms)

        def stored(turn: Turn, error: ErrorCode) -> None:
            if error == ErrorCode.NONE:
                self._remove_offsets(group.group_id, to_remove)
            elif error != ErrorCode.REQUEST_TIMED_OUT:  # otherwise the deletion may still become durable
                restored = self._groups.setdefault(group.group_id, self._new_group(group.group_id))
                restored.protocol_type = restored.protocol_type or group.protocol_type
                restored.generation = max(restored.generation, group.generation)
                restored.state_timestamp_ms = max(restored.state_timestamp_ms, timestamp_ms)
            if request is not None:
                turn.reply(request.token, ErrorResponse(error=response_error(error)))

        turn.append(records, stored)

    # ---- queries ----

    def may_refuse(self, request: Request) -> bool:
        """Whether a request may be refused while too many wait: it would add a member to its group."""
        if not isinstance(request, Join):
            return False
        group = self._groups.get(request.group_id)
        return group is None or group.adds_member(request.member_id, request.group_instance_id)

    def offsets(self, group_id: str) -> OffsetsByPartition:
        """Committed, durable offsets. Read-only."""
        return self._offsets.of(group_id)

    def unstable_partitions(self, group_id: str) -> list[TopicPartition]:
        """Partitions whose offsets an open transaction may change (KIP-447)."""
        return self._transactional.partitions(group_id)

    def _is_in_transaction(self, group_id: str) -> bool:
        return self._transactional.has(group_id)

    @property
    def member_bytes(self) -> int:
        """Memory used by the members of all groups."""
        return self._memory.used_bytes

    def list_groups(self) -> list[tuple[str, str, str, str]]:
        """(id, protocol type, state, group type) of every group."""
        return [
            (group.group_id, group.protocol_type or "", str(group.state), CLASSIC)
            for group in self._groups.values()
        ]

    def describe(self, group_id: str) -> DescribedGroup | None:
        """None if there is no such group. Metadata and assignments are set only while it is Stable, as in
        Kafka."""
        group = self._groups.get(group_id)
        if group is None:
            return None
        stable = group.state is GroupState.STABLE
        return DescribedGroup(
            group_id=group_id,
            group_state=str(group.state),
            protocol_type=group.protocol_type or "",
            protocol_data=(group.protocol_name or "") if stable else "",
            members=[
                DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.metadata(group.protocol_name) if stable else b"",
                    member_assignment=member.assignment if stable else b"",
                )
                for member in group.members.values()
            ],
        )

    def describe_consumer(self, group_id: str) -> consumer_group_describe.DescribedGroup | None:
        """None if there is no such consumer group."""
        return None

    def check(self) -> None:
        """Raises InvariantViolation if an invariant of the coordinator does not hold."""
        for group_id, group in self._groups.items():
            require(group.group_id == group_id, f"group {group.group_id} has the key {group_id}")
            require(group.state is not GroupState.DEAD, f"group {group_id} is Dead and not removed")
            group.check()
        used_bytes = sum(group.size for group in self._groups.values())
        require(
            used_bytes == self._memory.used_bytes,
            f"members use {used_bytes} bytes, {self._memory.used_bytes} are counted",
        )

    def _new_group(self, group_id: str) -> Group:
        return Group(group_id, self._memory)


def _no_group(group_id: str) -> ErrorCode:
    return ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID


def _group_not_found(group_id: str) -> ErrorCode:
    return ErrorCode.GROUP_ID_NOT_FOUND if group_id else ErrorCode.INVALID_GROUP_ID
