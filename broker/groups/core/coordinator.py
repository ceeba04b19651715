"""Coordinator core: the groups of one `__consumer_offsets` partition.

All events pass `handle(event, now_ms)`; its effects must be performed in order (`coordinators.core.effects`).
`replay` and `finish_replay` rebuild the core from its partition. Membership changes take effect in memory at
once. In a classic group they become durable with the assignment of the next generation, as in Kafka. In a
consumer group their records are appended at once, and responses wait for them (`consumer.writes`). A deleted
group is removed from memory at once; if the append fails, the group is restored. Offsets are in
group_offsets.py. Owned by a shard (`coordinators.shard`).
"""

from collections.abc import Callable

from tierlog.base.safeguards import safeguard
from tierlog.base.types import TopicPartition, require
from tierlog.broker.coordinators.core.effects import (
    Appended,
    AppendTimedOut,
    Effect,
    ErrorResponse,
    TimerFired,
)
from tierlog.broker.coordinators.core.stored import StoredRecord
from tierlog.broker.coordinators.core.turn import AfterAppend, PendingWrites, response_error
from tierlog.broker.groups.core.classic import protocol as classic
from tierlog.broker.groups.core.classic.group import Group, MemberMemory, group_from_record
from tierlog.broker.groups.core.classic.rebalance import prepare_rebalance, restart_session
from tierlog.broker.groups.core.classic.states import Cause, GroupState
from tierlog.broker.groups.core.consumer import (
    classic_members,
    conversion,
    formats,
    heartbeat,
    loading,
    regexes,
    targets,
    writes,
)
from tierlog.broker.groups.core.consumer.description import describe as describe_consumer_group
from tierlog.broker.groups.core.consumer.group import ConsumerGroup
from tierlog.broker.groups.core.consumer.states import ConsumerGroupState
from tierlog.broker.groups.core.events import (
    JOIN_EPOCH,
    NO_MEMBER_ID,
    AssignmentComputed,
    Commit,
    ConsumerHeartbeat,
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
    RegexesResolved,
    Request,
    Sync,
    SyncResponse,
    TimerKey,
    TimerKind,
    TopicsChanged,
)
from tierlog.broker.groups.core.formats import (
    GroupKey,
    OffsetKey,
    decode_group,
    decode_key,
    decode_offset,
    encode_key,
)
from tierlog.broker.groups.core.group_offsets import AnyGroup, GroupOffsets
from tierlog.broker.groups.core.offsets import OffsetsByPartition, check_fetch, tombstone
from tierlog.broker.groups.core.topic_view import TopicView
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

CLASSIC = "classic"
CONSUMER = "consumer"


