"""Metadata publisher: what becomes of an image that nothing else holds any more."""

import asyncio
import uuid

from immutables import Map
from msgspec.structs import replace
from remote_segments import remote_segment

from tierlog.base.types import TopicIdPartition
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import ClusterImage, RemotePartition
from tierlog.metadata.quorum.publisher import ENTRIES_FREED_PER_TURN, MetadataPublisher
from tierlog.metadata.records import PartitionRecord, RemoteSegment, TopicCreated, TopicDeleted

TOPIC = uuid.UUID(int=1)
PARTITIONS, ENTRIES = 40, 500
freed: list[int] = []


class Manifest(tuple[RemoteSegment, ...]):
    """Entries that note when they are freed."""

    def __del__(self) -> None:
        freed.append(len(self))


def image() -> ClusterImage:
    """A topic with many manifest entries."""
    partitions = [
        PartitionRecord(
            topic_id=TOPIC,
            partition=number,
            replicas=(1,),
            in_sync=(1,),
            leader=1,
            leader_epoch=0,
            partition_epoch=0,
        )
        for number in range(PARTITIONS)
    ]
    created = TopicCreated(topic_id=TOPIC, name="t")
    found = evolve_all(ClusterImage(cluster_id="c"), [created, *partitions])
    entry = remote_segment(0, 9)
    remote = {
        TopicIdPartition(TOPIC, number): RemotePartition(entries=Manifest([entry] * ENTRIES))
        for number in range(PARTITIONS)
    }
    return replace(found, remote=Map(remote))


async def test_manifests_of_a_deleted_topic_are_freed_over_several_turns() -> None:
    publisher = MetadataPublisher(image())
    freed.clear()
    deleted = TopicDeleted(topic_id=TOPIC, at_ms=1, whole=True)
    publisher.publish(evolve_all(publisher.image, [deleted]), 1)
    turns = []
    while sum(turns) < PARTITIONS * ENTRIES:
        turns.append(sum(freed))
        freed.clear()
        await asyncio.sleep(0)
    assert max(turns) <= ENTRIES_FREED_PER_TURN < sum(turns) == PARTITIONS * ENTRIES
