"""Parquet writer: what an executor does for `backfill`. Reads parts of segments, writes files by time.

Rows stay in Arrow, in the Python worker: neither the JVM nor a Python object per record sees them. Each
attempt of a task writes files with names of its own. Only files that the driver commits become part of the
table, so that a task that runs twice, or an executor that dies, leaves at most files that no reader sees.
"""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tierlog.records.columnar import COLUMNS as DECODED
from tierlog.records.columnar import Columns
from tierlog.spark.columns import decoded_of
from tierlog.spark.history.bucket import open_bucket
from tierlog.spark.history.decoding import decode_part
from tierlog.spark.history.plan import Part
from tierlog.spark.history.snapshot import read_split
from tierlog.spark.jobs.arguments import DAY, HOUR, NONE
from tierlog.spark.jobs.file_stores import FileStore
from tierlog.spark.options import ReadOptions

MICROSECONDS = {DAY: 86_400_000_000, HOUR: 3_600_000_000}
ROW_GROUP_BYTES = 64 << 20
WAITING_BYTES_MAX = 256 << 20
"""Rows that a task keeps for all of its open files. Above it, each file writes a row group."""
FIRST_US = int(np.datetime64("0001-01-01", "us").astype(np.int64))
LAST_US = int(np.datetime64("9999-12-31T23", "us").astype(np.int64))
"""Records of other years are in the first or last time partition: readers have no dates for them."""
OPEN_FILES_MAX = 32
"""Time partitions that a task writes at once. If its records are of more, a partition gets several files."""

_TOPIC = pa.dictionary(pa.int32(), pa.string())
_ENCODINGS = {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"}
_STATISTICS = ["topic", "partition", "offset", "timestamp", "key"]  # values are too long for them
_DICTIONARIES = ["topic", "partition", "timestampType"]


@dataclass(frozen=True, slots=True)
class ExportTask:
    """Parts to write below `folder` of a store. `by`: NONE, DAY or HOUR, which is the time partition of a
    file. `in_folders`: files are in a folder for each time partition. `has_far_dates`: without it, timestamps
    of other years than 1 to 9999 become the first or last moment of these. `value_type`: of decoded values;
    None if they stay bytes."""

    parts: tuple[Part, ...]
    options: ReadOptions
    columns: tuple[str, ...]
    by: str
    store: FileStore
    folder: str
    in_folders: bool
    codec: str
    has_far_dates: bool = True
    value_type: pa.DataType | None = None


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A complete Parquet file. `path`: below the task's folder. `values`: of its time partition. `bounds`:
    smallest and largest value of offset, partition and timestamp (in microseconds) in it."""

    path: str
    bytes: int
    rows: int
    values: dict[str, str] = field(default_factory=dict)
    bounds: dict[str, tuple[int, int]] = field(default_factory=dict)


def schema_of(columns: Sequence[str], value_type: pa.DataType | None = None) -> pa.Schema:
    """Arrow's schema of the files, as readers see it. `value_type`: of decoded values."""
    types = {"topic": pa.string(), "partition": pa.int32(), **DECODED}
    if value_type is not None:
        types["value"] = value_type
    return pa.schema([(name, types[name]) for name in columns])


def export(task: ExportTask) -> list[WrittenFile]:
    """Write the files of a task. Raises ObjectStoreError if they cannot be read, and MalformedValue."""
    files = _Files(task)
    wanted = {name for name in task.columns if name in DECODED} | {"offset", "timestamp"}
    try:
        for part, content in read_split(open_bucket(task.options.store), task.options, task.parts):
            for columns in decode_part(part, content, wanted):
                files.add(part, columns)
        return files.close()
    except BaseException:
        files.abandon()
        raise


class _Files:
    """The open files of a task, by time partition, the least recently used first."""

    def __init__(self, task: ExportTask) -> None:
        self._task = task
        self._open: dict[int, _File] = {}
        self._written: list[WrittenFile] = []
        schema = schema_of(task.columns, task.value_type)
        self._schema = schema.set(schema.get_field_index("topic"), pa.field("topic", _TOPIC))

    def add(self, part: Part, columns: Columns) -> None:
        times = np.asarray(columns.arrays["timestamp"].cast(pa.int64()))
        if not self._task.has_far_dates and (times.max() > LAST_US or times.min() < FIRST_US):
            times = np.clip(times, FIRST_US, LAST_US)
            clipped = pa.array(times).cast(columns.arrays["timestamp"].type)
            columns = columns._replace(arrays={**columns.arrays, "timestamp": clipped})
        table = self._table(part, columns)
        offsets = np.asarray(columns.arrays["offset"])
        for period, rows in _periods(times, self._task.by):
            chosen = table if rows is None else _taken(table, rows)
            some_times, some_offsets = (times, offsets) if rows is None else (times[rows], offsets[rows])
            bounds = {
                "offset": (int(some_offsets[0]), int(some_offsets[-1])),
                "partition": (part.source.partition, part.source.partition),
                "timestamp": (int(some_times.min()), int(some_times.max())),
            }
            self._file(period).add(chosen, bounds)
        if sum(file.waiting_bytes for file in self._open.values()) > WAITING_BYTES_MAX:
            for file in self._open.values():
                file.write_group()

    def close(self) -> list[WrittenFile]:
        for file in self._open.values():
            self._written.append(file.close())
        return self._written

    def abandon(self) -> None:
        for file in self._open.values():
            file.abandon()

    def _table(self, part: Part, columns: Columns) -> pa.RecordBatch:
        rows, arrays = columns.rows, dict(columns.arrays)
        topic = pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(rows, np.int32)), pa.array([part.source.topic], pa.string())
        )
        arrays["topic"] = topic
        arrays["partition"] = pa.array(np.full(rows, part.source.partition, np.int32))
        if self._task.value_type is not None and self._task.options.value is not None:
            arrays["value"] = decoded_of(
                part.source, arrays["value"], self._task.options.value, self._task.value_type
            )
        return pa.RecordBatch.from_arrays([arrays[name] for name in self._task.columns], schema=self._schema)

    def _file(self, period: int) -> "_File":
        file = self._open.pop(period, None)
        if file is None:
            if len(self._open) == OPEN_FILES_MAX:
                self._written.append(self._open.pop(next(iter(self._open))).close())
            file = _File(self._task, self._schema, period)
        self._open[period] = file
        return file


