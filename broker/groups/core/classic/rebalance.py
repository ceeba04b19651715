"""Rebalance: the join phase and the sync phase of a classic group.

Functions over one group and the current turn, called by protocol.py and, after a load, by coordinator.py. A
waiting request is always answered: when its phase ends or fails, when its member is removed or replaced, or
when the same member sends another.
"""

from tierlog.broker.coordinators.core.effects import Token
from tierlog.broker.coordinators.core.turn import response_error
from tierlog.broker.groups.core.classic.group import Group, Member
from tierlog.broker.groups.core.classic.states import Cause, GroupState
from tierlog.broker.groups.core.events import (
    JoinResponse,
    SyncResponse,
    TimerKey,
    TimerKind,
)
from tierlog.broker.groups.core.turn import Turn
from tierlog.protocol.errors import ErrorCode

STATIC_MEMBERS_CHECK_MS = 1_000
"""Minimum time between two looks at a join phase that no member has joined: with a rebalance timeout of zero
they would not end."""


def membership_changed(group: Group, turn: Turn) -> None:
    """Start a rebalance, or complete the current join phase if all members have joined."""
    if group.state is GroupState.PREPARING_REBALANCE:
        complete_join_if_all_joined(group, turn)
    else:
        prepare_rebalance(group, turn)


def prepare_rebalance(group: Group, turn: Turn) -> None:
    if group.state is GroupState.COMPLETING_REBALANCE:
        _reply_to_syncs(group, turn, ErrorCode.REBALANCE_IN_PROGRESS)
    group.pending_sync.clear()
    turn.cancel_timer(TimerKey(TimerKind.SYNC, group.group_id))
    was_empty = group.state is GroupState.EMPTY
    group.move(Cause.MEMBERSHIP_CHANGED, turn.now_ms)
    if was_empty:
        # KIP-134: a deployment starts its members one after another, and a short delay saves rebalances.
        delay_ms = turn.settings.group_initial_rebalance_delay_ms
        group.new_member_added = False
        group.initial_join_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        turn.set_timer(TimerKey(TimerKind.JOIN, group.group_id), delay_ms)
    elif group.all_joined:
        complete_join(group, turn)
    else:
        turn.set_timer(TimerKey(TimerKind.JOIN, group.group_id), group.rebalance_timeout_ms)


def complete_join_if_all_joined(group: Group, turn: Turn) -> None:
    preparing = group.state is GroupState.PREPARING_REBALANCE
    if preparing and group.initial_join_left_ms is None and group.all_joined:
        complete_join(group, turn)


def join_timed_out(group: Group, turn: Turn) -> None:
    """Extend the initial join phase while members keep joining, up to the rebalance timeout in total."""
    if group.state is not GroupState.PREPARING_REBALANCE:
        return
    left_ms = group.initial_join_left_ms
    if left_ms and group.new_member_added:
        delay_ms = min(turn.settings.group_initial_rebalance_delay_ms, left_ms)
        group.new_member_added = False
        group.initial_join_left_ms = max(left_ms - delay_ms, 0)
        turn.set_timer(TimerKey(TimerKind.JOIN, group.group_id), delay_ms)
    else:
        complete_join(group, turn)


def complete_join(group: Group, turn: Turn) -> None:
    """Remove dynamic members that did not rejoin, and start the next generation with the others."""
    turn.cancel_timer(TimerKey(TimerKind.JOIN, group.group_id))
    for member in list(group.members.values()):
        if member.joining is None and member.group_instance_id is None:
            drop_member(group, member.member_id, turn)
    if group.members and not group.elect_joined_leader():
        # Only static members that did not rejoin are left: they may return until their sessions expire.
        delay_ms = max(group.rebalance_timeout_ms, STATIC_MEMBERS_CHECK_MS)
        turn.set_timer(TimerKey(TimerKind.JOIN, group.group_id), delay_ms)
        return
    group.next_generation(turn.now_ms)
    if not group.members:
        # A failed append is harmless: replay finds the last members, and their sessions expire again.
        turn.append([group.record({})], lambda turn, error: None)
        return
    for member in group.members.values():
        reply_to_join(group, member, turn, group.join_response(member))
        if member.is_new:
            await_response(group, member.member_id, member.session_timeout_ms, turn)
        else:
            restart_session(group, member, turn)
        member.is_new = False
        group.pending_sync.add(member.member_id)
    turn.set_timer(TimerKey(TimerKind.SYNC, group.group_id), group.rebalance_timeout_ms)


