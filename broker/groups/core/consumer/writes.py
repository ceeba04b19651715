"""Group writes: a consumer group's changes on their way to the log, and the responses that wait for them.

The group in memory is ahead of the log. `flush` appends the present values of all changed keys. A response
that shows an epoch or an assignment waits until every change so far is durable. If an append fails, its keys
are changed again, and the next flush writes what they are then. The writes behind it fail too: they may rest
on what the log does not have. So the log catches up with memory, and no client has seen what it lacks.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tierlog.base.safeguards import safeguard
from tierlog.broker.coordinators.core.stored import StoredRecord
from tierlog.broker.coordinators.core.turn import response_error
from tierlog.broker.groups.core.consumer import formats
from tierlog.broker.groups.core.consumer.formats import (
    ConsumerGroupMetadata,
    ConsumerGroupMetadataKey,
    ConsumerKey,
    ConsumerValue,
    CurrentMemberAssignmentKey,
    MemberMetadataKey,
    PartitionMetadataKey,
    RegularExpressionKey,
    TargetAssignmentMember,
    TargetAssignmentMemberKey,
    TargetAssignmentMetadata,
    TargetAssignmentMetadataKey,
)
from tierlog.broker.groups.core.consumer.group_spec import Partitions
from tierlog.broker.groups.core.formats import GroupKey, encode_key
from tierlog.broker.groups.core.turn import Turn
from tierlog.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from tierlog.broker.groups.core.consumer.group import ConsumerGroup

APPEND_BYTES = 512 << 10
"""Records of one append: well below the batch size that a topic accepts."""

Respond = Callable[[Turn, ErrorCode], None]
"""Sends a response: the prepared one, or that of an error."""


@dataclass(slots=True)
class Waiting:
    """A request that waits for the target assignment of `epoch`. `resume` handles the rest of it."""

    epoch: int
    resume: Callable[[Turn], None]
    refuse: Respond


@dataclass(slots=True)
class GroupWrite:
    """One append. `failed`: an earlier one failed. `late`: its requests have timed out."""

    keys: list[ConsumerKey | GroupKey]
    responses: list[Respond] = field(default_factory=list)
    failed: bool = False
    late: bool = False


def flush(group: "ConsumerGroup", turn: Turn) -> None:
    """Append the records of all changes."""
    keys: list[ConsumerKey | GroupKey] = []
    records: list[StoredRecord] = []
    size = 0
    for key in sorted(group.changed, key=lambda each: _rank(group, each)):
        record = _record(group, key)
        size += len(record.key) + len(record.value or b"")
        if size > APPEND_BYTES and keys:
            _append(group, keys, records, turn)
            keys, size, records = [], 0, []
        keys.append(key)
        records.append(record)
    group.changed.clear()
    group.encoded.clear()
    if keys:
        _append(group, keys, records, turn)


@safeguard("a response waits until its assignment is durable")
def respond_when_durable(group: "ConsumerGroup", turn: Turn, respond: Respond) -> None:
    flush(group, turn)
    if not group.writes:
        respond(turn, ErrorCode.NONE)
    elif group.writes[-1].late:
        respond(turn, response_error(ErrorCode.REQUEST_TIMED_OUT))
    else:
        group.writes[-1].responses.append(respond)


def _append(
    group: "ConsumerGroup", keys: list[ConsumerKey | GroupKey], records: list[StoredRecord], turn: Turn
) -> None:
    write = GroupWrite(keys)

    def stored(turn: Turn, error: ErrorCode) -> None:
        if error == ErrorCode.REQUEST_TIMED_OUT:
            write.late = True
        else:
            group.writes.popleft()
            if error != ErrorCode.NONE:
                group.changed.update(dict.fromkeys(keys))
                for later in group.writes:
                    later.failed = True
        if error == ErrorCode.NONE and write.failed:
            error = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        responses, write.responses = write.responses, []
        for respond in responses:
            respond(turn, response_error(error))

    group.writes.append(write)
    turn.append(records, stored)


def _record(group: "ConsumerGroup", key: ConsumerKey | GroupKey) -> StoredRecord:
    if isinstance(key, GroupKey):
        return StoredRecord(encode_key(key), None)
    if isinstance(key, TargetAssignmentMemberKey) and key.member_id in group.encoded:
        target, record = group.encoded[key.member_id]
        if group.targets.get(key.member_id) is target:
            return record
    value = value_of(group, key)
    return StoredRecord(formats.encode_key(key), None if value is None else formats.encode_value(value))


def target_record(group_id: str, member_id: str, target: Partitions) -> StoredRecord:
    """The record of a member's target. It is for the driver, which encodes the records of a computation."""
    key = TargetAssignmentMemberKey(group_id, member_id)
    value = TargetAssignmentMember(partitions=target)
    return StoredRecord(formats.encode_key(key), formats.encode_value(value))


