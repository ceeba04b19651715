"""Changes of in-sync sets that leaders request: AlterPartition (KIP-497), with broker epochs (KIP-903).

The leader knows which followers have caught up; the controller knows which brokers are active. A fenced or
stopping broker, or another process than the one that the leader knows, does not join an in-sync set.
"""

from uuid import UUID

from msgspec.structs import replace

from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.decision import Decision, Refusal
from tierlog.metadata.controller.partition_change import build_partition_change
from tierlog.metadata.controller.rules import election_rules
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import PartitionRecord
from tierlog.protocol.errors import ErrorCode


def alter_partitions(image: ClusterImage, command: c.AlterPartitions) -> Decision[c.PartitionsAltered]:
    broker = image.brokers.get(command.broker_id)
    if broker is None or broker.broker_epoch != command.broker_epoch:
        message = f"broker {command.broker_id}: not the current registration"
        raise Refusal(ErrorCode.STALE_BROKER_EPOCH, message)
    rules = election_rules(image)
    pending: dict[tuple[UUID, int], PartitionRecord] = {}
    outcomes: list[c.PartitionOutcome] = []
    for change in command.changes:
        key = change.topic_id, change.partition
        topic = image.topics.get(change.topic_id)
        before = pending.get(key) or image.partition(*key)
        if topic is None or before is None:
            outcomes.append(_unknown(change, known_topic=topic is not None))
            continue
        try:
            _check(image, command.broker_id, before, change)
        except Refusal as refusal:
            outcomes.append(_outcome(change, before, refusal.error, refusal.message))
            continue
        wanted = replace(before, in_sync=tuple(member.broker_id for member in change.in_sync))
        after = build_partition_change(before, wanted, rules(topic.name))
        if after is before:
            # A new partition epoch rejects earlier requests whose outcome the leader does not know.
            after = replace(before, partition_epoch=before.partition_epoch + 1)
        pending[key] = after
        if after.leader != command.broker_id:
            message = f"broker {after.leader} is the new leader"
            outcomes.append(_outcome(change, after, ErrorCode.NEW_LEADER_ELECTED, message))
        else:
            outcomes.append(_outcome(change, after))
    return Decision(tuple(pending.values()), c.PartitionsAltered(partitions=tuple(outcomes)))


def _check(image: ClusterImage, leader: int, before: PartitionRecord, change: c.IsrChange) -> None:
    """Checks in Kafka's order. Raises Refusal."""
    if change.leader_epoch > before.leader_epoch or change.partition_epoch > before.partition_epoch:
        raise Refusal(ErrorCode.NOT_CONTROLLER, "the leader knows a later state than the controller")
    if change.leader_epoch < before.leader_epoch:
        raise Refusal(ErrorCode.FENCED_LEADER_EPOCH, f"the leader epoch is {before.leader_epoch}")
    if before.leader != leader:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"broker {leader} does not lead; {before.leader} does")
    if change.partition_epoch < before.partition_epoch:
        raise Refusal(ErrorCode.INVALID_UPDATE_VERSION, f"the partition epoch is {before.partition_epoch}")
    members = [member.broker_id for member in change.in_sync]
    if len(set(members)) != len(members) or not set(members) <= set(before.replicas):
        raise Refusal(ErrorCode.INVALID_REQUEST, f"{members} are not replicas of {list(before.replicas)}")
    if leader not in members:  # therefore never empty
        raise Refusal(ErrorCode.INVALID_REQUEST, f"{members} lacks the leader, {leader}")
    for member in change.in_sync:
        if member.broker_id in before.offline:
            message = f"the log directory of broker {member.broker_id} has failed"
            raise Refusal(ErrorCode.INELIGIBLE_REPLICA, message)
        if member.broker_id not in before.in_sync or member.broker_epoch >= 0:
            _check_member(image, before, member)


def _check_member(image: ClusterImage, before: PartitionRecord, member: c.InSync) -> None:
    """A stopping or full broker does not join, but may stay: it may be the only possible leader."""
    broker = image.brokers.get(member.broker_id)
    if broker is None or broker.fenced:
        raise Refusal(ErrorCode.INELIGIBLE_REPLICA, f"broker {member.broker_id} is fenced or not registered")
    joins = member.broker_id not in before.in_sync
    if broker.stopping and joins:
        raise Refusal(ErrorCode.INELIGIBLE_REPLICA, f"broker {member.broker_id} is shutting down")
    if member.broker_id in before.full and joins:
        message = f"the log directory of broker {member.broker_id} is full"
        raise Refusal(ErrorCode.INELIGIBLE_REPLICA, message)
    if member.broker_epoch not in (-1, broker.broker_epoch):
        message = f"broker {member.broker_id} is at epoch {broker.broker_epoch}, not {member.broker_epoch}"
        raise Refusal(ErrorCode.INELIGIBLE_REPLICA, message)


def _unknown(change: c.IsrChange, *, known_topic: bool) -> c.PartitionOutcome:
    return c.PartitionOutcome(
        topic_id=change.topic_id,
        partition=change.partition,
        error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if known_topic else ErrorCode.UNKNOWN_TOPIC_ID,
        message=f"there is no partition {change.topic_id}-{change.partition}",
    )


def _outcome(
    change: c.IsrChange,
    partition: PartitionRecord,
    error: ErrorCode = ErrorCode.NONE,
    message: str | None = None,
) -> c.PartitionOutcome:
    return c.PartitionOutcome(
        topic_id=change.topic_id,
        partition=change.partition,
        error=error,
        message=message,
        in_sync=partition.in_sync,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
    )
