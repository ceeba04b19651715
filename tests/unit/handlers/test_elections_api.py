"""ElectLeaders: preferred and unclean elections, for some partitions and for all."""

from typing import Any

import pytest
from admin_cluster import AdminCluster

from tierlog.protocol.errors import ErrorCode as E

PREFERRED, UNCLEAN = 0, 1


async def elect(
    cluster: AdminCluster, partitions: dict[str, list[int]] | None, kind: int = PREFERRED, version: int = 2
) -> Any:
    requested = None
    if partitions is not None:
        requested = [{"topic": name, "partitions": numbers} for name, numbers in partitions.items()]
    fields = {"election_type": kind} if version else {}
    return await cluster.ask("ElectLeaders", version, topic_partitions=requested, **fields)


def outcomes(answer: Any) -> dict[str, E]:
    assert answer.error_code == E.NONE
    return {
        f"{topic.topic}-{one.partition_id}": E(one.error_code)
        for topic in answer.replica_election_results
        for one in topic.partition_result
    }


async def restarted(cluster: AdminCluster, broker_id: int) -> None:
    """Restart the broker: others become leaders, and it rejoins the in-sync replicas."""
    await cluster.fence(broker_id)
    await cluster.fence(broker_id, False)


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_preferred_leader_is_elected(cluster: AdminCluster, version: int) -> None:
    await cluster.create("t", (2, 3), (3, 2))
    await restarted(cluster, 2)
    assert cluster.partition("t").leader == 3
    code = outcomes(await elect(cluster, {"t": [0]}, version=version))
    assert code == {"t-0": E.PREFERRED_LEADER_NOT_AVAILABLE}  # it is not in sync yet
    await cluster.in_sync("t", 0, 2, 3)
    answer = await elect(cluster, {"t": [0, 1, 7], "nope": [0]}, version=version)
    assert outcomes(answer) == {
        "t-0": E.NONE,
        "t-1": E.ELECTION_NOT_NEEDED,
        "t-7": E.UNKNOWN_TOPIC_OR_PARTITION,
        "nope-0": E.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert cluster.partition("t").leader == 2


async def test_election_of_all_partitions_lists_only_those_that_need_one(cluster: AdminCluster) -> None:
    await cluster.create("t", (2, 3), (3, 2))
    await cluster.create("u", (2, 1))
    await restarted(cluster, 2)
    await cluster.in_sync("u", 0, 1, 2)
    assert outcomes(await elect(cluster, None)) == {"t-0": E.PREFERRED_LEADER_NOT_AVAILABLE, "u-0": E.NONE}
    assert outcomes(await elect(cluster, {})) == {}


async def test_an_unclean_election_needs_the_setting(cluster: AdminCluster) -> None:
    await cluster.create("t", (2, 3), min_insync_replicas="1")
    await cluster.in_sync("t", 0, 2)
    await cluster.fence(2)
    assert cluster.partition("t").leader == -1
    assert outcomes(await elect(cluster, {"t": [0]}, UNCLEAN)) == {"t-0": E.ELIGIBLE_LEADERS_NOT_AVAILABLE}
    await cluster.fence(2, False)
    assert outcomes(await elect(cluster, {"t": [0]}, UNCLEAN)) == {"t-0": E.ELECTION_NOT_NEEDED}


async def test_unknown_election_type_is_refused(cluster: AdminCluster) -> None:
    await cluster.create("t", (1,))
    answer = await elect(cluster, {"t": [0]}, 2)
    assert answer.error_code == E.INVALID_REQUEST
    assert answer.replica_election_results[0].partition_result[0].error_code == E.INVALID_REQUEST


async def test_repeated_partitions_are_answered_once_and_limited(cluster: AdminCluster) -> None:
    await cluster.create("t", (1,))
    assert outcomes(await elect(cluster, {"t": [0] * 20_000})) == {"t-0": E.ELECTION_NOT_NEEDED}
    assert (await elect(cluster, {"t": list(range(10_001))})).error_code == E.POLICY_VIOLATION
