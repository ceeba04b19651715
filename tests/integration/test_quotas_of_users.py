"""Quotas of users that log in: they bind these users with all their clients, and no others."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic
from scram_broker import ScramBroker
from scraping import scraped
from waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SHORT_WINDOWS: dict[str, object] = {"quota.window.num": 2, "controller.quota.window.num": 2}
TOPIC = "flights"
LEVELS: list[tuple[list[str], tuple[str, str]]] = [
    (["--client-defaults"], ("", "app")),
    (["--client-id", "app"], ("", "app")),
    (["--user-defaults"], ("ada", "")),
    (["--user-defaults", "--client-defaults"], ("ada", "app")),
    (["--user-defaults", "--client-id", "app"], ("ada", "app")),
    (["--user", "ada"], ("ada", "")),
    (["--user", "ada", "--client-defaults"], ("ada", "app")),
    (["--user", "ada", "--client-id", "app"], ("ada", "app")),
]
"""Kafka's order, the least specific first, and the user and client id of the account that is charged."""
LOW, HIGH = 10, 10**12


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScramBroker]:
    node = ScramBroker(tmp_path_factory.mktemp("quotas"), SHORT_WINDOWS, "ada", "bob")
    with node.broker:
        node.admin().create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(60)
        yield node


@pytest.fixture
def node(shared: ScramBroker) -> Iterator[ScramBroker]:
    """The shared broker, whose quotas end with the test."""
    yield shared
    names = {"user": ("--user", "--user-defaults"), "client-id": ("--client-id", "--client-defaults")}
    for row in quotas(shared):
        words: list[str] = []
        for kind, name in row["entity"].items():
            words += [names[kind][1]] if name is None else [names[kind][0], name]
        shared.tierlog("quota", "remove", *words)


def quotas(node: ScramBroker, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(node.tierlog("quota", "list", *words, "--json").stdout)
    return found


class Writer:
    """A producer of a user, and the throttle times that the broker gave it."""

    def __init__(self, node: ScramBroker, user: str, client_id: str) -> None:
        self.throttled_ms: list[float] = []
        self._producer = Producer(
            node.login(user)
            | {
                "client.id": client_id,
                "linger.ms": 0,
                "throttle_cb": lambda event: self.throttled_ms.append(event.throttle_time * 1000),
            }
        )

    def send(self, size: int = 1000) -> None:
        """Produce one record and wait until it is acknowledged."""
        self._producer.produce(TOPIC, b"x" * size)
        assert self._producer.flush(60) == 0

    @property
    def is_throttled(self) -> bool:
        self._producer.poll(0.01)
        return any(self.throttled_ms)


def account_values(node: ScramBroker, family: str) -> dict[tuple[str, str], float]:
    """Values of a metric by user and client id of its accounts."""
    found = (
        (dict(labels), value) for (name, labels), value in scraped(node.broker).items() if name == family
    )
    return {(labels["user"], labels["client_id"]): value for labels, value in found}


def accounts(node: ScramBroker, family: str) -> set[tuple[str, str]]:
    return set(account_values(node, family))


@pytest.mark.parametrize("count", range(1, len(LEVELS) + 1), ids=lambda count: " ".join(LEVELS[count - 1][0]))
def test_most_specific_of_the_eight_levels_binds(node: ScramBroker, count: int) -> None:
    *less_specific, (words, account) = LEVELS[:count]
    for others, _ in less_specific:
        node.tierlog("quota", "set", *others, f"producer_byte_rate={HIGH}")
    node.tierlog("quota", "set", *words, f"producer_byte_rate={LOW}")
    writer = Writer(node, "ada", "app")
    writer.send()
    until(lambda: writer.is_throttled, f"{words} binds")
    assert account in accounts(node, "kafka_server_produce_byte_rate")
    for more_specific, _ in LEVELS[count:]:
        node.tierlog("quota", "set", *more_specific, f"producer_byte_rate={HIGH}")
    if count < len(LEVELS):  # the others win, as each of them would
        exempt = Writer(node, "ada", "app")
        exempt.send()
        assert not exempt.is_throttled


def test_produce_quota_of_a_user_binds_all_its_clients_and_no_other_user(node: ScramBroker) -> None:
    node.tierlog("quota", "set", "--user", "ada", "producer_byte_rate=100000")
    first, second, other = (
        Writer(node, *names) for names in (("ada", "one"), ("ada", "two"), ("bob", "one"))
    )
    for _ in range(3):
        first.send(90_000)
        second.send(90_000)
    until(lambda: first.is_throttled and second.is_throttled, "both clients of ada are throttled")
    for _ in range(20):
        other.send(90_000)
    assert not other.is_throttled
    assert accounts(node, "kafka_server_produce_byte_rate") == {("ada", "")}


def test_fetch_quota_of_a_user_binds_no_other_user(node: ScramBroker) -> None:
    writer = Writer(node, "bob", "filler")
    for _ in range(4):
        writer.send(100_000)
    node.tierlog("quota", "set", "--user", "ada", "consumer_byte_rate=50000")
    throttled: dict[str, list[float]] = {"ada": [], "bob": []}
    for user, times in throttled.items():
        consumer = Consumer(
            node.login(user)
            | {
                "group.id": user,
                "fetch.message.max.bytes": 100_000,
                "throttle_cb": lambda event, times=times: times.append(event.throttle_time),
            }
        )
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        received = 0
        while received < 4 or (user == "ada" and not any(times)):
            received += sum(message.error() is None for message in consumer.consume(1, 1.0))
        consumer.close()
    assert any(throttled["ada"]) and not any(throttled["bob"])
    assert accounts(node, "kafka_server_fetch_byte_rate") == {("ada", "")}


def test_request_quota_of_a_user_binds_no_other_user(node: ScramBroker) -> None:
    ada, bob = writers = Writer(node, "ada", "app"), Writer(node, "bob", "app")
    for writer in writers:  # a login is charged, too, and would wait for seconds
        writer.send()
    node.tierlog("quota", "set", "--user", "ada", "request_percentage=0.001")
    for writer in writers:
        for _ in range(3):
            writer.send()
    until(lambda: ada.is_throttled, "ada is throttled")
    assert not bob.is_throttled
    assert accounts(node, "kafka_server_request_request_time") == {("ada", "")}


def test_mutation_quota_of_a_user_binds_no_other_user(node: ScramBroker) -> None:
    node.tierlog("quota", "set", "--user", "ada", "controller_mutation_rate=0.01")
    for name in ("ada-0", "bob-0", "bob-1"):
        user, _, _ = name.partition("-")
        node.admin(user).create_topics([NewTopic(name, 10)])[name].result(60)
    [(account, tokens)] = account_values(node, "kafka_server_controllermutation_tokens").items()
    assert account == ("ada", "")
    assert -10 <= tokens < -9  # a connection of ada waits for a thousand seconds


def test_quotas_of_users_are_described_by_name_and_default(node: ScramBroker) -> None:
    node.tierlog("quota", "set", "--user", "ada", "--client-id", "app", "producer_byte_rate=1000")
    node.tierlog("quota", "set", "--user-defaults", "producer_byte_rate=2000")
    assert quotas(node, "--user", "ada") == [
        {"entity": {"user": "ada", "client-id": "app"}, "quotas": {"producer_byte_rate": 1000}}
    ]
    assert quotas(node, "--user-defaults") == [
        {"entity": {"user": None}, "quotas": {"producer_byte_rate": 2000}}
    ]
