"""A partition's leader and offline replicas in Metadata and DescribeTopicPartitions responses.

Responses contain no leader if the broker in the image is no longer registered, is dead and not yet replaced,
or has lost the disk (before the controller learns of it, KIP-858). A client without a leader retries at once;
one that connects to a dead broker loses time.
"""

from tierlog.base.types import NO_LEADER, TopicPartition
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.metadata.records import PartitionRecord


class PartitionViews:
    """Views of one image, for one response."""

    def __init__(self, deps: Dependencies) -> None:
        self._replicas, self._own = deps.replicas, deps.settings.node_id
        self.image = deps.metadata.image
        dead, brokers = deps.metadata.dead_brokers, self.image.brokers.values()
        self.live = {one.broker_id for one in brokers if not one.fenced and one.broker_id not in dead}
        self._may_lead = set(self.image.brokers) - dead

    def leader_and_offline(self, name: TopicPartition, partition: PartitionRecord) -> tuple[int, list[int]]:
        """Offline replicas are on a fenced, unregistered or dead broker, or on a failed disk. The controller
        may not know of this broker's failed disks yet."""
        leader = partition.leader if partition.leader in self._may_lead else NO_LEADER
        offline = [
            replica
            for replica in partition.replicas
            if replica not in self.live or replica in partition.offline
        ]
        if self._own in partition.replicas and self._replicas.is_offline(name):
            leader = NO_LEADER if leader == self._own else leader
            offline += [] if self._own in offline else [self._own]
        return leader, offline
