"""Idempotent producer of `tierlog produce`: sends one batch per partition at a time until it is
acknowledged."""

import time
from typing import TYPE_CHECKING

from tierlog.cli.client import KafkaClient, is_retriable, raise_for
from tierlog.cli.errors import CliError, no_partition
from tierlog.client.partitioner import partition_of
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.init_producer_id import InitProducerIdRequest
from tierlog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tierlog.records.codecs import Codec
from tierlog.records.writer import NewRecord, encode_batch

if TYPE_CHECKING:
    from tierlog.protocol.messages.produce import PartitionProduceResponse

ALL_IN_SYNC = -1
TIMEOUT_MS = 30_000
BATCH_BYTES = 512 * 1024  # well below the default of max.message.bytes (1 MiB)
MAX_SEQUENCE = 2**31


class Producer:
    """Sends records to one topic with acks=all. Retries do not duplicate records (KIP-98)."""

    def __init__(
        self, client: KafkaClient, topic: str, *, codec: Codec = Codec.NONE, partition: int | None = None
    ) -> None:
        self.records = 0
        self.bytes = 0
        self._client = client
        self._topic = topic
        self._codec = codec
        self._only = partition
        self._count = len(client.topic(topic).partitions)
        if partition is not None and not 0 <= partition < self._count:
            raise no_partition(topic, partition, self._count)
        response = client.call(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=TIMEOUT_MS)
        )
        if response.error_code and is_retriable(response.error_code):
            client.require_quorum(f"producer id: {ErrorCode(response.error_code).name}")
        raise_for(response.error_code, None, "producer id")
        self._producer_id, self._producer_epoch = response.producer_id, response.producer_epoch
        self._sequences = [0] * self._count
        self._waiting: list[list[NewRecord]] = [[] for _ in range(self._count)]
        self._waiting_bytes = [0] * self._count
        self._sticky = 0  # partition of records without a key, until its batch is full (KIP-480)

    def send(self, record: NewRecord) -> None:
        """Add a record to its partition's batch, and send the batch when it is full."""
        partition = self._partition_of(record.key)
        self._waiting[partition].append(record)
        self._waiting_bytes[partition] += len(record.key or b"") + len(record.value or b"") + 32
        if self._waiting_bytes[partition] >= BATCH_BYTES:
            self._send_batch(partition)

    def flush(self) -> None:
        """Send all batches; returns when all records are acknowledged."""
        for partition in range(self._count):
            self._send_batch(partition)

    def _partition_of(self, key: bytes | None) -> int:
        if self._only is not None:
            return self._only
        return self._sticky if key is None else partition_of(key, self._count)

    def _send_batch(self, partition: int) -> None:
        records = self._waiting[partition]
        if not records:
            return
        batch = encode_batch(
            records,
            codec=self._codec,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=self._sequences[partition],
        )
        deadline = time.monotonic() + self._client.timeout_s
        while (result := self._attempt(partition, batch)) is None or result.error_code:
            code = ErrorCode(result.error_code) if result else ErrorCode.NETWORK_EXCEPTION
            if result and code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                break  # an earlier attempt was written, but is not among the producer's last five batches
            if not code.retriable:
                raise_for(code, result.error_message if result else None, f"{self._topic}-{partition}")
            self._client.refresh(
                self._topic, deadline, f"cannot write to {self._topic}-{partition}: {code.name}"
            )
        self._sequences[partition] = (self._sequences[partition] + len(records)) % MAX_SEQUENCE
        self.records += len(records)
        self.bytes += len(batch)
        self._waiting[partition], self._waiting_bytes[partition] = [], 0
        self._sticky = (self._sticky + 1) % self._count

    def _attempt(self, partition: int, batch: bytearray) -> "PartitionProduceResponse | None":
        data = TopicProduceData(
            name=self._topic, partition_data=[PartitionProduceData(index=partition, records=batch)]
        )
        request = ProduceRequest(acks=ALL_IN_SYNC, timeout_ms=TIMEOUT_MS, topic_data=[data])
        try:
            response = self._client.call(request, self._client.leader(self._topic, partition))
        except CliError as failure:
            if failure.code.name != "UNREACHABLE":
                raise
            return None
        result: PartitionProduceResponse = response.responses[0].partition_responses[0]
        return result
