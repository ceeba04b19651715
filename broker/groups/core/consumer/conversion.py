"""Conversion between classic groups and consumer groups, while their members run (KIP-848, migration).

A classic group of consumers becomes a consumer group when the first member joins with a heartbeat. The
classic members keep their partitions and rejoin as for any rebalance. When the last member of the consumer
protocol has left, the group becomes classic again. group.consumer.migration.policy may forbid each. An empty
group changes its kind in any case. Called by coordinator.py.
"""

from uuid import UUID

from tierlog.broker.coordinators.core.stored import FormatError
from tierlog.broker.coordinators.core.turn import AfterAppend
from tierlog.broker.groups.core.classic.group import Group, Member, MemberMemory
from tierlog.broker.groups.core.classic.rebalance import prepare_rebalance, refuse_waiting, restart_session
from tierlog.broker.groups.core.classic.states import GroupState
from tierlog.broker.groups.core.consumer.embedded_protocol import (
    PROTOCOL_TYPE,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from tierlog.broker.groups.core.consumer.formats import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMetadataKey,
    CurrentMemberAssignment,
    MemberMetadata,
)
from tierlog.broker.groups.core.consumer.group import INITIAL_EPOCH, NO_TARGET, ConsumerGroup
from tierlog.broker.groups.core.consumer.heartbeat import cancel_timers
from tierlog.broker.groups.core.consumer.loading import EPOCH_MAX, without_conflicts
from tierlog.broker.groups.core.consumer.member import NO_PARTITIONS, ConsumerMember
from tierlog.broker.groups.core.consumer.states import MemberState
from tierlog.broker.groups.core.consumer.targets import stop_computing, stop_waiting
from tierlog.broker.groups.core.consumer.writes import tombstones
from tierlog.broker.groups.core.events import TimerKey, TimerKind
from tierlog.broker.groups.core.formats import GroupKey
from tierlog.broker.groups.core.topic_view import TopicView
from tierlog.broker.groups.core.turn import GroupSettings, Turn
from tierlog.protocol.errors import ErrorCode

# ---- classic -> consumer --------------------------------------------------------------------------


def upgrade(group: Group, topics: TopicView, settings: GroupSettings) -> ConsumerGroup | None:
    """The consumer group which a classic group becomes; None if it may not. The classic group does not
    change. The new one has a memory of its own until it counts.

    It may not if the policy forbids it, if its members are not consumers, or if their own assignor puts data
    into assignments.
    """
    new = ConsumerGroup(group.group_id)
    if group.is_stored:
        new.changed[GroupKey(group.group_id)] = None
    if not group.members:
        return new  # a member that is about to join joins the new group
    may = settings.group_consumer_migration_policy.upgrades
    if (
        not may
        or group.protocol_type != PROTOCOL_TYPE
        or len(group.members) > settings.group_consumer_max_size
        or group.generation > EPOCH_MAX
    ):
        return None
    new.epoch = new.assignment_epoch = max(group.generation, INITIAL_EPOCH)
    try:
        members = [_consumer_member(group, member, new.epoch, topics) for member in group.members.values()]
    except FormatError:
        return None
    for member in without_conflicts(members):
        new.put(member)
    targets = {member.member_id: member.assigned_partitions for member in new.members.values()}
    new.set_targets(new.epoch, targets, 0)
    new.changed[ConsumerGroupMetadataKey(group.group_id)] = None
    new.state = new.state_now()
    return new


def _consumer_member(group: Group, member: Member, epoch: int, topics: TopicView) -> ConsumerMember:
    """Its leader's assignment may name any number of partitions. Those that do not exist are left out."""
    subscription = decode_subscription(member.metadata(group.protocol_name) or member.protocols[0][1])
    assignment = decode_assignment(member.assignment)
    if assignment.user_data:
        raise FormatError("an assignment with data of a client's own assignor")
    assigned: dict[UUID, dict[int, int]] = {}
    for each in assignment.assigned_partitions:
        topic_id, existing = topics.id_of(each.topic), range(topics.partitions_of(each.topic))
        numbers = {number: epoch for number in each.partitions if number in existing}
        if topic_id is not None and numbers:
            assigned.setdefault(topic_id, {}).update(numbers)
    return ConsumerMember(
        member_id=member.member_id,
        metadata=MemberMetadata(
            instance_id=member.group_instance_id,
            rack_id=subscription.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=tuple(sorted(set(subscription.topics))),
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            classic_member_metadata=ClassicMemberMetadata(
                session_timeout_ms=member.session_timeout_ms,
                supported_protocols=[
                    ClassicProtocol(name=name, metadata=data) for name, data in member.protocols
                ],
            ),
        ),
        current=CurrentMemberAssignment(
            member_epoch=epoch,
            previous_member_epoch=epoch,
            state=MemberState.STABLE,
            assigned_partitions=assigned,
            partitions_pending_revocation=NO_PARTITIONS,
        ),
    )


