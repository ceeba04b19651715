"""The admin routes that move leaders and replicas, over HTTP and a real controller."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from inline_controller import InlineController

from tierlog.broker.gateway.admin import AdminServer
from tierlog.broker.gateway.operations import operation_routes
from tierlog.metadata.records import ConfigScope
from tierlog.protocol.errors import ErrorCode


class Asker:
    def __init__(self, controller: InlineController, session: aiohttp.ClientSession) -> None:
        self.controller = controller
        self._session = session

    async def __call__(self, method: str, path: str, body: Any = None, code: int = 200) -> Any:
        async with self._session.request(method, path, json=body or {}) as answer:
            reported = await answer.json()
            assert answer.status == code, reported
            return reported


@pytest.fixture
async def ask() -> AsyncIterator[Asker]:
    controller = InlineController(1, 2, 3)
    server = AdminServer(operation_routes(controller))
    url = await server.start("127.0.0.1", 0)
    async with aiohttp.ClientSession(url) as session:
        yield Asker(controller, session)
    await server.close()


def outcomes(answer: Any) -> list[tuple[str, int, str | None]]:
    return [(one["topic"], one["partition"], one["error"]) for one in answer["outcomes"]]


async def test_brokers_and_partitions_are_listed(ask: Asker) -> None:
    ask.controller.create("orders", (1, 2), (2, 3))
    ask.controller.fence(1)
    brokers = (await ask("GET", "/v1/brokers"))["brokers"]
    assert [(one["id"], one["fenced"]) for one in brokers] == [(1, True), (2, False), (3, False)]
    found = await ask("GET", "/v1/partitions?condition=unhealthy&limit=5")
    assert [(row["topic"], row["partition"]) for row in found["partitions"]] == [("orders", 0)]
    assert "good" in (await ask("GET", "/v1/partitions?condition=good", code=400))["error"]
    assert "nowhere" in (await ask("GET", "/v1/partitions?topic=nowhere", code=404))["error"]


async def test_a_partition_is_moved_and_the_move_cancelled(ask: Asker) -> None:
    ask.controller.create("orders", (1, 2))
    moves = [
        {"topic": "orders", "partition": 0, "replicas": [1, 3]},
        {"topic": "orders", "partition": 9, "replicas": [1, 3]},
    ]
    answer = await ask("POST", "/v1/partitions/move", {"moves": moves})
    assert outcomes(answer) == [("orders", 0, None), ("orders", 9, "UNKNOWN_TOPIC_OR_PARTITION")]
    assert ask.controller.image.topic("orders").partitions[0].adding == (3,)
    back = {"moves": [{"topic": "orders", "partition": 0, "replicas": None}]}
    assert outcomes(await ask("POST", "/v1/partitions/move", back)) == [("orders", 0, None)]
    assert ask.controller.image.topic("orders").partitions[0].replicas == (1, 2)
    await ask("POST", "/v1/partitions/move", {"moves": [{"topic": "orders"}]}, code=400)


async def test_throttle_is_set_before_a_move_and_removed_after_the_last(ask: Asker) -> None:
    ask.controller.create("orders", (1, 2), (1, 2))
    image = lambda: ask.controller.image  # noqa: E731
    for number in (0, 1):
        move = {"topic": "orders", "partition": number, "replicas": [1, 3]}
        await ask("POST", "/v1/partitions/move", {"moves": [move], "throttle": 1000})
    assert dict(image().topic_overrides("orders")) == {
        "leader.replication.throttled.replicas": "0:1,0:2,1:1,1:2",
        "follower.replication.throttled.replicas": "0:3,1:3",
    }
    rates = {"leader.replication.throttled.rate": "1000", "follower.replication.throttled.rate": "1000"}
    assert [dict(image().overrides(ConfigScope.BROKER, name)) for name in "123"] == [rates] * 3

    answer = await ask("POST", "/v1/partitions/unthrottle", {"partitions": [["orders", 0]]})
    assert answer == {"altered": ["orders"]}
    assert image().topic_overrides("orders")["follower.replication.throttled.replicas"] == "1:3"
    answer = await ask("POST", "/v1/partitions/unthrottle", {})
    assert answer == {"altered": ["orders", "1", "2", "3"]}
    assert {scope for scope, _ in image().configs} == {ConfigScope.CLUSTER}  # what it began with
    assert await ask("POST", "/v1/partitions/unthrottle", {}) == {"altered": []}
    await ask("POST", "/v1/partitions/move", {"moves": [], "throttle": 0}, code=400)


async def test_refused_move_changes_no_throttle(ask: Asker) -> None:
    ask.controller.create("orders", (1, 2), (1, 2))
    under_way = {"topic": "orders", "partition": 0, "replicas": [1, 3]}
    await ask("POST", "/v1/partitions/move", {"moves": [under_way], "throttle": 1000})
    before = ask.controller.image.configs
    unknown = {"topic": "orders", "partition": 1, "replicas": [1, 9]}
    answer = await ask("POST", "/v1/partitions/move", {"moves": [unknown], "throttle": 5000})
    assert outcomes(answer) == [("orders", 1, "INVALID_REPLICA_ASSIGNMENT")]
    assert ask.controller.image.configs == before
    other = {"topic": "orders", "partition": 1, "replicas": [2, 3]}
    await ask("POST", "/v1/partitions/move", {"moves": [unknown, other], "throttle": 5000})
    rates = ask.controller.image.overrides(ConfigScope.BROKER, "3")
    assert rates["follower.replication.throttled.rate"] == "5000"
    assert "1:9" not in ask.controller.image.topic_overrides("orders").values()


async def test_preferred_leaders_are_elected(ask: Asker) -> None:
    ask.controller.create("orders", (1, 2), (2, 1))
    ask.controller.fence(1)
    ask.controller.fence(1, fenced=False)
    epoch = ask.controller.image.brokers[1].broker_epoch
    rejoin(ask.controller, "orders", 0, epoch)
    answer = await ask("POST", "/v1/partitions/elect", {})
    assert ("orders", 0, None) in outcomes(answer)
    assert ask.controller.image.topic("orders").partitions[0].leader == 1
    named = {"partitions": [["orders", 0]]}
    assert outcomes(await ask("POST", "/v1/partitions/elect", named)) == [
        ("orders", 0, "ELECTION_NOT_NEEDED")
    ]
    await ask("POST", "/v1/partitions/elect", {"kind": "any"}, code=400)


async def test_broker_is_drained_stopped_and_unregistered(ask: Asker) -> None:
    ask.controller.create("orders", (3, 1))
    plan = await ask("POST", "/v1/brokers/3/drain", {"dry_run": True})
    assert plan["moves"] == [{"topic": "orders", "partition": 0, "replicas": [2, 1]}]
    assert ask.controller.image.topic("orders").partitions[0].adding == ()
    assert outcomes(await ask("POST", "/v1/brokers/3/drain")) == [("orders", 0, None)]
    assert ask.controller.image.topic("orders").partitions[0].adding == (2,)
    assert "not fenced" in (await ask("DELETE", "/v1/brokers/3", code=409))["error"]
    assert (await ask("POST", "/v1/brokers/3/stop"))["leads"] == 0
    ask.controller.fence(3)
    assert await ask("DELETE", "/v1/brokers/3") == {"id": 3}
    assert 3 not in ask.controller.image.brokers
    await ask("DELETE", "/v1/brokers/3", code=404)
    await ask("POST", "/v1/brokers/x/drain", code=404)


async def test_replica_that_cannot_move_is_reported_as_stuck(ask: Asker) -> None:
    ask.controller.create("orders", (1, 2, 3))
    answer = await ask("POST", "/v1/brokers/3/drain")
    assert (answer["moves"], answer["stuck"]) == ([], [{"topic": "orders", "partition": 0}])


async def test_balance_moves_partitions_to_a_new_broker(ask: Asker) -> None:
    ask.controller.create("orders", *[(1, 2), (2, 3), (3, 1)] * 4)
    ask.controller.register(4)
    planned = await ask("POST", "/v1/partitions/balance", {"dry_run": True})
    assert planned["outcomes"] == [] and planned["moves"]
    done = await ask("POST", "/v1/partitions/balance", {})
    assert done["moves"] == planned["moves"]
    assert {one["error"] for one in done["outcomes"]} == {None}
    assert (await ask("POST", "/v1/partitions/balance", {"replicas": False}))["moves"] == []


async def test_reads_work_and_changes_fail_without_a_quorum(ask: Asker) -> None:
    ask.controller.create("orders", (1, 2))
    ask.controller.available = False
    answer = await ask("POST", "/v1/partitions/elect", {}, code=503)
    assert "quorum" in answer["error"]
    assert (await ask("GET", "/v1/partitions"))["total"] == 1


def rejoin(controller: InlineController, topic: str, number: int, broker_epoch: int) -> None:
    """Broker 1 is in sync again, as the leader says."""
    from tierlog.metadata.controller import commands as c

    image = controller.image
    partition = image.topic(topic).partitions[number]
    change = c.IsrChange(
        topic_id=image.topic_ids[topic],
        partition=number,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        in_sync=tuple(c.InSync(one, image.brokers[one].broker_epoch) for one in partition.replicas),
    )
    leader = image.brokers[partition.leader]
    reply = controller.do(
        c.AlterPartitions(broker_id=leader.broker_id, broker_epoch=leader.broker_epoch, changes=(change,))
    )
    assert reply.partitions[0].error == ErrorCode.NONE, (reply, broker_epoch)
