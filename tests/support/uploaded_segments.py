"""A tiered topic of small segments, by confluent-kafka."""

from collections.abc import Iterable, Mapping

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tierlog.cli.admin import AdminApi
from tierlog.testing import TierlogBroker


def upload_segments(
    broker: TierlogBroker,
    topic: str,
    config: Mapping[str, str],
    segments: Iterable[Iterable[tuple[bytes, bytes | None]]],
    *,
    first_timestamp: int | None = None,
) -> None:
    """Create the topic, and write and upload its segments: keys and values. The timestamps grow by a
    millisecond from `first_timestamp` on; None: of now."""
    bootstrap = {"bootstrap.servers": broker.bootstrap}
    admin = AdminClient(bootstrap)
    admin.create_topics([NewTopic(topic, 1, 1, config=dict(config))])[topic].result(60)
    producer, api, number = Producer(bootstrap), AdminApi(broker.admin_url, timeout_s=60), 0
    for segment in segments:
        for key, value in segment:
            timestamp = 0 if first_timestamp is None else first_timestamp + number
            producer.produce(topic, value, key, timestamp=timestamp)
            number += 1
        producer.flush()
        api.post("/v1/tier/flush", {"topic": topic})
