"""confluent_copy.py BOOTSTRAP SOURCE SINK: copies records exactly once with librdkafka, until it is killed.

Each transaction has a batch of records and the offsets after them. Every fifth one is aborted and
repeated.
"""

import itertools
import sys

from confluent_kafka import Consumer, Producer, TopicPartition

TIMEOUT_S = 90.0


def main(bootstrap: str, source: str, sink: str) -> None:
    name = f"copy-{sink}"
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(TIMEOUT_S)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "session.timeout.ms": 6000,
        }
    )
    consumer.subscribe([source])
    counts = itertools.count(1)
    while True:
        messages = consumer.consume(50, 0.2)
        if not messages:
            continue
        producer.begin_transaction()
        first: dict[int, int] = {}
        after: dict[int, int] = {}
        for message in messages:
            if message.error() is not None:
                raise RuntimeError(str(message.error()))
            first.setdefault(message.partition(), message.offset())
            after[message.partition()] = message.offset() + 1
            producer.produce(sink, message.value(), message.key(), partition=message.partition())
        offsets = [TopicPartition(source, partition, offset) for partition, offset in after.items()]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), TIMEOUT_S)
        if next(counts) % 5 == 0:
            producer.flush(TIMEOUT_S)
            producer.abort_transaction(TIMEOUT_S)
            for partition, offset in first.items():
                consumer.seek(TopicPartition(source, partition, offset))
        else:
            producer.commit_transaction(TIMEOUT_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
