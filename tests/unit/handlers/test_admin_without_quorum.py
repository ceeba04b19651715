"""Admin requests without a quorum leader get retriable error codes."""

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


async def test_requests_that_only_read_the_image_succeed(cluster: AdminCluster) -> None:
    await cluster.create("t", (1,))
    await cluster.lose_quorum()
    answer = await cluster.ask("DescribeTopicPartitions", 0, topics=[{"name": "t"}])
    assert [topic.error_code for topic in answer.topics] == [0]
