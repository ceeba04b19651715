"""Which brokers hold a new partition's replicas: other hosts, other zones, and then whoever has least.

A broker's rack is `zone` or `zone/host`; without a host it is the host that clients connect to. Two replicas
share a host only if there are fewer hosts than replicas, and zones are used as evenly as hosts allow. Leaders
go to who leads fewest. Brokers that are away get replicas only where those that serve are too few, so that
topics can be made while one restarts. Deterministic: the same image gives the same replicas.
"""

from collections.abc import Collection, Sequence

from tierlog.metadata.image import BrokerImage, ClusterImage


class Placement:
    """For one command: counts what all brokers have once, and then adds what it places."""

    def __init__(self, image: ClusterImage, without: Collection[int] = ()) -> None:
        """`without`: brokers that get nothing."""
        brokers = _ring([image.brokers[one] for one in sorted(image.brokers) if one not in without])
        self.brokers = tuple(broker.broker_id for broker in brokers)
        self._away = [not broker.may_lead for broker in brokers]
        self._hosts = [_host(broker) for broker in brokers]
        self._zones = [broker.zone for broker in brokers]
        self._leads = [0] * len(brokers)
        self._holds = [0] * len(brokers)
        self._at = {broker_id: at for at, broker_id in enumerate(self.brokers)}
        if len(brokers) > 1:
            self._count(image)

    @property
    def serving(self) -> int:
        """How many brokers can lead a new partition."""
        return self._away.count(False)

    def place(self, count: int, replication_factor: int) -> list[tuple[int, ...]]:
        """Replicas of `count` partitions, preferred leader first. There must be as many brokers as
        replicas, and one that serves."""
        if len(self.brokers) == 1:
            return [self.brokers] * count
        return [self._one(replication_factor) for _ in range(count)]

    def _one(self, replication_factor: int) -> tuple[int, ...]:
        away, leads, holds = self._away, self._leads, self._holds
        leader = min(range(len(leads)), key=lambda at: (away[at], leads[at], holds[at]))
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
        away, hosts, zones, holds = self._away, self._hosts, self._zones, self._holds
        used_hosts, used_zones = [hosts[chosen[0]]], [zones[chosen[0]]]
        count = len(self.brokers) - 1
        start = chosen[0] + 1 + self._leads[chosen[0]] % count
        wrap = chosen[0] + 1 + count
        others = [*range(start, wrap), *range(chosen[0] + 1, start)]
        candidates = [at % len(self.brokers) for at in others]

        def cost(at: int) -> tuple[bool, int, int, int]:
            return away[at], used_hosts.count(hosts[at]), used_zones.count(zones[at]), holds[at]

        while len(chosen) < replication_factor:
            best = min(candidates, key=cost)
            candidates.remove(best)
            chosen.append(best)
            used_hosts.append(hosts[best])
            used_zones.append(zones[best])

    def substitute(self, replicas: tuple[int, ...], leaving: int, *, if_better: bool = False) -> int | None:
        """Who is best to take the place of one of these replicas, among brokers that serve; None if nobody.
        `if_better`: only for somebody with less to hold, on no worse a host and zone. Counts the move."""
        staying = [self._at[one] for one in replicas if one != leaving and one in self._at]
        hosts, zones = [self._hosts[at] for at in staying], [self._zones[at] for at in staying]

        def cost(at: int) -> tuple[int, int, int]:
            return hosts.count(self._hosts[at]), zones.count(self._zones[at]), self._holds[at]

        candidates = [
            at
            for at, broker_id in enumerate(self.brokers)
            if not self._away[at] and broker_id not in replicas
        ]
        if not candidates:
            return None
        best, from_ = min(candidates, key=cost), self._at.get(leaving)
        if if_better and from_ is not None:
            place, load = cost(best)[:2], cost(best)[2]
            if place > cost(from_)[:2] or load + 1 >= self._holds[from_]:
                return None
        self._holds[best] += 1
        if from_ is not None:
            self._holds[from_] -= 1
        return self.brokers[best]

    def _count(self, image: ClusterImage) -> None:
        at = self._at
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
        by_zone.setdefault(broker.zone, []).append(broker)
    rounds = max(map(len, by_zone.values()), default=0)
    return [
        by_zone[zone][turn] for turn in range(rounds) for zone in sorted(by_zone) if turn < len(by_zone[zone])
    ]


def _host(broker: BrokerImage) -> tuple[str, str]:
    zone, _, host = (broker.rack or "").partition("/")
    return (zone, host) if host else ("", broker.host)
