"""Backfill: exports history to Parquet, Iceberg or Delta, incrementally and exactly once.

A run exports the offsets that follow the last commit of the table. It commits after each round of complete
segments: the files of the round, and the offsets at which the next round begins, in one step. A run that is
killed loses at most its current round, and can simply be started again.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from tierlog.spark.columns import arrow_schema, with_value_schema
from tierlog.spark.history.bucket import open_bucket
from tierlog.spark.history.plan import Part
from tierlog.spark.jobs.arguments import (
    ALL_COLUMNS,
    InvalidArgument,
    Job,
    JobFailed,
    Progress,
    Values,
    main,
    pairs,
    reader_options,
)
from tierlog.spark.jobs.export import ExportTask, WrittenFile, export, schema_of
from tierlog.spark.jobs.file_stores import FileStore
from tierlog.spark.jobs.runner import run_tasks, spark_session
from tierlog.spark.jobs.selection import cluster_keys, documents_of, ends_of, plan, segments_of, sources_of
from tierlog.spark.jobs.tables import ParquetTable, Table
from tierlog.spark.options import ReadOptions, parse_options
from tierlog.spark.options.values import NAMES, ValueOptions
from tierlog.spark.values import column_type
from tierlog.tiering.format.manifest import TopicDocument

MIB = 1 << 20
LEAST_TASK_BYTES = 16 * MIB
TASKS_OF_A_SMALL_ROUND = 16
"""A round that is too small for tasks of --file-mib has this many, so that as many cores share it."""


def run(values: Values, progress: Progress) -> dict[str, Any]:
    """Export what is new. Raises JobFailed."""
    if not values["topic"] and values["pattern"] is None:
        raise InvalidArgument("give --topic or --pattern: --pattern '.*' exports all topics into one table")
    columns = _columns(values["columns"])
    bucket = open_bucket(parse_options({**reader_options(values), "topic": "any"}).store)
    documents = documents_of(bucket, cluster_keys(bucket, values), values)
    value = _value_options(values, columns, documents)
    done: dict[str, Any] = {"rows": 0, "files": 0, "bytes": 0, "bytes_read": 0, "commits": []}
    with ExitStack() as stack:
        spark = value and stack.enter_context(spark_session("backfill", values))  # parses their schema
        schema = schema_of(columns, spark and value and _value_type(spark, value))
        with _errors_of(values, "Check " + _arguments_of_table(values)):
            table = open_table(values, schema)
        ends = table.ends([source.id for source in sources_of(documents)])
        options, parts = plan(values, ends, include_headers="headers" in columns)
        rounds = list(_rounds(parts, values["commit_mib"] * MIB))
        if not rounds:
            return {**done, "is_ok": True}
        options = replace(options, value=value)
        spark = spark or stack.enter_context(spark_session("backfill", values))
        for number, chosen in enumerate(rounds, 1):
            tasks = _tasks(chosen, options, schema, table, values)
            sizes = [sum(part.end - part.start for part in task.parts) for task in tasks]
            progress.begin(f"round {number} of {len(rounds)}", sum(sizes))
            files = [file for found in run_tasks(spark, export, tasks, progress, sizes) for file in found]
            with _errors_of(values, "The same command continues after the last commit"):
                done["commits"].append(table.commit(files, ends_of(chosen)))
            _count(done, files, sum(sizes))
    return {**done, "is_ok": True}


def _value_options(
    values: Values, columns: Sequence[str], documents: Sequence[TopicDocument]
) -> ValueOptions | None:
    """How values are decoded, with the schema of their column; None if they stay bytes. Raises
    InvalidArgument, InvalidOption and RegistryError."""
    given = {name.lower(): value for name, value in pairs("value-option", values["value_option"]).items()}
    if not given:
        return None
    if other := sorted(given.keys() - set(NAMES)):
        raise InvalidArgument(
            f"--value-option {other[0]} does not decode values; the options are {', '.join(NAMES)}"
        )
    if "value" not in columns:
        raise InvalidArgument("--value-option needs the column value: see --columns")
    topics = ",".join(dict.fromkeys(document.name for document in documents))
    return with_value_schema(parse_options({**reader_options(values), "topics": topics, **given})).value


def _value_type(spark: Any, value: ValueOptions) -> Any:
    """Arrow's type of decoded values. Only Spark parses its notation of types."""
    schema = spark.createDataFrame([], f"value {column_type(value)}").schema
    return arrow_schema(schema).field("value").type