class _File:
    """One file. Rows are kept until they fill a row group."""

    def __init__(self, task: ExportTask, schema: pa.Schema, period: int) -> None:
        self._schema = schema
        self._values = partition_values(period, task.by)
        folders = [f"{name}={value}" for name, value in self._values.items()] if task.in_folders else []
        self._path = "/".join([*folders, f"part-{secrets.token_hex(12)}.parquet"])
        self._store, self._name = task.store, f"{task.folder}/{self._path}"
        self._stream = task.store.create(self._name)
        self._writer = pq.ParquetWriter(
            self._stream,
            schema,
            version="2.6",
            compression=task.codec,
            use_dictionary=[name for name in _DICTIONARIES if name in schema.names],
            write_statistics=[name for name in _STATISTICS if name in schema.names],
            column_encoding={name: _ENCODINGS[name] for name in _ENCODINGS if name in schema.names},
            store_schema=False,
        )
        self._waiting: list[pa.RecordBatch] = []
        self.waiting_bytes = self._rows = 0
        self._bounds: dict[str, tuple[int, int]] = {}

    def add(self, batch: pa.RecordBatch, bounds: dict[str, tuple[int, int]]) -> None:
        for name, (least, largest) in bounds.items():
            before = self._bounds.get(name, (least, largest))
            self._bounds[name] = min(before[0], least), max(before[1], largest)
        self._waiting.append(batch)
        self.waiting_bytes += batch.nbytes
        self._rows += batch.num_rows
        if self.waiting_bytes >= ROW_GROUP_BYTES:
            self.write_group()

    def close(self) -> WrittenFile:
        self.write_group()
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        self._store.sync(self._name)
        return WrittenFile(self._path, size, self._rows, self._values, self._bounds)

    def abandon(self) -> None:
        """Release the stream. The driver never learns of the file."""
        self._waiting = []
        self._writer.close()
        self._stream.close()

    def write_group(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, self._schema)
            self._writer.write_table(table.unify_dictionaries(), row_group_size=table.num_rows)
            self._waiting, self.waiting_bytes = [], 0


def partition_values(period: int, by: str) -> dict[str, str]:
    """Columns of a time partition and their values: `date` (UTC), and `hour` of the day from 0."""
    if by == NONE:
        return {}
    days = period if by == DAY else period // 24
    date = {"date": str(np.datetime64(days, "D"))}
    return date if by == DAY else {**date, "hour": str(period % 24)}


def _periods(times: Any, by: str) -> Iterator[tuple[int, Any]]:
    """Time partitions, as hours or days since 1970, each with the indexes of its rows; None if these are
    all. `times`: in microseconds."""
    if by == NONE:
        yield 0, None
        return
    periods = np.clip(times, FIRST_US, LAST_US) // MICROSECONDS[by]
    first = int(periods[0])
    if (periods == first).all():
        yield first, None
        return
    for period in np.unique(periods):
        yield int(period), np.flatnonzero(periods == period)


def _taken(batch: pa.RecordBatch, rows: Any) -> pa.RecordBatch:
    first, count = int(rows[0]), len(rows)
    is_range = int(rows[-1]) - first + 1 == count
    # A slice keeps all of its batch in memory.
    is_most = count * 2 > batch.num_rows
    return batch.slice(first, count) if is_range and is_most else batch.take(pa.array(rows))
