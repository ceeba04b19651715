"""DescribeTopicPartitions (KIP-966): pages, cursors, eligible leader replicas."""

from typing import Any

import pytest
from admin_cluster import AdminCluster

from tierlog.protocol.errors import ErrorCode as E

LIMIT = 5  # max.request.partition.size.limit of the fixture


async def describe(cluster: AdminCluster, *names: str, **more: Any) -> Any:
    return await cluster.ask("DescribeTopicPartitions", 0, topics=[{"name": name} for name in names], **more)


def partitions_of(answer: Any) -> dict[str, list[int]]:
    return {topic.name: [one.partition_index for one in topic.partitions] for topic in answer.topics}


def at(name: str, number: int) -> dict[str, Any]:
    """Request fields with a cursor at this partition."""
    return {"cursor": {"topic_name": name, "partition_index": number}}


def cursor(answer: Any) -> tuple[str, int] | None:
    return (
        None
        if answer.next_cursor is None
        else (answer.next_cursor.topic_name, answer.next_cursor.partition_index)
    )


@pytest.fixture
async def topics(cluster: AdminCluster) -> AdminCluster:
    """a has 3 partitions, b 4 and c 1."""
    for name, count in (("b", 4), ("a", 3), ("c", 1)):
        await cluster.create(name, *[(1,)] * count)
    return cluster


async def test_all_partitions_are_described_page_by_page(topics: AdminCluster) -> None:
    first = await describe(topics)
    assert (partitions_of(first), cursor(first)) == ({"a": [0, 1, 2], "b": [0, 1]}, ("b", 2))
    second = await describe(topics, **at("b", 2))
    assert (partitions_of(second), cursor(second)) == ({"b": [2, 3], "c": [0]}, None)


async def test_page_may_end_between_topics(topics: AdminCluster) -> None:
    answer = await describe(topics, response_partition_limit=3)
    assert (partitions_of(answer), cursor(answer)) == ({"a": [0, 1, 2]}, ("b", 0))


@pytest.mark.parametrize(("limit", "count"), [(0, 1), (-1, 1), (2, 2), (1 << 30, LIMIT)])
async def test_requested_limit_is_at_least_one_and_at_most_the_setting(
    topics: AdminCluster, limit: int, count: int
) -> None:
    answer = await describe(topics, response_partition_limit=limit)
    assert sum(map(len, partitions_of(answer).values())) == count


async def test_requested_topics_come_in_order_and_once(topics: AdminCluster) -> None:
    answer = await describe(topics, "c", "x", "a", "a b", "c")
    assert partitions_of(answer) == {"a": [0, 1, 2], "a b": [], "c": [0], "x": []}
    codes = {topic.name: E(topic.error_code) for topic in answer.topics}
    assert (codes["x"], codes["a b"]) == (E.UNKNOWN_TOPIC_OR_PARTITION, E.INVALID_TOPIC_EXCEPTION)
    assert codes["a"] == E.NONE


async def test_cursor_skips_earlier_topics(topics: AdminCluster) -> None:
    answer = await describe(topics, "a", "b", "c", **at("b", 3))
    assert partitions_of(answer) == {"b": [3], "c": [0]}
    assert partitions_of(await describe(topics, "b", **at("b", 9))) == {"b": []}
    assert partitions_of(await describe(topics, **at("bb", 0))) == {"c": [0]}  # as if bb had been deleted


@pytest.mark.parametrize("invalid", [at("b", -1), at("d", 0)])
async def test_invalid_cursor_is_refused(topics: AdminCluster, invalid: dict[str, Any]) -> None:
    answer = await describe(topics, "a", "b", **invalid)
    assert {topic.error_code for topic in answer.topics} == {E.INVALID_REQUEST}


async def test_eligible_leader_replicas_are_returned(cluster: AdminCluster) -> None:
    await cluster.create("t", (2, 3), min_insync_replicas="2")
    await cluster.fence(3)  # fewer than min.insync.replicas commit nothing, so broker 3 stays eligible
    [partition] = (await describe(cluster, "t")).topics[0].partitions
    assert (partition.leader_id, partition.isr_nodes, partition.replica_nodes) == (2, [2], [2, 3])
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([3], [])
    assert partition.offline_replicas == [3]


async def test_last_known_leader_is_returned_without_a_leader(cluster: AdminCluster) -> None:
    await cluster.create("t", (2, 3))
    await cluster.in_sync("t", 0, 2)
    await cluster.fence(2)
    [topic] = (await describe(cluster, "t")).topics
    [partition] = topic.partitions
    assert (topic.error_code, partition.error_code) == (0, 0)
    assert (partition.leader_id, partition.last_known_elr, partition.offline_replicas) == (-1, [2], [2])
    assert partition.leader_epoch == cluster.partition("t").leader_epoch
