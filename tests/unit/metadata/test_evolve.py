"""Effects of records that tests of `decide` do not show."""

import uuid

import pytest

from tierlog.base.types import InvariantViolation
from tierlog.metadata.evolve import evolve, evolve_all
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import AnyRecord, CreateTopic, PartitionRecord

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
    CreateTopic(topic_id=ONE, name="one"),
    partition(ONE, 0),
    partition(ONE, 1),
    CreateTopic(topic_id=OTHER, name="other"),
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
