"""Columns of the rows: which may be null, and the constant ones."""

import uuid

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from tierlog.records.columnar import Columns
from tierlog.spark.columns import NEVER_NULL, record_batch
from tierlog.spark.history.plan import Source
from tierlog.spark.source import TierlogSource

TOPIC = {"path": "/bucket", "subscribe": "flights"}


def test_only_keys_and_values_and_headers_may_be_null() -> None:
    declared = TierlogSource({**TOPIC, "includeHeaders": "true"}).schema()
    assert declared.startswith("key binary, value binary, topic string NOT NULL, partition int NOT NULL, ")
    assert declared.endswith("timestampType int NOT NULL, headers array<struct<key:string,value:binary>>")
    assert declared.count("NOT NULL") == len(NEVER_NULL) == 5
    assert TierlogSource({**TOPIC, "columns": "offset,key"}).schema() == "offset bigint NOT NULL, key binary"
    assert "NOT NULL" not in TierlogSource({**TOPIC, "table": "partitions"}).schema()


@pytest.mark.parametrize("rows", [1, 2, 3, 1_000, 1_024])
def test_constant_columns_are_as_long_as_the_others(rows: int) -> None:
    schema = pa.schema([("topic", pa.string()), ("offset", pa.int64()), ("partition", pa.int32())])
    columns = Columns(rows, {"offset": pa.array(range(rows))})
    for topic, partition in (("flights", 3), ("trains", 4)):
        batch = record_batch(columns, Source(topic, uuid.UUID(int=1), partition), schema)
        batch.validate(full=True)
        assert batch.to_pydict() == {
            "topic": [topic] * rows,
            "offset": list(range(rows)),
            "partition": [partition] * rows,
        }
