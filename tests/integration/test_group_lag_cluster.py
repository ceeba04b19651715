"""Lag metrics in a cluster: a group's coordinator asks the leaders of partitions that it does not lead."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from scraping import scraped
from waiting import until

from tierlog.broker.coordinators.shards import partition_of
from tierlog.cli.local_cluster import LocalCluster
from tierlog.config.topic import OFFSETS_TOPIC

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

TOPIC, PARTITIONS, RECORDS = "orders", 3, 10
GROUP = "billing"
TIMEOUT_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Each broker leads one partition, of ten records, of which the group has read 2, 3 and 4."""
    with LocalCluster(tmp_path) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(TIMEOUT_S)
        producer = Producer({"bootstrap.servers": running.bootstrap})
        for number in range(PARTITIONS * RECORDS):
            producer.produce(TOPIC, b"x", partition=number % PARTITIONS)
        assert producer.flush(TIMEOUT_S) == 0
        consumer = Consumer({"bootstrap.servers": running.bootstrap, "group.id": GROUP})
        offsets = [TopicPartition(TOPIC, number, number + 2) for number in range(PARTITIONS)]
        consumer.commit(offsets=offsets, asynchronous=False)
        consumer.close()
        yield running


def lags(cluster: LocalCluster, node: int) -> dict[str, float]:
    """Partition -> lag, as this node exports it."""
    found = {}
    for (name, labels), value in scraped(cluster.nodes[node]).items():
        if name == "kafka_consumergroup_lag":
            of = dict(labels)
            assert (of["consumergroup"], of["topic"]) == (GROUP, TOPIC)
            found[of["partition"]] = value
    return found


def leaders(cluster: LocalCluster, topic: str) -> list[int]:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    partitions = admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
    return [int(partitions[number].leader) for number in sorted(partitions)]


def coordinator(cluster: LocalCluster) -> int:
    found = leaders(cluster, OFFSETS_TOPIC)
    return found[partition_of(GROUP, len(found))]


def test_coordinator_exports_the_lag_of_partitions_that_others_lead(cluster: LocalCluster) -> None:
    expected = {"0": 8.0, "1": 7.0, "2": 6.0}
    first = coordinator(cluster)
    assert set(leaders(cluster, TOPIC)) == set(cluster.nodes)
    until(lambda: lags(cluster, first) == expected, "the coordinator exports another lag")
    others = [node for node in cluster.nodes if node != first]
    assert [lags(cluster, node) for node in others] == [{}, {}]
    sums = {
        value for (name, _), value in scraped(cluster.nodes[first]).items() if name.endswith("group_lag_sum")
    }
    assert sums == {21.0}
    cluster.nodes[first].kill()
    until(lambda: coordinator(cluster) in others, "no other broker coordinates the group")
    until(
        lambda: lags(cluster, coordinator(cluster)) == expected,
        "the new coordinator exports another lag",
    )