def open_table(values: Values, schema: Any) -> Table:
    """The table of the arguments, which is created with this Arrow schema if it does not exist. Raises
    JobFailed."""
    by = values["partition_by"]
    if values["format"] == "iceberg":
        if "." not in (values["table"] or ""):
            raise InvalidArgument("--format iceberg needs --table NAMESPACE.TABLE")
        from tierlog.spark.jobs.iceberg import IcebergTable

        properties = pairs("catalog-property", values["catalog_property"])
        return IcebergTable(values["catalog"], properties, values["table"], schema, by)
    if not values["to"]:
        raise InvalidArgument(f"--format {values['format']} needs --to URL")
    options = tuple(sorted(pairs("store-option", values["store_option"]).items()))
    store = FileStore(values["to"].rstrip("/"), options)
    if values["format"] == "delta":
        from tierlog.spark.jobs.delta import DeltaTable

        return DeltaTable(store, schema, by)
    settings: dict[str, Any] = {"columns": schema.names, "partition_by": by}
    if values["value_option"]:
        settings["value"] = str(schema.field("value").type)
    return ParquetTable(store, settings)


@contextmanager
def _errors_of(values: Values, advice: str) -> Iterator[None]:
    """Failures of the table's library as JobFailed: their types are those of any catalog and store."""
    try:
        yield
    except JobFailed:
        raise
    except Exception as failure:
        is_iceberg = values["format"] == "iceberg"
        where = (
            f"table {values['table']} of the catalog {values['catalog']!r}" if is_iceberg else values["to"]
        )
        reason = (str(failure).splitlines() or [""])[0] or type(failure).__name__
        raise JobFailed(f"{where}: {reason.rstrip('.')}. {advice}") from failure


def _arguments_of_table(values: Values) -> str:
    return "--catalog and --catalog-property" if values["format"] == "iceberg" else "--to and --store-option"


def _columns(text: str) -> tuple[str, ...]:
    columns = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if unknown := [name for name in columns if name not in ALL_COLUMNS]:
        raise InvalidArgument(
            f"--columns: unknown {', '.join(unknown)}; the columns are {', '.join(ALL_COLUMNS)}"
        )
    if missing := {"topic", "partition", "offset", "timestamp"} - set(columns):
        raise InvalidArgument(f"--columns must contain {', '.join(sorted(missing))}: they identify a record")
    return columns


def _rounds(parts: Sequence[Part], most_bytes: int) -> Iterator[list[Part]]:
    """Complete segments, of at most so many bytes if possible."""
    chosen: list[Part] = []
    size = 0
    for segment in segments_of(parts):
        more = sum(part.end - part.start for part in segment)
        if chosen and size + more > most_bytes:
            yield chosen
            chosen, size = [], 0
        chosen += segment
        size += more
    if chosen:
        yield chosen


def _tasks(
    parts: Sequence[Part], options: ReadOptions, schema: Any, table: Table, values: Values
) -> list[ExportTask]:
    """Adjacent parts of one topic, of at most --file-mib, or less in a small round."""
    total = sum(part.end - part.start for part in parts)
    most = min(values["file_mib"] * MIB, max(LEAST_TASK_BYTES, -(-total // TASKS_OF_A_SMALL_ROUND)))
    groups: list[list[Part]] = []
    size = 0
    for part in parts:
        more = part.end - part.start
        is_full = size + more > most
        if not groups or is_full or groups[-1][-1].source.topic_id != part.source.topic_id:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += more
    target = table.destination()
    return [
        ExportTask(
            tuple(group),
            options,
            tuple(schema.names),
            values["partition_by"],
            target.store,
            target.folder,
            target.in_folders,
            values["compression"],
            target.has_far_dates,
            None if options.value is None else schema.field("value").type,
        )
        for group in groups
    ]


def _count(done: dict[str, Any], files: Sequence[WrittenFile], bytes_read: int) -> None:
    done["rows"] += sum(file.rows for file in files)
    done["files"] += len(files)
    done["bytes"] += sum(file.bytes for file in files)
    done["bytes_read"] += bytes_read


def _show(document: dict[str, Any]) -> str:
    if not document["commits"]:
        return "nothing new to export"
    word = "commit" if len(document["commits"]) == 1 else "commits"
    return (
        f"exported {document['rows']:,} rows into {document['files']:,} files of "
        f"{document['bytes']:,} bytes; {word} {', '.join(document['commits'])}"
    )


JOB = Job("backfill", run, _show)

if __name__ == "__main__":
    sys.exit(main(JOB))
