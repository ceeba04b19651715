"""Partition roles: makes each local replica a leader or a follower, as the image says.

Also gives the leaders the set of live brokers. Only the controller elects leaders. Called by the replica
manager, for each new or changed partition and for each image in which the brokers changed.
"""

from collections.abc import Iterable, Mapping

from tierlog.base.clock import Clock
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_fetcher import ReplicaFetchers
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import PartitionRecord


class PartitionRoles:
    def __init__(self, node_id: int, clock: Clock, fetchers: ReplicaFetchers | None = None) -> None:
        """`fetchers`: None for a standalone broker."""
        self._node_id = node_id
        self._clock = clock
        self._fetchers = fetchers
        self._live: Mapping[int, int] = {}

    def apply(self, replica: Replica, partition: PartitionRecord) -> None:
        """Give the replica the role that the image has for it."""
        fetchers = self._fetchers
        if partition.leader == self._node_id:
            if fetchers is not None:
                fetchers.remove(replica)
            now_ms = self._clock.monotonic_ms()
            replica.become_leader(
                partition.leader_epoch,
                partition.partition_epoch,
                partition.in_sync,
                partition.replicas,
                now_ms,
                full=partition.full,
                emptied=partition.emptied,
            )
            if replica.followers:
                replica.as_leader.set_live(self._live)
            return
        replica.become_follower(partition.leader, partition.leader_epoch, partition.partition_epoch)
        if fetchers is not None:
            fetchers.follow(replica)

    def remove(self, replica: Replica) -> None:
        """Stop fetching the replica."""
        if self._fetchers is not None:
            self._fetchers.remove(replica)

    def brokers_changed(self, image: ClusterImage, replicas: Iterable[Replica]) -> None:
        self._live = live_brokers(image)
        for replica in replicas:
            if replica.followers:
                replica.as_leader.set_live(self._live)
        if self._fetchers is not None:
            self._fetchers.brokers_changed()


def live_brokers(image: ClusterImage) -> Mapping[int, int]:
    """The brokers which may be in sync: broker id to broker epoch."""
    return {
        broker.broker_id: broker.broker_epoch
        for broker in (image.brokers[broker_id] for broker_id in sorted(image.brokers))
        if broker.may_lead
    }
