"""Plans of replica moves: drain a broker, or balance the number of replicas over the brokers.

The functions only plan: the caller submits the command, or shows it first. A moved replica keeps its place in
the order of replicas, so that preferred leaders stay spread. Called for `tierlog broker drain`,
`broker decommission` and `partition balance`.
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from tierlog.metadata.controller.commands import Reassign
from tierlog.metadata.controller.placement import Placement
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import PartitionRecord

MAX_MOVES = 1000  # per plan, because moves share the network


class MovePlan(NamedTuple):
    """`stuck`: partitions (topic, number) whose replica no other broker can take. `more`: there is more to
    move after this plan."""

    command: Reassign
    stuck: tuple[tuple[str, int], ...] = ()
    more: bool = False


def drain(image: ClusterImage, broker_ids: Collection[int], limit: int = MAX_MOVES) -> MovePlan:
    """Move all replicas off these brokers. Reassignments that already remove a replica from them continue."""
    placement = Placement(image, exclude=broker_ids)
    changes: list[tuple[str, int, tuple[int, ...] | None]] = []
    stuck: list[tuple[str, int]] = []
    for name, number, partition in _partitions(image):
        target = _target(partition)
        if not any(one in broker_ids for one in target):
            continue
        if len(changes) == limit:
            return MovePlan(Reassign(changes=tuple(changes)), tuple(stuck), more=True)
        moved = _moved_off(placement, target, broker_ids)
        if moved is None:
            stuck.append((name, number))
        else:
            changes.append((name, number, moved))
    return MovePlan(Reassign(changes=tuple(changes)), tuple(stuck))


def spread(image: ClusterImage, limit: int = MAX_MOVES) -> MovePlan:
    """Balance the number of replicas per broker, for example after a broker was added, without putting
    replicas of a partition closer together. Skips partitions under reassignment."""
    placement = Placement(image)
    changes: list[tuple[str, int, tuple[int, ...] | None]] = []
    for name, number, partition in _partitions(image):
        if partition.is_reassigned:
            continue
        target = partition.replicas
        for leaving in partition.replicas:
            substitute = placement.substitute(target, leaving, if_better=True)
            if substitute is not None:
                target = _replaced(target, leaving, substitute)
        if target != partition.replicas:
            changes.append((name, number, target))
            if len(changes) == limit:
                return MovePlan(Reassign(changes=tuple(changes)), more=True)
    return MovePlan(Reassign(changes=tuple(changes)))


def _moved_off(
    placement: Placement, target: tuple[int, ...], broker_ids: Collection[int]
) -> tuple[int, ...] | None:
    """None if no other broker can take one of them."""
    for leaving in [one for one in target if one in broker_ids]:
        substitute = placement.substitute(target, leaving)
        if substitute is None:
            return None
        target = _replaced(target, leaving, substitute)
    return target


def _replaced(replicas: tuple[int, ...], leaving: int, substitute: int) -> tuple[int, ...]:
    return tuple(substitute if one == leaving else one for one in replicas)


def _target(partition: PartitionRecord) -> tuple[int, ...]:
    return tuple(one for one in partition.replicas if one not in partition.removing)


def _partitions(image: ClusterImage) -> Iterator[tuple[str, int, PartitionRecord]]:
    for name in sorted(image.topic_ids):
        for number, partition in enumerate(image.topics[image.topic_ids[name]].partitions):
            yield name, number, partition
