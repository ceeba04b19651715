"""SIGTERM during requests: exit code 0, no recovery at the next start, no record lost or duplicated."""

import random
from collections import defaultdict

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from deliveries import Deliveries

from tierlog.broker.storage.checkpoints import CLEAN_SHUTDOWN
from tierlog.testing import TierlogBroker, TierlogBrokerFactory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ROUNDS = 5
PARTITIONS = 3
IN_FLIGHT = 3000  # records handed to the client and not yet acknowledged when SIGTERM comes
TIMEOUT_S = 60.0


def waiting_consumer(broker: TierlogBroker) -> Consumer:
    """A group member whose fetch waits at the broker for longer than a stop may take."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "waits",
            "fetch.min.bytes": 50_000_000,
            "fetch.wait.max.ms": 60_000,
            "socket.timeout.ms": 100_000,
            "log_level": 0,
        }
    )
    assigned: list[TopicPartition] = []
    consumer.subscribe(["t"], on_assign=lambda _, partitions: assigned.extend(partitions))
    while not assigned:
        consumer.poll(0.1)
    return consumer


def read_all(broker: TierlogBroker) -> dict[int, tuple[int, int]]:
    """The partition and offset of each number. Fails on a duplicate."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "reads", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition("t", partition, 0) for partition in range(PARTITIONS)])
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    ended: set[int] = set()
    while len(ended) < PARTITIONS:
        for message in consumer.consume(1000, 0.1):
            if message.error() is None:
                found[int(message.value())].append((message.partition(), message.offset()))
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ended.add(message.partition())
    consumer.close()
    assert not [number for number, places in found.items() if len(places) > 1], "doubled"
    return {number: places[0] for number, places in found.items()}


def test_stop_during_requests_is_clean_and_loses_nothing(
    tierlog_broker_factory: TierlogBrokerFactory,
) -> None:
    broker = tierlog_broker_factory({"num.partitions": PARTITIONS, "log.segment.bytes": 1 << 20})
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 1,
            "batch.size": 4096,  # many requests
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 20,
            "log_level": 0,
        }
    )
    deliveries, rng, sent = Deliveries(), random.Random(7), 0
    producer.produce("t", b"-1")
    assert producer.flush(TIMEOUT_S) == 0
    consumer = waiting_consumer(broker)
    for _ in range(ROUNDS):
        stop_at = len(deliveries.acknowledged) + rng.randrange(1, IN_FLIGHT)
        while len(deliveries.acknowledged) < stop_at or sent - len(deliveries.acknowledged) < IN_FLIGHT // 2:
            if sent - len(deliveries.acknowledged) < IN_FLIGHT:
                producer.produce("t", b"%d" % sent, partition=sent % PARTITIONS, on_delivery=deliveries)
                sent += 1
            producer.poll(0)
        broker.stop()  # raises unless the exit code is 0
        assert (broker.data_dir / CLEAN_SHUTDOWN).exists()
        broker.start()
    consumer.close()
    assert producer.flush(TIMEOUT_S) == 0
    stored = read_all(broker)
    assert deliveries.failures == []
    assert sorted(deliveries.acknowledged) == list(range(sent))
    del stored[-1]
    assert stored == deliveries.acknowledged
    for partition in range(PARTITIONS):
        numbers = range(partition, sent, PARTITIONS)
        offsets = [stored[number][1] for number in numbers]
        assert offsets == sorted(offsets), "out of order"
    log = broker.log_tail(1 << 20)
    assert "Traceback" not in log
    assert log.count("node.stopping") == log.count("node.stopped") == ROUNDS
