"""Which brokers hold a new partition's replicas: other hosts, other zones, and then whoever has least.

A broker's rack is `zone` or `zone/host`; without a host it is the host that clients connect to. Two replicas
share a host only if there are fewer hosts than replicas, and zones are used as evenly as hosts allow. Leaders
go to who leads fewest. Deterministic: the same image gives the same replicas.
"""

from collections.abc import Sequence

from tierlog.metadata.image import BrokerImage, ClusterImage


class Placement:
    """For one command: counts what all brokers have once, and then adds what it places."""

    def __init__(self, image: ClusterImage) -> None:
        brokers = _ring([broker for broker in image.live_brokers() if broker.may_lead])
        self.brokers = tuple(broker.broker_id for broker in brokers)
        self._hosts = [_host(broker) for broker in brokers]
        self._zones = [_zone(broker) for broker in brokers]
        self._leads = [0] * len(brokers)
        self._holds = [0] * len(brokers)
        if len(brokers) > 1:
            self._count(image)

    def place(self, count: int, replication_factor: int) -> list[tuple[int, ...]]:
        """Replicas of `count` partitions, preferred leader first. There must be as many brokers as
        replicas."""
        if len(self.brokers) == 1:
            return [self.brokers] * count
        return [self._one(replication_factor) for _ in range(count)]

    def _one(self, replication_factor: int) -> tuple[int, ...]:
        leads, holds = self._leads, self._holds
        leader = min(range(len(leads)), key=lambda at: (leads[at], holds[at]))
        chosen = [leader]
        if replication_factor > 1:
            self._followers(chosen, replication_factor)
        leads[leader] += 1
        for at in chosen:
            holds[at] += 1
        return tuple(self.brokers[at] for at in chosen)

    def _followers(self, chosen: list[int], replication_factor: int) -> None:
        """Among equals, each partition of a leader starts with another one: when the leader is lost, all of
        them get some of its partitions."""
        hosts, zones, holds = self._hosts, self._zones, self._holds
        used_hosts, used_zones = [hosts[chosen[0]]], [zones[chosen[0]]]
        count = len(self.brokers) - 1
        start = chosen[0] + 1 + self._leads[chosen[0]] % count
        wrap = chosen[0] + 1 + count
        others = [*range(start, wrap), *range(chosen[0] + 1, start)]
        candidates = [at % len(self.brokers) for at in others]

        def cost(at: int) -> tuple[int, int, int]:
            return used_hosts.count(hosts[at]), used_zones.count(zones[at]), holds[at]

        while len(chosen) < replication_factor:
            best = min(candidates, key=cost)
            candidates.remove(best)
            chosen.append(best)
            used_hosts.append(hosts[best])
            used_zones.append(zones[best])

    def _count(self, image: ClusterImage) -> None:
        at = {broker_id: at for at, broker_id in enumerate(self.brokers)}
        for topic in image.topics.values():
            for partition in topic.partitions:
                for broker_id in partition.replicas:
                    if broker_id in at:
                        self._holds[at[broker_id]] += 1
                if partition.replicas[0] in at:
                    self._leads[at[partition.replicas[0]]] += 1


def _ring(brokers: Sequence[BrokerImage]) -> list[BrokerImage]:
    """Brokers with zones taken in turn: a1 b1 c1 a2 b2 …, so that neighbours differ in zone."""
    by_zone: dict[str, list[BrokerImage]] = {}
    for broker in brokers:
        by_zone.setdefault(_zone(broker), []).append(broker)
    rounds = max(map(len, by_zone.values()), default=0)
    return [
        by_zone[zone][turn] for turn in range(rounds) for zone in sorted(by_zone) if turn < len(by_zone[zone])
    ]


def _zone(broker: BrokerImage) -> str:
    return (broker.rack or "").partition("/")[0]


def _host(broker: BrokerImage) -> tuple[str, str]:
    zone, _, host = (broker.rack or "").partition("/")
    return (zone, host) if host else ("", broker.host)
