"""A tiered topic is compacted in S3 while real clients consume it from offset 0, and by Spark's reader."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import s3_servers
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_reader import read_from_start
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition
from scraping import metric

from tierlog.cli.admin import AdminApi
from tierlog.testing import TierlogBroker

TOPIC, PREFIX = "accounts", "compacted"
SEGMENTS, RECORDS, KEYS = 30, 20, 23
SETTINGS = {"remote.log.manager.task.interval.ms": 200, "remote.log.delete.grace.ms": 500}
CONFIG = {
    "remote.storage.enable": "true",
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "local.retention.ms": "0",
    "retention.ms": "-1",
}

Record = tuple[int, bytes, bytes | None]
"""Offset, key and value."""


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[s3_servers.S3Server]:
    with s3_servers.running("versitygw", tmp_path) as server:
        yield server


@pytest.fixture
async def broker(tierlog_broker_factory, s3: s3_servers.S3Server) -> TierlogBroker:
    keys = {"AWS_ACCESS_KEY_ID": s3_servers.ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": s3_servers.SECRET_KEY}
    return await asyncio.to_thread(
        tierlog_broker_factory, SETTINGS, object_store=s3.url(PREFIX), environment=keys
    )


def record(offset: int) -> Record:
    """Every ninth record is a tombstone."""
    value = None if offset % 9 == 0 else b"value %06d " % offset * 20
    return offset, b"%d" % (offset % KEYS), value


def fill(broker: TierlogBroker) -> None:
    bootstrap = {"bootstrap.servers": broker.bootstrap}
    admin = AdminClient(bootstrap)
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=CONFIG)])[TOPIC].result(10)
    producer, api = Producer(bootstrap), AdminApi(broker.admin_url, timeout_s=60)
    for segment in range(SEGMENTS):
        for offset in range(segment * RECORDS, (segment + 1) * RECORDS):
            _, key, value = record(offset)
            producer.produce(TOPIC, value, key)
        producer.flush()
        api.post("/v1/tier/flush", {"topic": TOPIC})


def by_confluent(broker: TierlogBroker) -> list[Record]:
    return [(one.offset(), one.key(), one.value()) for one in read_from_start(broker.bootstrap, TOPIC)]


def by_kafka_python(broker: TierlogBroker) -> list[Record]:
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="none", group_id=None)
    partition = PythonPartition(TOPIC, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    found: list[Record] = []
    while consumer.position(partition) < SEGMENTS * RECORDS:
        polled = consumer.poll(1000).get(partition, ())
        found += [(one.offset, one.key, one.value) for one in polled]
    consumer.close()
    return found


def by_aiokafka(broker: TierlogBroker) -> list[Record]:
    async def read() -> list[Record]:
        partition = AioPartition(TOPIC, 0)
        async with AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="none") as consumer:
            consumer.assign([partition])
            consumer.seek(partition, 0)
            found: list[Record] = []
            while await consumer.position(partition) < SEGMENTS * RECORDS:
                polled = (await consumer.getmany(timeout_ms=1000)).get(partition, ())
                found += [(one.offset, one.key, one.value) for one in polled]
            return found

    return asyncio.run(read())


READERS: list[Callable[[TierlogBroker], list[Record]]] = [by_confluent, by_kafka_python, by_aiokafka]


def check(found: list[Record]) -> None:
    """A valid compacted log: records that were written, in order, and the last one of each key."""
    assert found == [record(offset) for offset, _, _ in found]
    assert sorted({offset for offset, _, _ in found}) == [offset for offset, _, _ in found]
    end = SEGMENTS * RECORDS
    assert {offset for offset, _, _ in found} >= set(range(end - KEYS, end))


async def test_clients_read_a_valid_log_while_it_is_compacted(broker: TierlogBroker) -> None:
    await asyncio.to_thread(fill, broker)
    end = SEGMENTS * RECORDS
    reads: list[list[Record]] = []
    async with asyncio.timeout(120):
        while not reads or len(reads[-1]) > KEYS:
            for read in READERS:
                reads.append(await asyncio.to_thread(read, broker))
                check(reads[-1])
    for read in READERS:
        found = await asyncio.to_thread(read, broker)
        assert found == [record(offset) for offset in range(end - KEYS, end)]
    assert metric(broker, "tierlog_remote_compactions_total") > 0
    assert metric(broker, "tierlog_remote_compaction_kept_bytes_total") > 0
    [line] = AdminApi(broker.admin_url).get("/v1/tier/status")["partitions"]
    assert line["local_log_start_offset"] == end, "all of it was read from the bucket"
