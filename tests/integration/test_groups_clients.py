"""Consumer groups of real clients: members join, leave, die and restart, and so does the broker."""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import aiokafka
import kafka
import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from group_broker import join_request
from wire_client import Client

from tierlog.testing import TierlogBroker, TierlogBrokerFactory

PARTITIONS = 4
TOPIC = "flights"
TIMEOUT_S = 90.0
SESSION_MS = 30_000  # longer than a busy machine delays a live member
SETTINGS = {"group.min.session.timeout.ms": 500, "group.initial.rebalance.delay.ms": 0}

pytestmark = pytest.mark.slow


@pytest.fixture
def broker(tierlog_broker_factory: TierlogBrokerFactory) -> TierlogBroker:
    running = tierlog_broker_factory(SETTINGS)
    client = admin(running)
    client.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(TIMEOUT_S)
    return running


def admin(broker: TierlogBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def produce(broker: TierlogBroker, first: int, end: int) -> None:
    """Values `first` to `end`, spread over the partitions."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in range(first, end):
        producer.produce(TOPIC, str(value), partition=value % PARTITIONS)
    assert producer.flush(TIMEOUT_S) == 0


class Member:
    """A confluent-kafka consumer that records the assignments from its callbacks."""

    def __init__(self, broker: TierlogBroker, group: str = "g", **settings: object) -> None:
        self.assigned: set[int] = set()
        self.rebalances = 0
        self.values: list[int] = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 200,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,  # brokers are killed under it
                **settings,
            }
        )
        self.consumer.subscribe([TOPIC], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._revoke)

    def _assign(self, _: object, partitions: list[TopicPartition]) -> None:
        self.assigned |= {each.partition for each in partitions}
        self.rebalances += 1

    def _revoke(self, _: object, partitions: list[TopicPartition]) -> None:
        self.assigned -= {each.partition for each in partitions}

    def poll(self) -> None:
        message = self.consumer.poll(0.05)
        if message is not None and message.error() is None:
            self.values.append(int(message.value()))


def until(done: Callable[[], bool], *members: Member) -> None:
    """Poll the members until the condition holds."""
    deadline = time.monotonic() + TIMEOUT_S
    while not done():
        assert time.monotonic() < deadline, [(m.assigned, m.rebalances, len(m.values)) for m in members]
        for member in members:
            member.poll()


@contextlib.contextmanager
def closing(*members: Member) -> Iterator[None]:
    try:
        yield
    finally:
        for member in members:
            member.consumer.close()


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_share_partitions_and_take_over(broker: TierlogBroker, strategy: str) -> None:
    first = Member(broker, **{"partition.assignment.strategy": strategy})
    second = Member(broker, **{"partition.assignment.strategy": strategy})
    with closing(first):
        with closing(second):
            until(lambda: len(first.assigned) == len(second.assigned) == 2, first, second)
            assert first.assigned | second.assigned == set(range(PARTITIONS))
            produce(broker, 0, 40)
            until(lambda: len(first.values) + len(second.values) == 40, first, second)
            assert sorted(first.values + second.values) == list(range(40))
        until(lambda: len(first.assigned) == PARTITIONS, first)


def test_killed_member_is_replaced_after_its_session(broker: TierlogBroker) -> None:
    script = f"""
from confluent_kafka import Consumer
settings = {{"bootstrap.servers": {broker.bootstrap!r}, "session.timeout.ms": 2000}}
consumer = Consumer({{**settings, "group.id": "g"}})
consumer.subscribe([{TOPIC!r}], on_assign=lambda _, partitions: print(len(partitions), flush=True))
while True:
    consumer.poll(0.1)
"""
    survivor = Member(broker)
    with (
        closing(survivor),
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as victim,
    ):
        try:
            until(lambda: len(survivor.assigned) == 2, survivor)
        finally:
            victim.kill()
        until(lambda: len(survivor.assigned) == PARTITIONS, survivor)


def test_static_member_restarts_without_a_rebalance(broker: TierlogBroker) -> None:
    watcher = Member(broker, **{"group.instance.id": "watcher"})
    first = Member(broker, **{"group.instance.id": "mover"})
    with closing(watcher):
        with closing(first):
            until(lambda: len(watcher.assigned) == len(first.assigned) == 2, watcher, first)
            before, partitions = watcher.rebalances, set(first.assigned)
        again = Member(broker, **{"group.instance.id": "mover"})
        with closing(again):
            until(lambda: len(again.assigned) == 2, watcher, again)
            assert again.assigned == partitions
            produce(broker, 0, 20)
            until(lambda: len(watcher.values) + len(again.values) == 20, watcher, again)
            assert watcher.rebalances == before


def test_group_resumes_at_its_committed_offsets_after_a_broker_kill(broker: TierlogBroker) -> None:
    produce(broker, 0, 100)
    member = Member(broker)
    with closing(member):
        until(lambda: len(member.values) == 100, member)
        member.consumer.commit(asynchronous=False)
        before = member.rebalances
        broker.kill()
        broker.start()
        produce(broker, 100, 200)
        until(lambda: len(member.values) == 200, member)
        assert sorted(member.values) == list(range(200))
        assert member.rebalances == before
        member.consumer.commit(asynchronous=False)
    broker.kill()
    broker.start()
    fresh = Member(broker)
    with closing(fresh):
        until(lambda: len(fresh.assigned) == PARTITIONS, fresh)
        positions = fresh.consumer.committed([TopicPartition(TOPIC, p) for p in range(PARTITIONS)], TIMEOUT_S)
        assert [each.offset for each in positions] == [50] * PARTITIONS


def test_groups_are_listed_described_and_deleted(broker: TierlogBroker) -> None:
    produce(broker, 0, 8)
    client = admin(broker)
    member = Member(broker)
    with closing(member):
        until(lambda: len(member.values) == 8, member)
        member.consumer.commit(asynchronous=False)
        listed = client.list_consumer_groups().result(TIMEOUT_S)
        assert [(each.group_id, each.state.name) for each in listed.valid] == [("g", "STABLE")]
        described = client.describe_consumer_groups(["g"])["g"].result(TIMEOUT_S)
        assert len(described.members[0].assignment.topic_partitions) == PARTITIONS
        with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
            client.delete_consumer_groups(["g"])["g"].result(TIMEOUT_S)
    moved = ConsumerGroupTopicPartitions("g", [TopicPartition(TOPIC, 1, 1)])
    client.alter_consumer_group_offsets([moved])["g"].result(TIMEOUT_S)
    requested = ConsumerGroupTopicPartitions("g")
    kept = client.list_consumer_group_offsets([requested])["g"].result(TIMEOUT_S).topic_partitions
    assert {each.partition: each.offset for each in kept} == {0: 2, 1: 1, 2: 2, 3: 2}
    client.delete_consumer_groups(["g"])["g"].result(TIMEOUT_S)
    assert client.list_consumer_groups().result(TIMEOUT_S).valid == []


async def test_aiokafka_members_share_a_topic(broker: TierlogBroker) -> None:
    produce(broker, 0, 400)

    def consumer() -> aiokafka.AIOKafkaConsumer:
        return aiokafka.AIOKafkaConsumer(
            TOPIC,
            bootstrap_servers=broker.bootstrap,
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=200,
        )

    async with consumer() as first, consumer() as second, asyncio.timeout(TIMEOUT_S):
        while not len(first.assignment()) == len(second.assignment()) == 2:
            await asyncio.gather(first.getmany(timeout_ms=50), second.getmany(timeout_ms=50))
        await first.seek_to_beginning()
        await second.seek_to_beginning()
        values: list[int] = []
        while len(values) < 400:
            for batches in await asyncio.gather(
                first.getmany(timeout_ms=100), second.getmany(timeout_ms=100)
            ):
                values += [int(record.value) for records in batches.values() for record in records]
        assert sorted(values) == list(range(400))
        await first.commit()
        await second.commit()
        committed = [await first.committed(aiokafka.TopicPartition(TOPIC, p)) for p in range(PARTITIONS)]
        assert committed == [100] * PARTITIONS


def test_kafka_python_members_share_a_topic(broker: TierlogBroker) -> None:
    def consumer() -> kafka.KafkaConsumer:
        return kafka.KafkaConsumer(
            TOPIC,
            bootstrap_servers=broker.bootstrap,
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=200,
            metadata_max_age_ms=1000,  # the leader may assign before it knows the partitions
        )

    deadline = time.monotonic() + TIMEOUT_S
    with contextlib.closing(consumer()) as first:
        with contextlib.closing(consumer()) as second:
            while not len(first.assignment()) == len(second.assignment()) == 2:
                first.poll(timeout_ms=50)
                second.poll(timeout_ms=50)
                assert time.monotonic() < deadline
        while len(first.assignment()) < PARTITIONS:
            first.poll(timeout_ms=50)
            assert time.monotonic() < deadline
        produce(broker, 0, 40)
        values: list[int] = []
        while len(values) < 40:
            values += [
                int(record.value) for records in first.poll(timeout_ms=50).values() for record in records
            ]
            assert time.monotonic() < deadline
        assert sorted(values) == list(range(40))
        first.commit()
        assert first.committed(kafka.TopicPartition(TOPIC, 0)) == 10


def test_members_that_join_together_share_the_first_rebalance(
    tierlog_session_broker: TierlogBroker,
) -> None:
    """Both joins are sent with one system call, so that no machine is too slow for a dev broker's short
    delay.
    """
    with contextlib.closing(Client(tierlog_session_broker.bootstrap)) as client:
        client.coordinator("together")
        joins = [("JoinGroup", 3, join_request("together"))] * 2
        answers = client.send_together(*joins)
    assert [answer.generation_id for answer in answers] == [1, 1]
    assert sorted(len(answer.members) for answer in answers) == [0, 2]
