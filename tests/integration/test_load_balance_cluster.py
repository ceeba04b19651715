"""Balancing by load on a real cluster: explained, executed, by itself, and not during a fault."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_inline import call, json_output
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from scraping import metric, wait_for_metric
from waiting import until

from tierlog.cli.admin import AdminApi
from tierlog.cli.local_cluster import LocalCluster

pytestmark = pytest.mark.slow
VALUE = bytes(100_000)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path) as running:
        yield running


class Load:
    """Writes to four partitions, whose replicas all are on brokers 1 and 2, with broker 1 as the leader."""

    def __init__(self, cluster: LocalCluster) -> None:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        topic = NewTopic("orders", 4, replica_assignment=[[1, 2]] * 4)
        admin.create_topics([topic])["orders"].result(60)
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})

    def write(self, count: int) -> None:
        for number in range(count):
            self._producer.produce("orders", VALUE, partition=number % 4)
            self._producer.poll(0)
        assert self._producer.flush(60) == 0


def assignment(api: AdminApi) -> dict[int, list[int]]:
    rows = api.get("/v1/partitions", topic="orders")["partitions"]
    return {row["partition"]: row["replicas"] for row in rows}


def is_balanced(load: Load, api: AdminApi) -> bool:
    """Eight replicas and four leaders on three brokers. Writes, so that there is a load to balance."""
    load.write(8)
    found = list(assignment(api).values())
    held = Counter(broker for replicas in found for broker in replicas)
    led = Counter(replicas[0] for replicas in found)
    return sorted(held.values()) == [2, 3, 3] and sorted(led.values()) == [1, 1, 2]


def throttles(api: AdminApi) -> str:
    [topic] = [one for one in api.get("/v1/cluster")["topics"] if one["name"] == "orders"]
    return " ".join(name for name in topic["configs"] if "throttled" in name)


def test_load_spreads_by_command_and_by_itself_and_never_during_a_fault(cluster: LocalCluster) -> None:
    load, api = Load(cluster), AdminApi(cluster.nodes[1].admin_url)
    load.write(400)
    at = ("--admin", api.url)

    [explained] = json_output("partition", "balance", "--explain", "--seconds", "0.5", *at)
    assert explained["faults"] == [] and explained["outcomes"] == []
    assert explained["actions"], f"nothing may move to a disk with 15 % free or less: {explained['brokers']}"
    [first, *_] = explained["actions"]
    assert (first["topic"], first["before"]) == ("orders", [1, 2]) and 3 in first["after"]
    assert "broker 3 0 B, -100%: its replica" in first["reason"]
    assert list(assignment(api).values()) == [[1, 2]] * 4, "nothing has moved"

    ended = call("partition", "balance", "--execute", "--seconds", "0.5", "--max-moves", "1", *at)
    assert ended.code == 0 and "1 partition changed" in ended.stderr, ended
    assert sum(3 in replicas for replicas in assignment(api).values()) == 1
    assert throttles(api) == "", "the command removes its throttle"

    settings = ("auto.rebalance.interval.seconds=1", "auto.rebalance.enable=true")
    assert call("cluster", "config", "set", *settings, "--bootstrap", cluster.bootstrap).code == 0
    until(lambda: is_balanced(load, api), "the acting broker balances leaders and replicas")
    until(lambda: throttles(api) == "", "the acting broker removes its throttle")
    wait_for_metric(cluster.nodes[1], 1, "tierlog_rebalance_moves_ended_total", end="completed")
    assert metric(cluster.nodes[1], "tierlog_rebalance_state", state="off") == 0
    assert metric(cluster.nodes[2], "tierlog_rebalance_state", state="standby") == 1

    cluster.nodes[3].kill()
    wait_for_metric(cluster.nodes[1], 1, "tierlog_rebalance_held", reason="broker")
    until(lambda: api.get("/v1/partitions", condition="under-replicated")["total"] > 0, "broker 3 is missed")
    ended = call("partition", "balance", "--execute", "--seconds", "0.1", *at)
    assert ended.code == 1 and "not now: broker 3 is fenced" in ended.stderr, ended
    assert "nothing was moved" in ended.stderr
