"""Replica placement: assigns the replicas of new partitions to different hosts and zones, and balances the
load.

A broker's rack is `zone` or `zone/host`; without a host, the host that clients connect to counts. Two
replicas share a host only if there are fewer hosts than replicas. Zones are used as evenly as hosts allow.
Preferred leaders go to the brokers with the fewest. Inactive brokers get replicas only if there are too few
active ones, so that topics can be created while a broker restarts. The same image always gives the same
placement.
"""

from collections.abc import Collection, Sequence

from tierlog.metadata.image import BrokerImage, ClusterImage


class Placement:
    """Placement for one command: counts the load of all brokers once, and adds the replicas that it
    places."""

    def __init__(self, image: ClusterImage, exclude: Collection[int] = ()) -> None:
        """`exclude`: brokers that get no replicas."""
        brokers = _ring([image.brokers[one] for one in sorted(image.brokers) if one not in exclude])
        self.brokers = tuple(broker.broker_id for broker in brokers)
        self._inactive = [not broker.may_lead for broker in brokers]
        self._hosts = [host_of(broker) for broker in brokers]
        self._zones = [broker.zone for broker in brokers]
        self._leader_counts = [0] * len(brokers)
        self._replica_counts = [0] * len(brokers)
        self._index_of = {broker_id: at for at, broker_id in enumerate(self.brokers)}
        if len(brokers) > 1:
            self._count(image)

    @property
    def active_count(self) -> int:
        """Number of brokers that can lead a new partition."""
        return self._inactive.count(False)

    def place(self, count: int, replication_factor: int) -> list[tuple[int, ...]]:
        """Replicas of `count` partitions, preferred leader first. Needs at least as many brokers as replicas,
        and an active one."""
        if len(self.brokers) == 1:
            return [self.brokers] * count
        return [self._place_one(replication_factor) for _ in range(count)]

    def _place_one(self, replication_factor: int) -> tuple[int, ...]:
        inactive, leader_counts, replica_counts = self._inactive, self._leader_counts, self._replica_counts
        leader = min(
            range(len(leader_counts)), key=lambda at: (inactive[at], leader_counts[at], replica_counts[at])
        )
        chosen = [leader]
        if replication_factor > 1:
            self._choose_followers(chosen, replication_factor)
        leader_counts[leader] += 1
        for at in chosen:
            replica_counts[at] += 1
        return tuple(self.brokers[at] for at in chosen)

    def _choose_followers(self, chosen: list[int], replication_factor: int) -> None:
        """Rotate among equal followers, so that they share the partitions of a leader that is lost."""
        inactive, hosts, zones, replica_counts = (
            self._inactive,
            self._hosts,
            self._zones,
            self._replica_counts,
        )
        used_hosts, used_zones = [hosts[chosen[0]]], [zones[chosen[0]]]
        count = len(self.brokers) - 1
        start = chosen[0] + 1 + self._leader_counts[chosen[0]] % count
        wrap = chosen[0] + 1 + count
        others = [*range(start, wrap), *range(chosen[0] + 1, start)]
        candidates = [at % len(self.brokers) for at in others]

        def cost(at: int) -> tuple[bool, int, int, int]:
            return inactive[at], used_hosts.count(hosts[at]), used_zones.count(zones[at]), replica_counts[at]

        while len(chosen) < replication_factor:
            best = min(candidates, key=cost)
            candidates.remove(best)
            chosen.append(best)
            used_hosts.append(hosts[best])
            used_zones.append(zones[best])

    def substitute(self, replicas: tuple[int, ...], leaving: int, *, if_better: bool = False) -> int | None:
        """The best active broker to replace the replica on `leaving`; None if there is none.
        `if_better`: only a broker with fewer replicas whose host and zone are no worse. Counts the move."""
        staying = [self._index_of[one] for one in replicas if one != leaving and one in self._index_of]
        hosts, zones = [self._hosts[at] for at in staying], [self._zones[at] for at in staying]

        def cost(at: int) -> tuple[int, int, int]:
            return hosts.count(self._hosts[at]), zones.count(self._zones[at]), self._replica_counts[at]

        candidates = [
            at
            for at, broker_id in enumerate(self.brokers)
            if not self._inactive[at] and broker_id not in replicas
        ]
        if not candidates:
            return None
        best, from_ = min(candidates, key=cost), self._index_of.get(leaving)
        if if_better and from_ is not None:
            place, load = cost(best)[:2], cost(best)[2]
            if place > cost(from_)[:2] or load + 1 >= self._replica_counts[from_]:
                return None
        self._replica_counts[best] += 1
        if from_ is not None:
            self._replica_counts[from_] -= 1
        return self.brokers[best]

    def _count(self, image: ClusterImage) -> None:
        index_of = self._index_of
        for topic in image.topics.values():
            for partition in topic.partitions:
                for broker_id in partition.replicas:
                    if broker_id in index_of:
                        self._replica_counts[index_of[broker_id]] += 1
                if partition.replicas[0] in index_of:
                    self._leader_counts[index_of[partition.replicas[0]]] += 1


def _ring(brokers: Sequence[BrokerImage]) -> list[BrokerImage]:
    """Brokers with alternating zones (a1 b1 c1 a2 b2 …), so that neighbours are in different zones."""
    by_zone: dict[str, list[BrokerImage]] = {}
    for broker in brokers:
        by_zone.setdefault(broker.zone, []).append(broker)
    rounds = max(map(len, by_zone.values()), default=0)
    return [
        by_zone[zone][turn] for turn in range(rounds) for zone in sorted(by_zone) if turn < len(by_zone[zone])
    ]


def host_of(broker: BrokerImage) -> tuple[str, str]:
    zone, _, host = (broker.rack or "").partition("/")
    return (zone, host) if host else ("", broker.host)
