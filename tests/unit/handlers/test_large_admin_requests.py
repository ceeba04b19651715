"""Admin requests with thousands of entries: refused as Kafka does, or answered in slices."""

from typing import Any

import pytest
from admin_cluster import AdminCluster

from tierlog.broker.handlers.configs import MAX_RESOURCES_PER_REQUEST
from tierlog.broker.handlers.topics import (
    MAX_PARTITIONS_PER_REQUEST,
    MAX_TOPICS_PER_REQUEST,
    TOPICS_PER_SLICE,
)
from tierlog.broker.wire.errors import ErrorCode as E


def topics(count: int, partitions: int = 1, prefix: str = "t") -> list[dict[str, Any]]:
    return [
        {"name": f"{prefix}{n}", "num_partitions": partitions, "replication_factor": 1} for n in range(count)
    ]


@pytest.mark.parametrize(
    "wanted",
    [
        topics(MAX_TOPICS_PER_REQUEST + 1),
        topics(1, MAX_PARTITIONS_PER_REQUEST + 1),
        topics(2, MAX_PARTITIONS_PER_REQUEST // 2 + 1),
        topics(MAX_PARTITIONS_PER_REQUEST + 1, -1),
    ],
    ids=["topics", "partitions of one", "partitions of two", "default partitions"],
)
async def test_too_many_new_topics_are_refused_as_a_whole(
    cluster: AdminCluster, wanted: list[dict[str, Any]]
) -> None:
    answer = await cluster.ask("CreateTopics", 7, topics=wanted, validate_only=True)
    assert [topic.name for topic in answer.topics] == [topic["name"] for topic in wanted]
    assert {topic.error_code for topic in answer.topics} == {E.POLICY_VIOLATION}


@pytest.mark.parametrize("version", range(2, 8))
async def test_an_answer_of_several_slices_is_whole(cluster: AdminCluster, version: int) -> None:
    wanted = topics(2 * TOPICS_PER_SLICE + 1, prefix="t.")
    wanted[3]["configs"] = [{"name": "retention.ms", "value": "7"}]
    wanted += topics(1, prefix="a b") + topics(2, prefix="twice")[:1] * 2
    answer = await cluster.ask("CreateTopics", version, topics=wanted, validate_only=True)
    told = {topic.name: topic for topic in answer.topics}
    assert set(told) == {topic["name"] for topic in wanted}
    failed = {name: topic.error_code for name, topic in told.items() if topic.error_code}
    assert failed == {"a b0": E.INVALID_TOPIC_EXCEPTION, "twice0": E.INVALID_REQUEST}
    if version >= 5:
        retention = [{c.name: c.value for c in told[f"t.{n}"].configs}["retention.ms"] for n in (2, 3, 4)]
        assert (retention[1], retention[0] == retention[2]) == ("7", True)
        assert told["t.0"].num_partitions == 1


async def test_no_topics_are_no_slices(cluster: AdminCluster) -> None:
    for version in (2, 7):
        assert (await cluster.ask("CreateTopics", version, topics=[])).topics == []


async def test_too_many_new_partitions_are_refused_as_a_whole(cluster: AdminCluster) -> None:
    await cluster.create("a", (2,))
    await cluster.create("b", (2,))
    for wanted in (
        [{"name": name, "count": MAX_PARTITIONS_PER_REQUEST // 2 + 2, "assignments": None} for name in "ab"],
        [{"name": "a", "count": 2, "assignments": None}] * (MAX_TOPICS_PER_REQUEST + 1),
    ):
        answer = await cluster.ask("CreatePartitions", 3, topics=wanted)
        assert {result.error_code for result in answer.results} == {E.POLICY_VIOLATION}
    assert [len(cluster.metadata.image.topic(name).partitions) for name in "ab"] == [1, 1]  # type: ignore[union-attr]


@pytest.mark.parametrize("api", ["IncrementalAlterConfigs", "AlterConfigs"])
async def test_too_many_resources_are_refused(cluster: AdminCluster, api: str) -> None:
    resource = {"resource_type": 2, "resource_name": "t", "configs": []}
    for count, code in (
        (MAX_RESOURCES_PER_REQUEST + 1, E.POLICY_VIOLATION),
        (25, E.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        answer = await cluster.ask(api, 1, resources=[resource] * count)
        assert [each.error_code for each in answer.responses] == [code] * count
