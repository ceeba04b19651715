"""Rows of several topics: each is placed by its own key, and counted once."""

import uuid
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from tierlog.records import encode_kernels
from tierlog.records.columnar_encode import Producer, RecordColumns, record_columns
from tierlog.spark.live.produce import ColumnProducer
from tierlog.spark.options.write import parse_write_options

BATCH_BYTES = 4096
OPTIONS = parse_write_options(
    {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "any", "kafka.batch.size": str(BATCH_BYTES)}
)


class TwoPartitions:
    """Each topic has two partitions."""

    def topic(self, name: str) -> Any:
        return SimpleNamespace(name=name, topic_id=uuid.UUID(int=1), partitions=[0, 1])


class PlacingProducer(ColumnProducer):
    """Keeps the places of the rows instead of sending them."""

    def __init__(self) -> None:
        super().__init__(cast(Any, TwoPartitions()), OPTIONS, Producer(1, 0))
        self.placed: dict[tuple[str, int], list[int]] = {}

    def _append(self, place: tuple[str, int], columns: RecordColumns, rows: Any) -> None:
        self.placed.setdefault(place, []).extend(rows.tolist())


def test_keys_of_other_topics_are_not_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = []
    original = encode_kernels.partitions_of

    def partitions_of(data: Any, starts: Any, sizes: Any, count: int, found: Any) -> None:
        hashed.append(len(sizes))
        original(data, starts, sizes, count, found)

    monkeypatch.setattr(encode_kernels, "partitions_of", partitions_of)
    keys = pa.array([f"key {number}".encode() for number in range(10)], pa.binary())
    columns = record_columns(keys, keys, None, np.zeros(10, np.int64))
    with PlacingProducer() as producer, PlacingProducer() as alone:
        producer.send("a", columns, np.arange(0, 10, 2), None)
        producer.send("b", columns, np.arange(1, 10, 2), None)
        assert hashed == [5, 5]
        alone.send("a", columns, np.arange(10), None)
        together = {number: [] for number in (0, 1)}
        for (_, partition), rows in producer.placed.items():
            together[partition] += rows
        assert {partition: sorted(rows) for partition, rows in together.items()} == {
            partition: alone.placed[("a", partition)] for partition in (0, 1)
        }


def test_rows_without_a_key_change_partition_after_a_batch_of_their_own_topic() -> None:
    value = pa.array([b"x" * (BATCH_BYTES // 8)] * 10, pa.binary())
    columns = record_columns(None, value, None, np.zeros(10, np.int64))
    with PlacingProducer() as producer:
        producer.send("a", columns, np.arange(0, 10, 2), None)
        assert set(producer.placed) == {("a", 0)}
