"""SIGKILL during produce: acknowledged records remain, in order and only once (guarantees 4 and 10)."""

import random
from collections import defaultdict

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from deliveries import Deliveries
from restarted_log import restart_point
from waiting import until

from tierlog.testing import TierlogBroker, TierlogBrokerFactory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PARTITIONS = 3
MOST_RECORDS_A_ROUND = 4000
IN_FLIGHT = 2000  # records handed to the client but not acknowledged yet
SEED = 20260


def produce_through_kills(
    broker: TierlogBroker, topic: str, deliveries: Deliveries, rng: random.Random, kills: int
) -> int:
    """Produce continuously through kills of the broker. Returns the number of records sent."""
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 1,
            "compression.type": "lz4",
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 20,
            "message.timeout.ms": 120_000,
            "log_level": 0,
        }
    )
    sent = 0
    for _ in range(kills):
        kill_at = len(deliveries.acknowledged) + rng.randrange(1, MOST_RECORDS_A_ROUND)
        while len(deliveries.acknowledged) < kill_at:
            if sent - len(deliveries.acknowledged) < IN_FLIGHT:
                filler = "x" * rng.randrange(400)
                producer.produce(
                    topic, f"{sent} {filler}", partition=sent % PARTITIONS, on_delivery=deliveries
                )
                sent += 1
                producer.poll(0)
            else:
                producer.poll(0.01)
        broker.kill()
        broker.restart()
    assert producer.flush(60) == 0
    return sent


def read_all(broker: TierlogBroker, topic: str) -> dict[int, list[tuple[int, int]]]:
    """(offset, number) of every record, by partition, from the log start offset to the log end offset."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "check", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    ended: set[int] = set()
    while len(ended) < PARTITIONS:
        for message in consumer.consume(1000, 0.1):
            if message.error() is None:
                found[message.partition()].append((message.offset(), int(message.value().split(b" ")[0])))
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ended.add(message.partition())
    consumer.close()
    return found


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.nightly)])
def test_acknowledged_records_survive_kills(tierlog_broker_factory: TierlogBrokerFactory, kills: int) -> None:
    broker = tierlog_broker_factory({"log.segment.bytes": str(1 << 20), "num.partitions": str(PARTITIONS)})
    deliveries = Deliveries()

    sent = produce_through_kills(broker, "crash", deliveries, random.Random(SEED), kills)

    assert deliveries.failures == []
    assert len(deliveries.acknowledged) == sent
    stored = read_all(broker, "crash")
    for partition, records in stored.items():
        offsets, numbers = zip(*records, strict=True)
        assert list(offsets) == list(range(len(offsets)))
        assert list(numbers) == list(range(partition, sent, PARTITIONS)), "lost, duplicated or out of order"
    at = {number: (partition, offset) for partition, records in stored.items() for offset, number in records}
    assert at == deliveries.acknowledged


def test_start_after_a_kill_reads_a_log_from_the_last_checkpoint(
    tierlog_broker_factory: TierlogBrokerFactory,
) -> None:
    """A damaged batch shows what a start has read: it truncates the log there."""
    broker = tierlog_broker_factory({"log.flush.offset.checkpoint.interval.ms": "100"})
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for _ in range(20):
        producer.produce("crash", bytes(1000), partition=0)
        assert producer.flush(60) == 0
    (directory,) = broker.directory.rglob("crash-0")
    until(lambda: (restart_point(directory) or 0) > 10, "a checkpoint has written a restart point")
    broker.kill()
    log = directory / f"{0:020d}.log"
    content = bytearray(log.read_bytes())
    content[2500] ^= 1  # in the third batch
    log.write_bytes(content)
    broker.restart()
    assert end_of(broker, "crash") == 20
    broker.kill()
    (directory.parent / "boot.id").unlink()  # as after a power failure
    broker.restart()
    assert end_of(broker, "crash") == 2


def end_of(broker: TierlogBroker, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "check"})
    end = consumer.get_watermark_offsets(TopicPartition(topic, 0), 60)[1]
    consumer.close()
    return int(end)
