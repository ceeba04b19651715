"""Classic group protocol: handles JoinGroup, SyncGroup, Heartbeat, LeaveGroup and their timers.

Errors and the order of checks are those of Kafka's coordinator, as far as a client can see: KIP-62 (rebalance
timeout), KIP-134 (initial delay), KIP-345 (static members), KIP-394 (member id required), KIP-559 (protocol
in SyncGroup), KIP-814 (skip_assignment). States and transitions: states.py. Called by coordinator.py.
"""

from typing import NamedTuple

from tierlog.broker.coordinators.core.effects import ErrorResponse
from tierlog.broker.coordinators.core.turn import response_error
from tierlog.broker.groups.core.classic.group import MEMBER_OVERHEAD_BYTES, Group, Member, protocols_size
from tierlog.broker.groups.core.classic.rebalance import (
    await_response,
    complete_join_if_all_joined,
    join_timed_out,
    membership_changed,
    prepare_rebalance,
    refuse_waiting,
    remove_member,
    remove_pending,
    reply_to_join,
    restart_session,
    store_assignment,
    sync_received,
    sync_response,
    sync_timed_out,
    wait_to_join,
    wait_to_sync,
)
from tierlog.broker.groups.core.classic.states import GroupState
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
from tierlog.broker.groups.core.turn import GroupSettings, Turn
from tierlog.protocol.errors import ErrorCode


def session_key(group: Group, member_id: str) -> TimerKey:
    return TimerKey(TimerKind.SESSION, group.group_id, member_id)


# ---- JoinGroup ------------------------------------------------------------------------------------


