"""Effects of records that tests of `decide` do not show."""

import uuid

import pytest
from remote_segments import remote_segment

from tierlog.base.types import InvariantViolation
from tierlog.metadata.delete_queue import DeletedTopic, DeleteQueue, QueuedDelete
from tierlog.metadata.evolve import evolve, evolve_all
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.image_codec import decode_image, encode_image
from tierlog.metadata.records import (
    AnyRecord,
    BrokerEndpoints,
    CopyFinished,
    PartitionRecord,
    RemoteDeleted,
    RemoteDeletesStarted,
    TopicCreated,
    TopicDeleted,
    decode_records,
    encode_records,
)

ONE, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)


def partition(topic_id: uuid.UUID, number: int, epoch: int = 0) -> PartitionRecord:
    return PartitionRecord(
        topic_id=topic_id,
        partition=number,
        replicas=(1,),
        in_sync=(1,),
        leader=1,
        leader_epoch=epoch,
        partition_epoch=epoch,
    )


RECORDS: tuple[AnyRecord, ...] = (
    TopicCreated(topic_id=ONE, name="one"),
    partition(ONE, 0),
    partition(ONE, 1),
    TopicCreated(topic_id=OTHER, name="other"),
    partition(OTHER, 0),
    partition(ONE, 2),
    partition(ONE, 0, epoch=3),
    partition(ONE, 0, epoch=4),
    partition(OTHER, 1),
)


def test_partitions_changed_together_equal_those_changed_one_by_one() -> None:
    one_by_one = ClusterImage(cluster_id="c")
    for record in RECORDS:
        one_by_one = evolve(one_by_one, record)
    together = evolve_all(ClusterImage(cluster_id="c"), RECORDS)
    assert together == one_by_one
    assert [p.leader_epoch for p in together.topics[ONE].partitions] == [4, 0, 0]


@pytest.mark.parametrize("bad", [partition(ONE, 4), partition(ONE, 0, epoch=2), partition(OTHER, 3)])
def test_record_that_does_not_fit_stops_the_node_within_a_batch_too(bad: PartitionRecord) -> None:
    with pytest.raises(InvariantViolation):
        evolve_all(ClusterImage(cluster_id="c"), (*RECORDS, bad))


def test_endpoints_of_an_unknown_broker_stop_the_node() -> None:
    with pytest.raises(InvariantViolation, match="broker 7 has endpoints but is not registered"):
        evolve(ClusterImage(cluster_id="c"), BrokerEndpoints(broker_id=7, endpoints=()))


COPIED = (
    *RECORDS,
    CopyFinished(topic_id=ONE, partition=0, segment=remote_segment(0, 9, uuid=uuid.UUID(int=10))),
    CopyFinished(topic_id=ONE, partition=2, segment=remote_segment(0, 4, uuid=uuid.UUID(int=11))),
)


def old_line(number: int, partition: int, last_offset: int) -> QueuedDelete:
    return QueuedDelete(
        uuid=uuid.UUID(int=number),
        is_page=False,
        topic_id=ONE,
        partition=partition,
        base_offset=0,
        last_offset=last_offset,
        leader_epoch=0,
        queued_ms=7,
        log_bytes=1000,
    )


def test_deletion_in_an_old_log_gives_the_lines_of_an_old_snapshot() -> None:
    """A node that starts from an older snapshot has a line for each object. One that replays the older log
    needs the same lines, or later records have other effects on it."""
    old_record = decode_records(b"\x91\x93\x0b\xc4\x10" + ONE.bytes + b"\x07")
    before = evolve_all(ClusterImage(cluster_id="c"), COPIED)
    replayed = evolve_all(before, old_record)
    assert replayed.delete_queue == DeleteQueue([old_line(10, 0, 9), old_line(11, 2, 4)])
    assert not replayed.remote
    from_snapshot = decode_image(encode_image(replayed))
    later: tuple[AnyRecord, ...] = (
        RemoteDeletesStarted(uuids=(uuid.UUID(int=10),), at_ms=9),
        RemoteDeleted(uuids=(uuid.UUID(int=10),)),
        CopyFinished(topic_id=OTHER, partition=0, segment=remote_segment(0, 9, uuid=uuid.UUID(int=12))),
        TopicDeleted(topic_id=OTHER, at_ms=20, whole=True),
    )
    images = [evolve_all(image, decode_records(encode_records(later))) for image in (replayed, from_snapshot)]
    assert images[0] == images[1]
    whole = DeletedTopic(uuid=OTHER, partitions=2, queued_ms=20)
    assert images[0].delete_queue == DeleteQueue([old_line(11, 2, 4), whole])
