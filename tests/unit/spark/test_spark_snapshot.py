"""Look-ups over a bucket directory without Spark: timestamps against a plain scan, clusters, topics."""

import random
from pathlib import Path

import pytest
from msgspec.structs import replace
from spark_bucket import CLUSTER, BucketWriter
from spark_history import FIRST_MS, LOG_START, write_history

from tierlog.base.types import TopicIdPartition
from tierlog.metadata.records import compaction_tags
from tierlog.records.batch import iter_batches
from tierlog.records.record import iter_records
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.spark.bucket import DirectoryBucket, open_bucket
from tierlog.spark.options import InvalidOption, StoreAddress, parse_options
from tierlog.spark.plan import Pruning, Source, Split
from tierlog.spark.snapshot import PartitionView, find_cluster, plan_splits, read_split
from tierlog.tiering.object_store import CorruptObject, ObjectNotFound


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> BucketWriter:
    return write_history(tmp_path_factory.mktemp("bucket"))


def view(writer: BucketWriter, topic: str, partition: int) -> PartitionView:
    source = Source(topic, writer.topics[topic], partition)
    return PartitionView(DirectoryBucket(writer.root), writer.keys, source)


def test_every_timestamp_finds_the_first_record_that_reaches_it(history: BucketWriter) -> None:
    rows = [row for row in history.rows["flights", 0] if row["offset"] >= LOG_START]
    found = view(history, "flights", 0)
    rng = random.Random(5)
    stamps = [
        FIRST_MS - 1,
        rows[0]["timestamp_ms"],
        rows[-1]["timestamp_ms"],
        rows[-1]["timestamp_ms"] + 120_000,
    ]
    stamps += [rng.choice(rows)["timestamp_ms"] + rng.choice((-1, 0, 1)) for _ in range(60)]
    for stamp in stamps:
        expected = next((row["offset"] for row in rows if row["timestamp_ms"] >= stamp), found.committed.end)
        assert found.offset_at(stamp) == expected


def test_a_batch_longer_than_one_read_is_found_by_time(tmp_path: Path) -> None:
    writer = BucketWriter(tmp_path)
    writer.topic("big", 1)
    small = encode_batch([NewRecord(1, None, b"x")])
    large = encode_batch([NewRecord(2, None, bytes(3 << 20)), NewRecord(3, None, b"y")], base_offset=1)
    writer.segment("big", 0, [small, large])
    writer.commit("big", 0)
    assert [view(writer, "big", 0).offset_at(stamp) for stamp in (1, 2, 3, 4)] == [0, 1, 2, 3]


def test_small_segments_are_planned_without_their_indexes(history: BucketWriter) -> None:
    options = parse_options({"path": str(history.root), "topic": "weather"})
    splits = plan_splits(open_bucket(options.store), options, Pruning())
    assert len(splits) == 6 and all(split.start == 0 for split in splits)


@pytest.mark.parametrize("index_bytes", (1, 300, 1 << 20))
def test_splits_of_merged_objects_have_the_same_batches(tmp_path: Path, index_bytes: int) -> None:
    """The objects of a plan are merged, and deleted, before its splits are read."""
    writer = BucketWriter(tmp_path)
    topic_id = writer.topic("t", 1)
    batches = [
        encode_batch([NewRecord(at + n, None, b"%060d" % (at + n)) for n in range(3)], base_offset=at)
        for at in range(0, 180, 3)
    ]
    for first in range(0, 60, 12):
        writer.segment("t", 0, batches[first : first + 12], index_bytes)
    writer.commit("t", 0)
    where = TopicIdPartition(topic_id, 0)
    options = parse_options(
        {
            "path": str(tmp_path),
            "topic": "t",
            "splitBytes": "500",
            "startingOffsets": '{"t":{"0":40}}',
            "endingOffsets": '{"t":{"0":160}}',
        }
    )
    bucket = open_bucket(options.store)
    splits = plan_splits(bucket, options, Pruning())

    def records(split: Split) -> list[tuple[int, bytes | None]]:
        data = b"".join(read_split(bucket, options, split))
        found = (one for at, _ in iter_batches(data) for one in iter_records(data, at, max_bytes=1 << 20))
        return [
            (one.offset, one.value) for one in found if split.offsets.start <= one.offset < split.offsets.end
        ]

    before = [records(split) for split in splits]
    assert [offset for part in before for offset, _ in part] == list(range(40, 160))
    for entry in writer.entries.pop(where):
        (tmp_path / writer.keys.log(where, entry)).unlink()
    writer.segment("t", 0, batches[:24], index_bytes)
    writer.segment("t", 0, batches[24:], index_bytes)
    writer.commit("t", 0)
    assert [records(split) for split in splits] == before
    writer.entries[where][0] = replace(writer.entries[where][0], tags=compaction_tags(72, 1))
    writer.commit("t", 0)
    with pytest.raises(ObjectNotFound):
        list(read_split(bucket, options, splits[0]))
    assert records(splits[-1]) == before[-1], "its segment was not compacted"
    writer.commit("t", 0, log_start=100)
    with pytest.raises(ObjectNotFound):
        list(read_split(bucket, options, splits[0]))


def test_a_bucket_names_its_clusters(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="no cluster"):
        find_cluster(DirectoryBucket(tmp_path), None)
    writer = BucketWriter(tmp_path)
    (tmp_path / "something else").mkdir()
    assert find_cluster(DirectoryBucket(tmp_path), None) == CLUSTER
    writer.put(
        "second/cluster.json", (tmp_path / CLUSTER / "cluster.json").read_bytes().replace(b"spark-test", b"x")
    )
    assert find_cluster(DirectoryBucket(tmp_path), None) == CLUSTER  # a damaged marker marks nothing
    with pytest.raises(InvalidOption, match="no cluster 'third'"):
        find_cluster(DirectoryBucket(tmp_path), "third")


def test_a_directory_answers_whole_ranges_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"0123456789")
    bucket = open_bucket(StoreAddress(path=f"file://{tmp_path}"))
    assert bucket.read("a/b") == b"0123456789" and bucket.read("a/b", 3, 5) == b"34"
    assert bucket.keys("a/") == ["a/b"] and bucket.folders() == ["a"]
    with pytest.raises(CorruptObject):
        bucket.read("a/b", 8, 12)
    with pytest.raises(ObjectNotFound):
        bucket.read("a/c")
    for wrong in (f"{tmp_path}/nowhere", "gs://bucket"):
        with pytest.raises(InvalidOption):
            open_bucket(StoreAddress(path=wrong))
