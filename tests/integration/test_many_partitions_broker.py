"""Many partitions in one process with real clients: few descriptors, little memory, and no lost records."""

import os
from collections.abc import Iterable

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from waiting import until

from tierlog.testing import TierlogBroker, TierlogBrokerFactory

OTHERS = 60
"""Descriptors of a broker that are not files of logs: sockets, the metadata log, libraries."""


def create(broker: TierlogBroker, topics: Iterable[str], partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    wanted = [NewTopic(topic, partitions, 1) for topic in topics]
    for created in admin.create_topics(wanted, request_timeout=120).values():
        created.result(120)


def produce(broker: TierlogBroker, topics: Iterable[str], partitions: int, turn: int, step: int = 1) -> None:
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 20, "log_level": 0})
    for topic in topics:
        for partition in range(0, partitions, step):
            value = f"{topic}-{partition} {turn}"
            producer.produce(
                topic,
                value,
                partition=partition,
                on_delivery=lambda error, _: error and failures.append(error),
            )
    assert producer.flush(120) == 0
    assert failures == []


def read(
    broker: TierlogBroker, topics: Iterable[str], partitions: int, step: int = 1
) -> dict[str, list[str]]:
    """All values by partition, checked against the offsets that they contain."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "r", "enable.partition.eof": True, "log_level": 0}
    )
    wanted = [TopicPartition(topic, n, 0) for topic in topics for n in range(0, partitions, step)]
    consumer.assign(wanted)
    found: dict[str, list[str]] = {}
    ended = 0
    while ended < len(wanted):
        for message in consumer.consume(1000, 0.1):
            if message.error() is None:
                name, turn = message.value().decode().split(" ")
                assert name == f"{message.topic()}-{message.partition()}"
                found.setdefault(name, []).append(turn)
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ended += 1
    consumer.close()
    return found


def descriptors(broker: TierlogBroker) -> int:
    return len(os.listdir(f"/proc/{broker.pid}/fd"))


def resident_kib(broker: TierlogBroker) -> int:
    with open(f"/proc/{broker.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def test_few_descriptors_serve_many_partitions(
    tierlog_broker_factory: TierlogBrokerFactory,
) -> None:
    broker = tierlog_broker_factory({"log.max.open.files": "4", "log.segment.bytes": "400"})
    create(broker, ["a", "b"], 30)
    for turn in range(12):  # segments roll, so that reads go over several
        produce(broker, ["a", "b"], 30, turn)
    expected = {f"{topic}-{n}": [str(turn) for turn in range(12)] for topic in "ab" for n in range(30)}
    assert read(broker, ["a", "b"], 30) == expected
    until(lambda: descriptors(broker) < 4 + OTHERS, "answers held more, and let go")
    broker.restart()
    assert read(broker, ["a", "b"], 30) == expected
    broker.kill()
    broker.restart()
    assert read(broker, ["a", "b"], 30) == expected
    until(lambda: descriptors(broker) < 4 + OTHERS, "answers held more, and let go")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_four_thousand_partitions_stay_within_their_bounds(
    tierlog_broker_factory: TierlogBrokerFactory,
) -> None:
    topics, partitions = [f"t{number}" for number in range(4)], 1000
    count = len(topics) * partitions
    broker = tierlog_broker_factory({"log.max.open.files": "100"})
    empty_kib = resident_kib(broker)
    for topic in topics:
        create(broker, [topic], partitions)
    assert (resident_kib(broker) - empty_kib) / count < 12
    assert descriptors(broker) < OTHERS
    produce(broker, topics, partitions, 0, step=8)
    assert descriptors(broker) < 100 + OTHERS
    broker.restart(timeout_s=120)
    assert (resident_kib(broker) - empty_kib) / count < 12
    assert descriptors(broker) < 100 + OTHERS
    produce(broker, topics, partitions, 1, step=8)
    found = read(broker, topics, partitions, step=8)
    assert found == {f"{t}-{n}": ["0", "1"] for t in topics for n in range(0, partitions, 8)}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_fifteen_hundred_partitions_survive_a_kill(tierlog_broker_factory: TierlogBrokerFactory) -> None:
    broker = tierlog_broker_factory({"log.max.open.files": "64"})
    create(broker, ["t"], 1500)
    for turn in range(3):
        produce(broker, ["t"], 1500, turn)
        broker.kill()
        broker.restart(timeout_s=120)
    found = read(broker, ["t"], 1500)
    assert found == {f"t-{n}": ["0", "1", "2"] for n in range(1500)}