def check_join(request: Join, settings: GroupSettings) -> ErrorCode:
    """The checks of a JoinGroup that need no group."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    minimum, maximum = settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms
    if not minimum <= request.session_timeout_ms <= maximum:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    return ErrorCode.NONE


def join(group: Group, request: Join, turn: Turn) -> None:
    error = _admit(group, request, turn.settings)
    if error is ErrorCode.GROUP_MAX_SIZE_REACHED and request.member_id in group.members:
        # After group.max.size was lowered, the members that rejoin last are removed.
        remove_member(group, request.member_id, turn)
    if error != ErrorCode.NONE:
        turn.reply(request.token, JoinResponse(error=error, member_id=_refused_id(request, error)))
    elif request.member_id == NO_MEMBER_ID:
        _join_new(group, request, turn)
    elif request.member_id in group.pending_members:
        _add_member(group, request, request.member_id, turn)
    else:
        _join_again(group, group.members[request.member_id], request, turn)


def _admit(group: Group, request: Join, settings: GroupSettings) -> ErrorCode:
    if not _is_below_max_size(group, request.member_id, settings.group_max_size):
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    if not _fits(group, request):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE  # clients retry it: there may be memory again soon
    if not group.supports(request.protocol_type, request.protocols):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if request.member_id == NO_MEMBER_ID or request.member_id in group.pending_members:
        return ErrorCode.NONE
    return group.validate(request.member_id, request.group_instance_id)


def _is_below_max_size(group: Group, member_id: str, max_size: int) -> bool:
    if group.state is GroupState.PREPARING_REBALANCE:
        member = group.members.get(member_id)
        return (member is not None and member.joining is not None) or group.joining_count < max_size
    return member_id in group.members or len(group.members) < max_size


def _fits(group: Group, request: Join) -> bool:
    """Whether the broker has memory for what the request adds to the group."""
    member_id = request.member_id
    if member_id == NO_MEMBER_ID and request.group_instance_id is not None:
        member_id = group.static_members.get(request.group_instance_id, member_id)  # the member it replaces
    known = group.members.get(member_id)
    more = protocols_size(request.protocols) - (protocols_size(known.protocols) if known is not None else 0)
    if known is None and member_id not in group.pending_members:
        names = request.group_id, request.protocol_type, request.client_id, request.generated_member_id
        more += MEMBER_OVERHEAD_BYTES + sum(map(len, names))
    return more <= max(request.free_bytes, 0)


def _refused_id(request: Join, error: ErrorCode) -> str:
    return NO_MEMBER_ID if error is ErrorCode.GROUP_MAX_SIZE_REACHED else request.member_id


def _join_new(group: Group, request: Join, turn: Turn) -> None:
    if request.group_instance_id is not None:
        if request.group_instance_id in group.static_members:
            _replace_static(group, request, turn)
        else:
            _add_member(group, request, request.generated_member_id, turn)
    elif request.member_id_required:
        # KIP-394: if the client never receives its member id, each retry would add another member.
        group.add_pending(request.generated_member_id)
        await_response(group, request.generated_member_id, request.session_timeout_ms, turn)
        required = JoinResponse(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=request.generated_member_id)
        turn.reply(request.token, required)
    else:
        _add_member(group, request, request.generated_member_id, turn)


def _add_member(group: Group, request: Join, member_id: str, turn: Turn) -> None:
    member = Member(
        member_id=member_id,
        group_instance_id=request.group_instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
        protocols=request.protocols,
        is_new=True,
        joining=request.token,
    )
    group.new_member_added = True
    group.add(member, request.protocol_type)
    turn.set_timer(session_key(group, member_id), turn.settings.new_member_join_timeout_ms)
    membership_changed(group, turn)


def _join_again(group: Group, member: Member, request: Join, turn: Turn) -> None:
    unchanged = member.protocols == request.protocols
    leads = member.member_id == group.leader_id
    completing = group.state is GroupState.COMPLETING_REBALANCE
    stable = group.state is GroupState.STABLE
    if unchanged and (completing or (stable and not leads)):
        # The response was lost: repeat it. A leader that joins in Stable requests a rebalance.
        turn.reply(request.token, group.join_response(member))
        return
    _update(group, member, request, turn)
    membership_changed(group, turn)


def _update(group: Group, member: Member, request: Join, turn: Turn) -> None:
    group.update_protocols(member, request.protocols)
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    member.session_timeout_ms = request.session_timeout_ms
    wait_to_join(group, member, request.token, turn)


def _replace_static(group: Group, request: Join, turn: Turn) -> None:
    """A static member has restarted: give it the old member's place, without a rebalance if possible."""
    instance_id = request.group_instance_id or ""
    old_leader, old_id = group.leader_id, group.static_members[instance_id]
    refuse_waiting(group, group.members[old_id], turn, ErrorCode.FENCED_INSTANCE_ID)
    turn.cancel_timer(session_key(group, old_id))
    member = group.rename_static(instance_id, request.generated_member_id)
    timeouts = member.rebalance_timeout_ms, member.session_timeout_ms
    replaced = _Replaced(old_id, old_leader, member.protocols, *timeouts)
    _update(group, member, request, turn)
    restart_session(group, member, turn)
    if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
        _store_static(group, member, request, replaced, turn)
    elif group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
        prepare_rebalance(group, turn)
    else:
        complete_join_if_all_joined(group, turn)


class _Replaced(NamedTuple):
    """State of a static member before its restart, which returns if the new member id cannot be stored."""

    member_id: str
    leader_id: str | None
    protocols: tuple[tuple[str, bytes], ...]
    rebalance_timeout_ms: int
    session_timeout_ms: int


def _store_static(group: Group, member: Member, request: Join, replaced: _Replaced, turn: Turn) -> None:
    """Reply with the current generation once the new member id is stored. If that fails, the old id stays
    valid."""

    def stored(turn: Turn, error: ErrorCode) -> None:
        if member.joining != request.token:
            return  # it has left, was replaced, or was answered by a rebalance
        if error == ErrorCode.NONE:
            joined = _static_join_response(group, member, request, replaced.leader_id)
            reply_to_join(group, member, turn, joined)
            restart_session(group, member, turn)
            return
        failed = JoinResponse(error=response_error(error), generation=group.generation)
        reply_to_join(group, member, turn, failed)
        turn.cancel_timer(session_key(group, member.member_id))
        group.rename_static(request.group_instance_id or "", replaced.member_id)
        group.update_protocols(member, replaced.protocols)
        member.rebalance_timeout_ms = replaced.rebalance_timeout_ms
        member.session_timeout_ms = replaced.session_timeout_ms
        restart_session(group, member, turn)

    turn.append([group.record({name: each.assignment for name, each in group.members.items()})], stored)


