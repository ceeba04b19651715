"""Admin requests with thousands of entries: refused as Kafka does, or answered in slices."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from admin_cluster import AdminCluster
from loop_steps import LoopSteps
from wire_client import message

from tierlog.broker.handlers.configs import CHANGES_PER_COMMAND
from tierlog.broker.handlers.describe_configs import describe_configs_handler
from tierlog.broker.handlers.limits import MAX_RECORDS_PER_REQUEST
from tierlog.broker.handlers.topics import (
    MAX_PARTITIONS_PER_REQUEST,
    MAX_TOPICS_PER_REQUEST,
    TOPICS_PER_DELETION,
    TOPICS_PER_TURN,
)
from tierlog.broker.handlers.turns import ENTRIES_PER_TURN
from tierlog.metadata.records import ConfigScope
from tierlog.protocol.errors import ErrorCode as E


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
        topics(2, MAX_PARTITIONS_PER_REQUEST) + topics(1, -MAX_PARTITIONS_PER_REQUEST, "less"),
    ],
    ids=["topics", "partitions of one", "partitions of two", "default partitions", "a count below 0"],
)
async def test_too_many_new_topics_are_refused_as_a_whole(
    cluster: AdminCluster, wanted: list[dict[str, Any]]
) -> None:
    answer = await cluster.ask("CreateTopics", 7, topics=wanted, validate_only=True)
    assert [topic.name for topic in answer.topics] == [topic["name"] for topic in wanted]
    assert {topic.error_code for topic in answer.topics} == {E.POLICY_VIOLATION}


async def test_a_count_below_0_is_refused_for_its_topic_alone(cluster: AdminCluster) -> None:
    answer = await cluster.ask(
        "CreateTopics", 7, topics=topics(1, 0) + topics(1, -9, "n") + topics(1, 3, "g")
    )
    codes = {topic.name: topic.error_code for topic in answer.topics}
    assert codes == {"t0": E.INVALID_PARTITIONS, "n0": E.INVALID_PARTITIONS, "g0": E.NONE}


@pytest.mark.parametrize("version", range(2, 8))
async def test_response_of_several_slices_is_complete(cluster: AdminCluster, version: int) -> None:
    wanted = topics(2 * TOPICS_PER_TURN + 1, prefix="t.")
    wanted[3]["configs"] = [{"name": "retention.ms", "value": "7"}]
    wanted += topics(1, prefix="a b") + topics(2, prefix="twice")[:1] * 2
    answer = await cluster.ask("CreateTopics", version, topics=wanted, validate_only=True)
    reported = {topic.name: topic for topic in answer.topics}
    assert set(reported) == {topic["name"] for topic in wanted}
    failed = {name: topic.error_code for name, topic in reported.items() if topic.error_code}
    assert failed == {"a b0": E.INVALID_TOPIC_EXCEPTION, "twice0": E.INVALID_REQUEST}
    if version >= 5:
        retention = [{c.name: c.value for c in reported[f"t.{n}"].configs}["retention.ms"] for n in (2, 3, 4)]
        assert (retention[1], retention[0] == retention[2]) == ("7", True)
        assert reported["t.0"].num_partitions == 1


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


GROUP_SETTING = "consumer.session.timeout.ms"
GROUP, CLIENT_METRICS = 32, 16


def resources(count: int, api: str, **more: Any) -> list[dict[str, Any]]:
    named = [{"resource_type": GROUP, "resource_name": f"g{n}"} for n in range(count)]
    if api == "DescribeConfigs":
        return [one | {"configuration_keys": None} | more for one in named]
    change = {"name": GROUP_SETTING, "value": "50000"} | more
    return [one | {"configs": [change]} for one in named]


@pytest.mark.parametrize("api", ["IncrementalAlterConfigs", "AlterConfigs"])
async def test_too_many_resources_are_refused(cluster: AdminCluster, api: str) -> None:
    resource = {"resource_type": 2, "resource_name": "t", "configs": []}
    for count, code in (
        (MAX_RECORDS_PER_REQUEST + 1, E.POLICY_VIOLATION),
        (25, E.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        answer = await cluster.ask(api, 1, resources=[resource] * count)
        assert [each.error_code for each in answer.responses] == [code] * count


@pytest.mark.parametrize("api", ["IncrementalAlterConfigs", "AlterConfigs"])
async def test_too_many_changes_are_refused(cluster: AdminCluster, api: str) -> None:
    """Even if they are for few resources."""
    changes = [{"name": f"n{n}", "value": "x"} for n in range(MAX_RECORDS_PER_REQUEST // 2 + 1)]
    both = [{"resource_type": 4, "resource_name": name, "configs": changes} for name in ("", "1")]
    answer = await cluster.ask(api, 1, resources=both)
    assert [each.error_code for each in answer.responses] == [E.POLICY_VIOLATION] * 2


@pytest.mark.parametrize("api", ["IncrementalAlterConfigs", "AlterConfigs"])
async def test_resources_of_several_commands_are_changed_in_their_order(
    cluster: AdminCluster, api: str
) -> None:
    count = CHANGES_PER_COMMAND + 1
    requested = resources(count, api)
    requested[7] = {**requested[7], "configs": [{"name": GROUP_SETTING, "value": "soon"}]}
    requested[-1] = requested[3]
    answer = await cluster.ask(api, 1, resources=requested)
    assert [each.resource_name for each in answer.responses] == [each["resource_name"] for each in requested]
    failed = {number: each.error_code for number, each in enumerate(answer.responses) if each.error_code}
    assert failed == {3: E.INVALID_REQUEST, 7: E.INVALID_CONFIG, count - 1: E.INVALID_REQUEST}
    kept = {name for scope, name in cluster.metadata.image.configs if scope is ConfigScope.GROUP}
    assert kept == {f"g{n}" for n in range(count - 1)} - {"g3", "g7"}


@pytest.mark.parametrize("version", range(1, 5))
async def test_resources_are_described_equally_alone_and_in_bulk(cluster: AdminCluster, version: int) -> None:
    await cluster.ask("IncrementalAlterConfigs", 1, resources=resources(30, "alter")[3:5])
    await cluster.create("t", (1,), retention_ms="7", segment_bytes="200000")
    await cluster.create("u", (1,))
    requested = [{"resource_type": 2, "resource_name": name} for name in ("t", "u", "no", "a b")]
    requested += [{"resource_type": CLIENT_METRICS, "resource_name": name} for name in ("s", "")]
    requested += [{"resource_type": 4, "resource_name": name} for name in ("", "1", "2")]
    requested += [{"resource_type": 9, "resource_name": "x"}, *resources(30, "DescribeConfigs")]
    for keys in (None, ["retention.ms", GROUP_SETTING, "message.max.bytes"]):
        each = [one | {"configuration_keys": keys} for one in requested]
        more = {"include_synonyms": True, "include_documentation": True}
        alone = [
            (await cluster.ask("DescribeConfigs", version, resources=[one], **more)).results[0]
            for one in each
        ]
        assert (await cluster.ask("DescribeConfigs", version, resources=each, **more)).results == alone
        assert sum(len(result.configs) > 0 for result in alone) >= 30
    own = [(c.value, c.config_source) for c in alone[-27].configs]
    assert own == [("50000", 8)]
    reported = {c.name: (c.value, c.config_source) for c in alone[0].configs}
    assert reported["retention.ms"] == ("7", 1)


async def test_default_settings_of_many_resources_are_encoded_once(cluster: AdminCluster) -> None:
    """Twenty bytes of a request must not cost ten kilobytes of memory."""
    request = message(
        "DescribeConfigs", {"resources": resources(1000, "DescribeConfigs"), "include_synonyms": True}
    )
    handle = describe_configs_handler(cluster.dependencies)
    reply = await handle(SimpleNamespace(version=4, access=None), request)  # type: ignore[arg-type]
    pieces = {id(part): len(part) for part in reply.parts}
    assert sum(pieces.values()) < 100_000 < 1_000_000 < sum(map(len, reply.parts))


async def test_too_many_resources_are_not_described(cluster: AdminCluster) -> None:
    answer = await cluster.ask(
        "DescribeConfigs", 4, resources=resources(MAX_RECORDS_PER_REQUEST + 1, "DescribeConfigs")
    )
    assert {(result.error_code, len(result.configs)) for result in answer.results} == {
        (E.POLICY_VIOLATION, 0)
    }


@pytest.mark.parametrize("version", [1, 4])
async def test_overlong_value_fails_only_its_resource(tmp_path: Path, version: int) -> None:
    """Such values come from a node's file, or from versions before values were limited."""
    cluster = AdminCluster(tmp_path, **{"broker.rack": "x" * 40_000})
    await cluster.start(1)
    requested = [{"resource_type": 4, "resource_name": "1"}, {"resource_type": GROUP, "resource_name": "g"}]
    node, group = (await cluster.ask("DescribeConfigs", version, resources=requested)).results
    assert (node.error_code, node.configs) == (E.INVALID_CONFIG, [])
    assert "broker.rack" in node.error_message
    assert group.error_code == E.NONE and group.configs
    await cluster.close()


