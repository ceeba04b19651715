"""Partition reassignment (KIP-455).

During a reassignment, the replica list of a partition has the target replicas in the requested order, and
then those to be removed. The partition change builder completes the reassignment once all target replicas are
in sync. Another reassignment or a cancellation may replace it at any time, unless too few replicas with all
committed records would remain. The original replicas are those that the reassignment does not add.
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
    """Start or cancel the reassignment of each named partition (AlterPartitionReassignments).

    The reply has an error for each partition that is refused. If the requested throttle cannot be set, all
    are refused.
    """

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
    throttle_records: tuple[AnyRecord, ...] = ()
    if command.throttle is not None:
        results = zip(command.changes, outcomes, strict=True)
        accepted = [change for change, outcome in results if not outcome.error]
        throttled = configs.alter(image, throttle(image, accepted, command.throttle))
        for resource in throttled.reply.resources:
            if resource.error:
                return _all_refused(command, resource)
        throttle_records = throttled.records
    return Decision((*throttle_records, *records), c.Reassigned(partitions=outcomes))


def _all_refused(command: c.Reassign, why: c.Outcome) -> Decision[c.Reassigned]:
    """Refuse all reassignments: none may run without the requested throttle."""
    message = f"the throttle cannot be set: {why.message}"
    outcomes = (
        c.NamedOutcome(topic=name, partition=number, error=why.error, message=message)
        for name, number, _ in command.changes
    )
    return Decision((), c.Reassigned(partitions=tuple(outcomes)))


def under_way(image: ClusterImage) -> Iterator[tuple[TopicImage, int, PartitionRecord]]:
    """Partitions that are being reassigned, by topic name: topic, partition number and state
    (ListPartitionReassignments).
    """
    reassigned = [topic for topic in image.topics.values() if any(p.is_reassigned for p in topic.partitions)]
    for topic in sorted(reassigned, key=lambda topic: topic.name):
        for number, partition in enumerate(topic.partitions):
            if partition.is_reassigned:
                yield topic, number, partition


def _begun(before: PartitionRecord, target: tuple[int, ...], rules: ElectionRules) -> PartitionRecord:
    """The partition at the start of a reassignment to `target`. Raises Refusal."""
    original = _original(before)
    removing = tuple(broker_id for broker_id in original if broker_id not in target)
    adding = tuple(broker_id for broker_id in target if broker_id not in original)
    return _moved(before, (*target, *removing), adding, removing, rules)


def _cancelled(before: PartitionRecord, rules: ElectionRules) -> PartitionRecord:
    """The partition with its original replicas. Raises Refusal if no reassignment is in progress."""
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
    """The partition with this replica list. Replicas that an earlier reassignment was adding are dropped.

    Raises Refusal if too few of the remaining replicas have all committed records.
    """
    in_sync = tuple(broker_id for broker_id in before.in_sync if broker_id in replicas)
    _check_holders(before, replicas, rules.effective_min_isr(tuple(set(replicas).difference(removing))))
    wanted = replace(before, replicas=replicas, in_sync=in_sync, adding=adding, removing=removing)
    return build_partition_change(before, wanted, rules)


@safeguard("a reassignment keeps min.insync.replicas complete replicas")
def _check_holders(before: PartitionRecord, replicas: tuple[int, ...], least: int) -> None:
    """Raise Refusal if a replica with all committed records is removed and fewer than `least` of them remain.

    If an original replica is down during a reassignment, a record may be committed by the added replicas and
    fewer than min.insync.replicas of the original ones. If the added replicas were removed, the loss of one
    disk could lose that record. Kafka checks only that one in-sync replica remains.
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
    return tuple(broker_id for broker_id in partition.replicas if broker_id not in partition.adding)


def _check_factor(before: PartitionRecord, target: tuple[int, ...]) -> None:
    """Raise Refusal if the target changes the replication factor. During a reassignment, the factor that it
    leads to counts.
    """
    factor = len(before.replicas) - len(before.removing)
    if len(target) != factor:
        message = f"the replication factor would change from {factor} to {len(target)}"
        raise Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, message)


def _check_target(image: ClusterImage, target: tuple[int, ...]) -> None:
    """Raise Refusal unless the target is a list of 1 to MAX_REPLICAS distinct registered brokers."""
    if not target or len(set(target)) != len(target) or len(target) > MAX_REPLICAS:
        message = f"replicas {list(target)} must be distinct, and 1 to {MAX_REPLICAS}"
        raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    if unknown := [broker_id for broker_id in target if broker_id not in image.brokers]:
        raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"brokers {unknown} are not registered")
