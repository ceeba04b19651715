"""A throttled reassignment on real brokers: the throttle delays only the move and is removed with it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
)
from scraping import metric, wait_for_metric
from waiting import until

from tierlog.cli.admin import AdminApi
from tierlog.cli.local_cluster import LocalCluster

pytestmark = pytest.mark.slow
RATE = "leader.replication.throttled.rate"
REPLICAS = "leader.replication.throttled.replicas"
VALUE = bytes(100_000)
HELD = "tierlog_replication_throttled_partitions"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path) as running:
        yield running


def write(cluster: LocalCluster, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for _ in range(count):
        producer.produce("orders", VALUE)
        producer.poll(0)
    assert producer.flush(60) == 0


def settings(admin: AdminClient, kind: ConfigResource.Type, name: str) -> dict[str, Any]:
    resource = ConfigResource(kind, name)
    found: dict[str, Any] = admin.describe_configs([resource])[resource].result(60)
    return found


def rate(admin: AdminClient) -> tuple[str, int]:
    """The rate and its source."""
    found = settings(admin, ConfigResource.Type.BROKER, "1")[RATE]
    return found.value, found.source


def throttled(admin: AdminClient) -> str:
    return str(settings(admin, ConfigResource.Type.TOPIC, "orders")[REPLICAS].value)


def held(cluster: LocalCluster, node_id: int, direction: str) -> float:
    return metric(cluster.nodes[node_id], HELD, direction=direction)


def test_throttle_delays_only_the_move_and_can_be_changed_while_it_runs(cluster: LocalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("orders", 1, replica_assignment=[[1, 2]])])["orders"].result(60)
    write(cluster, 50)
    api = AdminApi(cluster.nodes[1].admin_url)
    command = [sys.executable, "-m", "tierlog.cli.main", "partition", "move", "orders", "0", "--to", "1,3"]
    moving = subprocess.Popen([*command, "--throttle", "1000", "--admin", api.url])
    until(lambda: api.get("/v1/partitions", condition="moving")["partitions"] != [], "the move begins")

    write(cluster, 10)  # 1 and 2 are in sync, so their acknowledgements are not delayed
    # The image of the broker that responds may be behind that of the one that received the command.
    dynamic = ("1000", ConfigSource.DYNAMIC_BROKER_CONFIG.value)
    until(lambda: rate(admin) == dynamic, "the rate is set")
    until(lambda: throttled(admin) == "0:1,0:2", "the replicas are named")
    logs = list(cluster.nodes[3].data_dir.glob("orders-0/*.log"))
    assert sum(path.stat().st_size for path in logs) < 20 * len(VALUE)
    assert moving.poll() is None
    for node_id, direction in ((1, "leader"), (3, "follower")):
        wait_for_metric(cluster.nodes[node_id], 1, HELD, direction=direction)

    for node_id in cluster.nodes:
        names = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
        faster = [
            ConfigEntry(name, "100000000", incremental_operation=AlterConfigOpType.SET) for name in names
        ]
        resource = ConfigResource(ConfigResource.Type.BROKER, str(node_id), incremental_configs=faster)
        admin.incremental_alter_configs([resource])[resource].result(60)
    assert moving.wait(60) == 0
    [row] = api.get("/v1/partitions", topic="orders")["partitions"]
    assert (row["replicas"], set(row["in_sync"])) == ([1, 3], {1, 3})
    for node_id, direction in ((1, "leader"), (3, "follower")):
        until(lambda at=(node_id, direction): held(cluster, *at) == 0, "it is in sync")
    until(lambda: throttled(admin) == "", "no replicas are named")
    until(lambda: rate(admin)[1] == ConfigSource.DEFAULT_CONFIG.value, "the rate is gone")
