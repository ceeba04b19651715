"""Partition roles: makes each local replica a leader or a follower, according to the image.

Also gives the leaders the set of live brokers. Only the controller elects leaders. Called by the replica
manager, for each new or changed partition and for each image in which the brokers changed.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

import structlog

from tierlog.base.clock import Clock
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicPartition
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_fetcher import ReplicaFetchers
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import PartitionRecord

_log = structlog.get_logger("tierlog.replicas")


class PartitionRoles:
    def __init__(self, node_id: int, clock: Clock, fetchers: ReplicaFetchers | None = None) -> None:
        """`fetchers`: None for a standalone broker."""
        self._node_id = node_id
        self._clock = clock
        self._fetchers = fetchers
        self._live: Mapping[int, int] = {}

    def apply(self, replica: Replica, partition: PartitionRecord) -> None:
        """Give the replica the role that the partition record assigns to it."""
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


class PendingLeaders:
    """Elected replicas that cannot lead yet: their log end could not be moved to the end of the remote log,
    damage prevents the comparison of their log with the manifest, the manifest has other records, or the
    newest manifest is only in the bucket.

    Until then each keeps its previous role, as if the broker had not received the election yet. It is tried
    again once a minute, when the flush that prevented it has ended, or when the disk may have space. A failed
    disk takes its directory offline, with these replicas. No other replica would be a better leader: an
    in-sync replica has everything that is remote, so this one was elected because none was in sync.
    """

    def __init__(self, tasks: TaskGroup, retry: Callable[[TopicPartition], None]) -> None:
        """`retry` applies the role of the newest image, or postpones it again."""
        self._tasks = tasks
        self._retry = retry
        self._waiting: dict[Replica, bool] = {}  # True while it waits for the end of a flush
        self._without_manifest: set[Replica] = set()  # the ones waiting for a change of the manifest

    def postpone(self, replica: Replica, why: OSError) -> None:
        _log.warning(
            "replica.not_leading",
            partition=str(replica.name),
            error=str(why),
        )
        if self._waiting.get(replica):
            return
        self._waiting[replica] = isinstance(why, BlockingIOError)
        if self._waiting[replica]:
            self._tasks.spawn(f"lead {replica.name} after a flush", self._lead_after_flush(replica))

    def await_manifest(self, replica: Replica) -> None:
        """The replica leads once its manifest has been read from the bucket, or entries of it are removed."""
        self._without_manifest.add(replica)

    def remove(self, replica: Replica) -> None:
        """Called when the replica has taken its role or is removed."""
        self._waiting.pop(replica, None)
        self._without_manifest.discard(replica)

    def retry_manifests(self) -> None:
        """A manifest has changed."""
        for replica in list(self._without_manifest):
            self._retry(replica.name)

    def retry_all(self) -> None:
        for replica in dict.fromkeys([*self._waiting, *self._without_manifest]):
            self._retry(replica.name)

    async def _lead_after_flush(self, replica: Replica) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(replica.log_dir.threads, replica.log.flusher.wait)
        if replica in self._waiting:
            self._waiting[replica] = False
            self._retry(replica.name)


def live_brokers(image: ClusterImage) -> Mapping[int, int]:
    """The brokers which may be in sync: broker id to broker epoch."""
    return {
        broker.broker_id: broker.broker_epoch
        for broker in (image.brokers[broker_id] for broker_id in sorted(image.brokers))
        if broker.may_lead
    }
