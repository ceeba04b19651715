"""Executor part of bulk loads: writes the rows of a partition as finished segments (ADR 0044).

Offsets are known from the start: they follow the end of the partition's log, and one task writes all rows of
a partition in order. Each segment is announced by the partition's leader just before it is put. An attempt
that is repeated announces its own segments; only those that the driver commits enter the manifest.
"""

import pickle
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tierlog.base.clock import SystemClock
from tierlog.base.types import TopicIdPartition
from tierlog.metadata.records import CODEC, RemoteSegment
from tierlog.records.batch import HEADER_SIZE, assign, read_header
from tierlog.records.codecs import Codec
from tierlog.records.columnar_encode import (
    OpenBatch,
    Producer,
    RecordColumns,
    column_bytes,
    partitions_of_keys,
    record_columns,
)
from tierlog.records.kernels import Array
from tierlog.spark.history.bucket import open_bucket
from tierlog.spark.history.plan import Source
from tierlog.spark.history.segment_writer import SegmentEnd, SegmentWriter, put_segment
from tierlog.spark.jobs.load_client import LoadBegun, LoadClient, NotLoaded
from tierlog.spark.jobs.rewriting import SPOOLED_BYTES, checked
from tierlog.spark.jobs.runner import keep_memory
from tierlog.spark.options import StoreAddress
from tierlog.spark.worker import freeze_heap
from tierlog.tiering.format.keys import Keys

PARTITION = "_tierlog_partition"
"""Column with the partition of each row."""

BATCH_BYTES = 512 << 10
"""Records of a batch before compression: larger ones compress better, and readers of history take whole
chunks."""

ROOM_FOR_CODEC = 16
"""A batch leaves the sixteenth part of its limit free: records that cannot be compressed grow a little."""

SEGMENTS_MAX = 256  # a limit of the quorum for one load in a partition
NO_PRODUCER = Producer(-1, -1)


class LoadError(RuntimeError):
    """A task cannot go ahead; the message says why."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Input of the tasks. `begun`: the partitions to load into. `now_ms`: timestamp of rows without one."""

    store: StoreAddress
    cluster: str
    topic: str
    client: LoadClient
    begun: Mapping[int, LoadBegun]
    partitions: int
    codec: Codec
    now_ms: int


@dataclass(frozen=True, slots=True)
class PartitionWritten:
    """The segments of a partition, in order: what the driver commits. `failure`: why its leader takes no more
    of them; the other partitions of the load continue."""

    partition: int
    segments: tuple[RemoteSegment, ...]
    failure: str = ""


def route(plan: LoadPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add the partition of each row: that of the column `partition`, or else of its key, by Kafka's
    partitioner, or of its value if it has no key. So the same row always gets the same partition. Rows of
    partitions that were loaded before are left out."""
    wanted = pa.array(sorted(plan.begun), pa.int32())
    for batch in batches:
        chosen = pa.array(_partitions(plan, batch), pa.int32())
        routed = pa.RecordBatch.from_arrays([chosen, *batch.columns], [PARTITION, *batch.schema.names])
        yield routed.filter(pc.is_in(chosen, wanted))


def _partitions(plan: LoadPlan, batch: pa.RecordBatch) -> Array:
    count, rows = plan.partitions, batch.num_rows
    values = column_bytes(batch.column("value"))
    found = partitions_of_keys(values, count, np.zeros(rows, np.int64))
    if "key" in batch.schema.names:
        found = partitions_of_keys(column_bytes(batch.column("key")), count, found)
    if "partition" in batch.schema.names:
        given = pc.fill_null(batch.column("partition"), -1).to_numpy(zero_copy_only=False)
        wrong = given[(given < -1) | (given >= count)]
        if len(wrong):
            raise LoadError(f"topic {plan.topic} has no partition {wrong[0]}: it has {count} partitions")
        found = np.where(given < 0, found, given)
    return found


def write_partitions(plan: LoadPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[PartitionWritten]:
    """Write the rows of a task, which are sorted by partition. Raises LoadError, or another error of the
    store or the cluster."""
    keep_memory()
    with ExitStack() as opened:
        writer: _PartitionWriter | None = None
        for batch in batches:
            if not batch.num_rows:
                continue
            columns = _columns(batch, plan.now_ms)
            partitions = batch.column(PARTITION).to_numpy(zero_copy_only=False)
            ends = np.flatnonzero(np.diff(partitions, append=-1)) + 1
            first = 0
            for end in map(int, ends):
                partition = int(partitions[first])
                if writer is None or writer.partition != partition:
                    if writer is not None:
                        yield writer.finish()
                        opened.close()
                    writer = opened.enter_context(_PartitionWriter(plan, partition))
                writer.add(columns, np.arange(first, end))
                first = end
        if writer is not None:
            yield writer.finish()
    freeze_heap()


def encoded(written: Iterator[PartitionWritten]) -> Iterator[pa.RecordBatch]:
    """Results as rows for Spark."""
    for one in written:
        row = [pa.array([one.partition], pa.int32()), pa.array([pickle.dumps(one)], pa.binary())]
        yield pa.RecordBatch.from_arrays(row, ["partition", "result"])


def _columns(batch: pa.RecordBatch, now_ms: int) -> RecordColumns:
    def column(name: str) -> Any:
        return batch.column(name) if name in batch.schema.names else None

    timestamps = np.full(batch.num_rows, now_ms, np.int64)
    given = column("timestamp")
    if given is not None:
        ms = pc.divide(given.cast(pa.timestamp("us", given.type.tz)).cast(pa.int64()), 1000)
        timestamps = pc.fill_null(ms, now_ms).to_numpy(zero_copy_only=False).astype(np.int64)
    return record_columns(column("key"), batch.column("value"), column("headers"), timestamps)


@dataclass(slots=True)
class _PartitionWriter:
    """Writes the segments of one partition, one after another."""

    plan: LoadPlan
    partition: int
    _begun: LoadBegun = field(init=False)
    _batch: OpenBatch = field(init=False)
    _next_offset: int = field(init=False)
    _segments: list[RemoteSegment] = field(default_factory=list)
    _file: IO[bytes] | None = None
    _writer: SegmentWriter | None = None
    _base_offset: int = 0
    _failure: str = ""

    def __post_init__(self) -> None:
        self._begun = self.plan.begun[self.partition]
        most = self._begun.max_message_bytes - HEADER_SIZE
        self._batch = OpenBatch(max(min(BATCH_BYTES, most - most // ROOM_FOR_CODEC - ROOM_FOR_CODEC), 1))
        self._next_offset = self._begun.base_offset

    def __enter__(self) -> "_PartitionWriter":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, columns: RecordColumns, rows: Array) -> None:
        at = 0
        with self._noting_failure():
            while not self._failure and (at := self._batch.append(columns, rows, at)) < len(rows):
                self._seal()

    def finish(self) -> PartitionWritten:
        with self._noting_failure():
            if self._batch.records and not self._failure:
                self._seal()
            if self._writer is not None and not self._failure:
                self._put()
        return PartitionWritten(self.partition, () if self._failure else tuple(self._segments), self._failure)

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        """A lease that was lost, as with a new leader, fails this partition and not the whole load."""
        try:
            yield
        except NotLoaded as why:
            self._failure = str(why)

    @property
    def _codec(self) -> Codec:
        """That of the topic, if it has one."""
        return self.plan.codec if self._begun.codec is None else self._begun.codec

    def _seal(self) -> None:
        begun = self._begun
        data = self._batch.seal(self._codec, NO_PRODUCER, -1)
        if len(data) > begun.max_message_bytes:
            raise LoadError(
                f"a record at offset {self._next_offset} of partition {self.partition} takes {len(data)} "
                f"bytes, more than max.message.bytes, {begun.max_message_bytes}"
            )
        if self._writer is not None and self._writer.size + len(data) > begun.segment_bytes:
            self._put()
        if self._writer is None:
            self._file = tempfile.SpooledTemporaryFile(SPOOLED_BYTES)  # noqa: SIM115 (closed by __exit__)
            self._base_offset = self._next_offset
            self._writer = SegmentWriter(self._file, self._base_offset, begun.index_interval_bytes)
        assign(data, 0, self._next_offset, begun.leader_epoch)
        header = read_header(data)
        self._writer.add(data, header)
        self._next_offset = header.next_offset

    def _put(self) -> None:
        """Announce the segment, put its objects, and read them back as `audit` does."""
        plan, begun = self.plan, self._begun
        if self._writer is None or self._file is None:
            return
        if len(self._segments) == SEGMENTS_MAX:
            raise LoadError(
                f"partition {self.partition} would get more than {SEGMENTS_MAX} segments: raise "
                "segment.bytes of the topic, or load the rows in several loads"
            )
        new = plan.client.announce(self.partition, self._base_offset, self._next_offset - 1)
        finished = self._writer.finish(
            SegmentEnd(
                uuid=new.uuid,
                leader_epoch=new.leader_epoch,
                end_offset=self._next_offset,
                leader_epochs=begun.leader_epochs,
                producer_snapshot=begun.producer_snapshot,
                tags=((CODEC, self._codec.name.lower()),),
            )
        )
        if SystemClock().now_ms() > new.put_until_ms:
            raise LoadError("the task was stopped for too long: its segment may have been abandoned")
        where = TopicIdPartition(plan.client.topic_id, self.partition)
        put_segment(open_bucket(plan.store), Keys(plan.cluster), where, self._file, finished)
        found = checked(plan.store, plan.cluster, Source(plan.topic, *where), finished)
        if found.entry is None:
            raise LoadError(found.failure)
        self._segments.append(found.entry)
        self._file.close()
        self._file = self._writer = None
