"""A real broker with several log directories: the device of one fails, and the other continues to serve."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from mounts import read_only
from wire_client import Client

from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import describe_log_dirs, fetch, list_offsets, produce
from tierlog.testing import TierlogBroker, TierlogBrokerFactory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

PARTITIONS = 4
TIMEOUT_S = 90.0


@pytest.fixture
def broker(tierlog_broker_factory: TierlogBrokerFactory, tmp_path: Path) -> Iterator[TierlogBroker]:
    yield tierlog_broker_factory(
        {
            "log.dirs": f"{tmp_path / 'a'},{tmp_path / 'b'}",
            "metadata.log.dir": str(tmp_path / "metadata"),
            "log.flush.offset.checkpoint.interval.ms": 200,
        }
    )


def acknowledged(broker: TierlogBroker, partition: int, within_s: float = TIMEOUT_S) -> KafkaError | None:
    """Produce one record; return its final delivery error. Without a leader that takes `within_s`."""
    reported: list[KafkaError | None] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        reported.append(error)

    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "message.timeout.ms": int(within_s * 1000),
            "retries": 0,
            "log_level": 0,
        }
    )
    producer.produce("t", b"v", partition=partition, on_delivery=delivered)
    producer.flush(2 * TIMEOUT_S)
    return reported[0]


def make_topic(broker: TierlogBroker) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("t", PARTITIONS)])["t"].result(TIMEOUT_S)
    return admin


def place(tmp_path: Path, partition: int) -> str:
    return "a" if (tmp_path / "a" / f"t-{partition}").exists() else "b"


def until_offline(admin: AdminClient, partitions: list[int]) -> Any:
    """The topic, once the broker has noticed that the disk of these partitions has failed."""
    while True:
        topic = admin.list_topics("t", timeout=TIMEOUT_S).topics["t"]
        if all(topic.partitions[number].error is not None for number in partitions):
            return topic


def read_one(broker: TierlogBroker, partition: int) -> bytes | None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition("t", partition, 0)])
    message = consumer.poll(TIMEOUT_S)
    consumer.close()
    return None if message is None or message.error() else message.value()


def raw_answers(broker: TierlogBroker, partition: int) -> list[int]:
    """The errors of Produce, Fetch and ListOffsets, without asking Metadata first."""
    client = Client(broker.bootstrap)
    wanted = produce.PartitionProduceData(index=partition, records=b"")
    topic = produce.TopicProduceData(name="t", partition_data=[wanted])
    produced = client.send("Produce", 9, produce.ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]))
    one = fetch.FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1000)
    fetched = client.send(
        "Fetch",
        11,
        fetch.FetchRequest(max_bytes=1000, topics=[fetch.FetchTopic(topic="t", partitions=[one])]),
    )
    end = list_offsets.ListOffsetsPartition(partition_index=partition, timestamp=-1)
    requested = list_offsets.ListOffsetsTopic(name="t", partitions=[end])
    listed = client.send("ListOffsets", 7, list_offsets.ListOffsetsRequest(topics=[requested]))
    client.close()
    return [
        produced.responses[0].partition_responses[0].error_code,
        fetched.responses[0].partitions[0].error_code,
        listed.topics[0].partitions[0].error_code,
    ]


def described(broker: TierlogBroker) -> dict[str, int]:
    client = Client(broker.bootstrap)
    answer = client.send("DescribeLogDirs", 4, describe_log_dirs.DescribeLogDirsRequest(topics=None))
    client.close()
    for result in answer.results:
        assert (result.usable_bytes > 0) == (result.error_code == ErrorCode.NONE)
    return {Path(result.log_dir).name: result.error_code for result in answer.results}


def test_failed_device_takes_only_its_partitions_offline(broker: TierlogBroker, tmp_path: Path) -> None:
    admin = make_topic(broker)
    assert [acknowledged(broker, number) for number in range(PARTITIONS)] == [None] * PARTITIONS
    places = {number: place(tmp_path, number) for number in range(PARTITIONS)}
    assert sorted(places.values()) == ["a", "a", "b", "b"]
    lost = [number for number, where in places.items() if where == "b"]
    kept = [number for number, where in places.items() if where == "a"]
    with read_only(tmp_path / "b"):
        topic = until_offline(admin, lost)
        for number in lost:
            assert topic.partitions[number].error.code() == KafkaError.LEADER_NOT_AVAILABLE
            assert topic.partitions[number].leader == -1
        for number in kept:
            assert topic.partitions[number].leader == topic.partitions[number].replicas[0]
            assert acknowledged(broker, number) is None
            assert read_one(broker, number) == b"v"
        assert acknowledged(broker, lost[0], 3) is not None
        assert raw_answers(broker, lost[0]) == [ErrorCode.KAFKA_STORAGE_ERROR] * 3
        assert raw_answers(broker, kept[0])[1:] == [ErrorCode.NONE] * 2
        assert described(broker) == {"a": ErrorCode.NONE, "b": ErrorCode.KAFKA_STORAGE_ERROR}
        admin.create_topics([NewTopic("u", 2)])["u"].result(TIMEOUT_S)
        assert {path.parent.name for path in tmp_path.glob("?/u-*")} == {"a"}
        assert broker.running
    broker.restart()
    for number in range(PARTITIONS):
        assert read_one(broker, number) == b"v"
        assert acknowledged(broker, number) is None
    broker.stop()


def test_missing_directory_is_offline_until_the_next_start_with_it(
    broker: TierlogBroker, tmp_path: Path
) -> None:
    admin = make_topic(broker)
    assert [acknowledged(broker, number) for number in range(PARTITIONS)] == [None] * PARTITIONS
    places = {number: place(tmp_path, number) for number in range(PARTITIONS)}
    (tmp_path / "a").rename(tmp_path / "unplugged")
    until_offline(admin, [number for number, where in places.items() if where == "a"])
    broker.stop()
    (tmp_path / "a").write_text("not a directory: it cannot be claimed")
    broker.start()
    for number, where in places.items():
        reported = acknowledged(broker, number, TIMEOUT_S if where == "b" else 3)
        assert (reported is None) == (where == "b")
    broker.stop()
    (tmp_path / "a").unlink()
    (tmp_path / "unplugged").rename(tmp_path / "a")
    broker.start()
    assert [read_one(broker, number) for number in range(PARTITIONS)] == [b"v"] * PARTITIONS
    broker.stop()
