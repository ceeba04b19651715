"""Reads a partition to its end with confluent-kafka."""

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

POLL_S = 30


def read_from_start(bootstrap: str, topic: str, partition: int = 0, first: int = 0) -> list[Message]:
    """All records from `first` on; their CRCs are checked. Any error fails, also OFFSET_OUT_OF_RANGE."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, first)])
    found: list[Message] = []
    try:
        while True:
            message = consumer.poll(POLL_S)
            assert message is not None
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                return found
            found.append(message)
    finally:
        consumer.close()
