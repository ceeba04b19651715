"""A bit flips in a log of a running broker. The broker copies the range from another replica, and the damaged
bytes reach neither clients nor the object store.
"""

import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from waiting import until

from tierlog.cli.admin import AdminApi
from tierlog.cli.local_cluster import LocalCluster
from tierlog.cli.process import TierlogBroker
from tierlog.records.batch import iter_batches

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

COUNT = 300
TIERED = {
    "segment.bytes": "100000",
    "remote.storage.enable": "true",
    "remote.log.copy.disable": "true",  # for now: damaged segments have not been uploaded yet
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path) as running:
        yield running


def scrub(broker: TierlogBroker, method: str = "GET") -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{broker.admin_url}/v1/scrub", method=method, headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def content(broker: TierlogBroker) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(broker.data_dir.glob("orders-0/*.log")))


def flip(broker: TierlogBroker, at: int | None = None, segment: int = 0) -> None:
    """Flip a bit of a rolled segment, by default in the middle byte."""
    path = sorted(broker.data_dir.glob("orders-0/*.log"))[segment]
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2 if at is None else at)
        [byte] = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 2]))


def wipe(broker: TierlogBroker) -> None:
    """Remove all data except the quorum's: a voter that lost it would be another voter."""
    for path in broker.data_dir.iterdir():
        if path.name != "__cluster_metadata":
            (shutil.rmtree if path.is_dir() else Path.unlink)(path)


def allow_copies(admin: AdminClient) -> None:
    change = ConfigEntry("remote.log.copy.disable", "false", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "orders", incremental_configs=[change])
    admin.incremental_alter_configs([resource])[resource].result(60)


def remote(cluster: LocalCluster) -> bytes:
    """One copy of each segment in offset order, since names begin with the base offset."""
    paths = (cluster.directory / "objects").glob("**/*.log")
    copies = {path.name.split("-")[0]: path.read_bytes() for path in paths}
    return b"".join(copies[base] for base in sorted(copies))


def read_all(cluster: LocalCluster) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "check.crcs": True})
    consumer.assign([TopicPartition("orders", 0, 0)])
    found: list[bytes | None] = []
    try:
        while len(found) < COUNT and (message := consumer.poll(60)) is not None:
            assert message.error() is None, message.error()
            found.append(message.value())
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize(("field", "byte"), [("base offset", 6), ("leader epoch", 12)])
def test_leader_repairs_a_wrong_batch_header_before_a_wiped_follower_copies_it(
    cluster: LocalCluster, field: str, byte: int
) -> None:
    """No CRC covers the header field. The leader notices when it reads the batch for the follower, and
    repairs it from a third replica.
    """
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    small = {"segment.bytes": "100000", "flush.messages": "1"}
    admin.create_topics([NewTopic("orders", 1, 3, config=small)])["orders"].result(60)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "batch.num.messages": 10})
    values = [b"%d" % number + b"v" * 1000 for number in range(COUNT)]
    for value in values:
        producer.produce("orders", value)
    assert producer.flush(60) == 0

    def state() -> tuple[int, set[int]]:
        found = admin.list_topics("orders", timeout=60).topics["orders"].partitions[0]
        return found.leader, set(found.isrs)

    def is_whole() -> bool:
        return state()[1] == {1, 2, 3} and {content(broker) for broker in cluster} == {whole}

    leader = state()[0]
    whole = content(cluster.nodes[leader])
    until(is_whole, "all have the same bytes")
    third = list(iter_batches(min(cluster.nodes[leader].data_dir.glob("orders-0/*.log")).read_bytes()))[2][0]
    wiped = cluster.nodes[next(node for node in cluster.nodes if node != leader)]
    wiped.kill()
    flip(cluster.nodes[leader], third + byte)
    wipe(wiped)
    wiped.start()
    until(is_whole, "all have the same bytes again, without help")
    assert scrub(cluster.nodes[leader])["repaired"] == 1
    assert state()[0] == leader
    assert read_all(cluster) == values


def test_three_replicas_with_different_damage_repair_each_other(cluster: LocalCluster) -> None:
    """Every record is intact on two of them."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    small = {"segment.bytes": "50000", "flush.messages": "1", "min.insync.replicas": "2"}
    admin.create_topics([NewTopic("orders", 1, 3, config=small)])["orders"].result(60)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "batch.num.messages": 10})
    values = [b"%d" % number + b"v" * 1000 for number in range(COUNT)]
    for value in values:
        producer.produce("orders", value)
    assert producer.flush(60) == 0

    def state() -> tuple[int, set[int]]:
        found = admin.list_topics("orders", timeout=60).topics["orders"].partitions[0]
        return found.leader, set(found.isrs)

    def is_whole() -> bool:
        return state()[1] == {1, 2, 3} and {content(broker) for broker in cluster} == {whole}

    leader = state()[0]
    whole = content(cluster.nodes[leader])
    until(is_whole, "all have the same bytes")
    order = [node for node in cluster.nodes if node != leader] + [leader]
    for number, node in enumerate(order):
        flip(cluster.nodes[node], segment=2 * number)
    for node in order:
        scrub(cluster.nodes[node], "POST")
    until(lambda: [scrub(broker)["repaired"] for broker in cluster] == [1, 1, 1], "each took its range")
    until(is_whole, "all have the same bytes again")
    assert state()[0] == leader
    assert read_all(cluster) == values


def test_damaged_leader_and_follower_repair_each_other(cluster: LocalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("orders", 1, 3, config=TIERED)])["orders"].result(60)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "batch.num.messages": 10})
    values = [b"%d" % number + b"v" * 1000 for number in range(COUNT)]
    for value in values:
        producer.produce("orders", value)
    assert producer.flush(60) == 0

    def state() -> tuple[int, set[int]]:
        found = admin.list_topics("orders", timeout=60).topics["orders"].partitions[0]
        return found.leader, set(found.isrs)

    def is_whole() -> bool:
        return state()[1] == {1, 2, 3} and {content(broker) for broker in cluster} == {whole}

    whole = content(cluster.nodes[state()[0]])
    until(is_whole, "all have the same bytes")
    leader = state()[0]
    follower = next(node for node in cluster.nodes if node != leader)
    for damaged in (follower, leader):
        broker = cluster.nodes[damaged]
        flip(broker)
        scrub(broker, "POST")
        until(lambda at=broker: scrub(at)["repaired"] == 1, "it has taken the range from another")
        until(is_whole, "all have the same bytes again")
        assert scrub(broker)["damaged"] == []
        assert read_all(cluster) == values
    assert state()[0] == leader, "it abandoned no replica and remained the leader"

    flip(cluster.nodes[leader])
    before = scrub(cluster.nodes[leader])["repaired"]
    allow_copies(admin)
    until(lambda: scrub(cluster.nodes[leader])["repaired"] > before, "it has read it before an upload")
    until(is_whole, "all have the same bytes again")
    assert state()[0] == leader
    AdminApi(cluster.nodes[state()[0]].admin_url).post("/v1/tier/flush", {"topic": "orders"})
    assert remote(cluster) == whole
