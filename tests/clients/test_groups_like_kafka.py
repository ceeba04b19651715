"""Sends the same requests about groups to Apache Kafka and to tierlog and compares the responses.

Left out of the comparison are addresses, ids, the wording of messages and the order of members. Member ids
are compared by the JoinGroup that returned them.
"""

import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from config_cases import GROUP as GROUP_RESOURCE
from config_cases import alter_of, wait_for_configs
from consumer_group_cases import CONSUMER_GROUP_CASES, GROUP
from group_cases import GROUP_CASES, Ask, Post, Take, Until, commit
from kafka_comparison import plain
from kafka_process import KafkaProcess
from wire_client import LOADING, Client, message

from tierlog.testing import TierlogBroker

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(240)]

CASES = GROUP_CASES | CONSUMER_GROUP_CASES
CONNECTIONS = (1, 2, 3)
RANDOM_PART = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
UNORDERED = {"members", "groups", "topics", "partitions", "results"}


@pytest.fixture(scope="module")
def tierlog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TierlogBroker]:
    """With Kafka's interval of heartbeats, which a broker with few members would shorten (ADR 0057)."""
    settings = {
        "group.initial.rebalance.delay.ms": 0,
        "group.consumer.heartbeats.per.second": 0,
        "offsets.topic.num.partitions": 1,
    }
    with TierlogBroker(tmp_path_factory.mktemp("broker"), settings) as broker:
        yield broker


@pytest.mark.parametrize("case", CASES)
def test_responses_about_groups_equal_kafkas(kafka: KafkaProcess, tierlog: TierlogBroker, case: str) -> None:
    by_kafka, by_tierlog = (list(conversation(each.bootstrap, case)) for each in (kafka, tierlog))
    steps = zip(CASES[case], by_kafka, by_tierlog, strict=True)
    assert [each for each in steps if each[1] != each[2]] == []


def conversation(bootstrap: str, case: str) -> Iterator[Any]:
    """The response of each step, None for a step without one."""
    clients = {number: Client(bootstrap) for number in CONNECTIONS}
    topic = prepared(clients[1])
    names = {"t": topic, "id": str(topic_id(clients[1], topic))}
    names |= {f"m{number}": "" for number in CONNECTIONS}
    try:
        for step in CASES[case]:
            match step:
                case Ask(api, version, request, client):
                    response = clients[client].send(api, version, message(api, request, **names))
                    yield comparable(api, client, response, names)
                case Post(api, version, request, client):
                    clients[client].post(api, version, message(api, request, **names))
                    yield None
                case Take(api, version, client):
                    yield comparable(api, client, clients[client].receive(api, version), names)
                case Until(state, group):
                    request = message("DescribeGroups", {"groups": [group]}, **names)
                    while clients[3].send("DescribeGroups", 6, request).groups[0].group_state != state:
                        pass
                    yield None
    finally:
        for each in clients.values():
            each.close()


def prepared(client: Client) -> str:
    """A topic of two partitions, and a group that committed an offset."""
    topic = client.create(partitions=2, retention_ms="-1")
    client.wait_for_leaders(topic, partitions=2)
    client.coordinator(topic)
    request = message("OffsetCommit", commit(group="$t"), t=topic)
    while client.send("OffsetCommit", 8, request).topics[0].partitions[0].error_code in LOADING:
        pass
    assign_at_once = alter_of(GROUP_RESOURCE, GROUP, "consumer.assignment.interval.ms", "0")
    request = message("IncrementalAlterConfigs", assign_at_once, t=topic)
    wait_for_configs(client, request, client.send("IncrementalAlterConfigs", 1, request))
    request = message("FindCoordinator", {"key": topic, "key_type": 1})
    while client.send("FindCoordinator", 3, request).error_code in LOADING:
        pass
    return topic


def topic_id(client: Client, topic: str) -> uuid.UUID:
    found = client.send("Metadata", 12, message("Metadata", {"topics": [{"name": topic}]})).topics[0].topic_id
    assert isinstance(found, uuid.UUID)
    return found


def comparable(api: str, client: int, response: Any, names: dict[str, str]) -> Any:
    if api == "JoinGroup" and response.member_id:
        names[f"m{client}"] = response.member_id
    found = plain(response, names["t"])
    if api == "ListGroups":
        found["groups"] = [group for group in found["groups"] if group["group_id"].startswith("$t")]
    return api, without_random_parts(found, names)


def without_random_parts(value: Any, names: dict[str, str], name: str = "") -> Any:
    if isinstance(value, dict):
        return {field: without_random_parts(each, names, field) for field, each in value.items()}
    if isinstance(value, list):
        found = [without_random_parts(each, names, name) for each in value]
        return sorted(found, key=repr) if name in UNORDERED else found
    if isinstance(value, bytes):
        return value.replace(names["t"].encode(), b"$t")
    if isinstance(value, str):
        for key, member in names.items():
            value = value.replace(member, f"${key}") if key[0] == "m" and member else value
        return RANDOM_PART.sub("<random>", value)
    return value
