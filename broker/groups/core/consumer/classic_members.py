"""Classic members of a consumer group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup (KIP-848, migration).

While a group is upgraded, some members still use the classic protocol. To them a rebalance looks as usual: a
heartbeat tells them to rejoin, JoinGroup returns the member's epoch as the generation, and SyncGroup its
partitions. No member is the leader: the broker assigns. JoinGroup says what the member owns, so it reconciles
as other members do with a heartbeat. Called by coordinator.py.
"""

from dataclasses import dataclass

from tierlog.base.safeguards import safeguard
from tierlog.broker.coordinators.core.effects import ErrorResponse
from tierlog.broker.coordinators.core.stored import FormatError
from tierlog.broker.groups.core.consumer.embedded_protocol import (
    PROTOCOL_TYPE,
    Subscription,
    decode_subscription,
    encode_assignment,
)
from tierlog.broker.groups.core.consumer.formats import ClassicMemberMetadata, ClassicProtocol, MemberMetadata
from tierlog.broker.groups.core.consumer.group import INITIAL_EPOCH, ConsumerGroup
from tierlog.broker.groups.core.consumer.heartbeat import remove_members, restart_session, update_member
from tierlog.broker.groups.core.consumer.member import ConsumerMember, metadata_size
from tierlog.broker.groups.core.consumer.states import MemberState
from tierlog.broker.groups.core.consumer.targets import (
    reconcile_member,
    refresh_epoch,
    request_target,
    wait_for_target,
)
from tierlog.broker.groups.core.consumer.writes import Waiting, respond_when_durable
from tierlog.broker.groups.core.events import (
    NO_MEMBER_ID,
    Heartbeat,
    Join,
    JoinResponse,
    Leave,
    Leaver,
    LeaveResponse,
    Sync,
    SyncResponse,
    TimerKey,
    TimerKind,
)
from tierlog.broker.groups.core.turn import Turn
from tierlog.protocol.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class _Joining:
    request: Join
    member_id: str
    subscription: Subscription
    subscription_changed: bool


# ---- JoinGroup ------------------------------------------------------------------------------------


def join(group: ConsumerGroup, request: Join, turn: Turn) -> None:
    subscription, error = _check_join(group, request, turn)
    if subscription is None or error != ErrorCode.NONE:
        shown = NO_MEMBER_ID if error is ErrorCode.GROUP_MAX_SIZE_REACHED else request.member_id
        turn.reply(request.token, JoinResponse(error=error, member_id=shown))
        return
    member_id = request.member_id or request.generated_member_id
    if request.member_id == NO_MEMBER_ID and request.member_id_required and request.group_instance_id is None:
        if _owns_any(subscription):
            group.new_ids.append(member_id)
        turn.reply(request.token, JoinResponse(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))
        return
    if member_id in group.new_ids:
        group.new_ids.remove(member_id)
    old = _previous_member(group, request)
    member = update_member(group, old, member_id, _metadata(old, request, subscription), turn)
    changed = old is None or old.names != member.names or old.regex != member.regex
    refresh_epoch(group, turn, bump=changed or group.epoch == INITIAL_EPOCH)
    request_target(group, turn)
    restart_session(group, member, turn)
    _cancel(group, member_id, TimerKind.REVOCATION, turn)
    joining = _Joining(request, member_id, subscription, changed)
    if group.epoch > group.assignment_epoch:
        waiting = Waiting(
            group.epoch,
            lambda turn: _finish_join(group, joining, turn),
            lambda turn, error: turn.reply(request.token, JoinResponse(error=error, member_id=member_id)),
        )
        wait_for_target(group, member_id, waiting, turn)
    else:
        _finish_join(group, joining, turn)


def _check_join(group: ConsumerGroup, request: Join, turn: Turn) -> tuple[Subscription | None, ErrorCode]:
    old = _previous_member(group, request)
    if old is None and len(group.members) >= turn.settings.group_consumer_max_size:
        return None, ErrorCode.GROUP_MAX_SIZE_REACHED
    if not _supports(group, request):
        return None, ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if request.group_instance_id is not None and request.member_id != NO_MEMBER_ID:
        if old is None:
            return None, ErrorCode.UNKNOWN_MEMBER_ID
        if old.member_id != request.member_id:
            return None, ErrorCode.FENCED_INSTANCE_ID
    try:
        subscription = decode_subscription(request.protocols[0][1])
    except FormatError:
        return None, ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if _was_removed(group, old, request, subscription):
        return None, ErrorCode.UNKNOWN_MEMBER_ID
    own = 0 if old is not None else ConsumerMember(member_id=request.generated_member_id).size
    more = own + metadata_size(_metadata(old, request, subscription))
    more -= 0 if old is None else metadata_size(old.metadata)
    if more > max(request.free_bytes, 0):
        return None, ErrorCode.COORDINATOR_NOT_AVAILABLE
    return subscription, ErrorCode.NONE


