"""Which preferred leaders to elect so that brokers lead what they were meant to lead.

With auto.leader.rebalance.enable, called by the leading node every leader.imbalance.check.interval.seconds.
"""

from collections import Counter

from tierlog.metadata.controller.commands import ElectionKind, ElectLeaders
from tierlog.metadata.image import ClusterImage, PartitionImage

IMBALANCE_PERCENT = 10  # leader.imbalance.per.broker.percentage
MAX_ELECTIONS = 1000  # at a time: each makes clients look for the new leader


def rebalance(
    image: ClusterImage, percent: int = IMBALANCE_PERCENT, most: int = MAX_ELECTIONS
) -> ElectLeaders | None:
    """None if no broker lacks more than `percent` of the partitions that elect_preferred it."""
    may_lead = {broker.broker_id for broker in image.brokers.values() if broker.may_lead}
    preferring: Counter[int] = Counter()
    lacking: dict[int, list[tuple[str, int]]] = {}
    for topic in image.topics.values():
        for number, partition in enumerate(topic.partitions):
            preferred = partition.replicas[0]
            preferring[preferred] += 1
            if partition.leader != preferred and preferred in may_lead and _holds_all(partition, preferred):
                lacking.setdefault(preferred, []).append((topic.name, number))
    chosen = [
        one
        for broker_id in sorted(lacking)
        if 100 * len(lacking[broker_id]) > percent * preferring[broker_id]
        for one in sorted(lacking[broker_id])
    ]
    return ElectLeaders(partitions=tuple(chosen[:most]), kind=ElectionKind.PREFERRED) if chosen else None


def _holds_all(partition: PartitionImage, broker_id: int) -> bool:
    """The last in-sync replica stays so when its disk fails, fills or comes back empty; it is not elected."""
    marked = any(broker_id in marks for marks in (partition.offline, partition.emptied, partition.full))
    return broker_id in partition.in_sync and not marked
