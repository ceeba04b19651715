"""Responses to denied requests, and to requests of which some items are denied, in Kafka and in tierlog."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from access_cases import (
    HOST,
    REQUESTS,
    SETTINGS,
    Acls,
    arrays_of,
    permissions_for,
    request_for_both,
    rows_of,
)
from every_request import Place, place_for
from kafka_comparison import plain
from kafka_process import KafkaProcess
from waiting import until
from wire_client import Client, message

from tierlog.broker.handlers.table import SERVED
from tierlog.protocol.api import BY_NAME
from tierlog.testing import TierlogBroker

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(240)]

STABLE = {"InitProducerId": 5}
"""The latest version that Kafka serves, if tierlog has a later one."""
OTHERS: dict[str, Callable[[Place], dict[str, Any]]] = {
    "DescribeUserScramCredentials": lambda place: {"users": [{"name": place.topic}]}
}
"""Kafka does not respond if a denied request is about all users."""
REPEATED = {"ListPartitionReassignments": "topics", "DescribeUserScramCredentials": "results"}
"""APIs whose denied response in Kafka also has items, which for users lack the names, and their array."""
CASES = sorted(
    {
        (name, version)
        for name in SERVED
        for version in (BY_NAME[name].min_version, min(BY_NAME[name].max_version, STABLE.get(name, 99)))
        if rows_of(name, version)
    }
)


class Side:
    """A broker with an authorizer."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = Client(bootstrap)
        self.acls = Acls(self.admin)

    def place(self, api: str) -> Place:
        """Kafka's coordinators are not ready at once."""
        made: list[Place] = []

        def is_made() -> bool:
            with suppress(AssertionError):
                made.append(place_for(self.admin, api))
            return bool(made)

        until(is_made, "the coordinators are ready")
        self.admin.wait_for_leaders(made[0].topic)
        return made[0]

    def ask(self, api: str, version: int, request: Any) -> Any:
        """The response to a client of HOST: on a connection of its own, which Kafka may close."""
        client = Client(self.bootstrap, HOST)
        try:
            return client.send(api, version, request)
        finally:
            client.close()


@pytest.fixture(scope="module")
def sides(java_classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    more = "".join(f"{name}={value}\n" for name, value in SETTINGS.items())
    kafka = KafkaProcess(java_classpath, tmp_path_factory.mktemp("kafka"), more=more)
    try:
        with TierlogBroker(tmp_path_factory.mktemp("node") / "node", SETTINGS) as broker:
            both = Side(kafka.bootstrap), Side(broker.bootstrap)
            yield both
            for side in both:
                side.admin.close()
    finally:
        kafka.stop()


def shown(answer: Any, place: Place) -> str:
    producer = f"'producer_id': {place.producer_id},"
    return repr(plain(answer, place.topic)).replace(producer, "'producer_id': 1,")


def denied(side: Side, api: str, version: int) -> str:
    place = side.place(api)
    with side.acls.granted():
        return shown(side.ask(api, version, message(api, (REQUESTS | OTHERS)[api](place))), place)


@pytest.mark.parametrize(("api", "version"), CASES)
def test_denied_requests_have_kafkas_response(sides: tuple[Side, Side], api: str, version: int) -> None:
    by_kafka, by_tierlog = (denied(side, api, version) for side in sides)
    if api in REPEATED:
        by_kafka, by_tierlog = (text.partition(f"'{REPEATED[api]}'")[0] for text in (by_kafka, by_tierlog))
    assert by_tierlog == by_kafka


def denied_in_part(side: Side, api: str, version: int) -> list[tuple[str, ...]]:
    permitted, other = side.place(api), side.place(api)
    request = request_for_both(api, version, permitted, other)
    with side.acls.granted(*permissions_for(rows_of(api, version), permitted)):
        answer = side.ask(api, version, request)
    names = {permitted.topic: "permitted", other.topic: "denied"}
    return sorted(
        tuple(next((new for old, new in names.items() if old in each), each) for each in found)
        for found in outcomes(plain(answer, "no such name"))
    )


def outcomes(answer: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The error code of each item, behind the names of the items around it."""
    if isinstance(answer, list):
        for each in answer:
            yield from outcomes(each, above)
    elif isinstance(answer, dict):
        named = (*above, *(answer[name] for name in NAMES if isinstance(answer.get(name), str)))
        if "error_code" in answer:
            yield (*named, answer["error_code"])
        for value in answer.values():
            yield from outcomes(value, named)


NAMES = ("name", "topic", "topic_id", "group_id", "resource_name", "key", "transactional_id")


@pytest.mark.parametrize(("api", "version"), [case for case in CASES if arrays_of(*case)])
def test_requests_denied_in_part_have_kafkas_errors(sides: tuple[Side, Side], api: str, version: int) -> None:
    by_kafka, by_tierlog = (denied_in_part(side, api, version) for side in sides)
    assert by_tierlog == by_kafka
