"""Look-ups over a bucket directory without Spark: timestamps against a plain scan, clusters, topics."""

import random
from pathlib import Path

import pytest
from spark_bucket import CLUSTER, BucketWriter
from spark_history import FIRST_MS, LOG_START, write_history

from tierlog.records.writer import NewRecord, encode_batch
from tierlog.spark.bucket import DirectoryBucket, open_bucket
from tierlog.spark.options import InvalidOption, StoreAddress, parse_options
from tierlog.spark.plan import Pruning, Source
from tierlog.spark.snapshot import PartitionView, find_cluster, plan_splits
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
