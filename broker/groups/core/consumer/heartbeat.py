"""Heartbeat protocol of consumer groups: ConsumerGroupHeartbeat, sessions and revocation timeouts (KIP-848).

Errors and the order of checks are those of Kafka 4.3. A heartbeat is first checked as a whole, so that a
refused one changes nothing. Then the member and the group's epoch follow what it says, and the member moves
towards its target. Called by coordinator.py.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple
from uuid import UUID

from tierlog.base.safeguards import safeguard
from tierlog.broker.groups.core.consumer.formats import MemberMetadata
from tierlog.broker.groups.core.consumer.group import INITIAL_EPOCH, ConsumerGroup
from tierlog.broker.groups.core.consumer.member import NO_PARTITIONS, ConsumerMember, metadata_size
from tierlog.broker.groups.core.consumer.reconciliation import Owned
from tierlog.broker.groups.core.consumer.regexes import most_bytes_of_next_regex, refresh_regexes
from tierlog.broker.groups.core.consumer.states import MemberState
from tierlog.broker.groups.core.consumer.subscriptions import regex_error
from tierlog.broker.groups.core.consumer.targets import (
    follow_revocation,
    reconcile_member,
    refresh_epoch,
    request_target,
    stop_waiting,
    wait_for_target,
)
from tierlog.broker.groups.core.consumer.writes import Waiting, respond_when_durable
from tierlog.broker.groups.core.events import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerHeartbeat,
    ConsumerHeartbeatResponse,
    TimerKey,
    TimerKind,
)
from tierlog.broker.groups.core.turn import GroupSettings, Turn
from tierlog.protocol.errors import ErrorCode


class Refusal(NamedTuple):
    error: ErrorCode
    message: str | None = None


def refuse(request: ConsumerHeartbeat, refusal: Refusal, turn: Turn) -> None:
    turn.reply(request.token, ConsumerHeartbeatResponse(error=refusal.error, error_message=refusal.message))


# ---- checks ---------------------------------------------------------------------------------------


def check_request(request: ConsumerHeartbeat, settings: GroupSettings) -> Refusal | None:
    """The checks that need no group."""
    if not request.group_id.strip():
        return _invalid("GroupId can't be empty.")
    if request.instance_id is not None and not request.instance_id.strip():
        return _invalid("InstanceId can't be empty.")
    if request.rack_id is not None and not request.rack_id.strip():
        return _invalid("RackId can't be empty.")
    if request.member_epoch < STATIC_LEAVE_EPOCH:
        return _invalid("MemberEpoch is invalid.")
    if not request.member_id and (request.member_epoch != JOIN_EPOCH or not request.generated_member_id):
        return _invalid("MemberId can't be empty.")
    if request.member_epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        return _invalid("InstanceId can't be null.")
    if request.member_epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == -1:
            return _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.owned is None or any(partitions for _, partitions in request.owned):
            return _invalid("TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topics is None and request.subscribed_regex is None:
            return _invalid(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
            )
    assignor, supported = request.server_assignor, settings.group_consumer_assignors
    if assignor is not None and assignor not in supported:
        message = f"ServerAssignor {assignor} is not supported. Supported assignors: {', '.join(supported)}."
        return Refusal(ErrorCode.UNSUPPORTED_ASSIGNOR, message)
    return None


def _invalid(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, message)


def check(group: ConsumerGroup, request: ConsumerHeartbeat, turn: Turn) -> Refusal | None:
    """The checks of a request against its group."""
    return _check_leave(group, request) if is_leaving(request) else _check_heartbeat(group, request, turn)


def _check_heartbeat(group: ConsumerGroup, request: ConsumerHeartbeat, turn: Turn) -> Refusal | None:
    member_id, joins = _member_id(request), request.member_epoch == JOIN_EPOCH
    old = _previous_member(group, request)
    limit = turn.settings.group_consumer_max_size
    if old is None and joins and len(group.members) >= limit:
        message = f"The consumer group has reached its maximum capacity of {limit} members."
        return Refusal(ErrorCode.GROUP_MAX_SIZE_REACHED, message)
    refusal = _check_identity(old, request) if old is not None else None
    if old is None and not joins:
        unknown = f"Member {member_id} is not a member of group {group.group_id}."
        refusal = Refusal(ErrorCode.UNKNOWN_MEMBER_ID, unknown)
    if refusal is not None:
        return refusal
    pattern = request.subscribed_regex
    if pattern and not group.regex_subscribers[pattern]:
        why = regex_error(pattern)
        if why is not None:
            message = f"SubscribedTopicRegex `{pattern[:100]}` is not a valid regular expression: {why}."
            return Refusal(ErrorCode.INVALID_REGULAR_EXPRESSION, message)
    before = ConsumerMember(member_id="").size if old is None else 0
    if pattern and not group.regex_subscribers[pattern]:
        before += most_bytes_of_next_regex(group, turn.topics)
    more = before + metadata_size(_metadata(old, request)) - (metadata_size(old.metadata) if old else 0)
    if more > max(request.free_bytes, 0):
        return Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The broker has no memory for more members.")
    return None


def _check_identity(old: ConsumerMember, request: ConsumerHeartbeat) -> Refusal | None:
    member_id, instance_id = _member_id(request), request.instance_id
    if old.member_id != member_id:  # a static member with this instance id
        if request.member_epoch != JOIN_EPOCH:
            return _fenced(request, old)
        if not old.is_away and not old.is_classic:
            message = (
                f"Static member {member_id} with instance id {instance_id} cannot join the group because "
                f"the instance id is owned by {old.member_id} member."
            )
            return Refusal(ErrorCode.UNRELEASED_INSTANCE_ID, message)
        return None
    if (
        request.instance_id is not None
        and old.instance_id == instance_id
        and request.member_epoch == JOIN_EPOCH
    ):
        return None
    return _check_epoch(old, request)


@safeguard("heartbeats of an old epoch are refused")
def _check_epoch(member: ConsumerMember, request: ConsumerHeartbeat) -> Refusal | None:
    """Epoch 0 always joins. The previous epoch is accepted from a member that owns nothing it should not: it
    may have missed the response with the present epoch."""
    epoch = request.member_epoch
    if epoch in (JOIN_EPOCH, member.epoch):
        return None
    if epoch == member.previous_epoch and epoch < member.epoch and _is_subset(request, member):
        return None
    than = "greater" if epoch > member.epoch else "smaller"
    message = (
        f"The consumer group member has a {than} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin."
    )
    return Refusal(ErrorCode.FENCED_MEMBER_EPOCH, message)


def _is_subset(request: ConsumerHeartbeat, member: ConsumerMember) -> bool:
    if request.owned is None:
        return False
    return all(
        member.assigned.get(topic_id, {}).keys() >= set(partitions) for topic_id, partitions in request.owned
    )


def _member_id(request: ConsumerHeartbeat) -> str:
    return request.member_id or request.generated_member_id


def _previous_member(group: ConsumerGroup, request: ConsumerHeartbeat) -> ConsumerMember | None:
    """The member that the request is from, or the static member whose place it takes."""
    if request.instance_id is None:
        return group.members.get(_member_id(request))
    static = group.static_member(request.instance_id)
    if static is None and request.member_epoch == JOIN_EPOCH:
        return group.members.get(_member_id(request))
    return static


def _metadata(old: ConsumerMember | None, request: ConsumerHeartbeat) -> MemberMetadata:
    """The member's metadata after the request: what it does not say stays."""
    base = MemberMetadata(client_id="", client_host="") if old is None else old.metadata
    names, regex = request.subscribed_topics, request.subscribed_regex
    return MemberMetadata(
        instance_id=base.instance_id if request.instance_id is None else request.instance_id,
        rack_id=base.rack_id if request.rack_id is None else request.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_topic_names=base.subscribed_topic_names if names is None else tuple(sorted(set(names))),
        subscribed_topic_regex=base.subscribed_topic_regex if regex is None else regex,
        rebalance_timeout_ms=(
            base.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
        ),
        server_assignor=base.server_assignor if request.server_assignor is None else request.server_assignor,
    )