def _static_join_response(
    group: Group, member: Member, request: Join, old_leader: str | None
) -> JoinResponse:
    """KIP-814: a leader that returns must not assign again. Before version 9 its response names another
    leader."""
    leads = member.member_id == group.leader_id
    skips = leads and request.may_skip_assignment
    leader = group.leader_id if request.may_skip_assignment else old_leader
    return JoinResponse(
        member_id=member.member_id,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=leader or NO_MEMBER_ID,
        skip_assignment=skips,
        members=group.member_list() if skips else (),
    )


# ---- SyncGroup, Heartbeat -------------------------------------------------------------------------


def sync(group: Group, request: Sync, turn: Turn) -> None:
    error = _check_sync(group, request)
    if error != ErrorCode.NONE:
        turn.reply(request.token, SyncResponse(error=error))
        return
    member = group.members[request.member_id]
    sync_received(group, request.member_id, turn)
    restart_session(group, member, turn)
    if group.state is GroupState.STABLE:
        turn.reply(request.token, sync_response(group, member))
        return
    wait_to_sync(member, request.token, turn)
    if member.member_id == group.leader_id:
        store_assignment(group, dict(request.assignments), turn)


def _check_sync(group: Group, request: Sync) -> ErrorCode:
    error = group.validate(request.member_id, request.group_instance_id)
    if error != ErrorCode.NONE:
        return error
    if not group.has_generation(request.member_id, request.generation):
        return ErrorCode.ILLEGAL_GENERATION
    if _differ(request.protocol_type, group.protocol_type) or _differ(
        request.protocol_name, group.protocol_name
    ):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    more = sum(len(assignment) for _, assignment in request.assignments) - group.assignments_size
    if more > max(request.free_bytes, 0) and request.member_id == group.leader_id:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE  # the client rejoins after a pause
    preparing = group.state is GroupState.PREPARING_REBALANCE
    return ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE


def _differ(requested: str | None, known: str | None) -> bool:
    return requested is not None and known is not None and requested != known


def heartbeat(group: Group, request: Heartbeat, turn: Turn) -> None:
    error = group.validate(request.member_id, request.group_instance_id)
    if error == ErrorCode.NONE and not group.has_generation(request.member_id, request.generation):
        error = ErrorCode.ILLEGAL_GENERATION
    if error == ErrorCode.NONE:
        restart_session(group, group.members[request.member_id], turn)
        if group.state is GroupState.PREPARING_REBALANCE:
            error = ErrorCode.REBALANCE_IN_PROGRESS
    turn.reply(request.token, ErrorResponse(error=error))


# ---- LeaveGroup -----------------------------------------------------------------------------------


def leave(group: Group, request: Leave, turn: Turn) -> None:
    """Remove each leaver on its own: an error of one does not affect the others (KIP-345)."""
    results = tuple((leaver, _leave_one(group, leaver, turn)) for leaver in request.leavers)
    turn.reply(request.token, LeaveResponse(members=results))


def _leave_one(group: Group, leaver: Leaver, turn: Turn) -> ErrorCode:
    member_id, instance_id = leaver.member_id, leaver.group_instance_id
    if member_id == NO_MEMBER_ID and instance_id in group.static_members:
        member_id = group.static_members[instance_id]  # an admin removes by instance id
    if member_id in group.pending_members:
        if instance_id is not None:
            return ErrorCode.UNKNOWN_MEMBER_ID  # static members are never pending
        remove_pending(group, member_id, turn)
        return ErrorCode.NONE
    error = group.validate(member_id, instance_id)
    if error == ErrorCode.NONE:
        remove_member(group, member_id, turn)
    return error


# ---- timers ---------------------------------------------------------------------------------------


def timer_fired(group: Group, key: TimerKey, turn: Turn) -> None:
    match key.kind:
        case TimerKind.JOIN:
            join_timed_out(group, turn)
        case TimerKind.SYNC:
            sync_timed_out(group, turn)
        case TimerKind.SESSION:
            _session_expired(group, key.member_id, turn)


def _session_expired(group: Group, member_id: str, turn: Turn) -> None:
    if member_id in group.pending_members:
        remove_pending(group, member_id, turn)
    elif member_id in group.members and not group.members[member_id].is_waiting:
        # The session of a waiting member restarts with its response.
        remove_member(group, member_id, turn)
