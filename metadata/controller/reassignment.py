"""Partition reassignment (KIP-455).

During a reassignment a partition has its new replicas, in their order, followed by those to be removed. The
partition change builder completes the reassignment once all new replicas are in sync. Another reassignment or
a cancellation may replace it at any time, unless that removes replicas that are needed. The original replicas
are those that the reassignment does not add.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from tierlog.base.safeguards import safeguard
from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller import configs
from tierlog.metadata.controller.decision import Decision, Refusal
from tierlog.metadata.controller.election import change_named_partitions
from tierlog.metadata.controller.partition_change import build_partition_change
from tierlog.metadata.controller.rules import ElectionRules
from tierlog.metadata.controller.throttles import throttle
from tierlog.metadata.image import ClusterImage, TopicImage
from tierlog.metadata.records import AnyRecord, PartitionRecord
from tierlog.protocol.errors import ErrorCode

MAX_REPLICAS = 64  # per partition, so that a record stays small


def reassign(image: ClusterImage, command: c.Reassign) -> Decision[c.Reassigned]:
    def change(
        before: PartitionRecord, rules: ElectionRules, target: tuple[int, ...] | None
    ) -> PartitionRecord:
        if target is None:
            return _cancelled(before, rules)
        _check_target(image, target)
        if not command.may_change_factor:
            _check_factor(before, target)
        return _begun(before, target, rules)

    records, outcomes = change_named_partitions(image, command.changes, change)
    limits: tuple[AnyRecord, ...] = ()
    if command.throttle is not None:
        decided = zip(command.changes, outcomes, strict=True)
        begun = [change for change, outcome in decided if not outcome.error]
        limited = configs.alter(image, throttle(image, begun, command.throttle))
        for resource in limited.reply.resources:
            if resource.error:
                return _all_refused(command, resource)
        limits = limited.records
    return Decision((*limits, *records), c.Reassigned(partitions=outcomes))


def _all_refused(command: c.Reassign, why: c.Outcome) -> Decision[c.Reassigned]:
    """Refuse all moves: none may run without the requested throttle."""
    message = f"the throttle cannot be set: {why.message}"
    outcomes = (
        c.NamedOutcome(topic=name, partition=number, error=why.error, message=message)
        for name, number, _ in command.changes
    )
    return Decision((), c.Reassigned(partitions=tuple(outcomes)))


def under_way(image: ClusterImage) -> Iterator[tuple[TopicImage, int, PartitionRecord]]:
    """Ongoing reassignments by topic name (ListPartitionReassignments)."""
    moving = [topic for topic in image.topics.values() if any(p.is_reassigned for p in topic.partitions)]
    for topic in sorted(moving, key=lambda topic: topic.name):
        for number, partition in enumerate(topic.partitions):
            if partition.is_reassigned:
                yield topic, number, partition


def _begun(before: PartitionRecord, target: tuple[int, ...], rules: ElectionRules) -> PartitionRecord:
    original = _original(before)
    removing = tuple(one for one in original if one not in target)
    adding = tuple(one for one in target if one not in original)
    return _moved(before, (*target, *removing), adding, removing, rules)


def _cancelled(before: PartitionRecord, rules: ElectionRules) -> PartitionRecord:
    if not before.is_reassigned:
        raise Refusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "no reassignment is in progress")
    return _moved(before, _original(before), (), (), rules)


def _moved(
    before: PartitionRecord,
    replicas: tuple[int, ...],
    adding: tuple[int, ...],
    removing: tuple[int, ...],
    rules: ElectionRules,
) -> PartitionRecord:
    """Replicas that an earlier reassignment was adding are removed at once. Raises Refusal if too few of the
    others have all committed records."""
    in_sync = tuple(one for one in before.in_sync if one in replicas)
    _check_holders(before, replicas, rules.effective_min_isr(tuple(set(replicas).difference(removing))))
    wanted = replace(before, replicas=replicas, in_sync=in_sync, adding=adding, removing=removing)
    return build_partition_change(before, wanted, rules)


@safeguard("a reassignment keeps min.insync.replicas complete replicas")
def _check_holders(before: PartitionRecord, replicas: tuple[int, ...], least: int) -> None:
    """Raise Refusal if fewer than `least` replicas with all committed records stay.

    Records that were committed during a reassignment may be on the added replicas and on fewer than
    min.insync.replicas others, if an original replica is down. Without the added replicas, the loss of one
    disk could lose them. Kafka checks only that one in-sync replica stays.
    """
    holders = {*before.in_sync, *before.eligible}
    staying, leaving = holders.intersection(replicas), sorted(holders.difference(replicas))
    if len(staying) >= min(len(holders), least):
        return
    message = (
        f"only {sorted(staying)} of the remaining replicas have all committed records, which is fewer "
        f"than min.insync.replicas; wait until more of them are in sync, or keep {leaving}"
    )
    raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def _original(partition: PartitionRecord) -> tuple[int, ...]:
    return tuple(one for one in partition.replicas if one not in partition.adding)


def _check_factor(before: PartitionRecord, target: tuple[int, ...]) -> None:
    """Compare with the replication factor after the current reassignment. Raises Refusal."""
    factor = len(before.replicas) - len(before.removing)
    if len(target) != factor:
        message = f"the replication factor would change from {factor} to {len(target)}"
        raise Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, message)


def _check_target(image: ClusterImage, target: tuple[int, ...]) -> None:
    if not target or len(set(target)) != len(target) or len(target) > MAX_REPLICAS:
        message = f"replicas {list(target)} must be distinct, and 1 to {MAX_REPLICAS}"
        raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    if unknown := [broker_id for broker_id in target if broker_id not in image.brokers]:
        raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"brokers {unknown} are not registered")