def _previous_member(group: ConsumerGroup, request: Join) -> ConsumerMember | None:
    """The member that the request is from, or the static member whose place it takes."""
    if request.group_instance_id is not None:
        return group.static_member(request.group_instance_id)
    return group.members.get(request.member_id)


@safeguard("a removed classic member does not join with its partitions")
def _was_removed(
    group: ConsumerGroup, old: ConsumerMember | None, request: Join, subscription: Subscription
) -> bool:
    """Whether the member was in the group until its session expired. Others may have its partitions since, so
    it has to learn that it lost them, as from a classic group. Kafka takes it as a new member, which gives
    them up in its new generation, and commits what it had read of them."""
    is_new = request.member_id == NO_MEMBER_ID or request.member_id in group.new_ids
    return old is None and not is_new and _owns_any(subscription)


def _owns_any(subscription: Subscription) -> bool:
    return any(each.partitions for each in subscription.owned_partitions)


def _supports(group: ConsumerGroup, request: Join) -> bool:
    """Whether the member shares a protocol with all classic members."""
    if request.protocol_type != PROTOCOL_TYPE or not request.protocols:
        return False
    return any(group.classic_protocols[name] == group.classic_members for name, _ in request.protocols)


def _metadata(old: ConsumerMember | None, request: Join, subscription: Subscription) -> MemberMetadata:
    return MemberMetadata(
        instance_id=request.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_topic_names=tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        server_assignor=None if old is None else old.metadata.server_assignor,
        classic_member_metadata=ClassicMemberMetadata(
            session_timeout_ms=request.session_timeout_ms,
            supported_protocols=[
                ClassicProtocol(name=name, metadata=metadata) for name, metadata in request.protocols
            ],
        ),
    )


def _finish_join(group: ConsumerGroup, joining: _Joining, turn: Turn) -> None:
    request, topics = joining.request, turn.topics
    owned = {
        topic_id: frozenset(each.partitions)
        for each in joining.subscription.owned_partitions
        if (topic_id := topics.id_of(each.topic)) is not None
    }
    member = group.members[joining.member_id]
    changed = joining.subscription_changed
    member = reconcile_member(group, member, owned, turn, subscription_changed=changed)
    response = JoinResponse(
        member_id=member.member_id,
        generation=member.epoch,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=request.protocols[0][0],
    )

    def respond(turn: Turn, error: ErrorCode) -> None:
        if error != ErrorCode.NONE:
            turn.reply(request.token, JoinResponse(error=error, member_id=response.member_id))
            return
        turn.reply(request.token, response)
        present = group.members.get(response.member_id)
        if present is not None and present.is_classic:
            _cancel(group, response.member_id, TimerKind.JOIN, turn)
            group.rejoining.discard(response.member_id)
            restart_session(group, present, turn)
            _set(group, present, TimerKind.SYNC, turn)

    respond_when_durable(group, turn, respond)


# ---- SyncGroup, Heartbeat -------------------------------------------------------------------------


