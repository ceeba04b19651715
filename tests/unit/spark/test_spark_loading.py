"""Executor part of bulk loads: partitions of rows, segments from the log end on, and their limits."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tierlog.base.leader_epochs import EpochEntry
from tierlog.base.types import TopicIdPartition
from tierlog.client.partitioner import partition_of
from tierlog.records.batch import iter_batches
from tierlog.records.codecs import Codec
from tierlog.records.record import iter_records
from tierlog.spark.history.bucket import open_bucket
from tierlog.spark.jobs.load_client import LoadBegun, NotLoaded
from tierlog.spark.jobs.loading import (
    PARTITION,
    LoadError,
    LoadPlan,
    PartitionWritten,
    route,
    write_partitions,
)
from tierlog.spark.jobs.rewriting import Announced
from tierlog.spark.options import StoreAddress
from tierlog.tiering.format.bundle import decode_bundle
from tierlog.tiering.format.keys import Keys

TOPIC, CLUSTER, NOW_MS = uuid.UUID(int=1), "c", 1_700_000_000_000
LATE_MS = 1 << 60


class Leader:
    """Announces every segment, and notes its offsets."""

    topic_id = TOPIC

    def __init__(self, put_until_ms: int = LATE_MS, moved_from: int = -1) -> None:
        """`moved_from`: the partition whose leader has changed."""
        self.announced: list[tuple[int, int, int]] = []
        self._put_until_ms = put_until_ms
        self._moved_from = moved_from

    def announce(self, partition: int, base_offset: int, last_offset: int) -> Announced:
        if partition == self._moved_from:
            raise NotLoaded("the lease has ended")
        self.announced.append((partition, base_offset, last_offset))
        return Announced(uuid.UUID(int=len(self.announced)), 3, self._put_until_ms)


def begun(base_offset: int = 100, **changes: Any) -> LoadBegun:
    known: dict[str, Any] = {
        "base_offset": base_offset,
        "leader_epoch": 3,
        "leader_epochs": (EpochEntry(3, 0),),
        "producer_snapshot": b"producers",
        "segment_bytes": 1 << 20,
        "index_interval_bytes": 4096,
        "max_message_bytes": 1 << 20,
        "codec": None,
        "timestamp_type": "CreateTime",
        "retention_ms": -1,
        "retention_bytes": -1,
    }
    return LoadBegun(**known | changes)


def plan(
    root: Path, partitions: dict[int, LoadBegun], leader: Leader | None = None, count: int = 3
) -> LoadPlan:
    store = StoreAddress(path=str(root))
    client: Any = leader or Leader()
    return LoadPlan(store, CLUSTER, "t", client, partitions, count, Codec.ZSTD, NOW_MS)


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def written(plan: LoadPlan, *batches: pa.RecordBatch) -> list[PartitionWritten]:
    return list(write_partitions(plan, iter(batches)))


def records(root: Path, one: PartitionWritten) -> Iterator[tuple[int, int, Any, Any, Any]]:
    """Offset, timestamp, key, value and headers of all records."""
    bucket, keys = open_bucket(StoreAddress(path=str(root))), Keys(CLUSTER)
    for entry in one.segments:
        data = bucket.read(keys.log(TopicIdPartition(TOPIC, one.partition), entry))
        for at, header in iter_batches(data):
            assert header.leader_epoch == 3 and header.producer_id == -1
            for record in iter_records(data, at, max_bytes=1 << 24):
                yield record.offset, record.timestamp, record.key, record.value, tuple(record.headers)


def test_rows_get_the_partition_of_the_column_or_of_their_key_or_of_their_value(tmp_path: Path) -> None:
    given = rows(
        key=pa.array([b"a", None, b"b", None], pa.binary()),
        value=pa.array([b"1", b"2", b"3", b"2"], pa.binary()),
        partition=pa.array([None, None, 2, None], pa.int32()),
    )
    [found] = route(plan(tmp_path, {number: begun() for number in range(3)}), iter([given]))
    wanted = [partition_of(b"a", 3), partition_of(b"2", 3), 2, partition_of(b"2", 3)]
    assert found.column(PARTITION).to_pylist() == wanted


def test_rows_of_partitions_that_were_loaded_before_are_left_out(tmp_path: Path) -> None:
    given = rows(value=pa.array([b"1", b"2"], pa.binary()), partition=pa.array([0, 1], pa.int32()))
    [found] = route(plan(tmp_path, {1: begun()}), iter([given]))
    assert found.column("value").to_pylist() == [b"2"]


def test_partition_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    given = rows(value=pa.array([b"1"], pa.binary()), partition=pa.array([3], pa.int32()))
    with pytest.raises(LoadError, match="no partition 3: it has 3 partitions"):
        list(route(plan(tmp_path, {0: begun()}), iter([given])))


def test_partitions_of_a_task_are_written_from_their_log_ends_on(tmp_path: Path) -> None:
    headers = pa.array(
        [[{"key": "h", "value": b"x"}], None, [], None],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    first = rows(
        **{PARTITION: pa.array([0, 0, 2, 2], pa.int32())},
        key=pa.array(["a", None, "b", "c"], pa.string()),
        value=pa.array([b"1", b"2", None, b"4"], pa.binary()),
        headers=headers,
        timestamp=pa.array([5_000_000, None, 6_500_000, None], pa.timestamp("us", "UTC")),
    )
    second = first.slice(3)
    leader, epochs = Leader(), (EpochEntry(1, 0), EpochEntry(3, 90))
    one, two = written(
        plan(tmp_path, {0: begun(100, leader_epochs=epochs), 2: begun(7)}, leader), first, second
    )
    assert list(records(tmp_path, one)) == [
        (100, 5000, b"a", b"1", (("h", b"x"),)),
        (101, NOW_MS, None, b"2", ()),
    ]
    assert list(records(tmp_path, two)) == [
        (7, 6500, b"b", None, ()),
        (8, NOW_MS, b"c", b"4", ()),
        (9, NOW_MS, b"c", b"4", ()),
    ]
    assert leader.announced == [(0, 100, 101), (2, 7, 9)]
    [entry] = one.segments
    assert (entry.leader_epoch, entry.leader_epochs, entry.tags) == (3, ((3, 90),), (("codec", "zstd"),))
    key = Keys(CLUSTER).index(TopicIdPartition(TOPIC, 0), entry)
    bundle = decode_bundle(open_bucket(StoreAddress(path=str(tmp_path))).read(key))
    assert (bundle.producer_snapshot, bundle.leader_epochs) == (b"producers", epochs)


def test_large_partitions_become_successive_segments(tmp_path: Path) -> None:
    values = [np.random.default_rng(number).bytes(900) for number in range(2000)]
    given = rows(**{PARTITION: pa.array([1] * len(values), pa.int32())}, value=pa.array(values, pa.binary()))
    [one] = written(plan(tmp_path, {1: begun(0, segment_bytes=600_000)}), given)
    assert len(one.segments) > 2
    ends = [entry.end_offset for entry in one.segments]
    assert [entry.base_offset for entry in one.segments] == [0, *ends[:-1]]
    assert [value for _, _, _, value, _ in records(tmp_path, one)] == values


def test_codec_of_the_topic_wins(tmp_path: Path) -> None:
    given = rows(**{PARTITION: pa.array([0], pa.int32())}, value=pa.array([b"v" * 100], pa.binary()))
    [one] = written(plan(tmp_path, {0: begun(codec=Codec.NONE)}), given)
    assert one.segments[0].codec == "none"


def test_record_above_max_message_bytes_and_a_late_task_are_refused(tmp_path: Path) -> None:
    given = rows(**{PARTITION: pa.array([0], pa.int32())}, value=pa.array([b"v" * 5000], pa.binary()))
    limited = begun(max_message_bytes=1000, codec=Codec.NONE)
    with pytest.raises(LoadError, match=r"offset 100 of partition 0 takes \d+ bytes, more than"):
        written(plan(tmp_path, {0: limited}), given)
    with pytest.raises(LoadError, match="stopped for too long"):
        written(plan(tmp_path, {0: begun()}, Leader(put_until_ms=0)), given)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("most", [400, 3_000, 40_000])
def test_records_that_do_not_compress_fit_into_max_message_bytes(
    tmp_path: Path, codec: Codec, most: int
) -> None:
    values = [np.random.default_rng(number).bytes(100) for number in range(2000)]
    given = rows(**{PARTITION: pa.array([0] * len(values), pa.int32())}, value=pa.array(values, pa.binary()))
    [one] = written(plan(tmp_path, {0: begun(max_message_bytes=most, codec=codec)}), given)
    assert [value for *_, value, _ in records(tmp_path, one)] == values


def test_lost_lease_of_a_partition_leaves_the_others_alone(tmp_path: Path) -> None:
    values = [np.random.default_rng(number).bytes(900) for number in range(3000)]
    partitions = pa.array([0] * 1500 + [2] * 1500, pa.int32())
    given = rows(**{PARTITION: partitions}, value=pa.array(values, pa.binary()))
    limits = {number: begun(segment_bytes=600_000) for number in (0, 2)}
    lost, kept = written(
        plan(tmp_path, limits, Leader(moved_from=0)), given.slice(0, 1000), given.slice(1000)
    )
    assert lost == PartitionWritten(0, (), "the lease has ended")
    assert [value for *_, value, _ in records(tmp_path, kept)] == values[1500:]


def test_task_without_rows_writes_nothing(tmp_path: Path) -> None:
    given = rows(**{PARTITION: pa.array([], pa.int32())}, value=pa.array([], pa.binary()))
    assert written(plan(tmp_path, {0: begun()}), given) == []
