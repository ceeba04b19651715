"""A partition moves between log directories of a real broker while clients produce and consume (KIP-113)."""

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from cli_inline import json_output, run
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from waiting import some_moment, until
from wire_client import Client

from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import alter_replica_log_dirs as alter
from tierlog.protocol.messages import describe_log_dirs
from tierlog.testing import TierlogBroker, TierlogBrokerFactory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

TIMEOUT_S = 90.0
VALUE_BYTES = 2_000


@pytest.fixture
def broker(tierlog_broker_factory: TierlogBrokerFactory, tmp_path: Path) -> Iterator[TierlogBroker]:
    yield tierlog_broker_factory(
        {
            "log.dirs": f"{tmp_path / 'a'},{tmp_path / 'b'}",
            "metadata.log.dir": str(tmp_path / "metadata"),
            "log.segment.bytes": 4 << 20,
            "log.segment.delete.delay.ms": 0,
        }
    )


class Writer:
    """An idempotent producer of consecutive numbers that runs until it is stopped."""

    def __init__(self, broker: TierlogBroker) -> None:
        self.acknowledged: list[int] = []
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "enable.idempotence": True,
                "log_level": 0,
                "linger.ms": 1,
            }
        )
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Stop; return the count of numbers, all of them acknowledged."""
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(TIMEOUT_S) == 0
        assert self.acknowledged == list(range(len(self.acknowledged)))
        return len(self.acknowledged)

    def _write(self) -> None:
        number = 0
        while not self._stop.is_set():
            value = str(number).encode().ljust(VALUE_BYTES, b".")
            self._producer.produce("t", value, partition=0, on_delivery=self._delivered)
            self._producer.poll(0.002)
            number += 1
            while len(self._producer) > 500 and not self._stop.is_set():
                self._producer.poll(0.01)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        self.acknowledged.append(int((message.value() or b"").rstrip(b".")))


def read_all(broker: TierlogBroker, count: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition("t", 0, 0)])
    for number in range(count):
        message = consumer.poll(TIMEOUT_S)
        assert message is not None and message.error() is None
        assert (message.offset(), int((message.value() or b"").rstrip(b"."))) == (number, number)
    consumer.close()


def move(broker: TierlogBroker, to: Path) -> int:
    requested = alter.AlterReplicaLogDirTopic(name="t", partitions=[0])
    request = alter.AlterReplicaLogDirsRequest(
        dirs=[alter.AlterReplicaLogDir(path=str(to), topics=[requested])]
    )
    client = Client(broker.bootstrap)
    answer = client.send("AlterReplicaLogDirs", 2, request)
    client.close()
    return int(answer.results[0].partitions[0].error_code)


def places(broker: TierlogBroker) -> list[tuple[str, bool]]:
    """The directories that hold the partition, and whether each holds a future replica."""
    client = Client(broker.bootstrap)
    answer = client.send("DescribeLogDirs", 4, describe_log_dirs.DescribeLogDirsRequest(topics=None))
    client.close()
    return [
        (Path(one.log_dir).name, partition.is_future_key)
        for one in answer.results
        for topic in one.topics
        if topic.name == "t"
        for partition in topic.partitions
    ]


def is_in(broker: TierlogBroker, directory: Path) -> bool:
    """Whether the partition is in the directory and not moving."""
    return places(broker) == [(directory.name, False)]


def place(broker: TierlogBroker) -> str:
    return next(name for name, is_copy in places(broker) if not is_copy)


def make_topic(broker: TierlogBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("t", 1)])["t"].result(TIMEOUT_S)


def test_partition_moves_back_and_forth_during_produce(broker: TierlogBroker, tmp_path: Path) -> None:
    make_topic(broker)
    writer = Writer(broker)
    until(lambda: len(writer.acknowledged) > 500, "nothing was written")
    first = place(broker)
    to = tmp_path / ("b" if first == "a" else "a")
    assert move(broker, to) == ErrorCode.NONE
    until(partial(is_in, broker, to), "it has not moved")
    first = to.name
    other = tmp_path / ("b" if first == "a" else "a")
    words = ("partition", "move-dir", "t", "0", "--admin", broker.admin_url)
    assert json_output(*words, "--to", str(other))[0]["moved"]
    assert places(broker) == [(other.name, False)]
    refused = run(*words, "--to", "/nowhere")
    assert refused.returncode == 1 and "LOG_DIR_NOT_FOUND" in refused.stderr
    count = writer.stop()
    read_all(broker, count)
    broker.restart()
    assert place(broker) == other.name
    read_all(broker, count)
    broker.stop()


def test_broker_killed_during_a_directory_move_resumes_it(broker: TierlogBroker, tmp_path: Path) -> None:
    make_topic(broker)
    writer = Writer(broker)
    until(lambda: len(writer.acknowledged) > 500, "nothing was written")
    to = tmp_path / ("b" if place(broker) == "a" else "a")
    for seconds in (0.02, 0.1):
        move(broker, to)
        some_moment(seconds)
        broker.kill()
        broker.start()
        assert move(broker, to) == ErrorCode.NONE  # it may not have started before
        until(partial(is_in, broker, to), "it has not moved")
        to = tmp_path / ("b" if to.name == "a" else "a")
    read_all(broker, writer.stop())
    broker.stop()
    assert len(list(tmp_path.glob("?/t-0"))) == 1
