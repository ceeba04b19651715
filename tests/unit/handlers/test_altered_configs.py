"""Dynamic node settings: validated with the node's file, and shown by DescribeConfigs."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from admin_cluster import AdminCluster

from tierlog.protocol.errors import ErrorCode as E

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE = 0, 1
OF_THE_BROKER, OF_THE_CLUSTER, OF_THE_FILE, DEFAULT, OF_THE_GROUP = 2, 3, 4, 5, 8


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[AdminCluster]:
    cluster = AdminCluster(tmp_path, **{"log.retention.ms": "10", "log.local.retention.ms": "11"})
    await cluster.start(1)
    yield cluster
    await cluster.close()


@pytest.mark.parametrize("resource", ["", "1"], ids=["of all", "of one"])
async def test_change_is_refused_only_for_its_own_inconsistency(cluster: AdminCluster, resource: str) -> None:
    assert await alter(cluster, resource, "message.max.bytes", "5000") == E.NONE
    assert await alter(cluster, resource, "max.connections.per.ip.overrides", "here:5") == E.INVALID_REQUEST
    assert await alter(cluster, resource, "log.local.retention.ms", "9") == E.NONE
    assert await alter(cluster, resource, "log.local.retention.ms", "12") == E.INVALID_REQUEST


@pytest.mark.parametrize("resource", ["", "1"], ids=["of all", "of one"])
@pytest.mark.parametrize("name", ["num.network.threads", "num.recovery.threads.per.data.dir"])
async def test_thread_counts_change_in_steps(cluster: AdminCluster, resource: str, name: str) -> None:
    """Even for settings without effect, so that scripts fail as with Kafka (KIP-226)."""
    counts = ("100000", "4", "8", "3")
    outcomes = [await alter(cluster, resource, name, count) for count in counts]
    assert outcomes == [E.INVALID_REQUEST, E.NONE, E.NONE, E.INVALID_REQUEST]
    assert (
        await alter(cluster, resource, name, None) == E.INVALID_REQUEST
    )  # the default is less than half of 8
    assert await alter(cluster, resource, name, "4") == await alter(cluster, resource, name, None) == E.NONE


async def test_unclean_election_of_one_broker_is_shown_without_effect(cluster: AdminCluster) -> None:
    name = "unclean.leader.election.enable"
    await cluster.create("t")
    assert await alter(cluster, "1", name, "true") == E.NONE
    assert await described(cluster, BROKER, "1", name) == ("true", OF_THE_BROKER)
    assert await described(cluster, TOPIC, "t", name) == ("false", DEFAULT)


@pytest.mark.parametrize(
    ("name", "has_effect"),
    [
        ("num.replica.fetchers", True),
        ("log.cleaner.threads", False),
        ("metric.reporters", False),
        ("my.own.setting", False),
    ],
)
async def test_documentation_of_an_inert_setting_says_so(
    cluster: AdminCluster, name: str, has_effect: bool
) -> None:
    assert await alter(cluster, "1", name, "2") == E.NONE
    requested = {"resource_type": BROKER, "resource_name": "1", "configuration_keys": [name]}
    answer = await cluster.ask("DescribeConfigs", 4, resources=[requested], include_documentation=True)
    [found] = answer.results[0].configs
    assert found.documentation and ("it has no effect" in found.documentation) is not has_effect


async def test_settings_of_a_group_are_bounded_by_those_of_the_broker(tmp_path: Path) -> None:
    cluster = AdminCluster(
        tmp_path,
        **{
            "group.consumer.min.session.timeout.ms": "6000",
            "group.consumer.min.heartbeat.interval.ms": "1000",
            "group.consumer.session.timeout.ms": "20000",
        },
    )
    await cluster.start(1)
    session, heartbeat = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    outcomes = [
        await alter(cluster, "g", name, value, GROUP)
        for name, value in (
            (session, "5999"),
            (session, "60001"),
            (session, "5000"),
            (session, "6000"),
            (heartbeat, "6000"),
            (heartbeat, "15001"),
            (heartbeat, "1000"),
            ("consumer.assignment.interval.ms", "15001"),
        )
    ]
    bad = E.INVALID_CONFIG
    assert outcomes == [bad, bad, bad, E.NONE, bad, bad, E.NONE, bad]
    assert await described(cluster, GROUP, "g", session) == ("6000", OF_THE_GROUP)
    assert await described(cluster, GROUP, "another", session) == ("20000", OF_THE_FILE)
    assert await described(cluster, GROUP, "another", heartbeat) == ("5000", DEFAULT)
    await cluster.close()


async def test_assignment_interval_of_all_groups_changes_while_brokers_run(cluster: AdminCluster) -> None:
    name = "group.consumer.assignment.interval.ms"
    assert await alter(cluster, "", name, "70") == E.NONE
    assert await described(cluster, GROUP, "g", name.removeprefix("group.")) == ("70", OF_THE_CLUSTER)
    assert await alter(cluster, "", name, "15001") == E.INVALID_REQUEST


async def alter(
    cluster: AdminCluster, resource: str, name: str, value: str | None, kind: int = BROKER
) -> int:
    change = {"name": name, "config_operation": DELETE if value is None else SET, "value": value}
    requested = {"resource_type": kind, "resource_name": resource, "configs": [change]}
    answer = await cluster.ask("IncrementalAlterConfigs", 1, resources=[requested], validate_only=False)
    return int(answer.responses[0].error_code)


async def described(cluster: AdminCluster, kind: int, resource: str, name: str) -> tuple[str, int]:
    requested = {"resource_type": kind, "resource_name": resource, "configuration_keys": [name]}
    answer = await cluster.ask("DescribeConfigs", 4, resources=[requested])
    [found] = answer.results[0].configs
    return found.value, found.config_source
