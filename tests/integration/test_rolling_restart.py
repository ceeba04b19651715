"""Every node of a cluster is restarted in turn while producers write without an error."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rolling_load import Load
from waiting import until

from tierlog.cli.admin import AdminApi
from tierlog.cli.local_cluster import LocalCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PARTITIONS = 6


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Preferred leaders are elected every second, so that each node that stops leads a partition."""
    with LocalCluster(tmp_path, settings={"leader.imbalance.check.interval.seconds": 1}) as running:
        yield running


def partitions(api: AdminApi) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get("/v1/partitions", topic="orders")["partitions"]
    return found


def whole(cluster: LocalCluster) -> bool:
    """Whether each node reports all replicas in sync and all preferred replicas as leaders."""
    return all(
        set(row["in_sync"]) == {1, 2, 3} and row["leader"] == row["replicas"][0]
        for node in cluster
        for row in partitions(AdminApi(node.admin_url))
    )


def read(cluster: LocalCluster, partition: int, count: int) -> list[bytes]:
    """The first `count` values of the partition, or fewer if it has fewer."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "reader", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition("orders", partition, 0)])
    found: list[bytes] = []
    while len(found) < count:
        message = consumer.poll(60)
        if message is None or message.error() is not None:
            break
        found.append(message.value())
    consumer.close()
    return found


def test_no_produce_fails_in_a_rolling_restart(cluster: LocalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("orders", PARTITIONS, 3)])["orders"].result(60)
    until(lambda: whole(cluster), "a new cluster is whole")
    load = Load({"bootstrap.servers": cluster.bootstrap}, "orders", PARTITIONS)
    try:
        load.wait_for_progress()
        for node in cluster.nodes.values():
            node.stop()  # SIGTERM, and an exit code of 0
            load.wait_for_progress()
            node.start()
            until(lambda: whole(cluster), f"node {node.directory.name} is in sync, and leads what it led")
    finally:
        load.stop()

    assert not load.deliveries.failures
    assert load.sent == len(load.deliveries.acknowledged)
    for node in cluster:
        assert "no other took over in time" not in node.log_tail()
    assert any("quorum.leadership.transferred" in node.log_tail() for node in cluster)
    for partition in range(PARTITIONS):
        sent = [b"%d record" % n for n in range(partition, load.sent, PARTITIONS)]
        assert read(cluster, partition, len(sent) + 1) == sent
