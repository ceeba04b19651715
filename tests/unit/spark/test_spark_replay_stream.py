"""The stream of the replay job: its ends, its tasks, and checkpoints of other runs."""

import json
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructType
from spark_bucket import BucketWriter
from spark_history import LOG_START, write_history

from tierlog.spark.history.plan import OffsetsUnavailable, unpack_split
from tierlog.spark.jobs.replay_stream import (
    InOrder,
    ReplayChanged,
    ReplayReader,
    UnlimitedReplayReader,
    replay_reader,
)
from tierlog.spark.options import InvalidOption

ARGUMENTS = {"to_topic": "{topic}.copy", "filter": None}


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> BucketWriter:
    return write_history(tmp_path_factory.mktemp("bucket"))


def reader(history: BucketWriter, schema: StructType | None = None, **options: str) -> InOrder:
    given = {"path": str(history.root), "topic": "flights", "arguments": json.dumps(ARGUMENTS), **options}
    return replay_reader(given, schema or StructType())


def ends_of(document: dict[str, Any]) -> dict[str, int]:
    found: dict[str, int] = document["topics"]["flights"]["partitions"]
    return found


def test_one_task_reads_a_partition_in_its_order(history: BucketWriter) -> None:
    stream = reader(history, StructType().add("offset", LongType()), splitBytes="1000")
    start = stream.initialOffset()
    assert ends_of(start)["0"] == LOG_START
    first, end = stream.bounds()
    tasks = stream.partitions(start, stream._marked(encode(end)))
    assert len(tasks) == 2
    for task in tasks:
        packed, live = task.value
        parts = unpack_split(packed)
        assert live is None
        assert len(parts) > 10
        assert len({part.source for part in parts}) == 1
        assert [part.last_offsets.start for part in parts] == sorted(
            part.last_offsets.start for part in parts
        )
        assert parts[0].offsets.start == first[parts[0].source]
        assert parts[-1].offsets.end == end[parts[0].source]
        offsets = [offset for batch in stream.read(task) for offset in batch["offset"].to_pylist()]
        rows = history.rows["flights", parts[0].source.partition]
        wanted = range(first[parts[0].source], end[parts[0].source])
        assert offsets == [row["offset"] for row in rows if row["offset"] in wanted]


def encode(ends: Any) -> dict[str, Any]:
    from tierlog.spark import offsets

    return offsets.encode(ends)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"endingOffsets": '{"flights": {"0": 300, "1": 7}}'}, {"0": 300, "1": 7}),
        ({"endingOffsets": '{"flights": {"0": -2, "1": 9999999}}'}, {"0": 0}),
    ],
)
def test_stream_ends_at_the_offsets_of_the_range(
    history: BucketWriter, options: dict[str, str], expected: dict[str, int]
) -> None:
    newest = ends_of(encode(reader(history).bounds()[1]))
    found = ends_of(encode(reader(history, **options).bounds()[1]))
    assert found == {**newest, **expected}


@pytest.mark.parametrize("ending", ['{"flight": {"0": 5}}', '{"flights": {"9": 5}}'])
def test_end_of_a_partition_that_is_not_read_is_refused(history: BucketWriter, ending: str) -> None:
    with pytest.raises(InvalidOption, match="which the query does not read"):
        reader(history, endingOffsets=ending).bounds()


def test_start_that_retention_has_passed_fails_the_first_run_only(history: BucketWriter) -> None:
    """A run with a checkpoint has the bounds, and does not ask for the first offset."""
    stream = reader(history, startingOffsets=json.dumps({"flights": {"0": LOG_START - 1}}))
    first, _ = stream.bounds()
    assert ends_of(encode(first))["0"] == LOG_START
    with pytest.raises(OffsetsUnavailable, match="is not available"):
        stream.initialOffset()


def test_stream_ends_at_a_timestamp(history: BucketWriter) -> None:
    rows = history.rows["flights", 1]
    stamp = rows[400]["timestamp_ms"]
    _, end = reader(history, endingTimestamp=str(stamp)).bounds()
    assert ends_of(encode(end))["1"] == next(row["offset"] for row in rows if row["timestamp_ms"] >= stamp)


def test_checkpoint_of_other_arguments_or_beyond_the_end_is_refused(history: BucketWriter) -> None:
    stream = reader(history)
    start, end = stream.initialOffset(), stream._marked(encode(stream.bounds()[1]))
    with pytest.raises(ReplayChanged, match="give the same arguments"):
        stream.partitions(start, {**end, "replay": {"filter": "true"}})
    with pytest.raises(ReplayChanged, match="beyond the end of the range"):
        stream.partitions(end, start)


@pytest.mark.parametrize("kind", [ReplayReader, UnlimitedReplayReader])
def test_both_engines_have_the_ends_and_the_arguments(history: BucketWriter, kind: type[InOrder]) -> None:
    made = reader(history, endingOffsets='{"flights": {"0": 300, "1": 300, "2": 0}}')
    stream = kind(made._options, StructType())
    stream.arguments = ARGUMENTS
    start = stream.initialOffset()
    end = stream.latestOffset(*([start, None] if kind is ReplayReader else []))
    assert ends_of(end) == {"0": 300, "1": 300, "2": 0}
    assert start["replay"] == end["replay"] == ARGUMENTS
