"""log.dir.free.bytes.min and remote.log.disk.pressure.policy under a real broker, on a small tmpfs."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from mounts import tmpfs
from scraping import metric, wait_for_metric
from waiting import until

from tierlog.cli.admin import AdminApi
from tierlog.testing import TierlogBroker, TierlogBrokerFactory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

MIB = 1 << 20
DISK_BYTES, FREE_BYTES_MIN = 96 * MIB, 32 * MIB
TOTAL_BYTES = 160 * MIB
VALUE_BYTES = 60_000
TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": str(4 * MIB),
    "local.retention.ms": "-1",
    "retention.ms": "-1",
}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with tmpfs(tmp_path / "disk", DISK_BYTES) as path:
        yield path


@pytest.fixture
def broker(
    tmp_path: Path, disk: Path, tierlog_broker_factory: TierlogBrokerFactory
) -> Iterator[TierlogBroker]:
    """A broker that stops before its disk is unmounted. The bucket is on another disk."""
    broker = tierlog_broker_factory(
        {
            "log.dirs": str(disk / "data"),
            "log.dir.free.bytes.min": FREE_BYTES_MIN,
            "remote.cache.bytes": 16 * MIB,
            "metadata.reserve.bytes": MIB,
        },
        object_store=(tmp_path / "bucket").as_uri(),
    )
    yield broker
    broker.kill()


def create(broker: TierlogBroker, topic: str, policy: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    config = {**TIERED, "remote.log.disk.pressure.policy": policy}
    admin.create_topics([NewTopic(topic, 1, config=config)])[topic].result(60)


def value(number: int) -> bytes:
    return b"%0*d" % (VALUE_BYTES, number)


def free_bytes(disk: Path) -> int:
    return os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize


def dropped_bytes(broker: TierlogBroker, disk: Path) -> float:
    return metric(broker, "tierlog_log_pressure_dropped_bytes_total", directory=str(disk / "data"))


def test_topic_that_drops_uploaded_segments_stays_writable(broker: TierlogBroker, disk: Path) -> None:
    create(broker, "t", "drop-oldest-uploaded")
    count, failures = TOTAL_BYTES // VALUE_BYTES, []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    def is_relieved() -> bool:
        [status] = AdminApi(broker.admin_url).get("/v1/tier/status", topic="t")["partitions"]
        return status["pending_bytes"] == 0 and free_bytes(disk) >= FREE_BYTES_MIN

    producer = Producer({"bootstrap.servers": broker.bootstrap, "retries": 0, "log_level": 0})
    for number in range(count):
        producer.produce("t", value(number), on_delivery=delivered)
        if number % 100 == 0:  # several megabytes, far less than the bound
            assert producer.flush(60) == 0
            until(is_relieved, "uploaded segments are dropped")
    assert producer.flush(60) == 0 and not failures, "no write was refused"
    until(is_relieved, "uploaded segments are dropped")
    assert dropped_bytes(broker, disk) > TOTAL_BYTES - DISK_BYTES
    [status] = AdminApi(broker.admin_url).get("/v1/tier/status", topic="t")["partitions"]
    assert 0 < status["local_log_start_offset"] <= status["remote_end_offset"]
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition("t", 0, 0)])
    for number in range(count):
        message = consumer.poll(60)
        assert message is not None and message.error() is None
        assert (message.offset(), message.value()) == (number, value(number))
    consumer.close()


def test_topic_that_rejects_keeps_its_segments_and_refuses_writes(broker: TierlogBroker, disk: Path) -> None:
    create(broker, "t", "reject")
    ballast = disk / "ballast"
    producer = Producer({"bootstrap.servers": broker.bootstrap, "retries": 0, "linger.ms": 0, "log_level": 0})
    outcomes: list[str] = []

    def write() -> bool:
        producer.produce("t", value(0), on_delivery=lambda error, _: outcomes.append(error and error.name()))
        assert producer.flush(60) == 0
        return outcomes[-1] is None

    for _ in range(100):
        assert write()
    AdminApi(broker.admin_url).post("/v1/tier/flush", {"topic": "t"})
    ballast.write_bytes(bytes(free_bytes(disk) - FREE_BYTES_MIN + MIB))
    wait_for_metric(broker, 1, "tierlog_log_directory_full", directory=str(disk / "data"))
    assert free_bytes(disk) > FREE_BYTES_MIN - 4 * MIB, "long before it is full"
    assert not write() and outcomes[-1] == "KAFKA_STORAGE_ERROR"
    [status] = AdminApi(broker.admin_url).get("/v1/tier/status", topic="t")["partitions"]
    assert status["local_log_start_offset"] == 0
    assert dropped_bytes(broker, disk) == 0
    ballast.unlink()
    until(write, "accepted again")
