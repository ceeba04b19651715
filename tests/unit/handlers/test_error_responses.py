"""Error responses of whole requests: one for each API that a node serves, where Kafka has it."""

from collections import Counter
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from tierlog.broker.handlers.context import Connection, RequestContext
from tierlog.broker.handlers.error_counts import counter_of
from tierlog.broker.handlers.error_responses import error_reply
from tierlog.broker.handlers.ordering import ORDERS
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.codec import decode, encode
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.schema import Field, StructType

TEXT, NUMBER, ID = "name", 7, UUID(int=7)
VALUES = {"string": TEXT, "uuid": ID, "bytes": b"", "records": b"", "bool": False, "float64": 1.0}
OTHER_ITEMS = {"DescribeLogDirs": range(1, 3)}
CODE = ErrorCode.NOT_CONTROLLER


def filled(kind: StructType, version: int) -> Any:
    """A struct whose strings are all "name" and whose numbers are all 7, with two elements in each array."""
    return kind(**{field.name: value_of(field, version) for field in kind.FIELDS if field.exists_in(version)})


def value_of(field: Field, version: int) -> Any:
    one = filled(field.nested, version) if field.nested else VALUES.get(field.type, NUMBER)
    return [one, one] if field.array else one


def answer(name: str, version: int, request: Any) -> Any:
    api = BY_NAME[name]
    context = RequestContext(api.key, version, 1, "c", Connection(1, "h", 1))
    reply = error_reply(context, request, CODE, "why")
    return None if reply is None else decode(api.response, version, encode(reply, version))


@pytest.mark.parametrize("name", sorted(ORDERS))
def test_every_version_of_an_api_carries_the_error(name: str) -> None:
    api = BY_NAME[name]
    counted: Counter[int] = Counter()
    count = counter_of(api.response, counted)
    assert count is not None
    for version in range(api.min_version, api.max_version + 1):
        reply = answer(name, version, filled(api.request, version))
        assert (reply is None) == (version in OTHER_ITEMS.get(name, ()))
        if reply is not None:
            counted.clear()
            count(reply)
            assert set(counted) == {CODE}


@pytest.mark.parametrize("version", [3, 12, 13])
def test_items_are_identified_as_in_the_request(version: int) -> None:
    reply = answer("Produce", version, filled(BY_NAME["Produce"].request, version))
    assert len(reply.responses) == 2
    topic = reply.responses[1]
    assert (topic.name, topic.topic_id) == ((TEXT, UUID(int=0)) if version < 13 else ("", ID))
    assert [(item.index, item.error_code, item.base_offset) for item in topic.partition_responses] == [
        (NUMBER, CODE, -1)
    ] * 2


@pytest.mark.parametrize(
    ("name", "version", "array", "identity"),
    [
        ("AlterConfigs", 2, "responses", {"resource_type": NUMBER, "resource_name": TEXT}),
        ("CreateTopics", 7, "topics", {"name": TEXT, "num_partitions": -1, "error_message": "why"}),
        ("DeleteGroups", 2, "results", {"group_id": TEXT}),
        ("DeleteTopics", 5, "responses", {"name": TEXT}),
        ("DeleteTopics", 6, "responses", {"name": TEXT, "topic_id": ID}),
        ("FindCoordinator", 4, "coordinators", {"key": TEXT, "node_id": -1, "port": -1}),
        ("OffsetFetch", 8, "groups", {"group_id": TEXT, "topics": []}),
    ],
)
def test_an_item_has_an_identity_and_no_result(
    name: str, version: int, array: str, identity: dict[str, Any]
) -> None:
    items = getattr(answer(name, version, filled(BY_NAME[name].request, version)), array)
    assert [{key: getattr(item, key) for key in identity} for item in items] == [identity] * 2


def test_users_of_deletions_and_upsertions_have_one_item_each() -> None:
    api = BY_NAME["AlterUserScramCredentials"]
    request = filled(api.request, 0)
    request.upsertions[0] = replace(request.upsertions[0], name="other")
    results = answer("AlterUserScramCredentials", 0, request).results
    assert {(each.user, each.error_code) for each in results} == {(TEXT, CODE), ("other", CODE)}
    assert len(results) == 2


def test_numbers_and_entities_identify_items_too() -> None:
    [election, _] = answer(
        "ElectLeaders", 2, filled(BY_NAME["ElectLeaders"].request, 2)
    ).replica_election_results
    assert (election.topic, [item.partition_id for item in election.partition_result]) == (TEXT, [7, 7])
    request = filled(BY_NAME["AlterClientQuotas"].request, 1)
    assert answer("AlterClientQuotas", 1, request).entries[0].entity == request.entries[0].entity
    assert (
        answer("DescribeClientQuotas", 1, filled(BY_NAME["DescribeClientQuotas"].request, 1)).entries is None
    )


@pytest.mark.parametrize(
    ("name", "version", "array"), [("Fetch", 7, "responses"), ("OffsetFetch", 2, "topics")]
)
def test_an_error_at_the_top_level_is_not_repeated(name: str, version: int, array: str) -> None:
    request = filled(BY_NAME[name].request, version)
    assert getattr(answer(name, version, request), array) == []
    assert len(getattr(answer(name, BY_NAME[name].min_version, request), array)) == 2