# ---- heartbeats -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Heard:
    """A heartbeat that waits for its target, or no longer does. `owned`: the member's partitions now."""

    request: ConsumerHeartbeat
    member_id: str
    subscription_changed: bool
    old: ConsumerMember | None
    owned: Owned


def heartbeat(group: ConsumerGroup, request: ConsumerHeartbeat, turn: Turn) -> None:
    """Handle a heartbeat which passed the checks."""
    old = _previous_member(group, request)
    member_id = _member_id(request)
    stop_waiting(group, member_id, turn, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    merges = old is not None and old.member_id != member_id and member_id in group.members
    member = update_member(group, old, member_id, _metadata(old, request), turn)
    names_changed = old is None or old.names != member.names
    regex_changed = member.regex != ("" if old is None else old.regex)
    bump = (
        group.epoch == INITIAL_EPOCH
        or merges  # the member took the place of another, and what it had itself needs an owner
        or (names_changed and bool(member.names or (old and old.names)))
        or (regex_changed and (not member.regex or member.regex in group.regexes))
    )
    refresh_regexes(group, turn, request.may_describe)
    epoch = group.epoch
    refresh_epoch(group, turn, bump=bump)
    request_target(group, turn)
    restart_session(group, member, turn)
    heard = _Heard(request, member_id, names_changed or regex_changed, old, _owned_now(request, old))
    joins = request.member_epoch == JOIN_EPOCH
    if group.epoch > group.assignment_epoch and (joins or group.epoch > epoch):
        waiting = Waiting(
            group.epoch,
            lambda turn: _finish(group, heard, turn),
            lambda turn, error: refuse(request, Refusal(error), turn),
        )
        wait_for_target(group, member_id, waiting, turn)
    else:
        _finish(group, heard, turn)


def update_member(
    group: ConsumerGroup, old: ConsumerMember | None, member_id: str, metadata: MemberMetadata, turn: Turn
) -> ConsumerMember:
    """Give the member other metadata. A static member may get another member id."""
    if old is not None and old.member_id == member_id and old.metadata == metadata:
        return old
    if old is None or old.member_id == member_id:
        member = replace(old or ConsumerMember(member_id=member_id), metadata=metadata)
        group.put(member)
        return member
    cancel_timers(group, old.member_id, turn)
    stop_waiting(group, old.member_id, turn, ErrorCode.FENCED_INSTANCE_ID)
    current = replace(old.current, member_epoch=JOIN_EPOCH, previous_member_epoch=JOIN_EPOCH)
    member = ConsumerMember(member_id=member_id, metadata=metadata, current=current)
    group.replace_static(old.member_id, member)
    return member


def _finish(group: ConsumerGroup, heard: _Heard, turn: Turn) -> None:
    request, member = heard.request, group.members[heard.member_id]
    moved = reconcile_member(
        group, member, heard.owned, turn, subscription_changed=heard.subscription_changed
    )
    is_full = (
        request.rebalance_timeout_ms != -1
        and (request.subscribed_topics is not None or request.subscribed_regex is not None)
        and request.owned is not None
    )
    is_unconfirmed = _is_unconfirmed(group, heard, moved)
    is_behind = heard.old is not None and request.member_epoch < heard.old.epoch
    shows = (
        request.member_epoch == JOIN_EPOCH
        or is_behind  # it missed the response with its present epoch
        or is_full
        or heard.old is None
        or moved.assigned != heard.old.assigned
        or is_unconfirmed
    )
    response = ConsumerHeartbeatResponse(
        member_id=moved.member_id,
        member_epoch=moved.epoch,
        heartbeat_interval_ms=turn.consumer_settings(group.group_id).heartbeat_interval_ms,
        assignment=moved.assigned_partitions if shows else None,
    )

    def respond(turn: Turn, error: ErrorCode) -> None:
        if error == ErrorCode.NONE:
            turn.reply(request.token, response)
        else:
            refuse(request, Refusal(error), turn)

    respond_when_durable(group, turn, respond)


@safeguard("an assignment is repeated until its member confirms it")
def _is_unconfirmed(group: ConsumerGroup, heard: _Heard, moved: ConsumerMember) -> bool:
    """Whether the member may have missed a change of its assignment, because a response was lost. Its next
    heartbeat should then have all fields, but librdkafka 2.16 leaves them out, and would never know what to
    give up, or what it got: the epoch may rise with a later response. Kafka has no such rule."""
    is_confirmed = heard.owned is not None and heard.owned == {
        topic_id: frozenset(numbers) for topic_id, numbers in moved.assigned.items()
    }
    if heard.old is None or is_confirmed:
        group.unconfirmed.discard(moved.member_id)
    elif moved.assigned != heard.old.assigned and moved.epoch == heard.old.epoch:
        group.unconfirmed.add(moved.member_id)
    return moved.member_id in group.unconfirmed or moved.state is MemberState.UNREVOKED_PARTITIONS


def _owned_now(request: ConsumerHeartbeat, old: ConsumerMember | None) -> Owned:
    """The partitions that the member owns, None if its heartbeat does not say it. A heartbeat of the previous
    epoch may be a late copy: others may have been assigned since. Kafka takes them for revoked."""
    if old is not None and JOIN_EPOCH < request.member_epoch < old.epoch:
        return None
    return _owned(request)


def _owned(request: ConsumerHeartbeat) -> Owned:
    if request.owned is None:
        return None
    owned: dict[UUID, frozenset[int]] = {}
    for topic_id, partitions in request.owned:  # a topic may come twice
        owned[topic_id] = owned.get(topic_id, frozenset()).union(partitions)
    return owned


# ---- leaving --------------------------------------------------------------------------------------


def _check_leave(group: ConsumerGroup, request: ConsumerHeartbeat) -> Refusal | None:
    if request.instance_id is None:
        known = request.member_id in group.members
        unknown = f"Member {request.member_id} is not a member of group {group.group_id}."
        return None if known else Refusal(ErrorCode.UNKNOWN_MEMBER_ID, unknown)
    static = group.static_member(request.instance_id)
    if static is None:
        return Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {request.instance_id} is unknown.")
    if static.member_id != request.member_id:
        return _fenced(request, static)
    return None


def _fenced(request: ConsumerHeartbeat, by: ConsumerMember) -> Refusal:
    message = (
        f"Static member {request.member_id} with instance id {request.instance_id} was fenced by member "
        f"{by.member_id}."
    )
    return Refusal(ErrorCode.FENCED_INSTANCE_ID, message)


def leave(group: ConsumerGroup, request: ConsumerHeartbeat, turn: Turn) -> None:
    """A static member that leaves with STATIC_LEAVE_EPOCH keeps its partitions until its session expires."""
    member = group.members[request.member_id]
    if request.member_epoch == STATIC_LEAVE_EPOCH:
        stop_waiting(group, member.member_id, turn, ErrorCode.UNKNOWN_MEMBER_ID)
        turn.cancel_timer(TimerKey(TimerKind.REVOCATION, group.group_id, member.member_id))
        away = replace(
            member.current,
            member_epoch=STATIC_LEAVE_EPOCH,
            partitions_pending_revocation=NO_PARTITIONS,
        )
        group.put(replace(member, current=away))
    else:
        remove_members(group, [member.member_id], turn)
    response = ConsumerHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)

    def respond(turn: Turn, error: ErrorCode) -> None:
        if error == ErrorCode.NONE:
            turn.reply(request.token, response)
        else:
            refuse(request, Refusal(error), turn)

    respond_when_durable(group, turn, respond)