async def test_topics_of_several_commands_are_deleted(cluster: AdminCluster) -> None:
    names = [f"t{n}" for n in range(2 * TOPICS_PER_DELETION)]
    await cluster.ask("CreateTopics", 7, topics=topics(len(names)), timeout_ms=30_000)
    twice, ids = names[::50], cluster.metadata.image.topic_ids
    requested = [{"name": name} for name in [*names, *twice, "no"]] + [{"name": None, "topic_id": ids["t1"]}]
    answer = await cluster.ask("DeleteTopics", 6, topics=requested)
    failed = {(each.name, each.error_code) for each in answer.responses if each.error_code}
    again = {(name, E.INVALID_REQUEST) for name in [*twice, "t1", None]}
    assert failed == again | {("no", E.UNKNOWN_TOPIC_OR_PARTITION)}
    assert set(cluster.metadata.image.topic_ids) == {*twice, "t1"}


@pytest.mark.parametrize("version", range(14))
async def test_metadata_of_many_topics_is_complete(cluster: AdminCluster, version: int) -> None:
    await cluster.create("there", (1,), (2,))
    names = [*(f"t{n}" for n in range(2 * ENTRIES_PER_TURN)), "there", "a b"]
    answer = await cluster.ask("Metadata", version, topics=[{"name": name} for name in names])
    assert [topic.name for topic in answer.topics] == names
    codes = [topic.error_code for topic in answer.topics[-3:]]
    assert codes == [E.UNKNOWN_TOPIC_OR_PARTITION, E.NONE, E.INVALID_TOPIC_EXCEPTION]
    assert len(answer.topics[-2].partitions) == 2 and len(answer.brokers) == 4


