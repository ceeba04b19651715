"""A partition's leader and offline replicas in Metadata and DescribeTopicPartitions responses.

A response names no leader if the image's leader is unregistered, is known to be dead, lacks the listener that
the client uses, or has a failed log directory that the controller does not know of yet (KIP-858). A client
without a leader retries at once; one that connects to a dead broker loses time.
"""

from tierlog.base.types import NO_LEADER, TopicPartition
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.metadata.records import PartitionRecord


class PartitionDescriber:
    """Describes the partitions of one image, for one response to a client of this listener."""

    def __init__(self, deps: Dependencies, listener: str) -> None:
        self._replicas, self._node_id = deps.replicas, deps.settings.node_id
        self.image = deps.metadata.image
        dead, brokers = deps.metadata.dead_brokers, self.image.brokers.values()
        self.live = {one.broker_id for one in brokers if not one.fenced and one.broker_id not in dead}
        reached = {one.broker_id for one in brokers if one.address_of(listener) is not None}
        self._may_lead = reached - dead

    def leader_and_offline_replicas(
        self, name: TopicPartition, partition: PartitionRecord
    ) -> tuple[int, list[int]]:
        """Offline replicas are on a fenced, unregistered or dead broker, or on a failed disk. The controller
        may not know of this broker's failed disks yet."""
        leader = partition.leader if partition.leader in self._may_lead else NO_LEADER
        offline = [
            replica
            for replica in partition.replicas
            if replica not in self.live or replica in partition.offline
        ]
        if self._node_id in partition.replicas and self._replicas.is_offline(name):
            leader = NO_LEADER if leader == self._node_id else leader
            if self._node_id not in offline:
                offline.append(self._node_id)
        return leader, offline
