"""Admin requests without a quorum leader get retriable error codes."""

import asyncio
from typing import Any

import pytest
from admin_cluster import AdminCluster

from tierlog.protocol.errors import ErrorCode as E

PARTITIONS = [{"topic": "t", "partitions": [0]}]
MOVES = [{"name": "t", "partitions": [{"partition_index": 0, "replicas": [2]}]}]
FORMAT = [{"feature": "tierlog.format", "max_version_level": 1}]


@pytest.mark.parametrize(
    ("api", "request_fields"),
    [
        ("ElectLeaders", {"topic_partitions": PARTITIONS}),
        ("AlterPartitionReassignments", {"topics": MOVES}),
        ("ListPartitionReassignments", {"topics": None}),
        ("UpdateFeatures", {"feature_updates": FORMAT}),
    ],
)
async def test_requests_to_the_controller_get_a_retriable_error(
    cluster: AdminCluster, api: str, request_fields: dict[str, Any]
) -> None:
    await cluster.create("t", (1,))
    await cluster.lose_quorum()
    answer = await cluster.ask(api, 0, timeout_ms=1, **request_fields)
    if api == "ElectLeaders":  # version 0 has no top-level error code
        answer = answer.replica_election_results[0].partition_result[0]
    assert answer.error_code == E.NOT_CONTROLLER


LONGER_S = 15.0
"""Half of the time for which the handlers wait for a quorum if the client allows it."""


@pytest.mark.parametrize(
    ("api", "version", "results", "request_fields"),
    [
        ("CreateTopics", 7, "topics", {"topics": [{"name": "new"}]}),
        ("DeleteTopics", 6, "responses", {"topics": [{"name": "t"}]}),
        ("CreatePartitions", 3, "results", {"topics": [{"name": "t", "count": 2, "assignments": None}]}),
    ],
)
async def test_changes_of_topics_end_with_the_timeout_of_the_client(
    cluster: AdminCluster, api: str, version: int, results: str, request_fields: dict[str, Any]
) -> None:
    await cluster.create("t", (1,))
    await cluster.lose_quorum()
    async with asyncio.timeout(LONGER_S):
        answer = await cluster.ask(api, version, timeout_ms=1, **request_fields)
    assert [result.error_code for result in getattr(answer, results)] == [E.NOT_CONTROLLER]


async def test_requests_that_only_read_the_image_succeed(cluster: AdminCluster) -> None:
    await cluster.create("t", (1,))
    await cluster.lose_quorum()
    answer = await cluster.ask("DescribeTopicPartitions", 0, topics=[{"name": "t"}])
    assert [topic.error_code for topic in answer.topics] == [0]
