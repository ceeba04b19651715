"""A bit of a log changes under a running broker: it is fetched again, and nobody gets what it was, nor does
the object store.
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

from tierlog.broker.records.batch import iter_batches
from tierlog.cli.admin import AdminApi
from tierlog.cli.local_cluster import LocalCluster
from tierlog.cli.process import TierlogBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

COUNT = 300
TIERED = {
    "segment.bytes": "100000",
    "remote.storage.enable": "true",
    "remote.log.copy.disable": "true",  # for now: what is damaged has not been uploaded yet
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path) as running:
        yield running


def scrub(broker: TierlogBroker, method: str = "GET") -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{broker.admin_url}/v1/scrub", method=method, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def content(broker: TierlogBroker) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(broker.data_dir.glob("orders-0/*.log")))


def flip(broker: TierlogBroker, at: int | None = None) -> None:
    """A bit of a byte of the first segment, which is rolled; of the one in its middle if none is given."""
    first = min(broker.data_dir.glob("orders-0/*.log"))
    with first.open("r+b") as file:
        file.seek(first.stat().st_size // 2 if at is None else at)
        [byte] = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 2]))


def wipe(broker: TierlogBroker) -> None:
    """All but what the quorum promised: a voter without that is another one."""
    for path in broker.data_dir.iterdir():
        if path.name != "__cluster_metadata":
            (shutil.rmtree if path.is_dir() else Path.unlink)(path)


def allow_copies(admin: AdminClient) -> None:
    change = ConfigEntry("remote.log.copy.disable", "false", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "orders", incremental_configs=[change])
    admin.incremental_alter_configs([resource])[resource].result(30)


def remote(cluster: LocalCluster) -> bytes:
    """One copy of each segment, in the order of their offsets, with which the names begin."""
    paths = (cluster.directory / "objects").glob("**/*.log")
    copies = {path.name.split("-")[0]: path.read_bytes() for path in paths}
    return b"".join(copies[base] for base in sorted(copies))


def read_all(cluster: LocalCluster) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "check.crcs": True})
    consumer.assign([TopicPartition("orders", 0, 0)])
    found: list[bytes | None] = []
    try:
        while len(found) < COUNT and (message := consumer.poll(30)) is not None:
            assert message.error() is None, message.error()
            found.append(message.value())
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize(("field", "byte"), [("base offset", 6), ("leader epoch", 12)])
def test_a_wiped_follower_gets_whole_batches_though_its_leader_has_a_wrong_header(
    cluster: LocalCluster, field: str, byte: int
) -> None:
    """No CRC covers it. The leader notices when it reads the batch for the follower; another replica has it
    whole, leads, and both others get it from there.
    """
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    small = {"segment.bytes": "100000", "flush.messages": "1"}
    admin.create_topics([NewTopic("orders", 1, 3, config=small)])["orders"].result(30)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "batch.num.messages": 10})
    values = [b"%d" % number + b"v" * 1000 for number in range(COUNT)]
    for value in values:
        producer.produce("orders", value)
    assert producer.flush(60) == 0

    def state() -> tuple[int, set[int]]:
        found = admin.list_topics("orders", timeout=30).topics["orders"].partitions[0]
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
    assert state()[0] != leader
    assert read_all(cluster) == values


def test_a_damaged_follower_and_a_damaged_leader_are_fetched_again(cluster: LocalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("orders", 1, 3, config=TIERED)])["orders"].result(30)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "batch.num.messages": 10})
    values = [b"%d" % number + b"v" * 1000 for number in range(COUNT)]
    for value in values:
        producer.produce("orders", value)
    assert producer.flush(60) == 0

    def state() -> tuple[int, set[int]]:
        found = admin.list_topics("orders", timeout=30).topics["orders"].partitions[0]
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
        until(lambda at=broker: scrub(at)["repaired"] == 1, "it has cut its log at the damage")
        until(is_whole, "it has fetched the rest again, and is in sync")
        assert scrub(broker)["damaged"] == []
        assert read_all(cluster) == values
    assert state()[0] != leader, "it handed over before it gave anything up"

    leader = state()[0]
    flip(cluster.nodes[leader])
    before = scrub(cluster.nodes[leader])["repaired"]
    allow_copies(admin)
    until(lambda: scrub(cluster.nodes[leader])["repaired"] > before, "it has read it before an upload")
    until(is_whole, "it has fetched the rest again, and is in sync")
    assert state()[0] != leader
    AdminApi(cluster.nodes[state()[0]].admin_url).post("/v1/tier/flush", {"topic": "orders"})
    assert remote(cluster) == whole
