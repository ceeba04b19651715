"""Producer of a session: collects the records of all its requests into one batch per partition at a time.

Batches are idempotent (KIP-98): a batch is sent again until the broker has answered, and is written once. A
failure that leaves open whether a batch was written ends the use of its producer id, so that no later batch
depends on its sequence numbers.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from tierlog.base.tasks import TaskGroup
from tierlog.client.errors import ClientError, ErrorResponse, NotAvailable, TimedOut, Unreachable, raise_for
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.init_producer_id import InitProducerIdRequest
from tierlog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.rest.cluster import TIMEOUT_S, Cluster

if TYPE_CHECKING:
    from tierlog.protocol.messages.produce import PartitionProduceResponse

ALL_IN_SYNC = -1
TIMEOUT_MS = 30_000
BATCH_BYTES = 512 << 10  # well below the default of max.message.bytes (1 MiB)
BATCH_RECORDS = 5_000
MAX_SEQUENCE = 2**31
WRITERS_MAX = 10_000
"""Writers of a session from which idle ones are forgotten."""

RECORD_OVERHEAD = 32
"""Bytes of a record besides key, value and headers, at most."""

LOST_SEQUENCE = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
)
"""The broker does not know the producer id (any more); a batch that was not sent before gets another one."""


class Written(NamedTuple):
    """A record in the log. `offset`: None if the broker only knows that the record is there.
    `timestamp`: in ms; of the record, or of the broker for topics with LogAppendTime."""

    partition: int
    offset: int | None
    timestamp: int


class _Waiting(NamedTuple):
    record: NewRecord
    size: int
    done: "asyncio.Future[Written]"


@dataclass(slots=True)
class _Identity:
    producer_id: int
    epoch: int


def size_of(record: NewRecord) -> int:
    """Upper bound of the bytes of a record in a batch."""
    headers = sum(len(name) * 4 + len(value or b"") + 10 for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + RECORD_OVERHEAD


class Producer:
    """Writers of one session, one per partition."""

    def __init__(self, cluster: Cluster, tasks: TaskGroup) -> None:
        self._cluster = cluster
        self._tasks = tasks
        self._writers: dict[tuple[str, int], _Writer] = {}
        self._identity: _Identity | None = None
        self._lock = asyncio.Lock()
        self._next = 0
        self._most = WRITERS_MAX

    def sticky(self, count: int) -> int:
        """Partition for the records without a key of one request."""
        self._next += 1
        return self._next % count

    def send(self, topic: str, partition: int, record: NewRecord) -> "asyncio.Future[Written]":
        """Send a record. The result, or its exception (ClientError), says what became of it."""
        writer = self._writers.get((topic, partition))
        if writer is None:
            self._make_space()
            writer = self._writers[topic, partition] = _Writer(self, self._cluster, topic, partition)
        waiting = _Waiting(record, size_of(record), asyncio.get_running_loop().create_future())
        if writer.add(waiting):
            self._tasks.spawn(f"write {topic}-{partition}", writer.run())
        return waiting.done

    def _make_space(self) -> None:
        """Forget idle writers. Their sequence numbers are lost, so that new ones get another producer id."""
        if len(self._writers) < self._most:
            return
        self._writers = {name: writer for name, writer in self._writers.items() if writer.is_running}
        self._most = max(WRITERS_MAX, 2 * len(self._writers))
        self._identity = None

    async def identity(self, lost: _Identity | None) -> _Identity:
        """The producer id; another one than `lost`. Raises ClientError."""
        async with self._lock:
            if self._identity is None or self._identity is lost:
                deadline = time.monotonic() + TIMEOUT_S
                while True:
                    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=TIMEOUT_MS)
                    response = await self._cluster.call(request)
                    code = response.error_code
                    if not code or not ErrorCode(code).retriable or time.monotonic() > deadline:
                        break
                    await asyncio.sleep(0.1)
                raise_for(response.error_code, None, "producer id")
                self._identity = _Identity(response.producer_id, response.producer_epoch)
            return self._identity


class _Writer:
    """Sends the records of one partition, one batch at a time."""

    def __init__(self, producer: Producer, cluster: Cluster, topic: str, partition: int) -> None:
        self._producer = producer
        self._cluster = cluster
        self._topic = topic
        self._partition = partition
        self._waiting: deque[_Waiting] = deque()
        self.is_running = False
        self._identity: _Identity | None = None
        self._lost: _Identity | None = None
        self._sequence = 0

    def add(self, waiting: _Waiting) -> bool:
        """Queue a record. Returns whether `run` has to be started."""
        self._waiting.append(waiting)
        starts, self.is_running = not self.is_running, True
        return starts

    async def run(self) -> None:
        """Send until nothing waits."""
        try:
            await asyncio.sleep(0)  # records of the same turn share a batch
            while self._waiting:
                await self._send(self._next_batch())
        finally:
            self.is_running = False
            for waiting in self._waiting:  # only when the gateway stops
                waiting.done.cancel()
            self._waiting.clear()

    def _next_batch(self) -> list[_Waiting]:
        total, count = 0, 0
        for waiting in islice(self._waiting, BATCH_RECORDS):
            total += waiting.size
            if count and total > BATCH_BYTES:
                break
            count += 1
        return [self._waiting.popleft() for _ in range(count)]

    async def _send(self, batch: Sequence[_Waiting]) -> None:
        try:
            result = await self._deliver([waiting.record for waiting in batch])
        except ErrorResponse as refusal:
            if len(batch) == 1 or refusal.code not in _OF_ONE_RECORD:
                _fail(batch, refusal)
                return
            for waiting in batch:  # one record is invalid, and the others must not suffer from it
                await self._send([waiting])
            return
        except ClientError as failure:
            self._forget_identity()
            _fail(batch, failure)
            return
        except BaseException as failure:
            _fail(batch, NotAvailable(f"the gateway stopped: {type(failure).__name__}"))
            raise
        for index, waiting in enumerate(batch):
            if not waiting.done.done():
                offset = result.base_offset + index if result.base_offset >= 0 else None
                stamp = result.log_append_time_ms
                timestamp = stamp if stamp >= 0 else waiting.record.timestamp
                waiting.done.set_result(Written(self._partition, offset, timestamp))

    async def _deliver(self, records: Sequence[NewRecord]) -> "PartitionProduceResponse":
        """Raises ErrorResponse if the broker refuses the batch, and other ClientErrors if it may have been
        written."""
        subject = f"{self._topic}-{self._partition}"
        deadline, attempts, batch = time.monotonic() + TIMEOUT_S, 0, bytearray()
        while True:
            if self._identity is None:
                self._identity, self._sequence = await self._producer.identity(self._lost), 0
                batch = bytearray()
            batch = batch or encode_batch(
                records,
                producer_id=self._identity.producer_id,
                producer_epoch=self._identity.epoch,
                base_sequence=self._sequence,
            )
            attempts += 1
            result = await self._attempt(batch, deadline)
            code = ErrorCode(result.error_code) if result else ErrorCode.NETWORK_EXCEPTION
            if result and code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                self._sequence = (self._sequence + len(records)) % MAX_SEQUENCE
                if code:
                    result.base_offset = -1
                return result
            if code in LOST_SEQUENCE and attempts == 1:
                self._forget_identity()
                continue
            if not code.retriable:
                if attempts > 1:  # an earlier attempt may have been written, and used the sequence numbers
                    self._forget_identity()
                raise_for(code, result.error_message if result else None, subject)
            await self._cluster.refresh(
                self._topic, deadline, f"cannot write to {subject}: {code.name}; it may have been written"
            )

    async def _attempt(self, batch: bytearray, deadline: float) -> "PartitionProduceResponse | None":
        """None: no response, or a broken connection."""
        data = TopicProduceData(
            name=self._topic, partition_data=[PartitionProduceData(index=self._partition, records=batch)]
        )
        request = ProduceRequest(acks=ALL_IN_SYNC, timeout_ms=TIMEOUT_MS, topic_data=[data])
        leader = await self._cluster.leader(self._topic, self._partition, deadline)
        try:
            response = await self._cluster.call_in_lane(request, leader)
        except (Unreachable, TimedOut):
            return None
        result: PartitionProduceResponse = response.responses[0].partition_responses[0]
        return result

    def _forget_identity(self) -> None:
        self._lost, self._identity = self._identity, None


_OF_ONE_RECORD = (
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
)
"""Errors that one record of a batch may have caused."""


def _fail(batch: Sequence[_Waiting], failure: Exception) -> None:
    for waiting in batch:
        if not waiting.done.done():
            waiting.done.set_exception(failure)
            waiting.done.exception()  # retrieved, in case that the client has gone away
