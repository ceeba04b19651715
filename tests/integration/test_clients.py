"""Three Python clients against a broker process: codecs, assignment, seeking and admin calls."""

import asyncio
import contextlib
import random
import time
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewPartitions as AioNewPartitions
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from aiokafka.admin.config_resource import ConfigResourceType as AioConfigResourceType
from aiokafka.admin.records_to_delete import RecordsToDelete
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PyTopicPartition
from kafka.admin import ConfigResource as PyConfigResource
from kafka.admin import ConfigResourceType as PyConfigResourceType
from kafka.admin import KafkaAdminClient
from kafka.admin import NewTopic as PyNewTopic
from kafka.structs import OffsetAndMetadata

from tierlog.testing import TierlogBroker

COUNT = 300
BASE_MS = int(time.time() * 1000) - 3_600_000  # recent, since retention uses the records' timestamps
TIMEOUT_S = 90.0


def new_name() -> str:
    return f"clients-{random.Random().getrandbits(64):x}"


def value(number: int) -> bytes:
    return b"value %d " % number * 5


class TestConfluent:
    @pytest.fixture
    def admin(self, tierlog_session_broker: TierlogBroker) -> AdminClient:
        return AdminClient({"bootstrap.servers": tierlog_session_broker.bootstrap})

    @pytest.fixture
    def topic(self, admin: AdminClient) -> str:
        name = new_name()
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(TIMEOUT_S)
        return name

    def produce(self, broker: TierlogBroker, topic: str, **settings: Any) -> None:
        failed: list[Any] = []
        producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
        for number in range(COUNT):
            producer.produce(
                topic,
                key=b"%d" % number,
                value=value(number),
                timestamp=BASE_MS + number,
                headers=[("n", b"%d" % number), ("empty", None)],
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
        assert producer.flush(TIMEOUT_S) == 0
        assert not failed

    def consume(self, consumer: Consumer, count: int) -> list[Any]:
        found: list[Any] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < count and time.monotonic() < deadline:
            for message in consumer.consume(count - len(found), 1.0):
                assert message.error() is None, message.error()
                found.append(message)
        return found

    def assigned(self, broker: TierlogBroker, topic: str, offset: int) -> Consumer:
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
        consumer.assign([TopicPartition(topic, 0, offset)])
        return consumer

    @pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
    def test_consumed_records_equal_the_produced_ones(
        self, tierlog_session_broker: TierlogBroker, topic: str, codec: str
    ) -> None:
        self.produce(tierlog_session_broker, topic, **{"compression.type": codec, "enable.idempotence": True})
        consumer = self.assigned(tierlog_session_broker, topic, 0)
        found = self.consume(consumer, COUNT)
        consumer.close()
        assert [message.offset() for message in found] == list(range(COUNT))
        assert [message.value() for message in found] == [value(number) for number in range(COUNT)]
        assert found[7].headers() == [("n", b"7"), ("empty", None)]
        assert found[7].timestamp()[1] == BASE_MS + 7

    def test_seek_by_offset_and_by_time(self, tierlog_session_broker: TierlogBroker, topic: str) -> None:
        self.produce(tierlog_session_broker, topic)
        consumer = self.assigned(tierlog_session_broker, topic, 250)
        assert self.consume(consumer, 1)[0].offset() == 250
        consumer.seek(TopicPartition(topic, 0, 10))
        assert self.consume(consumer, 1)[0].offset() == 10
        requested = [TopicPartition(topic, 0, BASE_MS + 123)]
        (found,) = consumer.offsets_for_times(requested, TIMEOUT_S)
        assert found.offset == 123
        consumer.seek(found)
        assert self.consume(consumer, 1)[0].timestamp()[1] == BASE_MS + 123
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), TIMEOUT_S) == (0, COUNT)
        consumer.close()

    def test_admin(self, tierlog_session_broker: TierlogBroker, admin: AdminClient, topic: str) -> None:
        self.produce(tierlog_session_broker, topic)
        resource = ConfigResource(ResourceType.TOPIC, topic)
        entry = ConfigEntry("retention.ms", "3000000000000", incremental_operation=AlterConfigOpType.SET)
        change = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin.incremental_alter_configs([change])[change].result(TIMEOUT_S)
        reported = admin.describe_configs([resource])[resource].result(TIMEOUT_S)["retention.ms"]
        assert (reported.value, reported.source, reported.is_default) == ("3000000000000", 1, False)

        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(TIMEOUT_S)
        assert len(admin.list_topics(topic, TIMEOUT_S).topics[topic].partitions) == 3

        place = TopicPartition(topic, 0)
        specs = [OffsetSpec.earliest(), OffsetSpec.latest(), OffsetSpec.max_timestamp()]
        offsets = [admin.list_offsets({place: spec})[place].result(TIMEOUT_S).offset for spec in specs]
        assert offsets == [0, COUNT, COUNT - 1]

        until = TopicPartition(topic, 0, 100)
        assert admin.delete_records([until])[until].result(TIMEOUT_S).low_watermark == 100
        assert admin.list_offsets({place: specs[0]})[place].result(TIMEOUT_S).offset == 100

        nodes = admin.describe_cluster().result(TIMEOUT_S).nodes
        assert [f"{node.host}:{node.port}" for node in nodes] == [tierlog_session_broker.bootstrap]

        admin.delete_topics([topic])[topic].result(TIMEOUT_S)
        assert topic not in admin.list_topics(timeout=TIMEOUT_S).topics


