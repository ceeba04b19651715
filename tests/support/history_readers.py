"""Python clients that read a topic from its beginning (`changing_history.Reader`)."""

import asyncio
from collections.abc import Sequence

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from aiokafka.errors import OffsetOutOfRangeError as AioOutOfRange
from changing_history import Client, OutOfRange, Record
from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition
from kafka.errors import OffsetOutOfRangeError as PythonOutOfRange

TIMEOUT_S = 30
OUT_OF_RANGE = (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)


class ConfluentReader:
    def __init__(self, bootstrap: str, topic: str) -> None:
        self._partition = ConfluentPartition(topic, 0)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "reader",
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "check.crcs": True,
            }
        )
        self._next = -1

    def beginning(self) -> int:
        self._next, _ = self._consumer.get_watermark_offsets(self._partition, TIMEOUT_S)
        self._consumer.assign([ConfluentPartition(self._partition.topic, 0, self._next)])
        return self._next

    def read_to(self, end: int) -> Sequence[Record]:
        found: list[Record] = []
        while self._next < end:
            message = self._consumer.poll(TIMEOUT_S)
            assert message is not None, f"nothing at offset {self._next}"
            if message.error() is not None:
                assert message.error().code() in OUT_OF_RANGE, message.error()
                raise OutOfRange(self._next)
            headers = tuple(message.headers() or ())
            offset, timestamp = message.offset(), message.timestamp()[1]
            found.append(Record(offset, timestamp, message.key(), message.value(), headers))
            self._next = offset + 1
        return found

    def close(self) -> None:
        self._consumer.close()


class KafkaPythonReader:
    def __init__(self, bootstrap: str, topic: str) -> None:
        self._consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="none", group_id=None)
        self._partition = PythonPartition(topic, 0)
        self._consumer.assign([self._partition])
        self._next = -1

    def beginning(self) -> int:
        self._next = self._consumer.beginning_offsets([self._partition])[self._partition]
        self._consumer.seek(self._partition, self._next)
        return self._next

    def read_to(self, end: int) -> Sequence[Record]:
        found: list[Record] = []
        while self._next < end:
            try:
                polled = self._consumer.poll(1000 * TIMEOUT_S).get(self._partition, ())
            except PythonOutOfRange as error:
                raise OutOfRange(self._next) from error
            assert polled, f"nothing at offset {self._next}"
            found += [
                Record(one.offset, one.timestamp, one.key, one.value, tuple(one.headers)) for one in polled
            ]
            self._next = found[-1].offset + 1
        return found

    def close(self) -> None:
        self._consumer.close()


class AiokafkaReader:
    """With an event loop of its own, as it is used by a thread."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._runner = asyncio.Runner()
        self._partition = AioPartition(topic, 0)
        self._next = -1
        self._consumer = self._runner.run(self._start(bootstrap))

    async def _start(self, bootstrap: str) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="none")
        await consumer.start()
        consumer.assign([self._partition])
        return consumer

    def beginning(self) -> int:
        async def seek() -> int:
            found = await self._consumer.beginning_offsets([self._partition])
            self._consumer.seek(self._partition, found[self._partition])
            return int(found[self._partition])

        self._next = self._runner.run(seek())
        return self._next

    def read_to(self, end: int) -> Sequence[Record]:
        return self._runner.run(self._read_to(end))

    async def _read_to(self, end: int) -> Sequence[Record]:
        found: list[Record] = []
        while self._next < end:
            try:
                polled = await self._consumer.getmany(timeout_ms=1000 * TIMEOUT_S)
            except AioOutOfRange as error:
                raise OutOfRange(self._next) from error
            records = polled.get(self._partition, ())
            assert records, f"nothing at offset {self._next}"
            found += [
                Record(one.offset, one.timestamp, one.key, one.value, tuple(one.headers)) for one in records
            ]
            self._next = found[-1].offset + 1
        return found

    def close(self) -> None:
        self._runner.run(self._consumer.stop())
        self._runner.close()


CLIENTS: dict[str, Client] = {
    "confluent-kafka": ConfluentReader,
    "kafka-python": KafkaPythonReader,
    "aiokafka": AiokafkaReader,
}
