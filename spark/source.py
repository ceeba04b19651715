"""The PySpark data source `tierlog`: one name for batch reads, streams and writes.

Each use has a module of its own, which is imported when a query needs it.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from tierlog.spark.columns import check_schema, columns_of
from tierlog.spark.options import parse_options
from tierlog.spark.options.read import read_options
from tierlog.spark.options.table import HISTORY, Given

if TYPE_CHECKING:
    from tierlog.spark.batch import TierlogReader


class TierlogSource(DataSource):
    """`format("tierlog")`: records with the columns of Spark's Kafka source."""

    @classmethod
    def name(cls) -> str:
        return "tierlog"

    def schema(self) -> str:
        columns = columns_of(read_options(Given(self.options, HISTORY)))
        return ", ".join(f"{name} {type}" for name, type in columns.items())

    def reader(self, schema: StructType) -> "TierlogReader":
        from tierlog.spark.batch import FilteringReader, TierlogReader

        options = parse_options(self.options)
        check_schema(schema, options)
        return (FilteringReader if options.push_filters else TierlogReader)(options, schema)

    def streamReader(self, schema: StructType) -> "DataSourceStreamReader":  # noqa: N802 (PySpark's name)
        from tierlog.spark.options.stream import parse_stream_options
        from tierlog.spark.stream import stream_reader

        options = parse_stream_options(self.options)
        check_schema(schema, options.read)
        return stream_reader(options, schema)