MANY = 2_500


@pytest.mark.parametrize(
    ("api", "version", "request_"),
    [
        ("IncrementalAlterConfigs", 1, {"resources": resources(MANY, "alter"), "validate_only": True}),
        ("AlterConfigs", 2, {"resources": resources(MANY, "alter"), "validate_only": True}),
        ("DescribeConfigs", 4, {"resources": resources(MANY, "DescribeConfigs")}),
        ("DeleteTopics", 6, {"topics": [{"name": f"t{n}"} for n in range(MANY)]}),
        ("Metadata", 12, {"topics": [{"name": f"t{n}"} for n in range(MANY)]}),
        ("DescribeTopicPartitions", 0, {"topics": [{"name": f"t{n}"} for n in range(MANY)]}),
        ("DescribeUserScramCredentials", 0, {"users": [{"name": f"u{n}"} for n in range(MANY)]}),
    ],
)
async def test_thousands_of_entries_are_processed_in_turns(
    cluster: AdminCluster, api: str, version: int, request_: dict[str, Any]
) -> None:
    with LoopSteps() as steps:
        await cluster.ask(api, version, **request_)
    assert steps.most < steps.total / 3  # nearly all of it, if it is done in one turn


async def test_keys_of_many_users_are_derived_in_turns(cluster: AdminCluster) -> None:
    upsertions = [
        {"name": f"u{n}", "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": bytes(32)}
        for n in range(MANY)
    ]
    with LoopSteps(functions=["_verifier"]) as steps:
        await cluster.ask("AlterUserScramCredentials", 0, deletions=[], upsertions=upsertions)
    assert steps.total == MANY
    assert steps.most < MANY / 3


async def test_too_many_elements_get_an_error_if_the_api_has_one(
    cluster: AdminCluster,
) -> None:
    moves = [{"name": "t", "partitions": [{"partition_index": 0, "replicas": [1]}]}] * 30_000
    answer = await cluster.ask("AlterPartitionReassignments", 0, topics=moves)
    assert answer.error_code == E.POLICY_VIOLATION and "send fewer" in answer.error_message
    op = {"key": "producer_byte_rate", "value": 1.0, "remove": False}
    entity = {"entity_type": "client-id", "entity_name": "c"}
    with pytest.raises(asyncio.IncompleteReadError):
        await cluster.ask("AlterClientQuotas", 1, entries=[{"entity": [entity], "ops": [op]}] * 30_000)
