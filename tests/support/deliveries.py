"""Delivery reports of a producer for records whose values begin with a number."""

from confluent_kafka import KafkaError, Message


class Deliveries:
    """A delivery callback that keeps the partition and offset of each acknowledged number."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.failures: list[str] = []

    def __call__(self, failure: KafkaError | None, message: Message) -> None:
        if failure is not None:
            self.failures.append(str(failure))
        else:
            partition, offset = message.partition(), message.offset()
            self.acknowledged[int(message.value().split(b" ")[0])] = (partition, offset)