def store_assignment(group: Group, assignments: dict[str, bytes], turn: Turn) -> None:
    """Append the leader's assignment. It counts when it is durable, if the generation is still the same."""
    if group.storing:
        return
    group.storing = True
    generation = group.generation

    def stored(turn: Turn, error: ErrorCode) -> None:
        if group.state is not GroupState.COMPLETING_REBALANCE or group.generation != generation:
            return
        if error != ErrorCode.NONE:
            _reply_to_syncs(group, turn, response_error(error))
            prepare_rebalance(group, turn)
            return
        for member in group.members.values():
            group.assign(member, assignments.get(member.member_id, b""))
        group.move(Cause.ASSIGNMENT_STORED, turn.now_ms)
        _reply_to_syncs(group, turn)

    turn.append([group.record(assignments)], stored)


def sync_received(group: Group, member_id: str, turn: Turn) -> None:
    group.pending_sync.discard(member_id)
    if not group.pending_sync:
        turn.cancel_timer(TimerKey(TimerKind.SYNC, group.group_id))


def sync_timed_out(group: Group, turn: Turn) -> None:
    """Remove members which never sent SyncGroup: no consumer reads the partitions assigned to them."""
    if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not group.pending_sync:
        return
    for member_id in sorted(group.pending_sync):
        drop_member(group, member_id, turn)
    prepare_rebalance(group, turn)


def remove_member(group: Group, member_id: str, turn: Turn) -> None:
    """Remove a member which has left or whose session has expired; the others rebalance."""
    drop_member(group, member_id, turn)
    if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
        prepare_rebalance(group, turn)
    else:
        complete_join_if_all_joined(group, turn)


def remove_pending(group: Group, member_id: str, turn: Turn) -> None:
    """Remove a pending member, which never joined with its member id. The join phase no longer waits for
    it."""
    group.drop_pending(member_id)
    turn.cancel_timer(TimerKey(TimerKind.SESSION, group.group_id, member_id))
    complete_join_if_all_joined(group, turn)


def drop_member(group: Group, member_id: str, turn: Turn) -> None:
    turn.cancel_timer(TimerKey(TimerKind.SESSION, group.group_id, member_id))
    refuse_waiting(group, group.members[member_id], turn, ErrorCode.UNKNOWN_MEMBER_ID)
    group.remove(member_id)


def refuse_waiting(group: Group, member: Member, turn: Turn, error: ErrorCode) -> None:
    """Reply to the member's waiting requests with an error."""
    reply_to_join(group, member, turn, JoinResponse(error=error))
    reply_to_sync(member, turn, SyncResponse(error=error))


def wait_to_join(group: Group, member: Member, token: Token, turn: Turn) -> None:
    superseded = JoinResponse(error=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id)
    reply_to_join(group, member, turn, superseded)
    member.joining = token
    group.joining_count += 1


def wait_to_sync(member: Member, token: Token, turn: Turn) -> None:
    reply_to_sync(member, turn, SyncResponse(error=ErrorCode.REBALANCE_IN_PROGRESS))
    member.syncing = token


def reply_to_join(group: Group, member: Member, turn: Turn, response: JoinResponse) -> None:
    if member.joining is not None:
        turn.reply(member.joining, response)
        member.joining = None
        group.joining_count -= 1


def reply_to_sync(member: Member, turn: Turn, response: SyncResponse) -> None:
    if member.syncing is not None:
        turn.reply(member.syncing, response)
        member.syncing = None


def restart_session(group: Group, member: Member, turn: Turn) -> None:
    turn.set_timer(TimerKey(TimerKind.SESSION, group.group_id, member.member_id), member.session_timeout_ms)


def await_response(group: Group, member_id: str, session_timeout_ms: int, turn: Turn) -> None:
    """Start the session of a client which was just sent its member id or its first generation."""
    limit_ms = turn.settings.new_member_response_timeout_ms
    turn.set_timer(TimerKey(TimerKind.SESSION, group.group_id, member_id), min(session_timeout_ms, limit_ms))


def sync_response(group: Group, member: Member) -> SyncResponse:
    return SyncResponse(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )


def _reply_to_syncs(group: Group, turn: Turn, error: ErrorCode = ErrorCode.NONE) -> None:
    """Reply to all waiting SyncGroup requests. With an error, the members lose their assignments."""
    for member in group.members.values():
        if error != ErrorCode.NONE:
            group.assign(member, b"")
        if member.syncing is not None:
            restart_session(group, member, turn)
        reply_to_sync(
            member,
            turn,
            sync_response(group, member) if error == ErrorCode.NONE else SyncResponse(error=error),
        )
