"""Metadata tables (`option("table", "partitions")`, `"segments"` and `"snapshots"`), counts, and helpers for
skewed keys.

PySpark cannot push an aggregate into a data source, so that `count` is a plain function.
"""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tierlog.spark.columns import arrow_schema
from tierlog.spark.history.bucket import open_bucket
from tierlog.spark.history.snapshot import find_cluster
from tierlog.spark.history.summary import SCHEMAS, count_records, table_rows
from tierlog.spark.options import InvalidOption, ReadOptions, Table, parse_options
from tierlog.spark.short_errors import short_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS_OF_A_BATCH = 10_000


class TableReader(DataSourceReader):
    """Reads a metadata table in one task: manifests are small."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        known = SCHEMAS[options.table]
        for field in schema.fields:
            if known.get(field.name) != field.dataType.simpleString():
                names = ", ".join(known)
                raise InvalidOption(
                    f"table {options.table.value} has no column {field.simpleString()}; it has {names}"
                )
        self._options = options
        self._schema = schema

    @short_errors
    def partitions(self) -> list[InputPartition]:
        find_cluster(open_bucket(self._options.store), self._options.cluster)  # a wrong path fails here
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(self._schema)
        rows = table_rows(open_bucket(self._options.store), self._options)
        while some := list(islice(rows, ROWS_OF_A_BATCH)):
            yield pa.RecordBatch.from_pylist(some, schema=schema)


def count(path: str, **options: object) -> int:
    """The number of rows of `spark.read.format("tierlog")` with the same options, from manifests.

    `count("s3://bucket/prefix", subscribe="orders")`. It is exact. Segments with aborted transactions,
    segments at the edge of a range of offsets or times, and segments with transactions that version 1 of the
    manifest lists, are read and decoded here, in this process.
    """
    given = {name: str(value) for name, value in options.items()}
    parsed = parse_options({"path": path, **given})
    if parsed.table is not Table.RECORDS:
        raise InvalidOption("`table` is not an option of count, which counts records")
    return count_records(open_bucket(parsed.store), parsed)


def hot_keys(frame: "DataFrame", top: int = 20, key: str = "key") -> "DataFrame":
    """The most frequent values of a column: `key`, `records` and `share` (of all records, 0 to 1), sorted by
    number of records. Spark counts them before it shuffles, so that skew does no harm."""
    from pyspark.sql import functions as F  # noqa: N812 (the name everyone knows it by)

    counts = frame.groupBy(F.col(key).alias("key")).agg(F.count("*").alias("records"))
    most = counts.orderBy(F.desc("records"), "key").limit(top)
    total = frame.agg(F.count("*").alias("total"))
    share = (F.col("records") / F.col("total")).alias("share")
    return (
        most.crossJoin(F.broadcast(total)).select("key", "records", share).orderBy(F.desc("records"), "key")
    )


def salt(
    frame: "DataFrame",
    hot: "DataFrame",
    buckets: int = 16,
    *,
    key: str = "key",
    by: tuple[str, ...] = ("partition", "offset"),
) -> "DataFrame":
    """The rows with a column `salt`: 0 to `buckets` - 1 for keys of `hot`, and 0 for others. Group or join by
    (`key`, `salt`), so that several tasks share a hot key. The salt is a hash of the columns `by`: a task
    that is repeated gives each row the same one, which random numbers do not."""
    from pyspark.sql import functions as F  # noqa: N812

    _check_buckets(buckets)
    is_hot = _broadcast_keys(hot)
    hashed = F.pmod(F.xxhash64(*by), F.lit(buckets)).cast("int")
    salted = F.when(F.col("_hot"), hashed).otherwise(F.lit(0)).alias("salt")
    joined = frame.join(is_hot, frame[key].eqNullSafe(F.col("_hot_key")), "left")
    return joined.select(*(frame[name] for name in frame.columns), salted)


def replicate(frame: "DataFrame", hot: "DataFrame", buckets: int = 16, *, key: str = "key") -> "DataFrame":
    """The other side of a join with salted rows: rows with keys of `hot` once for each `salt`, and
    others with salt 0."""
    from pyspark.sql import functions as F  # noqa: N812

    _check_buckets(buckets)
    salts = F.when(F.col("_hot"), F.sequence(F.lit(0), F.lit(buckets - 1))).otherwise(F.array(F.lit(0)))
    joined = frame.join(_broadcast_keys(hot), frame[key].eqNullSafe(F.col("_hot_key")), "left")
    return joined.select(*(frame[name] for name in frame.columns), F.explode(salts).alias("salt"))


def _check_buckets(buckets: int) -> None:
    if buckets < 1:
        raise InvalidOption(f"`buckets` must be at least 1, not {buckets}")


def _broadcast_keys(hot: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812

    keys = hot.select(F.col("key").alias("_hot_key"), F.lit(True).alias("_hot")).dropDuplicates(["_hot_key"])
    return F.broadcast(keys)
