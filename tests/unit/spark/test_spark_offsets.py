"""Offsets of streams: the format of checkpoints, limits, the seam, and topics that changed."""

import json
import uuid

import pytest

from tierlog.spark import offsets
from tierlog.spark.history.plan import OffsetRange, OffsetsUnavailable, Source
from tierlog.spark.offsets import TopicChanged

FLIGHTS = uuid.UUID(int=1)
A, B = Source("flights", FLIGHTS, 0), Source("flights", FLIGHTS, 1)


def test_offsets_are_readable_json_in_one_order() -> None:
    document = offsets.encode({B: 17, A: 23})
    assert document == {
        "version": 1,
        "topics": {"flights": {"id": str(FLIGHTS), "partitions": {"0": 23, "1": 17}}},
    }
    assert json.dumps(document) == json.dumps(offsets.encode({A: 23, B: 17}))
    assert offsets.decode(json.loads(json.dumps(document))) == {A: 23, B: 17}


def test_offsets_of_another_source_are_refused() -> None:
    with pytest.raises(ValueError, match="did not write"):
        offsets.decode({"flights": {"0": 23}})


def test_topic_with_another_id_is_not_the_one_of_the_checkpoint() -> None:
    again = Source("flights", uuid.UUID(int=2), 0)
    with pytest.raises(TopicChanged, match="deleted and created again"):
        offsets.check_topics({A: 5}, {again: 0})
    with pytest.raises(TopicChanged, match="not among the partitions"):
        offsets.check_topics({A: 5, B: 5}, {A: 7})
    offsets.check_topics({A: 5}, {A: 7, B: 0})


def test_limit_is_shared_in_proportion_and_no_partition_starves() -> None:
    start = {A: 100, B: 0}
    assert offsets.limit(start, {A: 1_000, B: 100}, 100) == {A: 190, B: 10}
    assert offsets.limit(start, {A: 1_000_000, B: 1}, 10) == {A: 109, B: 1}
    assert offsets.limit(start, {A: 130, B: 3}, 100) == {A: 130, B: 3}
    assert offsets.limit(start, {A: 200, B: 0}, 10) == {A: 110, B: 0}


@pytest.mark.parametrize(
    ("wanted", "committed", "history", "live"),
    [
        ((0, 10), (0, 20), (0, 10), (10, 10)),  # all uploaded
        ((0, 10), (0, 4), (0, 4), (4, 10)),  # over the seam
        ((5, 10), (0, 4), (5, 5), (5, 10)),  # nothing uploaded
        ((5, 10), (0, 5), (5, 5), (5, 10)),
        ((0, 10), (0, 0), (0, 0), (0, 10)),  # no manifest
        ((0, 10), (3, 20), (0, 0), (0, 10)),  # the start was deleted: brokers say so
    ],
)
def test_seam_divides_a_range_without_gap(
    wanted: tuple[int, int], committed: tuple[int, int], history: tuple[int, int], live: tuple[int, int]
) -> None:
    found = offsets.seam(OffsetRange(*wanted), OffsetRange(*committed))
    assert found == (OffsetRange(*history), OffsetRange(*live))


def test_deleted_offsets_are_an_error_unless_waived() -> None:
    with pytest.raises(OffsetsUnavailable, match="failOnDataLoss=false"):
        offsets.available(A, OffsetRange(3, 10), 5, fail_on_data_loss=True)
    assert offsets.available(A, OffsetRange(3, 10), 5, fail_on_data_loss=False) == OffsetRange(5, 10)
    assert not offsets.available(A, OffsetRange(3, 10), 50, fail_on_data_loss=False)
