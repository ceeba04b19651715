"""A partition's leader and offline replicas, as Metadata and DescribeTopicPartitions tell them.

The image says who leads; what clients are told differs where that broker is not registered any more, is
dead and not yet replaced, or has lost the disk (as after KIP-858's report of it). A client that hears of no
leader asks again at once; one that is sent to a dead one takes its time.
"""

from tierlog.base.types import TopicPartition
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.metadata.image import PartitionImage

NO_LEADER = -1


class PartitionViews:
    """Of one image, for one answer."""

    def __init__(self, deps: Dependencies) -> None:
        self._replicas, self._own = deps.replicas, deps.settings.node_id
        self.image = deps.metadata.image
        dead, brokers = deps.metadata.dead_brokers, self.image.brokers.values()
        self.live = {one.broker_id for one in brokers if not one.fenced and one.broker_id not in dead}
        self._may_lead = set(self.image.brokers) - dead

    def leader_and_offline(self, name: TopicPartition, partition: PartitionImage) -> tuple[int, list[int]]:
        """Offline: on a broker that is fenced, gone or dead, or on a disk that has failed, of which the
        controller may not know yet if it is this broker's."""
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
