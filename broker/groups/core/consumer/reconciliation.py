"""Reconciliation: the next step of one member from its current assignment to its target (KIP-848).

A member first gives up what its target lacks. Only then does it enter the epoch of the target. There it gets
what no other member has, and waits for the rest. Called by heartbeat.py.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from uuid import UUID

from tierlog.base.safeguards import safeguard
from tierlog.broker.groups.core.consumer.formats import CurrentMemberAssignment, PartitionEpochs
from tierlog.broker.groups.core.consumer.group_spec import Partitions
from tierlog.broker.groups.core.consumer.member import NO_PARTITIONS, ConsumerMember
from tierlog.broker.groups.core.consumer.states import MemberCause, MemberState, next_member_state

Owned = Mapping[UUID, Collection[int]] | None
"""The partitions that the client owns, from its heartbeat. None: it did not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The goal of a member. `topic_ids`: the topics that it subscribes to. `owners`: the member that
    has each partition. `subscription_changed`: the member gives up unsubscribed topics at once, even if
    there is no new target yet."""

    epoch: int
    target: Partitions
    topic_ids: frozenset[UUID]
    owners: Mapping[UUID, Mapping[int, str]]
    subscription_changed: bool = False


def reconcile(member: ConsumerMember, goal: Goal, owned: Owned) -> CurrentMemberAssignment:
    """The member's next assignment, or the present one."""
    unchanged = member.current
    match member.state:
        case MemberState.STABLE:
            if member.epoch != goal.epoch:
                return _next(member, goal, owned)
            return _without_unsubscribed(member, goal, owned) if goal.subscription_changed else unchanged
        case MemberState.UNREVOKED_PARTITIONS:
            if not _owns_any(owned, member.pending_revocation):
                return _next(member, goal, owned)
            return _without_unsubscribed(member, goal, owned) if goal.subscription_changed else unchanged
        case MemberState.UNRELEASED_PARTITIONS:
            return _next(member, goal, owned)


def _next(member: ConsumerMember, goal: Goal, owned: Owned) -> CurrentMemberAssignment:
    kept: dict[UUID, dict[int, int]] = {}
    to_revoke: dict[UUID, dict[int, int]] = {}
    to_assign: dict[UUID, list[int]] = {}
    must_wait = False
    for topic_id in {**goal.target, **member.assigned}:
        target = goal.target.get(topic_id, frozenset()) if topic_id in goal.topic_ids else frozenset()
        current = member.assigned.get(topic_id, {})
        if both := {each: epoch for each, epoch in current.items() if each in target}:
            kept[topic_id] = both
        if lost := {each: epoch for each, epoch in current.items() if each not in target}:
            to_revoke[topic_id] = lost
        new = [each for each in sorted(target) if each not in current]
        owners, me = goal.owners.get(topic_id, {}), member.member_id
        free = [each for each in new if owners.get(each, me) == me]
        must_wait = must_wait or len(free) < len(new)
        if free:
            to_assign[topic_id] = free
    if to_revoke and _owns_any(owned, to_revoke):
        return _moved(member, member.epoch, MemberCause.MUST_REVOKE, kept, to_revoke)
    for topic_id, partitions in to_assign.items():
        kept.setdefault(topic_id, {}).update(dict.fromkeys(partitions, goal.epoch))
    cause = MemberCause.MUST_WAIT if must_wait else MemberCause.RECONCILED
    moved = _moved(member, goal.epoch, cause, kept, NO_PARTITIONS)
    is_same = (moved.member_epoch, moved.state, moved.assigned_partitions) == (
        member.epoch,
        member.current.state,
        member.assigned,
    )
    return member.current if is_same and not member.pending_revocation else moved


def _without_unsubscribed(member: ConsumerMember, goal: Goal, owned: Owned) -> CurrentMemberAssignment:
    """Give up the topics which the member no longer subscribes to."""
    kept = {topic_id: each for topic_id, each in member.assigned.items() if topic_id in goal.topic_ids}
    if len(kept) == len(member.assigned):
        return member.current
    pending = {topic_id: dict(each) for topic_id, each in member.pending_revocation.items()}
    for topic_id, partitions in member.assigned.items():
        if topic_id not in kept:
            pending.setdefault(topic_id, {}).update(partitions)
    if _owns_any(owned, pending):
        return _moved(member, member.epoch, MemberCause.MUST_REVOKE, kept, pending)
    return _moved(member, member.epoch, MemberCause.RECONCILED, kept, NO_PARTITIONS)


@safeguard("a partition is assigned after its revocation")
def _owns_any(owned: Owned, partitions: PartitionEpochs) -> bool:
    if owned is None:
        return bool(partitions)
    return any(not partitions.get(topic_id, {}).keys().isdisjoint(each) for topic_id, each in owned.items())


def _moved(
    member: ConsumerMember,
    epoch: int,
    cause: MemberCause,
    assigned: PartitionEpochs,
    pending_revocation: PartitionEpochs,
) -> CurrentMemberAssignment:
    return CurrentMemberAssignment(
        member_epoch=epoch,
        previous_member_epoch=member.epoch,
        state=next_member_state(member.state, cause),
        assigned_partitions=assigned,
        partitions_pending_revocation=pending_revocation,
    )
