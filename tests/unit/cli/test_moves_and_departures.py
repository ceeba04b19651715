"""`tierlog partition move --throttle` and `broker decommission --force`, run against a controller."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web
from cli_process import json_output, run
from connection_harness import until
from inline_controller import InlineController

from tierlog.base.clock import SystemClock
from tierlog.broker.gateway.admin import AdminServer, admin_routes
from tierlog.broker.gateway.loop_lag import LoopLag
from tierlog.broker.gateway.node import FailureLog, Node
from tierlog.broker.handlers.stats import RequestStats
from tierlog.cli.admin import AdminApi
from tierlog.config.sources import settings_from
from tierlog.metadata.controller import commands as c
from tierlog.metadata.quorum.api import QUORUM_PATH
from tierlog.metadata.quorum.publisher import Publisher
from tierlog.metadata.records import PartitionRecord
from tierlog.protocol.errors import ErrorCode

RATES = {"leader.replication.throttled.replicas": "0:1,0:2", "follower.replication.throttled.replicas": "0:3"}


@dataclass
class Cluster:
    controller: InlineController
    url: str

    @property
    def partition(self) -> PartitionRecord:
        return self.controller.image.topic("orders").partitions[0]

    @property
    def throttles(self) -> dict[str, str]:
        return dict(self.controller.image.topic_overrides("orders"))

    def reassign(self, replicas: tuple[int, ...] | None) -> None:
        reply = self.controller.do(c.Reassign(changes=(("orders", 0, replicas),)))
        assert reply.partitions[0].error == ErrorCode.NONE, reply

    def in_sync(self, *brokers: int) -> None:
        leader = self.partition.leader
        epoch = lambda one: self.controller.image.brokers[one].broker_epoch  # noqa: E731
        change = c.IsrChange(
            topic_id=self.controller.image.topic("orders").topic_id,
            partition=0,
            leader_epoch=self.partition.leader_epoch,
            partition_epoch=self.partition.partition_epoch,
            in_sync=tuple(c.InSync(one, epoch(one)) for one in brokers),
        )
        self.controller.do(c.AlterPartitions(broker_id=leader, broker_epoch=epoch(leader), changes=(change,)))


async def quorum(_: web.Request) -> web.Response:
    """The command line only checks that the node responds."""
    return web.json_response({})


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    controller = InlineController(1, 2, 3, 4)
    controller.create("orders", (1, 2))
    node = Node(settings_from({}), controller, RequestStats(), LoopLag(), FailureLog(), SystemClock())
    controller.publish_to([Publisher("events", node.image_changed, lambda *_: None)])
    server = AdminServer([*admin_routes(node), web.get(QUORUM_PATH, quorum)])
    yield Cluster(controller, await server.start("127.0.0.1", 0))
    node.stop_serving()
    await server.close()


def move(cluster: Cluster, to: str) -> "asyncio.Future[Any]":
    words = ("partition", "move", "orders", "0", "--to", to, "--throttle", "1000", "--admin", cluster.url)
    return asyncio.ensure_future(asyncio.to_thread(run, *words))


async def begun(cluster: Cluster, moving: "asyncio.Future[Any]") -> None:
    await until(lambda: cluster.partition.is_reassigned or moving.done())
    assert not moving.done(), moving.result()


async def test_completed_move_removes_its_throttle(cluster: Cluster) -> None:
    moving = move(cluster, "1,3")
    await begun(cluster, moving)
    assert cluster.throttles == RATES
    cluster.in_sync(1, 2, 3)
    ended = await moving
    assert ended.returncode == 0, ended.stderr
    assert "moved to 1, 3" in ended.stdout + ended.stderr
    assert cluster.throttles == {}


async def test_cancelled_move_fails_and_removes_its_throttle(cluster: Cluster) -> None:
    moving = move(cluster, "1,3")
    await begun(cluster, moving)
    cluster.reassign(None)
    ended = await moving
    assert ended.returncode == 1
    assert "was not moved: its replicas are 1, 2" in ended.stderr
    assert cluster.throttles == {}


async def test_refused_move_keeps_the_throttle_of_the_current_one(cluster: Cluster) -> None:
    requested = {"moves": [{"topic": "orders", "partition": 0, "replicas": [1, 3]}], "throttle": 1000}
    await asyncio.to_thread(AdminApi(cluster.url).post, "/v1/partitions/move", requested)
    assert cluster.partition.is_reassigned
    assert (await move(cluster, "1,1")).returncode == 1  # not distinct
    assert cluster.throttles.keys() == RATES.keys()


async def test_refused_move_leaves_no_throttle(cluster: Cluster) -> None:
    assert (await move(cluster, "1,1")).returncode == 1
    assert cluster.throttles == {}


async def test_forced_decommission_succeeds_although_a_move_is_refused(cluster: Cluster) -> None:
    cluster.reassign((3, 4))
    cluster.in_sync(1, 2, 3)
    for broker_id in (1, 2, 3):  # the last one in sync is the one that is lost
        cluster.controller.fence(broker_id)
    cluster.controller.fence(1, fenced=False)
    assert cluster.partition.in_sync == (3,)
    words = ("broker", "decommission", "3", "--force", "--admin", cluster.url)
    [answer] = await asyncio.to_thread(json_output, *words)
    assert (answer["moving"], answer["left"]) == (0, ["orders-0"])
    assert 3 not in cluster.controller.image.brokers


async def test_forced_decommission_names_partitions_that_lack_a_replica(cluster: Cluster) -> None:
    cluster.controller.create("everywhere", *[(1, 2, 3, 4)] * 23)
    cluster.controller.fence(3)
    words = ("broker", "decommission", "3", "--force", "--admin", cluster.url)
    ended = await asyncio.to_thread(run, *words)
    assert ended.returncode == 0, ended.stderr
    first = ", ".join(f"everywhere-{number}" for number in range(20))
    assert f"; 23 partitions lack a replica: {first} and 3 more\n" in ended.stderr
    assert "tierlog partition move" in ended.stderr


async def test_forced_decommission_lists_all_partitions_that_lack_a_replica_as_json(cluster: Cluster) -> None:
    cluster.controller.create("everywhere", *[(1, 2, 3, 4)] * 23)
    cluster.controller.fence(3)
    words = ("broker", "decommission", "3", "--force", "--admin", cluster.url)
    [answer] = await asyncio.to_thread(json_output, *words)
    assert answer["left"] == [f"everywhere-{number}" for number in range(23)]


async def test_drain_names_partitions_that_no_other_broker_can_take(cluster: Cluster) -> None:
    cluster.controller.create("everywhere", (1, 2, 3, 4))
    words = ("broker", "drain", "3", "--admin", cluster.url)
    planned = await asyncio.to_thread(run, *words, "--dry-run")
    assert "no other broker can take 1 partition: everywhere-0\n" in planned.stderr
    refused = await asyncio.to_thread(run, *words)
    assert refused.returncode == 1
    assert "1 partition of broker 3 cannot move: everywhere-0\n" in refused.stderr


async def test_leaders_that_registered_no_admin_url_are_asked_through_the_given_one(cluster: Cluster) -> None:
    for broker_id in (5, 6):
        cluster.controller.register(broker_id, admin_url="")
    cluster.controller.create("views", (2,), (5,), (6,))
    leaders = await asyncio.to_thread(AdminApi(cluster.url).leaders, "views")
    assert [one.url for one in leaders] == ["http://h:2", cluster.url]
