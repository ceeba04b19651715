"""Quotas with real clients: a client above its quota is throttled, and other clients are not affected."""

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Producer
from kafka import KafkaConsumer
from wire_client import Client, message

from tierlog.broker.gateway.catalogue import CLIENT, SECTIONS
from tierlog.cli import quotas
from tierlog.cli.client import KafkaClient
from tierlog.cli.quotas import Entity
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.fetch import FetchResponse
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.testing import TierlogBroker

TIMEOUT_S = 90.0
SHORT_WINDOWS = {"quota.window.num": 2, "controller.quota.window.num": 2}
"""A burst of one second's quota is allowed and expires after two, so that tests wait only briefly."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TierlogBroker]:
    with TierlogBroker(tmp_path_factory.mktemp("quotas") / "broker", SHORT_WINDOWS) as broker:
        yield broker


@pytest.fixture
def broker(shared: TierlogBroker) -> Iterator[TierlogBroker]:
    """The shared broker without quotas, and therefore without recorded usage."""
    yield shared
    with KafkaClient(shared.bootstrap) as admin:
        for row in quotas.rows(admin, {}):
            quotas.change(admin, row["entity"], dict.fromkeys(row["quotas"]))


@pytest.fixture
def client(broker: TierlogBroker) -> Iterator[Client]:
    """Its client id is `test`."""
    client = Client(broker.bootstrap)
    yield client
    client.close()


def limit(broker: TierlogBroker, entity: Entity, **values: float) -> None:
    with KafkaClient(broker.bootstrap) as admin:
        quotas.change(admin, entity, values)


def batch(size: int) -> bytes:
    return bytes(encode_batch([NewRecord(1_700_000_000_000, None, b"v" * size, ())]))


def metrics(broker: TierlogBroker) -> list[str]:
    with urllib.request.urlopen(f"{broker.admin_url}/metrics", timeout=60) as answer:
        return answer.read().decode().splitlines()


class Throttled:
    """A librdkafka producer and its reported throttle times."""

    def __init__(self, broker: TierlogBroker, client_id: str) -> None:
        self.told_ms: list[float] = []
        self.delivered = 0
        self._producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "client.id": client_id,
                "throttle_cb": lambda event: self.told_ms.append(event.throttle_time * 1000),
                "linger.ms": 0,
            }
        )

    def send(self, topic: str, value: bytes) -> None:
        self._producer.produce(topic, value, on_delivery=self._delivered)

    def flush(self) -> None:
        assert self._producer.flush(TIMEOUT_S) == 0

    def poll(self) -> None:
        self._producer.poll(0.01)

    def close(self) -> None:
        del self._producer

    def _delivered(self, error: Any, _: Any) -> None:
        assert error is None
        self.delivered += 1


def test_one_producer_is_throttled_and_another_is_not(broker: TierlogBroker, client: Client) -> None:
    topic = client.create()
    limit(broker, {"client-id": "slow"}, producer_byte_rate=100_000)
    slow, fast = Throttled(broker, "slow"), Throttled(broker, "fast")
    slow.send(topic, b"x" * 900_000)  # nine seconds' worth: it is muted for eight
    slow.flush()
    while not any(slow.told_ms):
        slow.poll()
    for number in range(2_000):
        fast.send(topic, b"%d" % number)
    fast.flush()
    muted = [line for line in metrics(broker) if line.startswith("tierlog_connections_muted ")]
    assert (slow.delivered, fast.delivered, muted) == (1, 2_000, ["tierlog_connections_muted 1"])
    assert 7_000 < max(slow.told_ms) <= 8_100
    assert not any(fast.told_ms)
    slow.close()
    fast.close()


def test_metrics_show_quotas_and_throttle_times(broker: TierlogBroker, client: Client) -> None:
    bounds = {"consumer_byte_rate": 1e9, "request_percentage": 1e6, "controller_mutation_rate": 100.0}
    limit(broker, {"client-id": None}, producer_byte_rate=100, **bounds)
    topic = client.create(retention_ms="-1")
    before = throttles(broker, "producer_byte_rate")
    client.fetch(topic, 0)
    told_ms = client.send("Produce", 9, produce_of(topic, 150)).throttle_time_ms
    assert throttles(broker, "producer_byte_rate") == before + 1
    of_me = [line for line in metrics(broker) if 'user="",client_id="test"' in line]
    assert {line.partition("{")[0] for line in of_me} == {
        metric.name for metric in SECTIONS["Quotas"] if metric.labels == CLIENT
    }
    assert f'kafka_server_produce_throttle_time{{user="",client_id="test"}} {told_ms:.1f}' in of_me


def throttles(broker: TierlogBroker, quota: str) -> int:
    name = f'tierlog_quota_throttles_total{{quota="{quota}"}} '
    [line] = [line for line in metrics(broker) if line.startswith(name)]
    return int(line.removeprefix(name))


def produce_of(topic: str, size: int) -> Any:
    data = [{"index": 0, "records": batch(size)}]
    topics = [{"name": topic, "partition_data": data}]
    return message("Produce", {"acks": -1, "timeout_ms": 5000, "topic_data": topics})


def test_kafka_python_delivers_all_records_under_a_quota(broker: TierlogBroker, client: Client) -> None:
    """The client waits as requested, but the broker does not depend on it."""
    topic = client.create(retention_ms="-1")
    before = throttles(broker, "consumer_byte_rate")
    for _ in range(12):
        assert client.produce(topic, batch(10_000)).error_code == ErrorCode.NONE
    limit(broker, {"user": "ANONYMOUS"}, consumer_byte_rate=50_000)
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap,
        auto_offset_reset="earliest",
        group_id=None,
        client_id="kafka-python",
        consumer_timeout_ms=int(TIMEOUT_S * 1000),
    )
    found = [next(consumer).offset for _ in range(12)]
    consumer.close()
    assert found == list(range(12))
    assert throttles(broker, "consumer_byte_rate") > before


async def test_aiokafka_delivers_all_records_under_a_quota(broker: TierlogBroker, client: Client) -> None:
    topic = client.create(retention_ms="-1")
    for _ in range(6):
        assert client.produce(topic, batch(10_000)).error_code == ErrorCode.NONE
    limit(broker, {"client-id": "aio"}, consumer_byte_rate=30_000)
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", client_id="aio"
    )
    await consumer.start()
    try:
        assert [(await consumer.getone()).offset for _ in range(6)] == list(range(6))
    finally:
        await consumer.stop()


def test_throttled_fetch_does_not_change_its_session(broker: TierlogBroker, client: Client) -> None:
    topic = client.create(retention_ms="-1")
    for _ in range(3):
        client.produce(topic, batch(5_000))
    limit(broker, {"client-id": "test"}, consumer_byte_rate=6_000)
    answers = [client.fetch(topic, 0, session_epoch=0)]
    session = answers[0].session_id
    assert (session > 0, offsets(answers[0])) == (True, [0])
    empty = 0
    for epoch in range(1, 100):
        answer = client.fetch(topic, 1, session_id=session, session_epoch=epoch)
        assert (answer.error_code, answer.session_id) == (0, session)
        if offsets(answer):
            break
        assert answer.throttle_time_ms > 0
        empty += 1
    assert (offsets(answer), empty > 0) == ([1], True)


def offsets(answer: FetchResponse) -> list[int]:
    parts = [part.records for topic in answer.responses for part in topic.partitions if part.records]
    return [int.from_bytes(bytes(part[:8]), "big") for part in parts]


def test_request_quota_bounds_time_on_the_event_loop(broker: TierlogBroker, client: Client) -> None:
    limit(broker, {"user": None}, request_percentage=0.001)
    request = message("Metadata", {"topics": None})
    shown = [client.send("Metadata", 9, request).throttle_time_ms for _ in range(2)]
    assert (shown[0] <= 1_000, 0 < shown[1] <= 1_000) == (True, True)


@pytest.mark.parametrize(
    ("api", "version", "requested"),
    [
        ("OffsetFetch", 8, {"groups": [{"group_id": "g", "topics": None}]}),
        ("OffsetFetch", 3, {"group_id": "g", "topics": None}),
        ("DescribeGroups", 5, {"groups": ["g"]}),
        ("DescribeConfigs", 4, {"resources": [{"resource_type": 4, "resource_name": "1"}]}),
    ],
)
def test_responses_that_are_encoded_in_turns_report_the_throttle_time(
    broker: TierlogBroker, client: Client, api: str, version: int, requested: dict[str, Any]
) -> None:
    client.coordinator("g")
    limit(broker, {"user": None}, request_percentage=0.001)
    shown = [client.send(api, version, message(api, requested)) for _ in range(2)]
    assert 0 < shown[1].throttle_time_ms <= 1_000
    shown[0].throttle_time_ms = shown[1].throttle_time_ms
    assert shown[0] == shown[1], "nothing else differs"


def test_controller_mutation_quota_bounds_created_partitions(broker: TierlogBroker, client: Client) -> None:
    limit(broker, {"user": "ANONYMOUS"}, controller_mutation_rate=1)

    def create(name: str, partitions: int, version: int = 7) -> tuple[ErrorCode, bool]:
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
        fresh = Client(broker.bootstrap)  # the one before may be muted
        answer = fresh.send("CreateTopics", version, message("CreateTopics", {"topics": [topic]}))
        fresh.close()
        return ErrorCode(answer.topics[0].error_code), answer.throttle_time_ms > 0

    assert create("first", 30) == (ErrorCode.NONE, False)  # two are saved up; half a minute to wait
    assert create("second", 1) == (ErrorCode.THROTTLING_QUOTA_EXCEEDED, True)
    assert create("first", 1) == (ErrorCode.TOPIC_ALREADY_EXISTS, False)
    fresh = Client(broker.bootstrap)
    requested = message("Metadata", {"topics": [{"name": "asked-for"}], "allow_auto_topic_creation": True})
    answer = fresh.send("Metadata", 9, requested)
    fresh.close()
    assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert answer.throttle_time_ms > 0
    assert create("old", 1, version=5) == (ErrorCode.NONE, True)
    limit(broker, {"client-id": "test", "user": "ANONYMOUS"}, controller_mutation_rate=float("inf"))
    assert create("second", 1) == (ErrorCode.NONE, False)


def test_invalid_topic_names_are_not_charged_to_the_quota(broker: TierlogBroker, client: Client) -> None:
    limit(broker, {"user": "ANONYMOUS"}, controller_mutation_rate=5)
    topics = [{"name": f"not/{n}"} for n in range(100)]
    requested = message("Metadata", {"topics": topics, "allow_auto_topic_creation": True})
    answer = client.send("Metadata", 9, requested)
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.INVALID_TOPIC_EXCEPTION}
    assert (len(answer.topics), answer.throttle_time_ms) == (100, 0)


def test_connection_rate_quota_per_address(broker: TierlogBroker) -> None:
    limit(broker, {"ip": "127.0.0.2"}, connection_creation_rate=1)

    def connect(source: str) -> bool:
        client = Client(broker.bootstrap, source)
        try:
            return bool(client.send("Metadata", 9, message("Metadata", {"topics": []})).brokers)
        except OSError:  # closed without an answer
            return False
        finally:
            client.close()

    assert {connect("127.0.0.2") for _ in range(10)} == {True, False}
    assert {connect("127.0.0.1") for _ in range(10)} == {True}


@pytest.mark.slow
def test_quotas_survive_a_restart_and_do_not_delay_a_stop(tierlog_broker: TierlogBroker) -> None:
    broker = tierlog_broker
    client = Client(broker.bootstrap)
    topic = client.create()
    entities: list[Entity] = [{"user": "ada"}, {"user": "ada", "client-id": None}, {"client-id": "test"}]
    for entity in entities:
        limit(broker, entity, producer_byte_rate=10)
    assert client.send("Produce", 9, produce_of(topic, 1000)).throttle_time_ms > 50_000
    broker.stop()  # while it is muted
    client.close()
    broker.start()
    broker.kill()
    broker.start()
    with KafkaClient(broker.bootstrap) as admin:
        kept = [row["entity"] for row in quotas.rows(admin, {})]
    assert sorted(map(json.dumps, kept)) == sorted(
        json.dumps(dict(sorted(entity.items()))) for entity in entities
    )
    again = Client(broker.bootstrap)
    assert again.send("Produce", 9, produce_of(topic, 1000)).throttle_time_ms > 50_000
    again.close()