def value_of(group: "ConsumerGroup", key: ConsumerKey) -> ConsumerValue | None:
    """The value which the log should have for this key."""
    match key:
        case ConsumerGroupMetadataKey():
            return ConsumerGroupMetadata(epoch=group.epoch, metadata_hash=group.metadata_hash)
        case TargetAssignmentMetadataKey():
            return TargetAssignmentMetadata(
                assignment_epoch=group.assignment_epoch, assignment_timestamp=group.assigned_at_ms
            )
        case MemberMetadataKey():
            member = group.members.get(key.member_id)
            return None if member is None else member.metadata
        case CurrentMemberAssignmentKey():
            member = group.members.get(key.member_id)
            return None if member is None else member.current
        case TargetAssignmentMemberKey():
            target = group.targets.get(key.member_id)
            return None if target is None else TargetAssignmentMember(partitions=target)
        case RegularExpressionKey():
            return group.regexes.get(key.regular_expression)
        case PartitionMetadataKey():
            return None


def tombstones(group: "ConsumerGroup") -> list[StoredRecord]:
    """Delete all records of the group, in the order that Kafka can replay."""
    ordered = sorted(group_keys(group), key=lambda key: (_TOMBSTONES.index(type(key)), str(key)))
    return [StoredRecord(formats.encode_key(key), None) for key in ordered]


def group_keys(group: "ConsumerGroup") -> set[ConsumerKey]:
    """All keys of the group that the log may have."""
    group_id = group.group_id
    keys: list[ConsumerKey] = [RegularExpressionKey(group_id, pattern) for pattern in group.regexes]
    keys += [key for key in group.changed if not isinstance(key, GroupKey)]  # the log may have them
    keys += [key for write in group.writes for key in write.keys if not isinstance(key, GroupKey)]
    for member_id in group.members:
        keys += [
            CurrentMemberAssignmentKey(group_id, member_id),
            TargetAssignmentMemberKey(group_id, member_id),
            MemberMetadataKey(group_id, member_id),
        ]
    last = TargetAssignmentMetadataKey(group_id), ConsumerGroupMetadataKey(group_id)
    return {*keys, *last}


_TOMBSTONES: list[type] = [
    GroupKey,
    CurrentMemberAssignmentKey,
    TargetAssignmentMemberKey,
    MemberMetadataKey,
    RegularExpressionKey,
    PartitionMetadataKey,
    TargetAssignmentMetadataKey,
    ConsumerGroupMetadataKey,
]
_VALUES: list[type] = [
    MemberMetadataKey,
    RegularExpressionKey,
    ConsumerGroupMetadataKey,
    TargetAssignmentMemberKey,
    TargetAssignmentMetadataKey,
    CurrentMemberAssignmentKey,
]


def _has_value(group: "ConsumerGroup", key: ConsumerKey | GroupKey) -> bool:
    match key:
        case GroupKey() | PartitionMetadataKey():
            return False
        case MemberMetadataKey() | CurrentMemberAssignmentKey():
            return key.member_id in group.members
        case TargetAssignmentMemberKey():
            return key.member_id in group.targets
        case RegularExpressionKey():
            return key.regular_expression in group.regexes
        case _:
            return True


def _rank(group: "ConsumerGroup", key: ConsumerKey | GroupKey) -> int:
    """Kafka's order of a group's records in an append: what is deleted first, then what others rest on."""
    if not _has_value(group, key):
        return _TOMBSTONES.index(type(key))
    return len(_TOMBSTONES) + _VALUES.index(type(key))
