"""A tiered topic is compacted in S3 while real clients consume it from offset 0."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import s3_servers
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from compacted_history import (
    END_OFFSET,
    KEYS,
    SETTINGS,
    TOPIC,
    Record,
    check_compacted,
    fill,
    last_records,
)
from confluent_reader import read_from_start
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition
from scraping import metric
from spark_totals import spark_totals

from tierlog.cli.admin import AdminApi
from tierlog.testing import TierlogBroker

PREFIX = "compacted"


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[s3_servers.S3Server]:
    with s3_servers.running("versitygw", tmp_path) as server:
        yield server


@pytest.fixture
async def broker(tierlog_broker_factory, s3: s3_servers.S3Server) -> TierlogBroker:
    return await asyncio.to_thread(
        tierlog_broker_factory, SETTINGS, object_store=s3.url(PREFIX), environment=s3_servers.CREDENTIALS
    )


def by_confluent(broker: TierlogBroker) -> list[Record]:
    return [(one.offset(), one.key(), one.value()) for one in read_from_start(broker.bootstrap, TOPIC)]


def by_kafka_python(broker: TierlogBroker) -> list[Record]:
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="none", group_id=None)
    partition = PythonPartition(TOPIC, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    found: list[Record] = []
    while consumer.position(partition) < END_OFFSET:
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
            while await consumer.position(partition) < END_OFFSET:
                polled = (await consumer.getmany(timeout_ms=1000)).get(partition, ())
                found += [(one.offset, one.key, one.value) for one in polled]
            return found

    return asyncio.run(read())


READERS: list[Callable[[TierlogBroker], list[Record]]] = [by_confluent, by_kafka_python, by_aiokafka]


async def test_clients_read_a_valid_log_while_it_is_compacted(broker: TierlogBroker) -> None:
    await asyncio.to_thread(fill, broker)
    reads: list[list[Record]] = []
    async with asyncio.timeout(120):
        while not reads or len(reads[-1]) > KEYS:
            for read in READERS:
                reads.append(await asyncio.to_thread(read, broker))
                check_compacted(reads[-1])
    for read in READERS:
        found = await asyncio.to_thread(read, broker)
        assert found == last_records()
    assert metric(broker, "tierlog_remote_compactions_total") > 0
    assert metric(broker, "tierlog_remote_compaction_kept_bytes_total") > 0
    [line] = AdminApi(broker.admin_url).get("/v1/tier/status")["partitions"]
    assert line["local_log_start_offset"] == END_OFFSET, "all of it was read from the bucket"


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_spark_counts_what_compaction_has_left(
    broker: TierlogBroker, s3: s3_servers.S3Server, tmp_path: Path
) -> None:
    await asyncio.to_thread(fill, broker)
    async with asyncio.timeout(120):
        while len(await asyncio.to_thread(by_confluent, broker)) > KEYS:
            pass  # each read takes its time
    options = {
        "path": s3.url(PREFIX),
        "accessKey": s3_servers.ACCESS_KEY,
        "secretKey": s3_servers.SECRET_KEY,
        "topic": TOPIC,
    }
    count, offsets, size, _ = await asyncio.to_thread(spark_totals, options, tmp_path)
    expected = last_records()
    assert (count, offsets) == (len(expected), sum(offset for offset, _, _ in expected))
    assert size == sum(len(value) for _, _, value in expected if value is not None)
