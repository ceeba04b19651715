"""Writes: `df.write.format("tierlog")` and `df.writeStream.format("tierlog")`.

Rows have the columns of Spark's Kafka sink. A batch write is idempotent within each task, or all of its tasks
write in transactions (`transactional`). A streaming write commits each batch exactly once, see
`live/transactions.py`. Spark pickles the writer for the executors, so it contains only options.
"""

import re
import secrets
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tierlog.base.clock import SystemClock
from tierlog.client import ClientError, Cluster, UnknownTopic, is_retriable, raise_for
from tierlog.protocol.messages.init_producer_id import InitProducerIdRequest
from tierlog.records.columnar_encode import Producer, record_columns
from tierlog.records.kernels import Array
from tierlog.spark.columns import arrow_schema
from tierlog.spark.live.produce import NO_PARTITION, ColumnProducer, WriteFailed, open_cluster
from tierlog.spark.live.transactions import OPEN_STATE, BatchCommitter, Prepared, Transactions, check_batch
from tierlog.spark.options import InvalidOption
from tierlog.spark.options.write import WriteOptions
from tierlog.spark.short_errors import short_errors

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties that Spark sets for the tasks of a streaming query, whose id is in its checkpoint."""

PREFIX = "tierlog-spark-"
RETRY_PAUSE_S = 0.1
BYTES = ("string", "binary")
TYPES = {
    "key": BYTES,
    "value": BYTES,
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
ROWS_PER_BATCH = 10_000
_ArrowStreamWriter = getattr(datasource, "DataSourceStreamArrowWriter", DataSourceStreamWriter)
"""PySpark 4.0 has no streaming writer of Arrow batches: its rows are converted."""


@dataclass
class TaskWritten(WriterCommitMessage):
    """Summary of one task. `transaction`: prepared; None without transactions, or without rows."""

    records: int
    transaction: Prepared | None = None
    query: str = ""


def check_write_schema(schema: StructType, options: WriteOptions, overwrite: bool) -> None:
    """Raises InvalidOption for columns that records do not have, and for a missing value or topic."""
    if overwrite:
        raise InvalidOption('records are only appended: use mode("append")')
    known = ", ".join(f"{name} {' or '.join(types)}" for name, types in TYPES.items())
    for field in schema.fields:
        if field.dataType.simpleString() not in TYPES.get(field.name, ()):
            raise InvalidOption(f"unknown column {field.simpleString()}; the columns are {known}")
    if "value" not in schema.names:
        raise InvalidOption(f"the column `value` is missing; the columns are {known}")
    if options.topic is None and "topic" not in schema.names:
        raise InvalidOption("set the option `topic`, or give each row its topic in the column `topic`")


class BatchWriter(DataSourceArrowWriter):
    """Writes the rows of a DataFrame once. Each task is acknowledged as a whole or fails."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._job = f"{PREFIX}job-{secrets.token_hex(8)}"
        self._aborted = f"{self._job}-aborted"

    @short_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        if self._options.transactional:
            return self._write_transaction(iterator)
        with open_cluster(self._options) as cluster:
            producer = _idempotent_producer(cluster)
            try:
                return TaskWritten(_write_rows(cluster, self._options, producer, None, iterator))
            except UnknownTopic as failure:
                raise WriteFailed(
                    f"{failure}: create it with `tierlog topic create {failure.topic}`. Rows of this write "
                    "may be in other topics; repeating it writes them again"
                ) from failure
            except Exception as failure:
                raise WriteFailed(
                    f"{failure}. Rows of this write may be in the topic; repeating it writes them again"
                ) from failure

    def _write_transaction(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        rows = _rows_or_none(iterator)
        if rows is None:
            return TaskWritten(0)
        context = _task()
        name = f"{self._job}-{context.partitionId()}-{context.taskAttemptId()}"
        with open_cluster(self._options) as cluster:
            transactions = Transactions(cluster)
            begun = transactions.begin(name, timeout_ms=self._options.transaction_timeout_ms)
            written = _write_prepared(cluster, self._options, transactions, begun, rows)
            if transactions.state(self._aborted) is not None:
                transactions.end(begun, commit=False)
                raise WriteFailed("another task of this write failed")
            return written

    @short_errors
    def commit(self, messages: "Sequence[WriterCommitMessage | None]") -> None:
        """Commit all transactions. Raises WriteFailed if only some are committed."""
        prepared = _prepared(messages)
        if not prepared:
            return
        with open_cluster(self._options) as cluster:
            transactions = Transactions(cluster)
            for each in prepared:
                if transactions.state(each.transactional_id) != (OPEN_STATE, each):
                    raise WriteFailed(
                        f"transaction {each.transactional_id} is no longer open: a write must end within "
                        "kafka.transaction.timeout.ms"
                    )
            for number, each in enumerate(prepared):
                try:
                    transactions.end(each, commit=True)
                except Exception as failure:
                    raise WriteFailed(
                        f"{failure}: the rows of {number} of {len(prepared)} tasks are committed"
                    ) from failure
            self._abort_open(transactions)  # tasks that ran twice

    def abort(self, messages: "Sequence[WriterCommitMessage | None]") -> None:
        """Abort the transactions that are still open: they would hold back readers until their timeout.

        Spark does not wait for its other tasks before. A task that ends later aborts its own transaction,
        because the id `_aborted` is known by then."""
        if not self._options.transactional:
            return
        with open_cluster(self._options) as cluster:
            transactions = Transactions(cluster)
            transactions.begin(self._aborted, timeout_ms=self._options.transaction_timeout_ms)
            self._abort_open(transactions)

    def _abort_open(self, transactions: Transactions) -> None:
        """The transactions of this write that are still open."""
        try:
            for transactional_id in transactions.open_ids(re.escape(self._job) + r"-\d+-\d+"):
                transactions.begin(transactional_id, timeout_ms=self._options.transaction_timeout_ms)
        except (ClientError, WriteFailed) as failure:
            warnings.warn(f"open transactions end with their timeout: {failure}", stacklevel=2)


class StreamWriter(_ArrowStreamWriter):  # type: ignore[misc, valid-type]
    """Writes each batch of a streaming query exactly once."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    @short_errors
    def write(self, iterator: Iterator[Any]) -> TaskWritten:
        """Write the rows of a task and leave its transaction prepared, unless the batch is decided."""
        context = _task()
        query, batch_id = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if not query or batch_id is None:
            raise WriteFailed("Spark does not say which query and batch a task belongs to")
        identity = PREFIX + query
        rows = _rows_or_none(_arrow_batches(iterator, self._schema))
        if rows is None:
            return TaskWritten(0, query=identity)
        with open_cluster(self._options) as cluster:
            transactions = Transactions(cluster)
            committer = BatchCommitter(transactions, identity)
            known = committer.decision()
            check_batch(known, int(batch_id))
            if known.batch_id == int(batch_id):
                return TaskWritten(0, query=identity)
            begun = committer.begin_task(int(batch_id))
            written = _write_prepared(cluster, self._options, transactions, begun, rows)
            return TaskWritten(written.records, written.transaction, identity)

    @short_errors
    def commit(self, messages: "Sequence[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803 (PySpark's)
        query = _query(messages)
        if query:
            with open_cluster(self._options) as cluster:
                self._committer(Transactions(cluster), query).commit(batchId, _prepared(messages))

    def abort(self, messages: "Sequence[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803
        """Transactions of tasks without a message are aborted with the next batch that is decided."""
        query = _query(messages)
        if query:
            with open_cluster(self._options) as cluster:
                self._committer(Transactions(cluster), query).abort(batchId, _prepared(messages))

    def _committer(self, transactions: Transactions, query: str) -> BatchCommitter:
        return BatchCommitter(transactions, query)


def _write_prepared(
    cluster: Cluster,
    options: WriteOptions,
    transactions: Transactions,
    begun: Prepared,
    rows: Iterable[pa.RecordBatch],
) -> TaskWritten:
    """Write rows in a transaction and leave it open; abort it if that fails."""
    producer = Producer(begun.producer_id, begun.producer_epoch, transactional=True)
    try:
        written = _write_rows(cluster, options, producer, begun.transactional_id, rows)
    except BaseException:
        # Always: a request that timed out may still arrive, and the abort makes the broker refuse it.
        with suppress(ClientError, WriteFailed):
            transactions.end(begun, commit=False)
        raise
    return TaskWritten(written, begun)


def _write_rows(
    cluster: Cluster,
    options: WriteOptions,
    producer: Producer,
    transactional_id: str | None,
    batches: Iterable[pa.RecordBatch],
) -> int:
    """Write all rows. Returns their number once all are acknowledged."""
    written = 0
    first_sticky = _task().partitionId()
    with ColumnProducer(cluster, options, producer, transactional_id, first_sticky) as sink:
        for batch in batches:
            names = batch.schema.names
            columns = {name: batch.column(name) for name in names}
            timestamps = _milliseconds(columns.get("timestamp"), batch.num_rows)
            records = record_columns(columns.get("key"), columns["value"], columns.get("headers"), timestamps)
            partitions = _partitions(columns.get("partition"))
            for topic, rows in _topics(options.topic, columns.get("topic"), batch.num_rows):
                sink.send(topic, records, rows, partitions)
            written += batch.num_rows
        sink.flush()
    return written


def _milliseconds(column: Any, rows: int) -> Array:
    """Timestamps of records: the column's, and now for those without."""
    now_ms = SystemClock().now_ms()
    if column is None:
        return np.full(rows, now_ms, np.int64)
    stamps = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    return np.asarray(pc.fill_null(stamps, now_ms).to_numpy(zero_copy_only=False))


def _partitions(column: Any) -> Array | None:
    if column is None:
        return None
    if len(column) and (pc.min(column).as_py() or 0) < 0:
        raise WriteFailed(f"a row has partition {pc.min(column).as_py()}: partitions are numbered from 0")
    return np.asarray(pc.fill_null(column, NO_PARTITION).to_numpy(zero_copy_only=False)).astype(np.int64)


def _topics(topic: str | None, column: Any, rows: int) -> Iterator[tuple[str, Array]]:
    """Each topic with its rows. The option wins over the column."""
    if topic is not None:
        yield topic, np.arange(rows)
        return
    if column.null_count:
        raise WriteFailed("a row has no topic: set the option `topic`, or fill the column `topic`")
    encoded = column.dictionary_encode()
    numbers = encoded.indices.to_numpy(zero_copy_only=False)
    for number, name in enumerate(encoded.dictionary.to_pylist()):
        yield name, np.flatnonzero(numbers == number)


def _arrow_batches(iterator: Iterator[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Batches as they come, or made of PySpark 4.0's rows."""
    rows: list[dict[str, Any]] = []
    for each in iterator:
        if isinstance(each, pa.RecordBatch):
            yield each
            continue
        rows.append(_with_zone(each.asDict(recursive=True)))
        if len(rows) == ROWS_PER_BATCH:
            yield pa.RecordBatch.from_pylist(rows, arrow_schema(schema))
            rows = []
    if rows:
        yield pa.RecordBatch.from_pylist(rows, arrow_schema(schema))


def _rows_or_none(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch] | None:
    """The batches; None if there is no row, so that an empty task begins no transaction."""
    for first in batches:
        if first.num_rows:
            return chain([first], batches)
    return None


def _idempotent_producer(cluster: Cluster) -> Producer:
    """Raises ClientError."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
    deadline = time.monotonic() + cluster.timeout_s
    while is_retriable((response := cluster.call(request)).error_code) and time.monotonic() < deadline:
        time.sleep(RETRY_PAUSE_S)
    raise_for(response.error_code, None, "producer id")
    return Producer(response.producer_id, response.producer_epoch)


def _task() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise WriteFailed("rows are written by tasks of Spark only")
    return context


def _prepared(messages: "Sequence[WriterCommitMessage | None]") -> list[Prepared]:
    return [each.transaction for each in messages if isinstance(each, TaskWritten) and each.transaction]


def _query(messages: "Sequence[WriterCommitMessage | None]") -> str:
    return next((each.query for each in messages if isinstance(each, TaskWritten)), "")


def _with_zone(row: dict[str, Any]) -> dict[str, Any]:
    """PySpark 4.0 has the timestamp in local time, without a zone."""
    stamp = row.get("timestamp")
    return {**row, "timestamp": stamp.astimezone()} if isinstance(stamp, datetime) else row
