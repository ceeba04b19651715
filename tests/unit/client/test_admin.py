"""Client of the admin API: leaders of partitions, and why there is none."""

import threading
from typing import Any
from uuid import UUID

import pytest

from tierlog.base.types import TopicIdPartition
from tierlog.client import admin
from tierlog.client.admin import AdminRefused, AdminUnreachable, ClusterAdmin

TOPIC, GONE = UUID(int=1), UUID(int=2)
CLUSTER = {
    "node_id": 1,
    "brokers": [{"id": 1, "admin_url": None}, {"id": 2, "admin_url": "http://two"}],
    "topics": [
        {
            "id": str(TOPIC),
            "name": "orders",
            "partitions": [{"partition": 0, "leader": 2}, {"partition": 1, "leader": -1}],
        }
    ],
}


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def request(method: str, url: str, body: Any = None, *, timeout_s: float) -> Any:
        assert (method, url) == ("GET", "http://one/v1/cluster")
        return CLUSTER

    monkeypatch.setattr(admin, "request", request)


def test_leader_of_a_partition_is_known_by_its_admin_url() -> None:
    assert ClusterAdmin("http://one").leader(TopicIdPartition(TOPIC, 0)) == "http://two"


@pytest.mark.parametrize(
    ("where", "status", "why"),
    [
        (TopicIdPartition(TOPIC, 1), 503, "partition 1 of orders has no leader now"),
        (TopicIdPartition(GONE, 0), 404, f"there is no topic with the id {GONE}"),
    ],
)
def test_election_is_waited_for_and_a_deleted_topic_is_not(
    where: TopicIdPartition, status: int, why: str
) -> None:
    with pytest.raises(AdminRefused, match=why) as refused:
        ClusterAdmin("http://one").leader(where)
    assert refused.value.status == status


def test_silent_node_is_not_waited_for_and_all_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def request(method: str, url: str, body: Any = None, *, timeout_s: float) -> Any:
        if "paused" in url:
            released.wait(60)
        if "one" in url:
            return CLUSTER
        raise AdminUnreachable(f"cannot reach {url}")

    monkeypatch.setattr(admin, "request", request)
    where = TopicIdPartition(TOPIC, 0)
    assert ClusterAdmin("http://paused,http://one").leader(where) == "http://two"
    released.set()
    with pytest.raises(AdminUnreachable, match="reach http://paused/v1/cluster; cannot reach http://down"):
        ClusterAdmin("http://paused,http://down").leader(where)
