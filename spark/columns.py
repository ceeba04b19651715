"""Columns of the rows that Spark reads: those of its Kafka source, as Arrow of the types that it requests.

Imports neither pyarrow nor numba: before the first tasks of a session, three workers of the driver import
this module, one after another.
"""

from dataclasses import replace
from functools import lru_cache
from inspect import signature
from typing import TYPE_CHECKING, Any

from tierlog.spark.options import InvalidOption, ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from tierlog.records.columnar import Columns
    from tierlog.spark.history.plan import Source
    from tierlog.spark.options.values import ValueOptions

COLUMNS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
}
KEPT_ROWS = 1 << 18  # the longest constant column that is kept; 65 MB with the longest name of a topic
HEADERS = "array<struct<key:string,value:binary>>"
NEVER_NULL = frozenset(COLUMNS) - {"key", "value"}
"""Declared so, because Spark looks for a null in every column of every row otherwise: a sixth of a scan's CPU
time in the JVM."""


def columns_of(options: ReadOptions) -> dict[str, str]:
    """Spark's type of each column of the rows, by its name. Raises InvalidOption, and RegistryError."""
    with_headers = {**COLUMNS, "headers": HEADERS}
    if options.value is not None and (options.columns is None or "value" in options.columns):
        from tierlog.spark.values import column_type

        with_headers["value"] = column_type(options.value)
    if options.columns is None:
        wanted = with_headers if options.include_headers else COLUMNS
        return {name: with_headers[name] for name in wanted}
    if unknown := set(options.columns) - with_headers.keys():
        raise InvalidOption(f"`columns`: no column {min(unknown)}; the columns are {', '.join(with_headers)}")
    return {name: with_headers[name] for name in options.columns}


def declared(columns: dict[str, str]) -> str:
    """The columns of records in Spark's notation."""
    return ", ".join(
        f"{name} {type}{' NOT NULL' if name in NEVER_NULL else ''}" for name, type in columns.items()
    )


def check_schema(schema: "StructType", options: ReadOptions) -> None:
    """A user's schema may omit columns, which are then not decoded, and fields of decoded values. Raises
    InvalidOption for others."""
    columns = columns_of(replace(options, value=None))
    for field in schema.fields:
        if options.value is not None and field.name == "value":
            continue
        if columns.get(field.name) != field.dataType.simpleString():
            known = ", ".join(f"{name} {type}" for name, type in columns.items())
            raise InvalidOption(f"unknown column {field.simpleString()}; the columns are {known}")


def with_value_schema(options: ReadOptions) -> ReadOptions:
    """With the schema that a registry has for the column `value`. Raises RegistryError."""
    if options.value is None:
        return options
    from tierlog.spark.values import resolved

    return replace(options, value=resolved(options.value))


def arrow_schema(schema: "StructType") -> "pa.Schema":
    """Spark's own types, with timestamps in UTC, which PySpark 4.0 takes for granted."""
    from pyspark.sql.pandas.types import to_arrow_schema

    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **zone)


def record_batch(
    columns: "Columns", source: "Source", schema: "pa.Schema", value: "ValueOptions | None" = None
) -> "pa.RecordBatch":
    """Decoded columns and the constant ones, cast to Spark's types. Raises MalformedValue."""
    import pyarrow as pa

    arrays = {**columns.arrays, **_constants(source, columns.rows)}
    if value is not None and "value" in arrays:
        arrays["value"] = decoded_of(source, arrays["value"], value, schema.field("value").type)
    return pa.RecordBatch.from_arrays(
        [_as(arrays[field.name], field.type) for field in schema], schema=schema
    )


def decoded_of(source: "Source", values: Any, options: "ValueOptions", type: Any) -> Any:
    """Decoded values of a partition. Raises MalformedValue."""
    from tierlog.spark.values import MalformedValue, decoded

    try:
        return decoded(values, options, type)
    except MalformedValue as failure:
        raise MalformedValue(f"{source}: {failure}") from None


def _constants(source: "Source", rows: int) -> dict[str, Any]:
    import pyarrow as pa

    return {
        "topic": _repeated(source.topic, pa.string(), rows),
        "partition": _repeated(source.partition, pa.int32(), rows),
    }


def _repeated(value: str | int, type: Any, rows: int) -> Any:
    """A column of one value. Successive parts of similar length share one that is a little longer."""
    made = 1 << (rows - 1).bit_length()
    return _kept(value, type, made)[:rows] if made <= KEPT_ROWS else _kept.__wrapped__(value, type, rows)


@lru_cache(maxsize=4)
def _kept(value: str | int, type: Any, rows: int) -> Any:
    import pyarrow as pa

    return pa.repeat(pa.scalar(value, type), rows)


def _as(array: Any, type: Any) -> Any:
    """Cast an array whose nested fields have other names than Spark's."""
    return array if array.type == type else array.cast(type)
