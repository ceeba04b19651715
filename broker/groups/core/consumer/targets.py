"""Target assignment: when a consumer group gets another one, and how it is computed (KIP-848).

A group's epoch grows when its members, their subscriptions or their topics change. Each epoch needs a target
assignment. The driver computes it (ComputeAssignment), at most once in consumer.assignment.interval.ms:
members that start together share one (KIP-1263). The requests which caused it wait for it. Other members
continue with the last target. Called by heartbeat.py and coordinator.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from tierlog.broker.groups.core.consumer.assignors import ASSIGNORS
from tierlog.broker.groups.core.consumer.group import NO_TARGET, ConsumerGroup
from tierlog.broker.groups.core.consumer.group_spec import MemberSpec, TopicSpec
from tierlog.broker.groups.core.consumer.member import ConsumerMember
from tierlog.broker.groups.core.consumer.reconciliation import Goal, Owned, reconcile
from tierlog.broker.groups.core.consumer.states import MemberState
from tierlog.broker.groups.core.consumer.subscriptions import topics_hash
from tierlog.broker.groups.core.consumer.writes import Waiting
from tierlog.broker.groups.core.events import AssignmentComputed, ComputeAssignment, TimerKey, TimerKind
from tierlog.broker.groups.core.topic_view import TopicView
from tierlog.broker.groups.core.turn import Turn
from tierlog.protocol.errors import ErrorCode

RESUMED_PER_TURN = 20
"""Requests that continue at once with a new target: each takes a quarter of a millisecond. A thousand members
may wait, and other requests must not wait for all of them."""
RESUMPTION_PAUSE_MS = 1

RETRY_MS = 1_000
"""Pause after an assignor has failed. The next request of a member does not start it earlier."""


def refresh_epoch(group: ConsumerGroup, turn: Turn, *, bump: bool = False) -> None:
    """Start the next epoch if the subscribed topics are others than in the last one, or if `bump`. The racks
    of replicas matter, and are looked at, only if a member has a rack."""
    if bump or group.topics_changed:
        old_hash = group.metadata_hash
        has_racks = any(member.metadata.rack_id for member in group.members.values())
        if group.topics_changed or group.subscription_changed or has_racks != group.hash_has_racks:
            group.topics_changed = group.subscription_changed = False
            group.hash_has_racks = has_racks
            group.set_hash(topics_hash(group.subscribed_names(), turn.topics, with_racks=has_racks))
        if bump or group.metadata_hash != old_hash:
            group.bump_epoch()


def request_target(group: ConsumerGroup, turn: Turn) -> None:
    """Have the target assignment of the group's epoch computed, now or after the assignment interval."""
    is_due = group.epoch > group.assignment_epoch and not group.is_empty
    if not is_due or group.computing is not None or group.retry_timer_is_set:
        return
    interval_ms = turn.consumer_settings(group.group_id).assignment_interval_ms
    since_ms = turn.now_ms - group.computing_since_ms
    if 0 <= since_ms < interval_ms:
        _retry_later(group, interval_ms - since_ms, turn)
    else:
        _start(group, turn)


def _retry_later(group: ConsumerGroup, delay_ms: int, turn: Turn) -> None:
    group.retry_timer_is_set = True
    turn.set_timer(TimerKey(TimerKind.ASSIGNMENT, group.group_id), delay_ms)


def assignment_timer_fired(group: ConsumerGroup, turn: Turn) -> None:
    group.retry_timer_is_set = False
    if group.computing is None and group.epoch > group.assignment_epoch and not group.is_empty:
        _start(group, turn)


def _start(group: ConsumerGroup, turn: Turn) -> None:
    group.computing_since_ms = turn.now_ms
    group.renamed.clear()
    topics = _topics(group, turn.topics)
    members = _members(group, {spec.name: topic_id for topic_id, spec in topics.items()})
    group.computing = ComputeAssignment(
        group_id=group.group_id,
        epoch=group.epoch,
        assignor=ASSIGNORS[group.assignor_name(turn.settings.group_consumer_assignors)],
        members=members,
        topics=topics,
    )
    turn.effects.append(group.computing)


def stop_computing(group: ConsumerGroup, turn: Turn) -> None:
    """The group is deleted, or becomes a classic group. Results that come later are ignored. If the deletion
    fails, the restored group computes again."""
    turn.cancel_timer(TimerKey(TimerKind.ASSIGNMENT, group.group_id))
    group.retry_timer_is_set = False
    group.computing = group.resolving = None


