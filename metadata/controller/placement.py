"""Which brokers hold a new partition's replicas: round robin over live brokers, zones taken in turn.

Deterministic: the start is the number of partitions placed so far, so that topics of one partition spread
too.
"""

from collections.abc import Sequence

from tierlog.metadata.image import BrokerImage, ClusterImage


def place(image: ClusterImage, first: int, count: int, replication_factor: int) -> list[tuple[int, ...]]:
    """Replicas of `count` partitions, preferred leader first; the caller has checked the replication factor.
    `first`: the number of partitions that the topic has already."""
    ring = _ring(image.live_brokers())
    if len(ring) == 1:
        return [(ring[0].broker_id,)] * count
    start = sum(len(topic.partitions) for topic in image.topics.values()) if first == 0 else first
    racks = {broker.broker_id: broker.rack for broker in ring}
    return [
        _replicas([broker.broker_id for broker in ring], racks, start + number, replication_factor)
        for number in range(count)
    ]


def _ring(brokers: Sequence[BrokerImage]) -> list[BrokerImage]:
    """Brokers with racks taken in turn: a1 b1 c1 a2 b2 …, so that neighbours differ in rack."""
    by_rack: dict[str, list[BrokerImage]] = {}
    for broker in brokers:
        by_rack.setdefault(broker.rack or "", []).append(broker)
    rounds = max(map(len, by_rack.values()), default=0)
    return [
        by_rack[rack][turn] for turn in range(rounds) for rack in sorted(by_rack) if turn < len(by_rack[rack])
    ]


def _replicas(ring: list[int], racks: dict[int, str | None], start: int, count: int) -> tuple[int, ...]:
    """`count` brokers from the ring position on; a rack is used again only when every rack has one."""
    order = [ring[(start + step) % len(ring)] for step in range(len(ring))]
    chosen: list[int] = []
    while len(chosen) < count:
        used: set[str | None] = set()
        for broker_id in order:
            if len(chosen) < count and broker_id not in chosen and racks[broker_id] not in used:
                chosen.append(broker_id)
                used.add(racks[broker_id])
    return tuple(chosen)
