"""Who leads a partition when brokers come and go. Only in-sync replicas are eligible."""

from collections.abc import Callable, Iterator
from uuid import UUID

from msgspec.structs import replace

from tierlog.metadata.image import ClusterImage, PartitionImage
from tierlog.metadata.records import PartitionRecord

NO_LEADER = -1


def broker_lost(image: ClusterImage, broker_id: int) -> Iterator[PartitionRecord]:
    """The broker serves no more: it leaves every in-sync set that has another member, and leads nothing."""
    live = {broker.broker_id for broker in image.live_brokers()} - {broker_id}
    return _each(image, lambda partition: _without(partition, broker_id, live))


def broker_restarted(image: ClusterImage, broker_id: int) -> Iterator[PartitionRecord]:
    """A new incarnation may have lost unsynced data. Where others are in sync it follows them; where it is
    alone it leads on under a new leader epoch, so that divergence from before the crash shows (KIP-101)."""
    live = {broker.broker_id for broker in image.live_brokers()} - {broker_id}

    def next_state(partition: PartitionImage) -> PartitionImage:
        if broker_id not in partition.in_sync:
            return partition
        if partition.in_sync != (broker_id,):
            return _without(partition, broker_id, live)
        return replace(
            partition, leader_epoch=partition.leader_epoch + 1, partition_epoch=partition.partition_epoch + 1
        )

    return _each(image, next_state)


def broker_ready(image: ClusterImage, broker_id: int) -> Iterator[PartitionRecord]:
    """The broker serves (again): it takes the partitions that wait for one of their in-sync replicas."""

    def next_state(partition: PartitionImage) -> PartitionImage:
        if partition.leader != NO_LEADER or broker_id not in partition.in_sync:
            return partition
        return _led_by(partition, broker_id, partition.in_sync)

    return _each(image, next_state)


def _each(
    image: ClusterImage, next_state: Callable[[PartitionImage], PartitionImage]
) -> Iterator[PartitionRecord]:
    for topic_id in sorted(image.topics):
        for number, partition in enumerate(image.topics[topic_id].partitions):
            after = next_state(partition)
            if after != partition:
                yield partition_record(topic_id, number, after)


def _without(partition: PartitionImage, broker_id: int, live: set[int]) -> PartitionImage:
    if broker_id not in partition.in_sync and partition.leader != broker_id:
        return partition
    in_sync = tuple(replica for replica in partition.in_sync if replica != broker_id) or partition.in_sync
    if partition.leader not in (broker_id, NO_LEADER):
        return replace(partition, in_sync=in_sync, partition_epoch=partition.partition_epoch + 1)
    eligible = [replica for replica in partition.replicas if replica in in_sync and replica in live]
    if not eligible and partition.leader == NO_LEADER:
        return partition
    return _led_by(
        partition, eligible[0] if eligible else NO_LEADER, in_sync if eligible else partition.in_sync
    )


def _led_by(partition: PartitionImage, leader: int, in_sync: tuple[int, ...]) -> PartitionImage:
    return PartitionImage(
        replicas=partition.replicas,
        in_sync=in_sync,
        leader=leader,
        leader_epoch=partition.leader_epoch + 1,
        partition_epoch=partition.partition_epoch + 1,
    )


def partition_record(topic_id: UUID, number: int, partition: PartitionImage) -> PartitionRecord:
    return PartitionRecord(
        topic_id=topic_id,
        partition=number,
        replicas=partition.replicas,
        in_sync=partition.in_sync,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
    )
