"""Metadata tables and counts, compared with the records written."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from pyspark.sql.types import StructType
from spark_bucket import BucketWriter
from spark_history import LOG_START, SEGMENTS, UNCOMMITTED, write_history

from tierlog.records.indexes import AbortedTxn
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.spark import count
from tierlog.spark.history.bucket import DirectoryBucket
from tierlog.spark.history.summary import PARTITIONS, count_records, table_rows
from tierlog.spark.history.summary import SEGMENTS as SEGMENT_COLUMNS
from tierlog.spark.options import InvalidOption, parse_options
from tierlog.spark.tables import TableReader


class ReadKeys(DirectoryBucket):
    """Keeps the keys that are read."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.keys_read: list[str] = []

    def read(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.keys_read.append(key)
        return super().read(key, start, end)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> BucketWriter:
    return write_history(tmp_path_factory.mktemp("bucket"))


def counted(writer: BucketWriter, **options: str) -> tuple[int, list[str]]:
    """The count, and the keys of the segments that were read for it."""
    bucket = ReadKeys(writer.root)
    parsed = parse_options({"path": str(writer.root), **options})
    return count_records(bucket, parsed), [key for key in bucket.keys_read if key.endswith(".log")]


def test_count_is_exact_and_reads_segments_only_at_the_edges(history: BucketWriter) -> None:
    rows = history.rows["flights", 0]
    found, read = counted(history, assign='{"flights":[0]}')
    assert found == sum(row["offset"] >= LOG_START for row in rows) and len(set(read)) == 1
    found, read = counted(history, subscribe="weather")
    assert (found, read) == (len(history.rows["weather", 0]), [])
    bounds = {"startingOffsets": {"weather": {"0": 17}}, "endingOffsets": {"weather": {"0": 700}}}
    found, read = counted(history, subscribe="weather", **{k: json.dumps(v) for k, v in bounds.items()})
    assert found == 700 - 17 and 0 < len(set(read)) <= 2


def test_count_reads_a_segment_whose_markers_the_manifest_does_not_count(history: BucketWriter) -> None:
    found, read = counted(history, assign='{"flights":[1]}')
    end = next(e for p, e in history.entries.items() if p.partition == 1)[-1 - UNCOMMITTED].end_offset
    assert found == sum(row["offset"] < end for row in history.rows["flights", 1])
    assert len(set(read)) == 1


def test_count_leaves_out_markers_and_aborted_records(tmp_path: Path) -> None:
    writer = BucketWriter(tmp_path)
    writer.topic("t", 1)
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    marker = [NewRecord(1, b"\x00\x00\x00\x00", b"\x00\x00\x00\x00\x00\x00")]
    batches = [
        encode_batch([NewRecord(1, None, b"kept")] * 3, base_offset=0),
        encode_batch([NewRecord(1, None, b"aborted")] * 2, base_offset=3, **producer),
        encode_batch(marker, base_offset=5, control=True),
    ]
    writer.segment("t", 0, batches, aborted=[AbortedTxn(7, 3, 5, 6)])
    writer.segment("t", 0, [encode_batch([NewRecord(1, None, b"x")] * 4, base_offset=6)])
    ((where, entries),) = writer.entries.items()
    entries[1] = replace(entries[1], records=5, control_records=1)
    writer.commit("t", 0)
    assert count(str(tmp_path), subscribe="t") == 3 + 4
    assert where.partition == 0


def test_tables_have_a_row_for_each_partition_and_segment(history: BucketWriter) -> None:
    bucket = ReadKeys(history.root)
    options = {"path": str(history.root)}
    partitions = list(table_rows(bucket, parse_options({**options, "table": "partitions"})))
    assert not [key for key in bucket.keys_read if key.endswith((".page", ".idx", ".log"))]
    segments = list(table_rows(bucket, parse_options({**options, "table": "segments"})))
    assert not [key for key in bucket.keys_read if key.endswith((".idx", ".log"))]
    assert [(row["topic"], row["partition"], row["segments"]) for row in partitions] == [
        ("flights", 0, SEGMENTS),
        ("flights", 1, SEGMENTS - UNCOMMITTED),
        ("flights", 2, 0),
        ("weather", 0, SEGMENTS),
    ]
    for row in partitions:
        held = [s for s in segments if (s["topic"], s["partition"]) == (row["topic"], row["partition"])]
        assert row["bytes"] >= sum(s["bytes"] for s in held)
        assert not held or held[-1]["end_offset"] == row["end_offset"]
    assert all(row.keys() == PARTITIONS.keys() for row in partitions)
    assert all(row.keys() == SEGMENT_COLUMNS.keys() for row in segments)
    assert all((history.root / row["object"]).stat().st_size == row["bytes"] for row in segments)


def test_wrong_path_of_a_metadata_table_is_found_on_the_driver(tmp_path: Path) -> None:
    reader = TableReader(parse_options({"path": str(tmp_path), "table": "segments"}), StructType())
    with pytest.raises(InvalidOption, match="`path` contains no cluster: give the brokers'"):
        reader.partitions()
