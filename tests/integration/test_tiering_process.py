"""Tiering in a broker process: upload, local deletion, and reads over both tiers, also after a restart."""

import time
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from wire_client import Client
from wire_client import message as request_of

from tierlog.cli.admin import AdminApi
from tierlog.protocol.errors import ErrorCode
from tierlog.testing import TierlogBroker

pytestmark = pytest.mark.slow

COUNT = 20_000
TIMEOUT_S = 90.0
TOPIC = "history"
PLACE = TopicPartition(TOPIC, 0)


@pytest.fixture
def tiered(tierlog_broker: TierlogBroker) -> TierlogBroker:
    """A broker with a topic whose rolled segments are only remote."""
    admin = AdminClient({"bootstrap.servers": tierlog_broker.bootstrap})
    configs = {
        "remote.storage.enable": "true",
        "segment.bytes": "200000",
        "local.retention.ms": "1",
        "retention.ms": "-1",
    }
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=configs)])[TOPIC].result(TIMEOUT_S)
    settings = {
        "bootstrap.servers": tierlog_broker.bootstrap,
        "enable.idempotence": True,
        "batch.size": 16_384,
    }
    producer = Producer(settings)
    for number in range(COUNT):
        producer.produce(TOPIC, b"value %d" % number * 5, timestamp=1_000_000_000_000 + number)
        if not number % 1000:
            producer.flush(TIMEOUT_S)
    assert producer.flush(TIMEOUT_S) == 0
    AdminApi(tierlog_broker.admin_url).post("/v1/tier/flush", {"topic": TOPIC})
    wait_for_local_drop(tierlog_broker)
    return tierlog_broker


def status(broker: TierlogBroker) -> dict[str, Any]:
    (partition,) = AdminApi(broker.admin_url).get("/v1/tier/status", topic=TOPIC)["partitions"]
    found: dict[str, Any] = partition
    return found


def wait_for_local_drop(broker: TierlogBroker) -> None:
    """Check at each event until no rolled segment is local; the events end with the broker."""
    for _ in AdminApi(broker.admin_url).changes():
        if status(broker)["local_log_start_offset"] == COUNT:
            return


def read_all(broker: TierlogBroker) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    values: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(values) < COUNT and time.monotonic() < deadline:
        for message in consumer.consume(1000, 0.1):
            assert message.error() is None, message.error()
            assert message.offset() == len(values)
            values.append(message.value())
    consumer.close()
    return values


def test_reads_over_both_tiers_are_seamless(tiered: TierlogBroker) -> None:
    reported = status(tiered)
    assert (reported["remote_start_offset"], reported["remote_end_offset"]) == (0, COUNT)
    assert reported["last_error"] is None
    expected = [b"value %d" % number * 5 for number in range(COUNT)]
    assert read_all(tiered) == expected
    tiered.stop()
    tiered.start()
    assert read_all(tiered) == expected


def test_list_offsets_over_both_tiers(tiered: TierlogBroker) -> None:
    admin = AdminClient({"bootstrap.servers": tiered.bootstrap})

    def offset_of(spec: OffsetSpec) -> int:
        return int(admin.list_offsets({PLACE: spec})[PLACE].result(TIMEOUT_S).offset)

    assert offset_of(OffsetSpec.earliest()) == 0
    assert offset_of(OffsetSpec.latest()) == COUNT
    assert offset_of(OffsetSpec.max_timestamp()) == COUNT - 1
    assert offset_of(OffsetSpec.for_timestamp(1_000_000_000_000 + 7777)) == 7777
    place = AdminApi(tiered.admin_url).get("/v1/tier/explain", topic=TOPIC, partition=0, offset=7777)
    assert place["tier"] == "remote"
    assert place["base_offset"] <= 7777 <= place["last_offset"]


def look_up(broker: TierlogBroker, position: int, topic: str, version: int = 11) -> tuple[int, int, int]:
    """Error, offset and leader epoch of a special position of ListOffsets."""
    requested = [{"partition_index": 0, "timestamp": position}]
    request = {"replica_id": -1, "topics": [{"name": topic, "partitions": requested}]}
    client = Client(broker.bootstrap)
    (answer,) = client.send("ListOffsets", version, request_of("ListOffsets", request)).topics[0].partitions
    client.close()
    return answer.error_code, answer.offset, answer.leader_epoch


LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -4, -5, -6


def test_list_offsets_of_special_positions(tiered: TierlogBroker) -> None:
    producer = Producer({"bootstrap.servers": tiered.bootstrap})
    producer.produce(TOPIC, b"not uploaded")
    producer.produce("untiered", b"local")
    assert producer.flush(TIMEOUT_S) == 0
    assert look_up(tiered, LATEST, TOPIC) == (0, COUNT + 1, 0)
    assert look_up(tiered, EARLIEST, TOPIC) == (0, 0, 0)
    assert look_up(tiered, EARLIEST_LOCAL, TOPIC) == (0, COUNT, 0)
    assert look_up(tiered, LATEST_TIERED, TOPIC) == (0, COUNT - 1, 0)
    assert look_up(tiered, EARLIEST_PENDING_UPLOAD, TOPIC) == (0, COUNT, 0)
    assert look_up(tiered, EARLIEST_LOCAL, "untiered") == look_up(tiered, EARLIEST, "untiered") == (0, 0, 0)
    for position in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        assert look_up(tiered, position, "untiered") == (0, -1, -1)
    first_versions = {EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
    for position, first in first_versions.items():
        assert look_up(tiered, position, TOPIC, first)[0] == ErrorCode.NONE
        assert look_up(tiered, position, TOPIC, first - 1)[0] == ErrorCode.UNSUPPORTED_VERSION


def test_delete_records_raises_the_remote_log_start(tiered: TierlogBroker) -> None:
    admin = AdminClient({"bootstrap.servers": tiered.bootstrap})
    until = TopicPartition(TOPIC, 0, 15_000)
    assert admin.delete_records([until])[until].result(TIMEOUT_S).low_watermark == 15_000
    assert admin.list_offsets({PLACE: OffsetSpec.earliest()})[PLACE].result(TIMEOUT_S).offset == 15_000
    assert status(tiered)["remote_start_offset"] == 15_000
