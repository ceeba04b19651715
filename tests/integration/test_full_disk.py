"""A full disk under a real broker, on a small tmpfs: writes are rejected, reads and metadata work, no batch
is torn, and the broker recovers without a restart.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from mounts import tmpfs

from tierlog.testing import TierlogBroker, TierlogBrokerFactory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

MIB = 1 << 20
DISK_BYTES = 32 * MIB
BALLAST_BYTES = 12 * MIB  # another program's file, removed when space is needed
RESERVE_BYTES = 4 * MIB
VALUE = b"v" * 60_000
TIMEOUT_S = 90.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with tmpfs(tmp_path / "disk", DISK_BYTES) as path:
        (path / "ballast").write_bytes(bytes(BALLAST_BYTES))
        yield path


@pytest.fixture
def broker(disk: Path, tierlog_broker_factory: TierlogBrokerFactory) -> Iterator[TierlogBroker]:
    """A broker that stops before its disk is unmounted."""
    broker = tierlog_broker_factory(
        {
            "log.dirs": str(disk / "data"),
            "log.segment.bytes": 4 * MIB,
            "log.flush.offset.checkpoint.interval.ms": 200,
            "metadata.reserve.bytes": RESERVE_BYTES,
        }
    )
    yield broker
    broker.kill()


def produce(broker: TierlogBroker, topic: str, count: int, prefix: bytes) -> dict[int, bytes]:
    """Offset -> value of the acknowledged records. Stops at the first error, which must be the disk's."""
    acknowledged: dict[int, bytes] = {}
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            errors.append(error)
        else:
            acknowledged[message.offset()] = message.value()

    producer = Producer({"bootstrap.servers": broker.bootstrap, "retries": 0, "linger.ms": 0, "log_level": 0})
    for number in range(count):
        producer.produce(topic, prefix + b"%d " % number + VALUE, on_delivery=delivered)
        producer.flush(TIMEOUT_S)
        if errors:
            assert errors[0].name() == "KAFKA_STORAGE_ERROR"
            break
    return acknowledged


def consume(broker: TierlogBroker, topic: str) -> dict[int, bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "g",
            "enable.auto.commit": False,  # closing would wait for a commit, which needs space
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: dict[int, bytes] = {}
    while True:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF
            break
        found[message.offset()] = message.value()
    consumer.close()
    return found


def create(admin: AdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1)])[topic].result(TIMEOUT_S)


def take_every_byte(disk: Path) -> Path:
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (MIB, 4096):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return ballast


def recovered(broker: TierlogBroker, topic: str) -> dict[int, bytes]:
    """Retry until the broker has noticed that there is space again."""
    while True:
        acknowledged = produce(broker, topic, 1, b"later ")
        if acknowledged:
            return acknowledged


def test_full_disk_rejects_writes_serves_reads_and_recovers(broker: TierlogBroker, disk: Path) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    create(admin, "t")
    written = produce(broker, "t", DISK_BYTES // len(VALUE), b"first ")
    assert len(written) > 100
    assert produce(broker, "t", 1, b"refused ") == {}
    assert consume(broker, "t") == written
    ballast = take_every_byte(disk)
    reserve = disk / "data" / "__cluster_metadata" / "reserve"
    assert reserve.stat().st_size == RESERVE_BYTES
    made = 0
    while reserve.exists():  # the room that was left in blocks of its own does not last
        create(admin, f"made-while-full-{made}")
        made += 1
    create(admin, "made-in-the-reserve")
    assert produce(broker, "t", 1, b"refused ") == {}, "space from the reserve is not for records"
    assert consume(broker, "t") == written
    ballast.unlink()
    written |= recovered(broker, "t")
    written |= produce(broker, "t", 10, b"again ")
    assert consume(broker, "t") == written
    assert len(recovered(broker, "made-in-the-reserve")) == 1, "created once there was space"
    assert reserve.stat().st_size == RESERVE_BYTES
    assert sorted(written) == list(range(len(written))), "no offset is skipped or used twice"
    broker.stop()


@pytest.mark.parametrize("end", [TierlogBroker.kill, TierlogBroker.stop])
def test_broker_restarts_on_a_full_disk_and_serves_reads(
    broker: TierlogBroker, disk: Path, end: Callable[[TierlogBroker], None]
) -> None:
    create(AdminClient({"bootstrap.servers": broker.bootstrap}), "t")
    written = produce(broker, "t", DISK_BYTES // len(VALUE), b"first ")
    ballast = take_every_byte(disk)
    end(broker)
    broker.start()
    assert consume(broker, "t") == written
    assert "log.truncated.start" not in broker.log_tail(), "a rejected write left data behind"
    ballast.unlink()
    written |= recovered(broker, "t")
    assert consume(broker, "t") == written
    broker.stop()
