"""One of three brokers starts with other settings than the rest; settings of the cluster do not change."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from deliveries import Deliveries
from waiting import until
from wire_client import Client, message

from tierlog.cli.local_cluster import LocalCluster
from tierlog.protocol.errors import ErrorCode

pytestmark = pytest.mark.slow

BROKER, ALL_BROKERS, STATIC = 4, 3, 4
MIN_IN_SYNC = "min.insync.replicas"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path) as running:
        yield running


def synonyms(client: Client, broker: int, name: str) -> list[tuple[str, int]]:
    requested = {"resource_type": BROKER, "resource_name": str(broker), "configuration_keys": [name]}
    request = message("DescribeConfigs", {"resources": [requested], "include_synonyms": True})
    [config] = client.send("DescribeConfigs", 4, request).results[0].configs
    return [(one.value, one.source) for one in config.synonyms]


def test_leader_with_a_lower_min_insync_setting_does_not_acknowledge_alone(cluster: LocalCluster) -> None:
    odd = cluster.nodes[2]
    odd.stop()
    odd.settings |= {MIN_IN_SYNC: "1", "unclean.leader.election.enable": "true"}
    odd.start()
    client = Client(odd.bootstrap)
    assert synonyms(client, 2, MIN_IN_SYNC) == [("2", ALL_BROKERS), ("1", STATIC), ("1", 5)]
    until(lambda: "has no effect" in odd.log_tail(), "it says that its own setting does not count")

    topic = {"name": "orders", "assignments": [{"partition_index": 0, "broker_ids": [2, 3]}]}
    request = message("CreateTopics", {"topics": [topic | {"num_partitions": -1, "replication_factor": -1}]})
    assert client.send("CreateTopics", 7, request).topics[0].error_code == ErrorCode.NONE
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    cluster.nodes[3].kill()
    until(
        lambda: list(admin.list_topics("orders", timeout=60).topics["orders"].partitions[0].isrs) == [2],
        "the leader is alone in sync",
    )
    requested = message("DescribeTopicPartitions", {"topics": [{"name": "orders"}]})
    [partition] = client.send("DescribeTopicPartitions", 0, requested).topics[0].partitions
    assert (partition.leader_id, partition.eligible_leader_replicas) == (2, [3])
    deliveries = Deliveries()
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "message.timeout.ms": 3000})
    producer.produce("orders", b"0 alone", on_delivery=deliveries)
    assert producer.flush(60) == 0
    assert deliveries.failures and not deliveries.acknowledged
    client.close()
