"""Two unclean elections of a tiered partition: the bucket and the new leader's log have different records at
the same offsets, until the leader removes the remote ones."""

from collections.abc import Sequence
from pathlib import Path

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

pytestmark = pytest.mark.slow

TOPIC = "history"
CONFIGS = {
    "remote.storage.enable": "true",
    "segment.bytes": "100000",
    "local.retention.ms": "-1",
    "retention.ms": "-1",
    "file.delete.delay.ms": "0",
    "min.insync.replicas": "1",
}
SETTINGS = {"remote.log.manager.task.interval.ms": "300"}


def configure(cluster: LocalCluster, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(60)


def leader(cluster: LocalCluster) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    return int(admin.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions[0].leader)


def in_sync(cluster: LocalCluster) -> set[int]:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    return set(admin.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions[0].isrs)


def produce(cluster: LocalCluster, values: Sequence[bytes]) -> None:
    client = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number, value in enumerate(values):
        client.produce(TOPIC, value)
        if number % 100 == 99:
            assert client.flush(60) == 0  # many batches, so that segments fill
    assert client.flush(60) == 0


def consumed(cluster: LocalCluster, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "reader"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[bytes] = []
    while len(found) < count:
        messages = consumer.consume(min(1000, count - len(found)), timeout=60)
        assert messages, f"nothing more after {len(found)} records"
        found += [message.value() for message in messages if message.error() is None]
    consumer.close()
    return found


def flush(cluster: LocalCluster, node: int) -> int:
    answer = AdminApi(cluster.nodes[node].admin_url).post("/v1/tier/flush", {"topic": TOPIC})
    return int(answer["partitions"][0]["remote_end_offset"])


def first_local(cluster: LocalCluster, node: int) -> int:
    """The base offset of the first segment on a node's disk."""
    names = [path.name for path in cluster.nodes[node].data_dir.glob(f"{TOPIC}-0/*.log")]
    return min(int(name.removesuffix(".log")) for name in names)


def values(label: str, count: int) -> list[bytes]:
    return [b"%s %0100d" % (label.encode(), number) for number in range(count)]


def test_offsets_have_the_new_leaders_records_in_both_tiers_after_an_unclean_election(tmp_path: Path) -> None:
    both, first, second, last = (
        values(*of) for of in (("both", 1500), ("first", 3000), ("second", 1000), ("last", 1000))
    )
    with LocalCluster(tmp_path, settings=SETTINGS) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        topic = NewTopic(TOPIC, replica_assignment=[[1, 2]], num_partitions=1, config=CONFIGS)
        admin.create_topics([topic])[TOPIC].result(60)
        produce(cluster, both)
        until(lambda: in_sync(cluster) == {1, 2}, "both replicas have them")

        configure(cluster, "remote.log.copy.disable", "true")
        cluster.nodes[2].kill()
        until(lambda: in_sync(cluster) == {1}, "broker 1 is alone")
        produce(cluster, first)
        cluster.nodes[1].kill()
        cluster.nodes[2].start()
        until(lambda: leader(cluster) == -1, "broker 2 may not lead")
        configure(cluster, "unclean.leader.election.enable", "true")
        until(lambda: leader(cluster) == 2, "broker 2 leads")
        configure(cluster, "remote.log.copy.disable", "false")
        produce(cluster, second)
        assert flush(cluster, 2) == len(both + second)

        cluster.nodes[2].kill()
        cluster.nodes[1].start()
        until(lambda: leader(cluster) == 1, "broker 1 leads again")
        produce(cluster, last)
        expected = both + first + last
        assert consumed(cluster, len(expected)) == expected
        assert flush(cluster, 1) == len(expected)
        configure(cluster, "local.retention.ms", "1")
        until(lambda: first_local(cluster, 1) > len(both + second), "broker 1 drops what is remote")
        assert consumed(cluster, len(expected)) == expected
        cluster.nodes[2].start()
        until(lambda: in_sync(cluster) == {1, 2}, "broker 2 follows the new leader")
        cluster.nodes[1].kill()
        until(lambda: leader(cluster) == 2, "broker 2 leads, which has the same records")
        assert consumed(cluster, len(expected)) == expected
