"""Batch reads: plans splits on the driver, reads one split per task on an executor.

Spark pickles the reader for the executors, so it contains only options and schema. Rows are Arrow record
batches of the types that Spark requests, without a Python object per record.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tierlog.spark.columns import arrow_schema, record_batch
from tierlog.spark.history.bucket import open_bucket
from tierlog.spark.history.plan import Pruning, Split, pack_split, unpack_split
from tierlog.spark.history.snapshot import plan_splits, read_split
from tierlog.spark.options import ReadOptions
from tierlog.spark.short_errors import short_errors
from tierlog.spark.worker import freeze_heap, warn_of_tcp_sockets

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter  # PySpark 4.0 has none

_COMPARISONS = {
    "EqualTo": "=",
    "In": "in",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}
"""By the names of PySpark's filters."""


class TierlogReader(DataSourceReader):
    """Plans splits on the driver, and reads one split per task on the executors."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._pruning = Pruning()

    @short_errors
    def partitions(self) -> list[InputPartition]:
        warn_of_tcp_sockets()
        splits = plan_splits(open_bucket(self._options.store), self._options, self._pruning)
        return [InputPartition(pack_split(split)) for split in splits or [()]]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        yield from self._read(unpack_split(partition.value))
        freeze_heap()

    def _read(self, split: Split) -> Iterator["pa.RecordBatch"]:
        # here, because the driver plans without the compiled loops
        from tierlog.records.columnar import COLUMNS as DECODED
        from tierlog.spark.history.decoding import decode_part

        schema = arrow_schema(self._schema)
        wanted = [name for name in schema.names if name in DECODED]
        for part, content in read_split(open_bucket(self._options.store), self._options, split):
            for columns in decode_part(part, content, wanted):
                yield record_batch(columns, part.source, schema, self._options.value)


class FilteringReader(TierlogReader):
    """Adds pushFilters, which Spark rejects unless spark.sql.python.filterPushdown.enabled is true."""

    def pushFilters(self, filters: "list[Filter]") -> "Iterable[Filter]":  # noqa: N802 (PySpark's name)
        """Prune by topic, partition and offset. Spark evaluates all filters as well."""
        for filter in filters:
            comparison = _COMPARISONS.get(type(filter).__name__)
            attribute: tuple[str, ...] = getattr(filter, "attribute", ())
            if comparison is not None and len(attribute) == 1:
                self._pruning = self._pruning.narrow(attribute[0], comparison, getattr(filter, "value", None))
        return filters
