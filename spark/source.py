"""The PySpark data source `tierlog`: one name for batch reads, streams and writes.

Each use has a module of its own, which is imported when a query needs it.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from tierlog.spark.columns import check_schema, columns_of, declared, with_value_schema
from tierlog.spark.options import InvalidOption, Table, parse_options
from tierlog.spark.options.read import read_options
from tierlog.spark.options.table import HISTORY, Given
from tierlog.spark.short_errors import short_errors

if TYPE_CHECKING:
    from tierlog.spark.write import BatchWriter, StreamWriter


class TierlogSource(DataSource):
    """`format("tierlog")`: records with the columns of Spark's Kafka source."""

    @short_errors
    def __init__(self, options: dict[str, str]) -> None:
        """Spark creates one for each DataFrame and sends copies of it to workers. So it chooses the snapshot
        here, once: all queries of the DataFrame read the same one."""
        super().__init__(options)
        given = {name.lower(): value for name, value in options.items()}
        if "snapshot" not in given:
            return
        try:
            parsed = parse_options(given)
        except InvalidOption:
            return  # `reader` refuses it too, or this is a stream or a write, which has no snapshots
        from tierlog.spark.history.bucket import open_bucket
        from tierlog.spark.history.snapshot import choose_snapshot

        snapshot = choose_snapshot(open_bucket(parsed.store), parsed).snapshot
        self.options = {**given, "snapshot": snapshot or ""}

    @classmethod
    def name(cls) -> str:
        return "tierlog"

    @short_errors
    def schema(self) -> str:
        options = read_options(Given(self.options, HISTORY))
        if options.table is Table.RECORDS:
            return declared(columns_of(options))
        from tierlog.spark.history.summary import SCHEMAS

        return ", ".join(f"{name} {type}" for name, type in SCHEMAS[options.table].items())

    @short_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        from tierlog.spark.batch import FilteringReader, TierlogReader

        options = parse_options(self.options)
        if options.table is not Table.RECORDS:
            from tierlog.spark.tables import TableReader

            return TableReader(options, schema)
        check_schema(schema, options)
        options = with_value_schema(options)
        return (FilteringReader if options.push_filters else TierlogReader)(options, schema)

    @short_errors
    def streamReader(self, schema: StructType) -> "DataSourceStreamReader":  # noqa: N802 (PySpark's name)
        from tierlog.spark.options.stream import parse_stream_options
        from tierlog.spark.stream import stream_reader

        options = parse_stream_options(self.options)
        check_schema(schema, options.read)
        return stream_reader(replace(options, read=with_value_schema(options.read)), schema)

    @short_errors
    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        from tierlog.spark.options.write import parse_write_options
        from tierlog.spark.write import BatchWriter, check_write_schema

        options = parse_write_options(self.options)
        check_write_schema(schema, options, overwrite)
        return BatchWriter(options)

    @short_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":  # noqa: N802 (PySpark's)
        from tierlog.spark.options.write import parse_write_options
        from tierlog.spark.write import StreamWriter, check_write_schema

        options = parse_write_options(self.options)
        check_write_schema(schema, options, overwrite)
        return StreamWriter(options, schema)
