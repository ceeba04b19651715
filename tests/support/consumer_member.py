"""A consumer of confluent-kafka that uses the consumer group protocol (KIP-848), and records what it owns."""

import contextlib
import time
from collections.abc import Callable, Iterator

from confluent_kafka import Consumer, Producer, TopicPartition

TIMEOUT_S = 90.0


class ConsumerMember:
    """`assigned`: (topic, partition). `revoked`: how often partitions were taken from it."""

    def __init__(self, bootstrap: str, *topics: str, group: str = "g", **settings: object) -> None:
        self.assigned: set[tuple[str, int]] = set()
        self.rebalances = self.revoked = 0
        self.values: list[int] = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": 500,
                "log_level": 0,  # brokers are killed under it
                **settings,
            }
        )
        self.consumer.subscribe(
            list(topics), on_assign=self._assign, on_revoke=self._revoke, on_lost=self._revoke
        )

    def _assign(self, _: object, partitions: list[TopicPartition]) -> None:
        self.assigned |= {(each.topic, each.partition) for each in partitions}
        self.rebalances += 1

    def _revoke(self, _: object, partitions: list[TopicPartition]) -> None:
        self.assigned -= {(each.topic, each.partition) for each in partitions}
        self.revoked += bool(partitions)

    def poll(self) -> None:
        message = self.consumer.poll(0.02)
        if message is not None and message.error() is None:
            self.values.append(int(message.value()))


def poll_until(done: Callable[[], bool], *members: ConsumerMember) -> None:
    """Poll the members until the condition holds."""
    deadline = time.monotonic() + TIMEOUT_S
    while not done():
        assert time.monotonic() < deadline, [(m.assigned, m.rebalances, len(m.values)) for m in members]
        for member in members:
            member.poll()


@contextlib.contextmanager
def closing(*members: ConsumerMember) -> Iterator[None]:
    try:
        yield
    finally:
        for member in members:
            member.consumer.close()


def produce_values(bootstrap: str, topic: str, values: range, partitions: int) -> None:
    """The values, spread over the partitions."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, str(value), partition=value % partitions)
    assert producer.flush(TIMEOUT_S) == 0
