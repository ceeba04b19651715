"""A remote object is damaged, and only a follower still has its records on disk: the leader restores it."""

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from waiting import until

from tierlog.cli.admin import AdminApi
from tierlog.cli.local_cluster import LocalCluster

pytestmark = pytest.mark.slow

TOPIC = "history"
CONFIGS = {
    "remote.storage.enable": "true",
    "segment.bytes": "100000",
    "local.retention.ms": "1",
    "retention.ms": "-1",
    "file.delete.delay.ms": "0",
}
SETTINGS = {"remote.log.manager.task.interval.ms": "300"}
VALUES = [b"%0100d" % number for number in range(1500)]


def produce(cluster: LocalCluster) -> None:
    client = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number, value in enumerate(VALUES):
        client.produce(TOPIC, value)
        if number % 100 == 99:
            assert client.flush(60) == 0  # many batches, so that segments fill
    assert client.flush(60) == 0


def consumed(cluster: LocalCluster) -> list[bytes]:
    """The records up to the first one that cannot be read."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "r", "enable.auto.commit": "false"}
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[bytes] = []
    while len(found) < len(VALUES):
        messages = consumer.consume(min(500, len(VALUES) - len(found)), timeout=20)
        intact = [message.value() for message in messages if message.error() is None]
        found += intact
        if len(intact) < len(messages) or not messages:
            break
    consumer.close()
    return found


def first_local(cluster: LocalCluster, node: int) -> int:
    names = [path.name for path in cluster.nodes[node].data_dir.glob(f"{TOPIC}-0/*.log")]
    return min((int(name.removesuffix(".log")) for name in names), default=-1)


def test_object_is_restored_from_a_follower_that_still_has_its_records(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, settings=SETTINGS) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        topic = NewTopic(TOPIC, replica_assignment=[[1, 2]], num_partitions=1, config=CONFIGS)
        admin.create_topics([topic])[TOPIC].result(60)
        produce(cluster)
        api = AdminApi(cluster.nodes[1].admin_url)
        api.post("/v1/tier/flush", {"topic": TOPIC})
        until(lambda: first_local(cluster, 1) == len(VALUES), "the leader drops everything")
        # the follower's last segment is its active one, which it does not drop
        until(
            lambda: 0 < first_local(cluster, 2) < len(VALUES), "the follower drops all but its last segment"
        )
        damaged = max((tmp_path / "objects").glob("**/*.log"), key=lambda path: path.name)
        data = bytearray(damaged.read_bytes())
        data[len(data) // 2] ^= 0x10
        damaged.write_bytes(data)
        until(lambda: consumed(cluster) == VALUES, "the object is restored")
        until(lambda: not api.get("/v1/tier/damaged")["damaged"], "nothing is in quarantine")
        assert any("was restored" in line for line in cluster.nodes[1].log_tail().splitlines())