def is_leaving(request: ConsumerHeartbeat) -> bool:
    return request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH)


def remove_members(group: ConsumerGroup, member_ids: list[str], turn: Turn) -> None:
    for member_id in member_ids:
        cancel_timers(group, member_id, turn)
        stop_waiting(group, member_id, turn, ErrorCode.UNKNOWN_MEMBER_ID)
        group.remove(member_id)
    if group.is_empty:
        group.emptied_ms = turn.now_ms
    refresh_epoch(group, turn, bump=True)
    request_target(group, turn)


def resume(group: ConsumerGroup, turn: Turn) -> None:
    """After a load: each member gets a new session, and the group continues where it was."""
    for member in group.members.values():
        restart_session(group, member, turn)
        if not member.is_classic and member.state is MemberState.UNREVOKED_PARTITIONS:
            follow_revocation(group, member, turn)
    group.names_changed = True
    request_target(group, turn)


# ---- timers ---------------------------------------------------------------------------------------


@safeguard("a silent member is removed after its session")
def session_expired(group: ConsumerGroup, member_id: str, turn: Turn) -> None:
    if member_id in group.members:
        remove_members(group, [member_id], turn)


def revocation_timed_out(group: ConsumerGroup, member_id: str, turn: Turn) -> None:
    """The member did not give its partitions up: others get them without it."""
    member = group.members.get(member_id)
    if member is not None and member.state is MemberState.UNREVOKED_PARTITIONS:
        remove_members(group, [member_id], turn)


def restart_session(group: ConsumerGroup, member: ConsumerMember, turn: Turn) -> None:
    classic = member.metadata.classic_member_metadata
    if classic is None:
        timeout_ms = turn.consumer_settings(group.group_id).session_timeout_ms
    else:
        timeout_ms = classic.session_timeout_ms
    turn.set_timer(TimerKey(TimerKind.SESSION, group.group_id, member.member_id), timeout_ms)


def cancel_timers(group: ConsumerGroup, member_id: str, turn: Turn) -> None:
    for kind in (TimerKind.SESSION, TimerKind.REVOCATION, TimerKind.JOIN, TimerKind.SYNC):
        turn.cancel_timer(TimerKey(kind, group.group_id, member_id))
