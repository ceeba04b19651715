"""`tierlog group` against Apache Kafka itself, and files of offsets that Kafka's own tool reads or writes."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from cli_inline import call
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_process import JAVA, KafkaProcess

from tierlog.testing import TierlogBroker

pytestmark = pytest.mark.slow

TIMEOUT_S = 60.0
RECORDS = 10
TOPIC = "group-commands"


def prepare(bootstrap: str) -> None:
    """A topic of two partitions with ten records, and the group `billing` which has read three and four."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(2 * RECORDS):
        producer.produce(TOPIC, b"x", partition=number % 2)
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "billing"})
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, 3), TopicPartition(TOPIC, 1, 4)], asynchronous=False)
    consumer.close()


def ask(bootstrap: str, *words: str | Path, code: int = 0) -> Any:
    ended = call("group", *map(str, words), "--json", "--bootstrap", bootstrap)
    assert ended.code == code, ended
    return json.loads(ended.stdout) if not code else ended.stderr


def committed(bootstrap: str, group: str) -> dict[int, int | None]:
    return {
        row["partition"]: row["committed_offset"] for row in ask(bootstrap, "describe", group)["partitions"]
    }


@pytest.mark.timeout(300)
def test_commands_work_with_kafka(kafka: KafkaProcess, tmp_path: Path) -> None:
    at = kafka.bootstrap
    prepare(at)
    assert [row["type"] for row in ask(at, "list", "--state", "Empty", "--type", "classic")] == ["classic"]
    rows = ask(at, "describe", "billing")["partitions"]
    assert [(row["lag"], row["lag_ms"] > 0) for row in rows] == [(7, True), (6, True)]
    file = tmp_path / "offsets.json"
    assert call("group", "export", "billing", "--file", str(file), "--bootstrap", at).code == 0
    ask(at, "reset", "billing", "--topic", TOPIC, "--shift-by", "2", "--yes")
    ask(at, "seek", "billing", TOPIC, "1", "9")
    assert committed(at, "billing") == {0: 5, 1: 9}
    ask(at, "import", file, "--group", "copy", "--yes")
    assert committed(at, "copy") == {0: 3, 1: 4}
    ask(at, "offset-delete", "copy", "--topic", f"{TOPIC}:0", "--yes")
    assert committed(at, "copy") == {1: 4}
    ask(at, "delete", "copy", "--yes")
    assert "does not exist" in ask(at, "describe", "copy", code=4)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_group_of_kafka_with_a_member_is_described_and_not_reset(kafka: KafkaProcess, protocol: str) -> None:
    at, topic = kafka.bootstrap, f"members-{protocol}"
    admin = AdminClient({"bootstrap.servers": at})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(TIMEOUT_S)
    consumer = Consumer({"bootstrap.servers": at, "group.id": protocol, "group.protocol": protocol})
    consumer.subscribe([topic])
    deadline = time.monotonic() + TIMEOUT_S
    while len(consumer.assignment()) < 2:
        assert time.monotonic() < deadline
        consumer.poll(0.05)
    found = ask(at, "describe", protocol)
    assert (found["type"], found["state"]) == (protocol, "Stable")
    assert [one["partitions"] for one in found["members"]] == [[f"{topic}-0", f"{topic}-1"]]
    assert [row["type"] for row in ask(at, "list", "--type", protocol) if row["group"] == protocol] == [
        protocol
    ]
    words = ("reset", protocol, "--topic", topic, "--to-latest", "--yes")
    assert "Stop its consumers first" in ask(at, *words, code=1)
    consumer.close()
    ask(at, *words)
    assert committed(at, protocol) == {0: 0, 1: 0}


@pytest.mark.timeout(300)
def test_csv_is_exchanged_with_kafkas_tool(
    java_classpath: str, tierlog_broker: TierlogBroker, tmp_path: Path
) -> None:
    """Kafka's tool exports by a reset that is not executed."""
    at = tierlog_broker.bootstrap
    prepare(at)

    def tool(*words: str) -> str:
        command = [*JAVA, "-cp", java_classpath, "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"]
        return subprocess.run(
            [*command, "--bootstrap-server", at, "--group", "billing", "--reset-offsets", *words],
            check=True,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        ).stdout

    ours = tmp_path / "ours.csv"
    words = ("export", "billing", "--format", "csv", "--file", str(ours), "--bootstrap", at)
    assert call("group", *words).code == 0
    theirs = tmp_path / "theirs.csv"
    theirs.write_text(tool("--all-topics", "--to-current", "--dry-run", "--export"))
    assert sorted(theirs.read_text().split()) == sorted(ours.read_text().split())
    ask(at, "reset", "billing", "--all-topics", "--to-latest", "--yes")
    tool("--from-file", str(ours), "--execute")
    assert committed(at, "billing") == {0: 3, 1: 4}
    ask(at, "reset", "billing", "--all-topics", "--to-latest", "--yes")
    ask(at, "import", theirs, "--group", "billing", "--yes")
    assert committed(at, "billing") == {0: 3, 1: 4}
