"""Loading: consumer groups as their records in the log describe them. Called by coordinator.py.

Replay keeps the last value of each key. The group is built after the last record, because records in between
may contradict each other: after compaction a member's new partitions may precede the record with which their
former owner gave them up. `build` also mends what a crash between two appends can leave.
"""

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from tierlog.base.safeguards import safeguard
from tierlog.broker.coordinators.core.stored import FormatError
from tierlog.broker.groups.core.classic.group import MemberMemory
from tierlog.broker.groups.core.consumer.formats import (
    ConsumerGroupMetadata,
    ConsumerKey,
    ConsumerValue,
    CurrentMemberAssignment,
    CurrentMemberAssignmentKey,
    MemberMetadata,
    MemberMetadataKey,
    PartitionEpochs,
    PartitionMetadataKey,
    RegularExpression,
    RegularExpressionKey,
    TargetAssignmentMember,
    TargetAssignmentMemberKey,
    TargetAssignmentMetadata,
)
from tierlog.broker.groups.core.consumer.group import INITIAL_EPOCH, ConsumerGroup
from tierlog.broker.groups.core.consumer.member import NEW_MEMBER, ConsumerMember
from tierlog.broker.groups.core.consumer.states import MemberState

Stored = Mapping[ConsumerKey, ConsumerValue]
"""The last value of each key of one group."""
STATES = set(MemberState)
EPOCH_MAX = 1 << 30
"""No group gets there: it would need an epoch each second for 30 years. Beyond it an epoch could not grow, as
records have an int32."""


def check_value(value: ConsumerValue) -> None:
    """Raises FormatError for a value that no coordinator writes."""
    match value:
        case ConsumerGroupMetadata():
            _check(0 <= value.epoch <= EPOCH_MAX, f"a group in epoch {value.epoch}")
        case TargetAssignmentMetadata():
            epoch = value.assignment_epoch
            _check(0 <= epoch <= EPOCH_MAX, f"a target assignment of epoch {epoch}")
        case CurrentMemberAssignment():
            _check(value.state in STATES, f"a member in state {value.state}")
            _check(value.member_epoch <= EPOCH_MAX, f"a member in epoch {value.member_epoch}")
        case MemberMetadata():
            classic = value.classic_member_metadata
            _check(classic is None or classic.session_timeout_ms >= 0, "a member with a negative timeout")


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise FormatError(otherwise)


def build(group_id: str, stored: Stored, memory: MemberMemory) -> ConsumerGroup:
    group = ConsumerGroup(group_id, memory)
    for key, value in stored.items():
        match key, value:
            case _, ConsumerGroupMetadata():
                group.epoch, group.metadata_hash = max(value.epoch, group.epoch), value.metadata_hash
            case _, TargetAssignmentMetadata():
                group.assignment_epoch = max(value.assignment_epoch, group.assignment_epoch)
                group.assigned_at_ms = value.assignment_timestamp
    for member in without_conflicts(_members(stored)):
        group.put(member)
    for key, value in stored.items():
        match key, value:
            case RegularExpressionKey(), RegularExpression() if group.regex_subscribers[
                key.regular_expression
            ]:
                group.set_regex(key.regular_expression, value)
    targets = {
        key.member_id: value.partitions
        for key, value in stored.items()
        if isinstance(key, TargetAssignmentMemberKey) and isinstance(value, TargetAssignmentMember)
    }
    group.set_targets(group.assignment_epoch, _disjoint(targets, group), group.assigned_at_ms)
    newest = max((member.epoch for member in group.members.values()), default=0)
    group.changed.clear()
    group.changed.update({key: None for key in stored if isinstance(key, PartitionMetadataKey)})
    if max(newest, group.assignment_epoch) > group.epoch or newest > group.assignment_epoch:
        group.assignment_epoch = max(newest, group.assignment_epoch)
        group.epoch = max(group.epoch, group.assignment_epoch)
        group.bump_epoch()
    elif not group.members and group.epoch == group.assignment_epoch > INITIAL_EPOCH:
        group.bump_epoch()  # as when its last member left
    group.state = group.state_now()
    return group


@safeguard("a coordinator replays members and assignments")
def _members(stored: Stored) -> list[ConsumerMember]:
    found = []
    for key, metadata in stored.items():
        if isinstance(key, MemberMetadataKey) and isinstance(metadata, MemberMetadata) and key.member_id:
            current = stored.get(CurrentMemberAssignmentKey(key.group_id, key.member_id))
            known = isinstance(current, CurrentMemberAssignment)
            found.append(
                ConsumerMember(
                    member_id=key.member_id,
                    metadata=metadata,
                    current=current if known else NEW_MEMBER,  # type: ignore[arg-type]
                )
            )
    return found


def without_conflicts(members: list[ConsumerMember]) -> list[ConsumerMember]:
    """Give a partition that two members have to the one that got it last: the other had given it up."""
    last: dict[tuple[UUID, int], tuple[int, int]] = {}
    for index, member in enumerate(members):
        for partitions in (member.assigned, member.pending_revocation):
            for topic_id, numbers in partitions.items():
                for number, epoch in numbers.items():
                    place = topic_id, number
                    last[place] = max(last.get(place, (epoch, index)), (epoch, index))

    def kept(index: int, partitions: PartitionEpochs) -> PartitionEpochs:
        rest = {
            topic_id: {
                number: epoch for number, epoch in numbers.items() if last[topic_id, number][1] == index
            }
            for topic_id, numbers in partitions.items()
        }
        return {topic_id: numbers for topic_id, numbers in rest.items() if numbers}

    return [
        replace(
            member,
            current=replace(
                member.current,
                assigned_partitions=kept(index, member.assigned),
                partitions_pending_revocation=kept(index, member.pending_revocation),
            ),
        )
        for index, member in enumerate(members)
    ]


def _disjoint(
    targets: Mapping[str, Mapping[UUID, frozenset[int]]], group: ConsumerGroup
) -> dict[str, dict[UUID, frozenset[int]]]:
    """The targets of members, each partition in the first that has it."""
    taken: dict[UUID, set[int]] = {}
    found: dict[str, dict[UUID, frozenset[int]]] = {}
    for member_id, target in targets.items():
        if member_id in group.members:
            rest = {topic_id: numbers - taken.get(topic_id, set()) for topic_id, numbers in target.items()}
            found[member_id] = {topic_id: numbers for topic_id, numbers in rest.items() if numbers}
            for topic_id, numbers in target.items():
                taken.setdefault(topic_id, set()).update(numbers)
    return found