def retire_classic(group: Group, turn: Turn) -> None:
    """The end of a classic group that became a consumer group: its members rejoin."""
    for kind in (TimerKind.JOIN, TimerKind.SYNC):
        turn.cancel_timer(TimerKey(kind, group.group_id))
    for member_id in [*group.pending_members, *group.members]:
        turn.cancel_timer(TimerKey(TimerKind.SESSION, group.group_id, member_id))
    for member in group.members.values():
        refuse_waiting(group, member, turn, ErrorCode.REBALANCE_IN_PROGRESS)
    group.memory.used_bytes -= group.size
    group.memory = MemberMemory()  # an append that ends later changes nothing that counts


# ---- consumer -> classic --------------------------------------------------------------------------


def may_downgrade(group: ConsumerGroup, settings: GroupSettings) -> bool:
    """Whether only classic members are left."""
    only_classic = bool(group.members) and group.classic_members == len(group.members)
    may = settings.group_consumer_migration_policy.downgrades
    return only_classic and may and len(group.members) <= settings.group_max_size


def downgrade(group: ConsumerGroup, turn: Turn, stored: AfterAppend) -> Group:
    """The classic group which a consumer group becomes. Its members rejoin. Before, they may commit in their
    epochs.

    No member has the generation that is stored: if this coordinator fails, the next one finds a stable group,
    and its members must rejoin to get the partitions of the last consumer.

    A failed append is harmless: a later coordinator finds the consumer group and its classic members, unless
    the classic group was stored by then.
    """
    records = tombstones(group)
    new = Group(group.group_id, group.memory)
    members = [_classic_member(group, member, turn.topics) for member in group.members.values()]
    retire_consumer(group, turn)
    new.state, new.state_timestamp_ms = GroupState.STABLE, turn.now_ms
    new.generation = group.epoch
    for each in members:
        new.add(each, PROTOCOL_TYPE)
    new.protocol_name = new.select_protocol()
    new.subscribed_topics = new.compute_subscribed_topics()
    records.append(new.record({name: member.assignment for name, member in new.members.items()}))
    turn.append(records, stored)
    for each in members:
        restart_session(new, each, turn)
    prepare_rebalance(new, turn)
    return new


def _classic_member(group: ConsumerGroup, member: ConsumerMember, topics: TopicView) -> Member:
    metadata = member.metadata
    classic = metadata.classic_member_metadata or ClassicMemberMetadata()
    protocols = tuple((each.name, bytes(each.metadata)) for each in classic.supported_protocols)
    partitions = {
        name: sorted(numbers)
        for topic_id, numbers in group.targets.get(member.member_id, NO_TARGET).items()
        if (name := topics.name_of(topic_id)) is not None
    }
    return Member(
        member_id=member.member_id,
        group_instance_id=metadata.instance_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        rebalance_timeout_ms=max(metadata.rebalance_timeout_ms, 0),
        session_timeout_ms=classic.session_timeout_ms,
        protocols=protocols,
        assignment=encode_assignment(partitions, protocols[0][1]),
        epoch=member.epoch,
    )


def retire_consumer(group: ConsumerGroup, turn: Turn) -> None:
    """The end of a consumer group that became a classic group. Responses that still wait for its appends find
    no member, whose timers they would set."""
    stop_computing(group, turn)
    for member_id in group.members:
        cancel_timers(group, member_id, turn)
        stop_waiting(group, member_id, turn, ErrorCode.REBALANCE_IN_PROGRESS)
    group.memory.used_bytes -= group.size
    group.memory = MemberMemory()
    group.members = {}
