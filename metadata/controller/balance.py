"""Leader rebalancing: chooses preferred leaders to elect (auto.leader.rebalance.enable).

Called by the active controller every leader.imbalance.check.interval.seconds.
"""

from collections import Counter

from tierlog.metadata.controller.commands import ElectionKind, ElectLeaders
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import PartitionRecord

IMBALANCE_PERCENT = 10  # leader.imbalance.per.broker.percentage
MAX_ELECTIONS = 1000  # at a time: each makes clients refresh their metadata


def rebalance(
    image: ClusterImage, percent: int = IMBALANCE_PERCENT, limit: int = MAX_ELECTIONS
) -> ElectLeaders | None:
    """The elections for brokers that lack more than `percent` of their preferred leaderships; None without
    any."""
    may_lead = {broker.broker_id for broker in image.brokers.values() if broker.may_lead}
    preferring: Counter[int] = Counter()
    lacking: dict[int, list[tuple[str, int]]] = {}
    for topic in image.topics.values():
        for number, partition in enumerate(topic.partitions):
            preferred = partition.replicas[0]
            preferring[preferred] += 1
            if partition.leader != preferred and preferred in may_lead and _can_lead(partition, preferred):
                lacking.setdefault(preferred, []).append((topic.name, number))
    chosen = [
        one
        for broker_id in sorted(lacking)
        if 100 * len(lacking[broker_id]) > percent * preferring[broker_id]
        for one in sorted(lacking[broker_id])
    ]
    return ElectLeaders(partitions=tuple(chosen[:limit]), kind=ElectionKind.PREFERRED) if chosen else None


def _can_lead(partition: PartitionRecord, broker_id: int) -> bool:
    """An in-sync replica whose disk has failed, is full or came back empty is not elected."""
    marked = any(broker_id in marks for marks in (partition.offline, partition.emptied, partition.full))
    return broker_id in partition.in_sync and not marked
