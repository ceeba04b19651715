"""The PySpark data source `tierlog` (batch read), on the driver and on executors.

Spark pickles the reader for the executors, so it contains only options and schema. Rows are Arrow record
batches of the types that Spark requests, without a Python object per record.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tierlog.records.errors import RecordsError
from tierlog.spark.bucket import open_bucket
from tierlog.spark.options import InvalidOption, ReadOptions, parse_options
from tierlog.spark.plan import Pruning, Source, Split
from tierlog.tiering.object_store import CorruptObject, ObjectNotFound, ObjectStoreError

COLUMNS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
}
HEADERS = "array<struct<key:string,value:binary>>"
_COMPARISONS: dict[type[Filter], str] = {
    EqualTo: "=",
    In: "in",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}


class TierlogSource(DataSource):
    """`spark.read.format("tierlog")`: tiered segments, with the columns of Spark's Kafka source."""

    @classmethod
    def name(cls) -> str:
        return "tierlog"

    def schema(self) -> str:
        columns = _columns(parse_options(self.options))
        return ", ".join(f"{name} {type}" for name, type in columns.items())

    def reader(self, schema: StructType) -> "TierlogReader":
        """A user's schema may omit columns, which are then not decoded."""
        options = parse_options(self.options)
        columns = _columns(options)
        for field in schema.fields:
            if columns.get(field.name) != field.dataType.simpleString():
                known = ", ".join(f"{name} {type}" for name, type in columns.items())
                raise InvalidOption(f"unknown column {field.simpleString()}; the columns are {known}")
        return (FilteringReader if options.push_filters else TierlogReader)(options, schema)


class TierlogReader(DataSourceReader):
    """Plans splits on the driver, and reads one split per task on the executors."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._pruning = Pruning()

    def partitions(self) -> list[InputPartition]:
        from tierlog.spark.snapshot import plan_splits

        splits = plan_splits(open_bucket(self._options.store), self._options, self._pruning)
        return [InputPartition(split) for split in splits] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        split: Split | None = partition.value
        return iter(()) if split is None else self._read(split)

    def _read(self, split: Split) -> Iterator[pa.RecordBatch]:
        from tierlog.records.columnar import COLUMNS as DECODED
        from tierlog.records.columnar import AbortedRange, decode_columns
        from tierlog.spark.snapshot import read_split

        schema = to_arrow_schema(self._schema, timezone="UTC")
        wanted = [name for name in schema.names if name in DECODED]
        place = split.source.place(split.key, split.start, split.end)
        try:
            for data in read_split(open_bucket(self._options.store), self._options, split):
                for columns in decode_columns(
                    data,
                    wanted,
                    first_offset=split.offsets.start,
                    end_offset=split.offsets.end,
                    aborted=[AbortedRange(*line[:3]) for line in split.aborted],
                ):
                    arrays = {**columns.arrays, **_constants(split.source, columns.rows)}
                    if columns.rows:
                        yield pa.RecordBatch.from_arrays(
                            [_as(arrays[field.name], field.type) for field in schema], schema=schema
                        )
        except ObjectNotFound:
            raise ObjectStoreError(
                f"{place}: retention or compaction deleted the object after the query was planned; "
                "run the query again"
            ) from None
        except RecordsError as error:
            raise CorruptObject(f"{place}: {error}") from error


class FilteringReader(TierlogReader):
    """Adds pushFilters, which Spark rejects unless spark.sql.python.filterPushdown.enabled is true."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (PySpark's name)
        """Prune by topic, partition and offset. Spark evaluates all filters as well."""
        for filter in filters:
            comparison = _COMPARISONS.get(type(filter))
            attribute: tuple[str, ...] = getattr(filter, "attribute", ())
            if comparison is not None and len(attribute) == 1:
                self._pruning = self._pruning.narrow(attribute[0], comparison, getattr(filter, "value", None))
        return filters


def _columns(options: ReadOptions) -> dict[str, str]:
    return {**COLUMNS, "headers": HEADERS} if options.include_headers else COLUMNS


def _constants(source: Source, rows: int) -> dict[str, Any]:
    return {
        "topic": pa.repeat(pa.scalar(source.topic), rows),
        "partition": pa.repeat(pa.scalar(source.partition, pa.int32()), rows),
    }


def _as(array: Any, type: Any) -> Any:
    """Cast an array whose nested fields have other names than Spark's."""
    return array if array.type == type else array.cast(type)