def sync(group: ConsumerGroup, request: Sync, turn: Turn) -> None:
    error = _validate(group, request.member_id, request.group_instance_id, request.generation)
    if error != ErrorCode.NONE:
        turn.reply(request.token, SyncResponse(error=error))
        return
    member = group.members[request.member_id]
    name, subscription = _protocol(member)
    if request.protocol_type not in (None, PROTOCOL_TYPE) or request.protocol_name not in (None, name):
        turn.reply(request.token, SyncResponse(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        return
    if member.epoch < group.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        _expect_join(group, member, turn)
        turn.reply(request.token, SyncResponse(error=ErrorCode.REBALANCE_IN_PROGRESS))
        return
    _cancel(group, member.member_id, TimerKind.SYNC, turn)
    restart_session(group, member, turn)
    partitions = {
        topic: sorted(numbers)
        for topic_id, numbers in member.assigned.items()
        if (topic := turn.topics.name_of(topic_id)) is not None
    }
    response = SyncResponse(
        protocol_type=PROTOCOL_TYPE,
        protocol_name=name,
        assignment=encode_assignment(partitions, subscription),
    )

    def respond(turn: Turn, error: ErrorCode) -> None:
        turn.reply(request.token, response if error == ErrorCode.NONE else SyncResponse(error=error))

    respond_when_durable(group, turn, respond)


def heartbeat(group: ConsumerGroup, request: Heartbeat, turn: Turn) -> None:
    error = _validate(group, request.member_id, request.group_instance_id, request.generation)
    if error == ErrorCode.NONE:
        member = group.members[request.member_id]
        restart_session(group, member, turn)
        if _should_rejoin(group, member):
            _expect_join(group, member, turn)
            error = ErrorCode.REBALANCE_IN_PROGRESS
    turn.reply(request.token, ErrorResponse(error=error))


def _should_rejoin(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """There is a newer epoch, the member must give partitions up, or others have released partitions."""
    if member.epoch < group.epoch or member.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    if member.state is MemberState.STABLE:
        return False
    target = group.targets.get(member.member_id, {})
    missing = (
        (topic_id, number)
        for topic_id, numbers in target.items()
        for number in numbers
        if number not in member.assigned.get(topic_id, {})
    )
    return all(group.is_free(member, topic_id, number) for topic_id, number in missing)


def _validate(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
    if instance_id is not None:
        static = group.static_member(instance_id)
        if static is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if static.member_id != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    member = group.members.get(member_id)
    if member is None or not member.is_classic:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if generation == member.epoch else ErrorCode.ILLEGAL_GENERATION


def _protocol(member: ConsumerMember) -> tuple[str, bytes]:
    """The member's first protocol: all have the same subscription."""
    classic = member.metadata.classic_member_metadata
    first = classic.supported_protocols[0] if classic is not None else ClassicProtocol()
    return first.name, bytes(first.metadata)


# ---- LeaveGroup, timers ---------------------------------------------------------------------------


def leave(group: ConsumerGroup, request: Leave, turn: Turn) -> None:
    """An admin may remove any member, and classic members leave by themselves."""
    results, removed = [], []
    for leaver in request.leavers:
        member_id, error = _leaver(group, leaver)
        if error == ErrorCode.NONE and member_id not in removed:
            removed.append(member_id)
        results.append((leaver, error))
    response = LeaveResponse(members=tuple(results))
    if removed:
        remove_members(group, removed, turn)

    def respond(turn: Turn, error: ErrorCode) -> None:
        turn.reply(request.token, response if error == ErrorCode.NONE else ErrorResponse(error=error))

    respond_when_durable(group, turn, respond)


def _leaver(group: ConsumerGroup, leaver: Leaver) -> tuple[str, ErrorCode]:
    static = group.static_member(leaver.group_instance_id)
    if leaver.group_instance_id is not None:
        if static is None:
            return NO_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID
        if leaver.member_id not in (NO_MEMBER_ID, static.member_id):
            return NO_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID
        return static.member_id, ErrorCode.NONE
    known = leaver.member_id in group.members
    return leaver.member_id, ErrorCode.NONE if known else ErrorCode.UNKNOWN_MEMBER_ID


def timed_out(group: ConsumerGroup, member_id: str, turn: Turn) -> None:
    """A classic member has not sent JoinGroup or SyncGroup within its rebalance timeout."""
    member = group.members.get(member_id)
    if member is not None and member.is_classic:
        remove_members(group, [member_id], turn)


def _expect_join(group: ConsumerGroup, member: ConsumerMember, turn: Turn) -> None:
    if member.member_id not in group.rejoining:
        group.rejoining.add(member.member_id)
        _set(group, member, TimerKind.JOIN, turn)


def _set(group: ConsumerGroup, member: ConsumerMember, kind: TimerKind, turn: Turn) -> None:
    key = TimerKey(kind, group.group_id, member.member_id)
    turn.set_timer(key, max(member.metadata.rebalance_timeout_ms, 0))


def _cancel(group: ConsumerGroup, member_id: str, kind: TimerKind, turn: Turn) -> None:
    turn.cancel_timer(TimerKey(kind, group.group_id, member_id))
