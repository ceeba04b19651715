"""Values of a topic as a reader of committed records gets them."""

from collections import Counter

from confluent_kafka import Consumer, TopicPartition


def committed_values(bootstrap: str, topic: str, partitions: int, timeout_s: float) -> Counter[str]:
    """Fails if an open transaction holds the reader back."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "test", "enable.partition.eof": True}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.auto.commit": False})
    found: Counter[str] = Counter()
    for partition in range(partitions):
        place = TopicPartition(topic, partition, 0)
        consumer.assign([place])
        end = consumer.get_watermark_offsets(place, timeout_s)[1]
        while True:
            message = consumer.poll(timeout_s)
            assert message is not None, "an open transaction"
            if message.error() is None:
                found[message.value().decode()] += 1
            elif message.offset() >= end:
                break
    consumer.close()
    return found
