"""AlterPartitionReassignments and ListPartitionReassignments."""

from typing import Any

import pytest
from admin_cluster import AdminCluster

from tierlog.protocol.errors import ErrorCode as E


def requested(name: str, number: int, replicas: list[int] | None) -> dict[str, Any]:
    return {"name": name, "partitions": [{"partition_index": number, "replicas": replicas}]}


async def alter(cluster: AdminCluster, *topics: dict[str, Any], version: int = 1, **more: Any) -> Any:
    return await cluster.ask("AlterPartitionReassignments", version, topics=list(topics), **more)


async def move(cluster: AdminCluster, *replicas: int, name: str = "t", number: int = 0, **more: Any) -> E:
    answer = await alter(cluster, requested(name, number, list(replicas)), **more)
    assert answer.error_code == E.NONE
    return E(answer.responses[0].partitions[0].error_code)


async def ongoing(cluster: AdminCluster, topics: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    answer = await cluster.ask("ListPartitionReassignments", 0, topics=topics)
    assert answer.error_code == E.NONE
    return {
        f"{topic.name}-{one.partition_index}": (one.replicas, one.adding_replicas, one.removing_replicas)
        for topic in answer.topics
        for one in topic.partitions
    }


@pytest.mark.parametrize("version", [0, 1])
async def test_reassignment_is_listed_until_it_ends(cluster: AdminCluster, version: int) -> None:
    await cluster.create("t", (1, 2))
    assert await move(cluster, 3, 1, version=version) == E.NONE
    assert await ongoing(cluster) == {"t-0": ([3, 1, 2], [3], [2])}
    await cluster.in_sync("t", 0, 1, 2, 3)
    assert await ongoing(cluster) == {}
    assert cluster.partition("t").replicas == (3, 1)


async def test_a_move_is_cancelled(cluster: AdminCluster) -> None:
    await cluster.create("t", (1, 2))
    cancel = requested("t", 0, None)
    answer = await alter(cluster, cancel)
    assert answer.responses[0].partitions[0].error_code == E.NO_REASSIGNMENT_IN_PROGRESS
    await move(cluster, 3, 4)
    answer = await alter(cluster, cancel)
    assert (answer.responses[0].partitions[0].error_code, await ongoing(cluster)) == (E.NONE, {})
    assert cluster.partition("t").replicas == (1, 2)


async def test_only_requested_partitions_are_listed(cluster: AdminCluster) -> None:
    for name in ("t", "u"):
        await cluster.create(name, (1,), (1,))
        for number in (0, 1):
            assert await move(cluster, 2, name=name, number=number) == E.NONE
    assert list(await ongoing(cluster)) == ["t-0", "t-1", "u-0", "u-1"]
    some = [
        {"name": "u", "partition_indexes": [1, 7]},
        {"name": "t", "partition_indexes": []},
        {"name": "nope", "partition_indexes": [0]},
    ]
    assert list(await ongoing(cluster, some)) == ["u-1"]
    assert await ongoing(cluster, []) == {}


async def test_each_partition_has_its_own_outcome(cluster: AdminCluster) -> None:
    await cluster.create("t", (1, 2), (1, 2))
    answer = await alter(
        cluster,
        {
            "name": "t",
            "partitions": [
                {"partition_index": 0, "replicas": [1, 9]},
                {"partition_index": 1, "replicas": [3, 1]},
                {"partition_index": 7, "replicas": [1]},
            ],
        },
        requested("nope", 0, [1]),
    )
    reported = {
        (topic.name, one.partition_index): E(one.error_code)
        for topic in answer.responses
        for one in topic.partitions
    }
    assert reported == {
        ("t", 0): E.INVALID_REPLICA_ASSIGNMENT,
        ("t", 1): E.NONE,
        ("t", 7): E.UNKNOWN_TOPIC_OR_PARTITION,
        ("nope", 0): E.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert "9" in answer.responses[0].partitions[0].error_message


async def test_the_replication_factor_can_be_held(cluster: AdminCluster) -> None:
    await cluster.create("t", (1, 2))
    held = {"allow_replication_factor_change": False}
    assert await move(cluster, 1, 2, 3, **held) == E.INVALID_REPLICATION_FACTOR
    assert await move(cluster, 1, 3, **held) == E.NONE
    assert await move(cluster, 1, 2, 3) == E.NONE


async def test_partitions_of_one_request_are_limited(cluster: AdminCluster) -> None:
    await cluster.create("t", (1,))
    many = [{"partition_index": number, "replicas": [2]} for number in range(10_001)]
    answer = await alter(cluster, {"name": "t", "partitions": many})
    assert answer.error_code == E.POLICY_VIOLATION
    assert {one.error_code for one in answer.responses[0].partitions} == {E.POLICY_VIOLATION}
    assert await ongoing(cluster) == {}