class TestAiokafka:
    @pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
    async def test_consumed_records_equal_the_produced_ones(
        self, tierlog_session_broker: TierlogBroker, codec: str | None
    ) -> None:
        topic, bootstrap = new_name(), tierlog_session_broker.bootstrap
        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap, compression_type=codec, enable_idempotence=True
        ) as producer:
            sent = [
                await producer.send(topic, value(number), partition=0, timestamp_ms=BASE_MS + number)
                for number in range(COUNT)
            ]
            assert [(await record).offset for record in sent] == list(range(COUNT))
        place = AioTopicPartition(topic, 0)
        async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
            consumer.assign([place])
            consumer.seek(place, 0)
            found = [await asyncio.wait_for(consumer.getone(), TIMEOUT_S) for _ in range(COUNT)]
            assert [record.value for record in found] == [value(number) for number in range(COUNT)]
            at = (await consumer.offsets_for_times({place: BASE_MS + 40}))[place]
            assert (at.offset, at.timestamp) == (40, BASE_MS + 40)
            consumer.seek(place, at.offset)
            assert (await asyncio.wait_for(consumer.getone(), TIMEOUT_S)).offset == 40

    async def test_admin(self, tierlog_session_broker: TierlogBroker) -> None:
        topic = new_name()
        admin = AIOKafkaAdminClient(bootstrap_servers=tierlog_session_broker.bootstrap)
        await admin.start()
        try:
            created = await admin.create_topics([AioNewTopic(topic, 2, 1)])
            assert [error for _, error, *_ in created.topic_errors] == [0]
            grown = await admin.create_partitions({topic: AioNewPartitions(3)})
            assert [error for _, error, *_ in grown.topic_errors] == [0]
            described = await admin.describe_topics([topic])
            assert len(described[0]["partitions"]) == 3
            resource = AioConfigResource(AioConfigResourceType.TOPIC, topic, {"cleanup.policy": "compact"})
            await admin.alter_configs([resource])
            (answer,) = await admin.describe_configs([resource])
            entries = {entry[0]: entry[1] for entry in answer.resources[0][4]}
            assert entries["cleanup.policy"] == "compact"
            cluster = await admin.describe_cluster()
            here = tierlog_session_broker.bootstrap
            assert [f"{node['host']}:{node['port']}" for node in cluster["brokers"]] == [here]
            deleted = await admin.delete_topics([topic])
            assert [error for _, error in deleted.topic_error_codes] == [0]
        finally:
            await admin.close()

    async def test_admin_of_offsets_and_groups(self, tierlog_session_broker: TierlogBroker) -> None:
        topic, bootstrap = new_name(), tierlog_session_broker.bootstrap
        place, group = AioTopicPartition(topic, 0), f"g-{topic}"
        async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            for number in range(10):
                await producer.send_and_wait(topic, value(number), partition=0)
        settings = {"bootstrap_servers": bootstrap, "group_id": group, "enable_auto_commit": False}
        async with AIOKafkaConsumer(**settings) as consumer:
            consumer.assign([place])
            await consumer.commit({place: 4})
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            assert await admin.delete_records({place: RecordsToDelete(3)}) == {place: 3}
            assert group in {each[0] for each in await admin.list_consumer_groups()}
            assert (await admin.list_consumer_group_offsets(group))[place].offset == 4
            (described,) = await admin.describe_consumer_groups([group])
            assert described.groups[0][1:3] == (group, "Empty")
        finally:
            await admin.close()


