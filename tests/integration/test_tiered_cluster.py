"""Three broker processes and a tiered topic: a broker that lost its disk rejoins and may lead."""

import shutil
from pathlib import Path

import pytest
from cli_inline import json_output
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deliveries import Deliveries
from waiting import until

from tierlog.cli.admin import AdminApi
from tierlog.cli.local_cluster import LocalCluster

pytestmark = pytest.mark.slow

TOPIC = "history"
BEFORE, WIPED, AFTER = 6_000, 3_000, 1_000
CONFIGS = {
    "remote.storage.enable": "true",
    "segment.bytes": "100000",
    "local.retention.ms": "1",
    "retention.ms": "-1",
    "file.delete.delay.ms": "0",
}
SETTINGS = {"remote.log.manager.task.interval.ms": "300", "min.insync.replicas": "2"}


def in_sync_and_leader(cluster: LocalCluster) -> tuple[set[int], int]:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    partition = admin.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions[0]
    return set(partition.isrs), int(partition.leader)


def produce(client: Producer, deliveries: Deliveries, numbers: range) -> None:
    for number in numbers:
        client.produce(TOPIC, b"%d %0100d" % (number, number), on_delivery=deliveries)
        if number % 100 == 0:
            client.flush(60)  # many batches, so that segments fill
    assert client.flush(60) == 0 and not deliveries.failures


def first_local(cluster: LocalCluster, node: int) -> int:
    """The base offset of the first segment on a node's disk; -1 if there is none."""
    names = [path.name for path in cluster.nodes[node].data_dir.glob(f"{TOPIC}-0/*.log")]
    return min((int(name.removesuffix(".log")) for name in names), default=-1)


def wipe(cluster: LocalCluster, node: int) -> None:
    """Remove all data except the quorum's: a voter that lost it would be another voter."""
    for path in cluster.nodes[node].data_dir.iterdir():
        if path.name == "__cluster_metadata":
            continue
        (shutil.rmtree if path.is_dir() else Path.unlink)(path)


def values_from_the_start(cluster: LocalCluster, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "reader"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[int] = []
    while len(found) < count:
        messages = consumer.consume(min(1000, count - len(found)), timeout=60)
        assert messages, f"nothing more after {len(found)} records"
        found += [int(message.value().split(b" ")[0]) for message in messages if message.error() is None]
    consumer.close()
    return found


def test_wiped_replica_of_a_tiered_topic_rejoins_and_leads(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, settings=SETTINGS) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 3, config=CONFIGS)])[TOPIC].result(60)
        deliveries = Deliveries()
        client = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "acks": "all"})
        produce(client, deliveries, range(BEFORE))
        until(
            lambda: all(first_local(cluster, node) > 0 for node in cluster.nodes), "all drop what is remote"
        )

        _, leader = in_sync_and_leader(cluster)
        wiped, other = (node for node in cluster.nodes if node != leader)
        cluster.nodes[wiped].kill()
        wipe(cluster, wiped)
        produce(client, deliveries, range(BEFORE, BEFORE + WIPED))
        cluster.nodes[wiped].start()
        until(lambda: in_sync_and_leader(cluster)[0] == {1, 2, 3}, "the wiped one is in sync again")
        assert first_local(cluster, wiped) > 0, "remote segments were not copied to it"

        cluster.nodes[other].kill()
        until(lambda: in_sync_and_leader(cluster)[0] == {leader, wiped}, "the wiped one alone follows")
        cluster.nodes[leader].kill()
        cluster.nodes[other].start()
        total = BEFORE + WIPED + AFTER
        produce(client, deliveries, range(BEFORE + WIPED, total))
        assert in_sync_and_leader(cluster)[1] == wiped
        assert len(deliveries.acknowledged) == total
        assert values_from_the_start(cluster, total) == list(range(total))
        before_flush = AdminApi(cluster.nodes[wiped].admin_url).get("/v1/tier/status", topic=TOPIC)
        after_flush = AdminApi(cluster.nodes[wiped].admin_url).post("/v1/tier/flush", {"topic": TOPIC})
        assert after_flush["partitions"][0]["remote_end_offset"] == total, before_flush
        assert values_from_the_start(cluster, total) == list(range(total))


def test_wiped_replica_skips_what_is_remote_and_leads(tmp_path: Path) -> None:
    """The leader keeps everything on its disk (follower.fetch.last.tiered.offset.enable, KIP-1023)."""
    settings = {**SETTINGS, "follower.fetch.last.tiered.offset.enable": "true"}
    with LocalCluster(tmp_path, settings=settings) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        configs = {**CONFIGS, "local.retention.ms": "-1"}
        admin.create_topics([NewTopic(TOPIC, 1, 3, config=configs)])[TOPIC].result(60)
        deliveries = Deliveries()
        client = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "acks": "all"})
        produce(client, deliveries, range(BEFORE))
        _, leader = in_sync_and_leader(cluster)
        wiped, other = (node for node in cluster.nodes if node != leader)
        AdminApi(cluster.nodes[leader].admin_url).post("/v1/tier/flush", {"topic": TOPIC})

        cluster.nodes[wiped].kill()
        wipe(cluster, wiped)
        produce(client, deliveries, range(BEFORE, BEFORE + 10))
        cluster.nodes[wiped].start()
        until(lambda: in_sync_and_leader(cluster)[0] == {1, 2, 3}, "the wiped one is in sync again")
        assert first_local(cluster, leader) == 0
        assert first_local(cluster, wiped) == BEFORE, "it starts at the first offset that is not remote"

        cluster.nodes[other].kill()
        until(lambda: in_sync_and_leader(cluster)[0] == {leader, wiped}, "the wiped one alone follows")
        cluster.nodes[leader].kill()
        cluster.nodes[other].start()
        total = BEFORE + AFTER
        produce(client, deliveries, range(BEFORE + 10, total))
        assert in_sync_and_leader(cluster)[1] == wiped
        assert len(deliveries.acknowledged) == total
        assert values_from_the_start(cluster, total) == list(range(total))


def test_tier_commands_ask_all_leaders(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, settings=SETTINGS) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 3, 3, config=CONFIGS)])[TOPIC].result(60)
        client = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
        for partition in range(3):
            client.produce(TOPIC, b"value", partition=partition)
        assert client.flush(60) == 0
        partitions = admin.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions
        assert len({one.leader for one in partitions.values()}) == 3
        for target in (("-b", cluster.bootstrap), ("--admin", cluster.nodes[2].admin_url)):
            flushed = json_output("tier", "flush", TOPIC, *target)[0]["partitions"]
            status = json_output("tier", "status", TOPIC, *target)[0]["partitions"]
            for found in (flushed, status):
                assert [(one["partition"], one["remote_end_offset"]) for one in found] == [
                    (0, 1),
                    (1, 1),
                    (2, 1),
                ]
            for partition in range(3):
                place = json_output("tier", "explain", TOPIC, str(partition), "0", *target)[0]
                assert place["tier"] == "remote" or place["also_remote"]
