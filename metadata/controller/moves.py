"""Which replicas to move so that a broker can go, or that brokers hold as much as each other.

Only plans: what these functions return is submitted, or shown first.

A replica that moves keeps its place in the order, so that preferred leaders stay spread. Called for
`tierlog broker drain`, `broker decommission` and `partition balance`.
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from tierlog.metadata.controller.commands import Reassign
from tierlog.metadata.controller.placement import Placement
from tierlog.metadata.image import ClusterImage, PartitionImage

MAX_MOVES = 1000  # of a plan: what is under way at once shares the network


class MovePlan(NamedTuple):
    """`stuck`: partitions (topic, number) whose replica has nowhere to go. `more`: there is more to do once
    this has ended."""

    command: Reassign
    stuck: tuple[tuple[str, int], ...] = ()
    more: bool = False


def drain(image: ClusterImage, broker_ids: Collection[int], most: int = MAX_MOVES) -> MovePlan:
    """Takes all replicas off these brokers; what already leaves them goes on."""
    placement = Placement(image, without=broker_ids)
    changes: list[tuple[str, int, tuple[int, ...] | None]] = []
    stuck: list[tuple[str, int]] = []
    for name, number, partition in _partitions(image):
        target = _target(partition)
        if not any(one in broker_ids for one in target):
            continue
        if len(changes) == most:
            return MovePlan(Reassign(changes=tuple(changes)), tuple(stuck), more=True)
        moved = _moved_off(placement, target, broker_ids)
        if moved is None:
            stuck.append((name, number))
        else:
            changes.append((name, number, moved))
    return MovePlan(Reassign(changes=tuple(changes)), tuple(stuck))


def spread(image: ClusterImage, most: int = MAX_MOVES) -> MovePlan:
    """Evens out how many replicas brokers hold, as after one was added, without bringing any closer together.
    Partitions that are being moved are left alone."""
    placement = Placement(image)
    changes: list[tuple[str, int, tuple[int, ...] | None]] = []
    for name, number, partition in _partitions(image):
        if partition.is_reassigned:
            continue
        target = partition.replicas
        for leaving in partition.replicas:
            taker = placement.substitute(target, leaving, if_better=True)
            if taker is not None:
                target = _replaced(target, leaving, taker)
        if target != partition.replicas:
            changes.append((name, number, target))
            if len(changes) == most:
                return MovePlan(Reassign(changes=tuple(changes)), more=True)
    return MovePlan(Reassign(changes=tuple(changes)))


def _moved_off(
    placement: Placement, target: tuple[int, ...], broker_ids: Collection[int]
) -> tuple[int, ...] | None:
    """None if one of them has nowhere to go."""
    for leaving in [one for one in target if one in broker_ids]:
        taker = placement.substitute(target, leaving)
        if taker is None:
            return None
        target = _replaced(target, leaving, taker)
    return target


def _replaced(replicas: tuple[int, ...], leaving: int, taker: int) -> tuple[int, ...]:
    return tuple(taker if one == leaving else one for one in replicas)


def _target(partition: PartitionImage) -> tuple[int, ...]:
    return tuple(one for one in partition.replicas if one not in partition.removing)


def _partitions(image: ClusterImage) -> Iterator[tuple[str, int, PartitionImage]]:
    for name in sorted(image.topic_ids):
        for number, partition in enumerate(image.topics[image.topic_ids[name]].partitions):
            yield name, number, partition