class TestKafkaPython:
    @pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
    def test_consumed_records_equal_the_produced_ones(
        self, tierlog_session_broker: TierlogBroker, codec: str | None
    ) -> None:
        topic, bootstrap = new_name(), tierlog_session_broker.bootstrap
        producer = KafkaProducer(bootstrap_servers=bootstrap, compression_type=codec)
        for number in range(COUNT):
            producer.send(topic, value(number), partition=0, timestamp_ms=BASE_MS + number)
        producer.flush(TIMEOUT_S)
        producer.close()
        place = PyTopicPartition(topic, 0)
        consumer = KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=TIMEOUT_S * 1000)
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        found = [next(consumer) for _ in range(COUNT)]
        assert [record.value for record in found] == [value(number) for number in range(COUNT)]
        assert consumer.offsets_for_times({place: BASE_MS + 40})[place].offset == 40
        assert consumer.end_offsets([place]) == {place: COUNT}
        consumer.seek(place, 200)
        assert next(consumer).offset == 200
        consumer.close()

    def test_admin(self, tierlog_session_broker: TierlogBroker) -> None:
        topic = new_name()
        admin = KafkaAdminClient(bootstrap_servers=tierlog_session_broker.bootstrap)
        admin.create_topics([PyNewTopic(topic, 2, 1)])
        assert topic in admin.list_topics()
        (described,) = admin.describe_topics([topic])
        assert len(described["partitions"]) == 2
        sizes = admin.describe_log_dirs()
        assert str(topic) in str(sizes)
        admin.create_partitions({topic: 3})
        (described,) = admin.describe_topics([topic])
        assert len(described["partitions"]) == 3
        admin.alter_configs([PyConfigResource(PyConfigResourceType.TOPIC, topic, {"retention.ms": "-1"})])
        reported = admin.describe_configs([PyConfigResource(PyConfigResourceType.TOPIC, topic)])
        assert reported["topic"][topic]["retention.ms"]["value"] == "-1"
        admin.delete_topics([topic])
        assert topic not in admin.list_topics()
        admin.close()

    def test_admin_of_offsets_and_groups(self, tierlog_session_broker: TierlogBroker) -> None:
        topic, bootstrap = new_name(), tierlog_session_broker.bootstrap
        place, group = PyTopicPartition(topic, 0), f"g-{topic}"
        with contextlib.closing(KafkaProducer(bootstrap_servers=bootstrap)) as producer:
            for number in range(10):
                producer.send(topic, value(number), partition=0)
            producer.flush(TIMEOUT_S)
        with contextlib.closing(
            KafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
        ) as consumer:
            consumer.assign([place])
            consumer.commit({place: OffsetAndMetadata(4, "", -1)})
        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        assert admin.list_partition_offsets({place: -1})[place].offset == 10
        admin.delete_records({place: 3})
        assert admin.list_partition_offsets({place: -2})[place].offset == 3
        assert group in {each["group_id"] for each in admin.list_groups()}
        assert admin.list_group_offsets([group])[group][place].offset == 4
        assert admin.describe_groups([group])[group]["group_state"] == "Empty"
        admin.delete_groups([group])
        assert group not in {each["group_id"] for each in admin.list_groups()}
        admin.close()