class Coordinator:
    def __init__(
        self,
        settings: GroupSettings,
        consumer_settings: Callable[[str], ConsumerSettings] = lambda group_id: DEFAULT_CONSUMER_SETTINGS,
    ) -> None:
        """`consumer_settings`: the present settings of a consumer group."""
        self._settings = settings
        self._consumer_settings = consumer_settings
        self._groups: dict[str, AnyGroup] = {}
        self._memory = MemberMemory()
        self._writes = PendingWrites()
        self._offsets = GroupOffsets(settings, self._groups, self._new_group)
        self._stored: dict[str, dict[formats.ConsumerKey, formats.ConsumerValue]] = {}
        """Records of consumer groups, while the partition is replayed."""
        self._undeleted: dict[str, dict[formats.ConsumerKey | GroupKey, None]] = {}
        """Records of consumer groups whose deletion failed, while a classic group has their place."""

    # ---- events ----

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        turn = self._turn(now_ms)
        match event:
            case Heartbeat():
                self._heartbeat(event, turn)
            case ConsumerHeartbeat():
                self._consumer_heartbeat(event, turn)
            case Commit():
                self._offsets.commit(event, turn)
            case Appended():
                self._offsets.appended(event)
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
                self._timer_fired(event.key, turn)
            case AssignmentComputed() | RegexesResolved():
                self._computed(event, turn)
            case EndTransaction():
                self._offsets.end_transaction(event, turn)
            case DeleteOffsets():
                self._offsets.delete(event, turn)
            case DeleteGroup():
                self._delete_group(event, turn)
            case ExpireOffsets():
                self._expire(turn)
            case TopicsChanged():
                self._topics_changed(event, turn)
        return turn.effects

    def _turn(self, now_ms: int) -> Turn:
        return Turn(now_ms, self._writes, self._settings, self._offsets.topics, self._consumer_settings)

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
                committed = None if value is None else decode_offset(value)
                self._offsets.replay(group_id, TopicPartition(topic, partition), committed, producer_id)
            case GroupKey(group_id):
                if value is None:
                    self._groups.pop(group_id, None)
                else:
                    self._groups[group_id] = group_from_record(group_id, decode_group(value), self._memory)
                    self._deletion_failed(group_id, dict.fromkeys(self._stored.pop(group_id, {})))
            case None:
                self._replay_consumer(record_key, value)

    def _replay_consumer(self, record_key: bytes | memoryview, value: bytes | memoryview | None) -> None:
        key = formats.decode_key(record_key)
        if key is None:
            return
        self._undeleted.get(key.group_id, {}).pop(key, None)
        if value is None:
            stored = self._stored.get(key.group_id, {})
            stored.pop(key, None)
            if not stored:
                self._stored.pop(key.group_id, None)
        else:
            decoded = formats.decode_value(key, value)
            loading.check_value(decoded)
            self._stored.setdefault(key.group_id, {})[key] = decoded
            self._groups.pop(key.group_id, None)

    @safeguard("a group coordinator replays the ends of transactions")
    def replay_marker(self, producer_id: int, *, committed: bool) -> None:
        self._offsets.apply_end(producer_id, committed)

    def finish_replay(self, now_ms: int, topics: TopicView) -> list[Effect]:
        """Call this after the last record. Members keep their ids and assignments; each gets a new session.

        `topics` are those of this broker's image, which made it the leader of this partition. Earlier
        leaders accepted a commit only if they knew the topic, so its creation precedes that image. A topic
        that is not in the image was therefore deleted while another broker coordinated.
        """
        self._offsets.topics = topics
        turn = self._turn(now_ms)
        self._offsets.remove_of_deleted_topics(turn, lambda name: topics.id_of(name) is None)
        for group_id, stored in self._stored.items():
            group = self._groups[group_id] = loading.build(group_id, stored, self._memory)
            group.changed.update(self._undeleted.pop(group_id, {}))
        self._stored.clear()
        for group_id in sorted(self._offsets.groups()):
            self._groups.setdefault(group_id, self._new_group(group_id))
        self._memory.used_bytes = sum(group.size for group in self._groups.values())
        for each in self._groups.values():
            if isinstance(each, ConsumerGroup):
                heartbeat.resume(each, turn)
                self._finish(each, turn)
                continue
            for member in each.members.values():
                restart_session(each, member, turn)
            if len(each.members) > self._settings.group_max_size:
                prepare_rebalance(each, turn)
        return turn.effects

    # ---- consumer groups ----

    def _consumer_heartbeat(self, request: ConsumerHeartbeat, turn: Turn) -> None:
        refusal = heartbeat.check_request(request, self._settings)
        group = None if refusal else self._consumer_group(request)
        if group is None:
            missing = f"Consumer group {request.group_id} not found."
            not_found = heartbeat.Refusal(ErrorCode.GROUP_ID_NOT_FOUND, missing)
            heartbeat.refuse(request, refusal or not_found, turn)
            return
        refusal = heartbeat.check(group, request, turn)
        if refusal is not None:
            heartbeat.refuse(request, refusal, turn)
            return
        self._replace(group, turn)
        if heartbeat.is_leaving(request):
            heartbeat.leave(group, request, turn)
        else:
            heartbeat.heartbeat(group, request, turn)
        self._finish(group, turn)

    def _consumer_group(self, request: ConsumerHeartbeat) -> ConsumerGroup | None:
        """The group of a heartbeat; a new one if a member joins. It counts once the request is accepted."""
        group = self._groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            return group
        if request.member_epoch != JOIN_EPOCH:
            return None
        if group is None:
            return ConsumerGroup(request.group_id)
        return conversion.upgrade(group, self._offsets.topics, self._settings)

    def _replace(self, group: ConsumerGroup, turn: Turn) -> None:
        """A new consumer group counts from now on, also instead of a classic group."""
        old = self._groups.get(group.group_id)
        if old is group:
            return
        if isinstance(old, Group):
            conversion.retire_classic(old, turn)
        self._groups[group.group_id] = group
        group.changed.update(self._undeleted.pop(group.group_id, {}))
        group.memory = self._memory
        self._memory.used_bytes += group.size
        for member in group.members.values():
            heartbeat.restart_session(group, member, turn)

    def _finish(self, group: ConsumerGroup, turn: Turn) -> None:
        """The end of each change of a consumer group."""
        writes.flush(group, turn)
        group.follow_state()
        if conversion.may_downgrade(group, self._settings):
            self._groups[group.group_id] = conversion.downgrade(group, turn, self._after_deletion(group))

    def _after_deletion(self, group: ConsumerGroup) -> AfterAppend:
        """A classic group takes the place of a consumer group, whose records may remain if the append fails.
        They must not come back as those of a later consumer group with this id."""
        keys: dict[formats.ConsumerKey | GroupKey, None] = dict.fromkeys(writes.group_keys(group))

        def stored(turn: Turn, error: ErrorCode) -> None:
            if error not in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT):
                self._deletion_failed(group.group_id, keys)

        return stored

    def _deletion_failed(self, group_id: str, keys: dict[formats.ConsumerKey | GroupKey, None]) -> None:
        """The log may still have these records of a consumer group. The next consumer group with this id
        writes them, or deletes them."""
        now = self._groups.get(group_id)
        if isinstance(now, ConsumerGroup):
            now.changed.update(keys)
        elif keys:
            self._undeleted.setdefault(group_id, {}).update(keys)

    def _computed(self, event: AssignmentComputed | RegexesResolved, turn: Turn) -> None:
        group = self._groups.get(event.request.group_id)
        if not isinstance(group, ConsumerGroup):
            return  # deleted since
        if isinstance(event, AssignmentComputed):
            targets.assignment_computed(group, event, turn)
        else:
            regexes.regexes_resolved(group, event, turn)
        self._finish(group, turn)

    def _topics_changed(self, event: TopicsChanged, turn: Turn) -> None:
        """Consumer groups look at their topics with the next heartbeat of a member, as in Kafka."""
        self._offsets.topics = event.topics
        if event.deleted:
            self._offsets.remove_of_deleted_topics(turn, event.deleted.__contains__)
        for group in self._groups.values():
            if isinstance(group, ConsumerGroup):
                group.follow_topics()

    def _timer_fired(self, key: TimerKey, turn: Turn) -> None:
        group = self._groups.get(key.group_id)
        if isinstance(group, ConsumerGroup):
            self._consumer_timer_fired(group, key, turn)
            self._finish(group, turn)
        elif group is not None:
            classic.timer_fired(group, key, turn)
            self._remove_if_unused(group)

    def _consumer_timer_fired(self, group: ConsumerGroup, key: TimerKey, turn: Turn) -> None:
        match key.kind:
            case TimerKind.SESSION:
                heartbeat.session_expired(group, key.member_id, turn)
            case TimerKind.REVOCATION:
                heartbeat.revocation_timed_out(group, key.member_id, turn)
            case TimerKind.ASSIGNMENT:
                targets.assignment_timer_fired(group, turn)
            case TimerKind.RESUMPTION:
                targets.resume_waiting(group, turn)
            case TimerKind.JOIN | TimerKind.SYNC:
                classic_members.timed_out(group, key.member_id, turn)

    # ---- classic groups ----

    def _join(self, request: Join, turn: Turn) -> None:
        error = classic.check_join(request, self._settings)
        group = self._groups.get(request.group_id)
        if error == ErrorCode.NONE and _is_gone(group) and request.member_id != NO_MEMBER_ID:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if error != ErrorCode.NONE:
            turn.reply(request.token, JoinResponse(error=error, member_id=request.member_id))
            return
        group = group or self._groups.setdefault(request.group_id, self._new_group(request.group_id))
        if isinstance(group, ConsumerGroup) and not group.is_empty:
            classic_members.join(group, request, turn)
            self._finish(group, turn)
            return
        if isinstance(group, ConsumerGroup):
            turn.append(writes.tombstones(group), self._after_deletion(group))
            conversion.retire_consumer(group, turn)
            group = self._groups[request.group_id] = self._new_group(request.group_id)
        classic.join(group, request, turn)
        self._remove_if_unused(group)

    def _sync(self, request: Sync, turn: Turn) -> None:
        group = self._groups.get(request.group_id)
        if group is None:
            turn.reply(request.token, SyncResponse(error=_no_group(request.group_id)))
        elif isinstance(group, ConsumerGroup):
            classic_members.sync(group, request, turn)
            self._finish(group, turn)
        else:
            classic.sync(group, request, turn)

    def _heartbeat(self, request: Heartbeat, turn: Turn) -> None:
        group = self._groups.get(request.group_id)
        if group is None:
            turn.reply(request.token, ErrorResponse(error=_no_group(request.group_id)))
        elif isinstance(group, ConsumerGroup):
            classic_members.heartbeat(group, request, turn)
        else:
            classic.heartbeat(group, request, turn)

    def _leave(self, request: Leave, turn: Turn) -> None:
        group = self._groups.get(request.group_id)
        if group is None:
            error = _no_group(request.group_id)
            turn.reply(
                request.token, LeaveResponse(members=tuple((leaver, error) for leaver in request.leavers))
            )
        elif isinstance(group, ConsumerGroup):
            classic_members.leave(group, request, turn)
            self._finish(group, turn)
        else:
            classic.leave(group, request, turn)
            self._remove_if_unused(group)

    def _remove_if_unused(self, group: Group) -> None:
        """Remove a group that never had members (a rejected join, an expired pending member)."""
        if group.is_empty and group.generation == 0 and not self._offsets.is_used(group.group_id):
            self._groups.pop(group.group_id, None)

    # ---- deletion ----

    def _delete_group(self, request: DeleteGroup, turn: Turn) -> None:
        group = self._groups.get(request.group_id)
        if group is None:
            turn.reply(request.token, ErrorResponse(error=ErrorCode.GROUP_ID_NOT_FOUND))
        elif group.state not in (GroupState.EMPTY, ConsumerGroupState.EMPTY):
            turn.reply(request.token, ErrorResponse(error=ErrorCode.NON_EMPTY_GROUP))
        else:
            self._append_deletion(group, turn, request)

    def _append_deletion(self, group: AnyGroup, turn: Turn, request: DeleteGroup | None = None) -> None:
        """Remove the group at once: a member that joins now starts a new one. If the append fails, the group
        is restored without members."""
        to_remove = self._offsets.partitions(group.group_id)
        records = [tombstone(group.group_id, partition) for partition in to_remove]
        timestamp_ms = None if isinstance(group, ConsumerGroup) else group.state_timestamp_ms
        if isinstance(group, ConsumerGroup):
            records += writes.tombstones(group)
            targets.stop_computing(group, turn)
        else:
            records.append(StoredRecord(encode_key(GroupKey(group.group_id)), None))
            for member_id in list(group.pending_members):
                turn.cancel_timer(classic.session_key(group, member_id))
                group.drop_pending(member_id)
            group.move(Cause.GROUP_DELETED, turn.now_ms)
        del self._groups[group.group_id]

        def stored(turn: Turn, error: ErrorCode) -> None:
            if error == ErrorCode.NONE:
                self._offsets.remove(group.group_id, to_remove)
            elif error != ErrorCode.REQUEST_TIMED_OUT:  # otherwise the deletion may still become durable
                self._restore(group, timestamp_ms)
            if request is not None:
                turn.reply(request.token, ErrorResponse(error=response_error(error)))

        turn.append(records, stored)

    def _restore(self, deleted: AnyGroup, timestamp_ms: int | None) -> None:
        """The log may still have the group. It may have got members since, and be of the other kind."""
        group_id = deleted.group_id
        if isinstance(deleted, ConsumerGroup):
            keys: dict[formats.ConsumerKey | GroupKey, None] = dict.fromkeys(writes.group_keys(deleted))
            self._groups.setdefault(group_id, deleted)
            self._deletion_failed(group_id, keys)
            return
        restored = self._groups.setdefault(group_id, self._new_group(group_id))
        if isinstance(restored, ConsumerGroup):
            restored.changed[GroupKey(group_id)] = None
            return
        restored.protocol_type = restored.protocol_type or deleted.protocol_type
        restored.generation = max(restored.generation, deleted.generation)
        restored.state_timestamp_ms = max(restored.state_timestamp_ms, timestamp_ms or 0)

    def _expire(self, turn: Turn) -> None:
        for group in self._offsets.expire(turn):
            self._append_deletion(group, turn)
        for group in self._groups.values():
            if isinstance(group, ConsumerGroup):
                writes.flush(group, turn)  # what failed, if no member has sent a heartbeat since

    # ---- queries ----

    def may_refuse(self, request: Request) -> bool:
        """Whether a request may be refused while too many wait: it would add a member to its group."""
        if not isinstance(request, Join | ConsumerHeartbeat):
            return False
        group = self._groups.get(request.group_id)
        if isinstance(request, ConsumerHeartbeat):
            known = isinstance(group, ConsumerGroup) and request.member_id in group.members
            return request.member_epoch == JOIN_EPOCH and not known
        if isinstance(group, ConsumerGroup):
            return request.member_id not in group.members
        return group is None or group.adds_member(request.member_id, request.group_instance_id)

    def offsets(self, group_id: str) -> OffsetsByPartition:
        """Committed, durable offsets. Read-only."""
        return self._offsets.of(group_id)

    def groups_with_offsets(self) -> list[str]:
        """Ids of the groups that have committed offsets, in the order in which they got the first."""
        return self._offsets.group_ids()

    @safeguard("OffsetFetch waits for offsets of open transactions")
    def unstable_partitions(self, group_id: str) -> list[TopicPartition]:
        """Partitions whose offsets an open transaction may change (KIP-447)."""
        return self._offsets.unstable_partitions(group_id)

    def check_fetch(self, group_id: str, member_id: str, member_epoch: int) -> ErrorCode:
        """The error of an OffsetFetch with a member's epoch (version 9). Only consumer groups check it."""
        group = self._groups.get(group_id)
        return (
            check_fetch(group, member_id, member_epoch)
            if isinstance(group, ConsumerGroup)
            else ErrorCode.NONE
        )

    @property
    def member_bytes(self) -> int:
        """Memory used by the members of all groups."""
        return self._memory.used_bytes

    def count_consumers(self) -> int:
        """Members of all consumer groups. Visits all groups."""
        return sum(len(group.members) for group in self._groups.values() if isinstance(group, ConsumerGroup))

    def list_groups(self) -> list[tuple[str, str, str, str]]:
        """(id, protocol type, state, group type) of every group."""
        return [
            (group.group_id, CONSUMER, str(group.state), CONSUMER)
            if isinstance(group, ConsumerGroup)
            else (group.group_id, group.protocol_type or "", str(group.state), CLASSIC)
            for group in self._groups.values()
        ]

    def describe(self, group_id: str) -> DescribedGroup | None:
        """None if there is no such classic group. The metadata of members are set only while it is Stable,
        as in Kafka."""
        group = self._groups.get(group_id)
        if not isinstance(group, Group):
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
                    member_assignment=member.assignment,
                )
                for member in group.members.values()
            ],
        )

    def describe_consumer(self, group_id: str) -> consumer_group_describe.DescribedGroup | None:
        """None if there is no such consumer group."""
        group = self._groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            return None
        return describe_consumer_group(group, self._settings.group_consumer_assignors, self._offsets.topics)

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


def _is_gone(group: AnyGroup | None) -> bool:
    """Whether a classic member starts a new group: also in place of an empty consumer group."""
    return group is None or (isinstance(group, ConsumerGroup) and group.is_empty)


def _no_group(group_id: str) -> ErrorCode:
    return ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID
