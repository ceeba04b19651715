"""Idempotent producer of Arrow columns: fills a batch per partition, and sends full ones in the background.

The batches of a partition are sent one after another, each until it is acknowledged by all in-sync replicas,
with the same producer id and sequence in each attempt: nothing is written twice or out of order (KIP-98).
One thread encodes, another one sends.
"""

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tierlog.client import (
    Cluster,
    ConnectionOptions,
    NotAvailable,
    TimedOut,
    Unreachable,
    error_name,
    is_retriable,
)
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tierlog.records.columnar_encode import Bytes, OpenBatch, Producer, RecordColumns, partitions_of_keys
from tierlog.records.kernels import Array
from tierlog.spark.options.security import socket_opener
from tierlog.spark.options.write import WriteOptions

if TYPE_CHECKING:
    from tierlog.protocol.messages.produce import PartitionProduceResponse

ALL_IN_SYNC = -1
MAX_SEQUENCE = 2**31
REQUESTS_AHEAD = 2
"""Requests that may wait for the sending thread: enough to keep it busy, little enough for memory."""

REQUEST_BYTES = 4 << 20
"""A request is sent once its batches have this size."""

NO_PARTITION = -1

Place = tuple[str, int]


class WriteFailed(RuntimeError):
    """A write failed; the message says what may be in the topic."""


class Batch(NamedTuple):
    """A sealed batch of one partition."""

    topic: str
    partition: int
    data: bytearray


def open_cluster(options: WriteOptions) -> Cluster:
    return Cluster(
        options.bootstrap,
        timeout_s=options.request_timeout_s,
        options=ConnectionOptions(client_id=options.client_id, open_socket=socket_opener(options.security)),
    )


class ColumnProducer:
    """Sends rows to any number of topics. Use it as a context manager; `flush` before it ends."""

    def __init__(
        self,
        cluster: Cluster,
        options: WriteOptions,
        producer: Producer,
        transactional_id: str | None = None,
        first_sticky: int = 0,
    ) -> None:
        """`cluster`: for metadata. `first_sticky`: spreads the rows without a key of several tasks."""
        self._cluster = cluster
        self._options = options
        self._producer = producer
        self._open: dict[Place, OpenBatch] = {}
        self._sequences: dict[Place, int] = {}
        self._ready: dict[Place, Batch] = {}
        self._ready_bytes = 0
        self._sticky = first_sticky
        self._sticky_bytes = 0
        self._sender = _Sender(options, transactional_id)
        self._thread = ThreadPoolExecutor(1, "tierlog-produce")
        self._sending: deque[Future[None]] = deque()

    def __enter__(self) -> "ColumnProducer":
        return self

    def __exit__(self, *_: object) -> None:
        self._sender.stop()
        self._thread.shutdown(cancel_futures=True)
        self._sender.close()

    def send(self, topic: str, columns: RecordColumns, rows: Array, partitions: Array | None) -> None:
        """Add rows, by their numbers, to the batches of their partitions. `partitions`: of each row of the
        columns, NO_PARTITION to choose it by key. Raises WriteFailed."""
        count = len(self._cluster.topic(topic).partitions)
        keys, values = columns.keys.of_rows(rows), columns.values.of_rows(rows)
        chosen = partitions_of_keys(keys, count, self._sticky_partitions(keys, values, count))
        if partitions is not None:
            given = partitions[rows]
            if len(given) and (given.max() >= count or given.min() < NO_PARTITION):
                wrong = given[(given >= count) | (given < NO_PARTITION)][0]
                raise WriteFailed(f"topic {topic} has no partition {wrong}: it has {count} partitions")
            chosen = np.where(given == NO_PARTITION, chosen, given)
        order = np.argsort(chosen, kind="stable")
        ends = np.flatnonzero(np.diff(chosen[order], append=-1)) + 1
        first = 0
        for end in ends:
            self._append((topic, int(chosen[order[first]])), columns, rows[order[first:end]])
            first = int(end)
        if sum(batch.size for batch in self._open.values()) > self._options.buffer_bytes:
            self._seal_all()

    def flush(self) -> None:
        """Send everything; returns when all records are acknowledged. Raises WriteFailed."""
        self._seal_all()
        while self._sending:
            self._sending.popleft().result()

    def _sticky_partitions(self, keys: Bytes, values: Bytes, count: int) -> Array:
        """Partitions of rows without a key: the same one until a batch is full (KIP-480)."""
        sizes = np.where(keys.sizes < 0, np.maximum(values.sizes, 0) + 16, 0)
        ends = np.cumsum(sizes) + self._sticky_bytes
        found = (self._sticky + ends // self._options.batch_bytes) % count
        if len(ends):
            self._sticky += int(ends[-1]) // self._options.batch_bytes
            self._sticky_bytes = int(ends[-1]) % self._options.batch_bytes
        return np.asarray(found)

    def _append(self, place: Place, columns: RecordColumns, rows: Array) -> None:
        batch = self._open.get(place)
        if batch is None:
            batch = self._open[place] = OpenBatch(self._options.batch_bytes)
        at = 0
        while (at := batch.append(columns, rows, at)) < len(rows):
            self._seal(place, batch)

    def _seal(self, place: Place, batch: OpenBatch) -> None:
        if place in self._ready:  # a request has one batch per partition
            self._submit()
        records, sequence = batch.records, self._sequences.get(place, 0)
        data = batch.seal(self._options.codec, self._producer, sequence)
        self._sequences[place] = (sequence + records) % MAX_SEQUENCE
        self._ready[place] = Batch(*place, data)
        self._ready_bytes += len(data)
        if self._ready_bytes >= REQUEST_BYTES:
            self._submit()

    def _seal_all(self) -> None:
        for place, batch in self._open.items():
            if batch.records:
                self._seal(place, batch)
        self._open.clear()  # a buffer keeps the size that it has grown to
        self._submit()

    def _submit(self) -> None:
        """Hand the sealed batches to the sending thread. Waits while it is behind."""
        if not self._ready:
            return
        while len(self._sending) >= REQUESTS_AHEAD:
            self._sending.popleft().result()
        self._sending.append(self._thread.submit(self._sender.send, list(self._ready.values())))
        self._ready, self._ready_bytes = {}, 0


class _Sender:
    """Sends batches until they are acknowledged. After a failure it sends nothing more: a later batch of the
    same partition would be out of order."""

    def __init__(self, options: WriteOptions, transactional_id: str | None) -> None:
        self._options = options
        self._transactional_id = transactional_id
        self._cluster = open_cluster(options)
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def close(self) -> None:
        self._cluster.close()

    def send(self, batches: Sequence[Batch]) -> None:
        """Returns when all are acknowledged. Raises WriteFailed, and ClientError."""
        if self._stopped:
            raise WriteFailed("an earlier batch of this task was not written")
        try:
            self._send(batches)
        except BaseException:
            self._stopped = True
            raise

    def _send(self, batches: Sequence[Batch]) -> None:
        deadline = time.monotonic() + self._options.delivery_timeout_s
        while batches := self._attempt(batches):
            if self._stopped:
                raise WriteFailed("the task ended before its records were acknowledged")
            first = batches[0]
            problem = f"{first.topic}-{first.partition} did not acknowledge records in time"
            for topic in {batch.topic for batch in batches}:
                self._cluster.refresh(topic, deadline, problem)

    def _attempt(self, batches: Sequence[Batch]) -> list[Batch]:
        """Send each batch to its leader once. Returns those to send again."""
        by_leader: dict[int, list[Batch]] = {}
        again: list[Batch] = []
        for batch in batches:
            try:
                leader = self._cluster.leader(batch.topic, batch.partition)
            except (Unreachable, TimedOut, NotAvailable):
                again.append(batch)
                continue
            by_leader.setdefault(leader, []).append(batch)
        for leader, sent in by_leader.items():
            try:
                response = self._cluster.call(self._request(sent), leader)
            except (Unreachable, TimedOut):
                again += sent
                continue
            results = {
                (topic.name, result.index): result
                for topic in response.responses
                for result in topic.partition_responses
            }
            again += [each for each in sent if not _is_written(each, results[each.topic, each.partition])]
        return again

    def _request(self, batches: Sequence[Batch]) -> ProduceRequest:
        topics: dict[str, list[PartitionProduceData]] = {}
        for batch in batches:
            data = PartitionProduceData(index=batch.partition, records=batch.data)
            topics.setdefault(batch.topic, []).append(data)
        return ProduceRequest(
            transactional_id=self._transactional_id,
            acks=ALL_IN_SYNC,
            timeout_ms=int(self._options.request_timeout_s * 1_000),
            topic_data=[TopicProduceData(name=name, partition_data=data) for name, data in topics.items()],
        )


def _is_written(batch: Batch, result: "PartitionProduceResponse") -> bool:
    """False: send it again. Raises WriteFailed."""
    code = result.error_code
    if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):  # or written by an earlier attempt
        return True
    if is_retriable(code):
        return False
    raise WriteFailed(f"{batch.topic}-{batch.partition}: {result.error_message or error_name(code)}")