def _topics(group: ConsumerGroup, topics: TopicView) -> dict[UUID, TopicSpec]:
    """The subscribed topics that exist."""
    return {
        topic_id: TopicSpec(name=name, partitions=topics.partitions_of(name), racks=_Racks(topics, name))
        for name in sorted(group.subscribed_names())
        if (topic_id := topics.id_of(name)) is not None
    }


class _Racks:
    """Racks of the replicas of a topic's partitions. They are looked up with the first of them: most
    assignments, which may be computed in a thread, need none."""

    def __init__(self, topics: TopicView, name: str) -> None:
        self._topics, self._name = topics, name
        self._found: Sequence[frozenset[str]] | None = None

    def __call__(self, partition: int) -> frozenset[str]:
        if self._found is None:
            self._found = self._topics.racks_of(self._name)
        return self._found[partition] if partition < len(self._found) else frozenset()


def _members(group: ConsumerGroup, ids: Mapping[str, UUID]) -> dict[str, MemberSpec]:
    """Most members share their subscription, so each different one is looked up once."""
    found: dict[tuple[tuple[str, ...], str], frozenset[UUID]] = {}
    specs = {}
    for member_id, member in group.members.items():
        subscription = member.names, member.regex
        if subscription not in found:
            found[subscription] = frozenset(ids[name] for name in group.names_of(member) if name in ids)
        specs[member_id] = MemberSpec(
            instance_id=member.instance_id,
            rack_id=member.metadata.rack_id,
            topic_ids=found[subscription],
            current=group.targets.get(member_id, NO_TARGET),
        )
    return specs


def assignment_computed(group: ConsumerGroup, event: AssignmentComputed, turn: Turn) -> None:
    """The waiting requests continue with the new target."""
    if event.request is not group.computing:
        return  # it was started by a coordinator before, or for a deleted group
    group.computing = None
    if event.assignment is None:
        for member_id in list(group.waiting):
            group.waiting.pop(member_id).refuse(turn, ErrorCode.UNKNOWN_SERVER_ERROR)
        if not group.retry_timer_is_set:
            _retry_later(group, RETRY_MS, turn)
        return
    targets = {group.renamed.get(name, name): target for name, target in event.assignment.items()}
    group.set_targets(event.request.epoch, targets, turn.now_ms, event.records)
    if len(targets) > RESUMED_PER_TURN:
        turn.set_timer(TimerKey(TimerKind.RESUMPTION, group.group_id), RESUMPTION_PAUSE_MS)
    else:
        resume_waiting(group, turn)
    request_target(group, turn)


def resume_waiting(group: ConsumerGroup, turn: Turn) -> None:
    """Continue with requests whose target is computed: a few now, the others in later turns."""
    ready = [member_id for member_id, each in group.waiting.items() if each.epoch <= group.assignment_epoch]
    for member_id in ready[:RESUMED_PER_TURN]:
        group.waiting.pop(member_id).resume(turn)
    if len(ready) > RESUMED_PER_TURN:
        turn.set_timer(TimerKey(TimerKind.RESUMPTION, group.group_id), RESUMPTION_PAUSE_MS)


def wait_for_target(group: ConsumerGroup, member_id: str, waiting: Waiting, turn: Turn) -> None:
    """A member has one waiting request: its client has given an earlier one up."""
    stop_waiting(group, member_id, turn, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    group.waiting[member_id] = waiting


def stop_waiting(group: ConsumerGroup, member_id: str, turn: Turn, error: ErrorCode) -> None:
    waiting = group.waiting.pop(member_id, None)
    if waiting is not None:
        waiting.refuse(turn, error)


def reconcile_member(
    group: ConsumerGroup, member: ConsumerMember, owned: Owned, turn: Turn, *, subscription_changed: bool
) -> ConsumerMember:
    """Bring the member closer to its target. `owned`: what its client owns now; None if it did not say."""
    if member.is_reconciled(group.assignment_epoch) and not subscription_changed:
        return member
    goal = Goal(
        epoch=group.assignment_epoch,
        target=group.targets.get(member.member_id, NO_TARGET),
        topic_ids=group.topic_ids(member, turn.topics),
        owners=group.owners,
        subscription_changed=subscription_changed,
    )
    current = reconcile(member, goal, owned)
    if current is member.current:
        return member
    moved = replace(member, current=current)
    group.put(moved)
    if not moved.is_classic:
        follow_revocation(group, moved, turn)
    return moved


def follow_revocation(group: ConsumerGroup, member: ConsumerMember, turn: Turn) -> None:
    """A member has its rebalance timeout to give partitions up. Another member waits for them."""
    key = TimerKey(TimerKind.REVOCATION, group.group_id, member.member_id)
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        turn.set_timer(key, max(member.metadata.rebalance_timeout_ms, 0))
    else:
        turn.cancel_timer(key)
