"""Three broker processes: records acknowledged with acks=all survive the death of the leader."""

import json
import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, PartitionMetadata
from deliveries import Deliveries
from scraping import wait_for_metric
from waiting import until

from tierlog.cli.local_cluster import LocalCluster
from tierlog.cli.process import TierlogBroker

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path) as running:
        yield running


def create(cluster: LocalCluster, name: str, partitions: int = 1, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    topic = NewTopic(name, partitions, 3, config=configs)
    admin.create_topics([topic])[name].result(60)


def leader_of(cluster: LocalCluster, name: str, partition: int = 0) -> int:
    return int(partition_of(cluster, name, partition).leader)


def in_sync(cluster: LocalCluster, name: str, partition: int = 0) -> set[int]:
    return set(partition_of(cluster, name, partition).isrs)


def partition_of(cluster: LocalCluster, name: str, partition: int) -> PartitionMetadata:
    """Waits until the broker that is asked knows the partition: another one may have created the topic."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    found: dict[int, PartitionMetadata] = {}

    def is_known() -> bool:
        found.update(admin.list_topics(name, timeout=60).topics[name].partitions)
        return partition in found

    until(is_known, f"{name}-{partition} is known")
    return found[partition]


def read_all(cluster: LocalCluster, name: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": f"readers-{time.monotonic_ns()}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([name])
    found: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            found.append(message.value())
    consumer.close()
    return found


def producer(cluster: LocalCluster, **options: object) -> Producer:
    return Producer(
        {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "acks": "all", **options}
    )


def test_followers_replicate_the_leaders_log(cluster: LocalCluster) -> None:
    create(cluster, "orders")
    deliveries = Deliveries()
    client = producer(cluster)
    for number in range(1000):
        client.produce("orders", b"%d record" % number, on_delivery=deliveries)
    assert client.flush(60) == 0
    assert not deliveries.failures and len(deliveries.acknowledged) == 1000
    until(lambda: in_sync(cluster, "orders") == {1, 2, 3}, "all are in sync")
    assert read_all(cluster, "orders", 1000) == [b"%d record" % number for number in range(1000)]
    logs = {path: b"" for broker in cluster for path in broker.data_dir.glob("orders-0/*.log")}
    assert len(logs) == 3
    until(lambda: len({path.read_bytes() for path in logs}) == 1, "the three logs are the same bytes")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_acknowledged_records_survive_their_leader(cluster: LocalCluster, number: signal.Signals) -> None:
    create(cluster, "orders")
    deliveries = Deliveries()
    client = producer(cluster, **{"delivery.timeout.ms": 120_000})
    leader = leader_of(cluster, "orders")
    for count in range(3000):
        client.produce("orders", b"%d record" % count, on_delivery=deliveries)
        client.poll(0.0005)
        if count == 1000:
            cluster.nodes[leader].signal(number)
    assert client.flush(120) == 0
    assert not deliveries.failures and len(deliveries.acknowledged) == 3000
    assert read_all(cluster, "orders", 3000) == [b"%d record" % count for count in range(3000)]
    if number == signal.SIGKILL:
        cluster.nodes[leader].kill()
        cluster.nodes[leader].start()
    else:
        cluster.nodes[leader].signal(signal.SIGCONT)
    until(lambda: in_sync(cluster, "orders") == {1, 2, 3}, "it comes back into the in-sync set")
    logs = [path for broker in cluster for path in broker.data_dir.glob("orders-0/*.log")]
    until(lambda: len({path.read_bytes() for path in logs}) == 1, "the three logs are the same bytes")


def test_controlled_shutdown_hands_over_leaderships_first(cluster: LocalCluster) -> None:
    create(cluster, "orders", partitions=6)
    leaving = leader_of(cluster, "orders")
    cluster.nodes[leaving].stop()
    assert "no other took over in time" not in cluster.nodes[leaving].log_tail()
    assert leaving not in {leader_of(cluster, "orders", partition) for partition in range(6)}


def test_without_enough_in_sync_replicas_nothing_is_acknowledged(cluster: LocalCluster) -> None:
    create(cluster, "orders", **{"min.insync.replicas": "3"})
    leader = leader_of(cluster, "orders")
    other = next(node for node in cluster.nodes if node != leader)
    cluster.nodes[other].kill()
    until(lambda: other not in in_sync(cluster, "orders"), "the dead one leaves the in-sync set")
    deliveries = Deliveries()
    client = producer(cluster, **{"delivery.timeout.ms": 3000, "request.timeout.ms": 1000})
    client.produce("orders", b"0 refused", on_delivery=deliveries)
    client.flush(60)
    assert deliveries.failures and not deliveries.acknowledged
    cluster.nodes[other].start()
    until(lambda: in_sync(cluster, "orders") == {1, 2, 3}, "it comes back")
    client = producer(cluster)
    client.produce("orders", b"1 accepted", on_delivery=deliveries)
    assert client.flush(60) == 0
    assert list(deliveries.acknowledged) == [1]


def test_every_node_returns_the_same_metadata(cluster: LocalCluster) -> None:
    create(cluster, "orders", partitions=3)
    reported = []
    for broker in cluster:
        with urllib.request.urlopen(f"{broker.admin_url}/v1/cluster", timeout=60) as answer:
            reported.append(json.load(answer))
    assert len({one["cluster_id"] for one in reported}) == 1


def test_deleted_records_stay_deleted_under_the_next_leader(cluster: LocalCluster) -> None:
    create(cluster, "orders")
    client = producer(cluster)
    for number in range(150):
        client.produce("orders", b"%d record" % number)
    assert client.flush(60) == 0
    until(lambda: in_sync(cluster, "orders") == {1, 2, 3}, "all are in sync")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    leader, next_leader, _ = admin.list_topics("orders", timeout=60).topics["orders"].partitions[0].replicas
    assert leader == leader_of(cluster, "orders")
    cluster.nodes[next_leader].signal(
        signal.SIGSTOP
    )  # the response waits until replicas without the deletion cannot be elected
    [deleted] = admin.delete_records([TopicPartition("orders", 0, 100)]).values()
    assert deleted.result(60).low_watermark == 100
    cluster.nodes[next_leader].signal(signal.SIGCONT)
    cluster.nodes[leader].kill()
    until(lambda: leader_of(cluster, "orders") not in (-1, leader), "another leads")
    assert read_all(cluster, "orders", 50)[0] == b"100 record"


def quorum_leader(node: TierlogBroker) -> int:
    with urllib.request.urlopen(f"{node.admin_url}/v1/quorum", timeout=60) as answer:
        return int(json.load(answer)["leader"])


def test_survivors_log_that_the_quorum_lost_its_leader_and_has_another(cluster: LocalCluster) -> None:
    dead = quorum_leader(cluster.nodes[1])
    survivors = [node for number, node in cluster.nodes.items() if number != dead]
    cluster.nodes[dead].kill()

    def have_logged_both() -> bool:
        leaders = [quorum_leader(node) for node in survivors]
        return all(
            re.search(rf"quorum\.leader\.lost\b.*\bwas={dead}\b", node.log_tail())
            and re.search(rf"quorum\.leader\.changed\b.*\bleader={leader}\b", node.log_tail())
            for node, leader in zip(survivors, leaders, strict=True)
            if leader not in (-1, dead)
        ) and not {-1, dead} & set(leaders)

    until(have_logged_both, "both survivors have logged the loss and the next leader")


def test_offsets_are_read_once_the_coordinator_has_its_lease_again(cluster: LocalCluster) -> None:
    """librdkafka asks no second time after NOT_COORDINATOR: a member would never read its partitions."""
    create(cluster, "orders")
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "billing"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 7)], asynchronous=False)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    coordinator = admin.describe_consumer_groups(["billing"])["billing"].result(60).coordinator.id
    node = cluster.nodes[coordinator]
    others = [each for number, each in cluster.nodes.items() if number != coordinator]
    with ThreadPoolExecutor(1) as pool:
        try:
            for each in others:
                each.signal(signal.SIGSTOP)
            until(lambda: "holds_lease=False" in node.log_tail(), "the lease has ended")
            reading = pool.submit(consumer.committed, [TopicPartition("orders", 0)], 60)
            refused = {"request": "OffsetFetch", "error": "COORDINATOR_LOAD_IN_PROGRESS"}
            wait_for_metric(node, 1, "kafka_network_requestmetrics_errors_total", **refused)
        finally:
            for each in others:
                each.signal(signal.SIGCONT)
        [found] = reading.result(60)
    assert (found.error, found.offset) == (None, 7)
    consumer.close()
