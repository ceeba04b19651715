"""Traces of a real broker, received by a real collector over HTTP."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from otlp_receiver import Collector, collector
from scraping import metric
from waiting import until

from tierlog.cli.admin import AdminApi
from tierlog.testing import TierlogBroker, TierlogBrokerFactory

TIMEOUT_S = 30.0
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADERS = [("traceparent", f"00-{TRACE}-00f067aa0ba902b7-01".encode())]


@pytest.fixture
def received(tmp_path: Path) -> Iterator[Collector]:
    with collector(tmp_path) as running:
        yield running


def broker_of(
    factory: TierlogBrokerFactory, endpoint: str, ratio: float = 1.0, queue: int = 2048
) -> TierlogBroker:
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_BSP_MAX_QUEUE_SIZE": str(queue),
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "32",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test",
    }
    ratios = {"traces.sampler.ratio": ratio} if ratio else {}
    return factory(ratios, environment=environment)


def create(broker: TierlogBroker, topic: str, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config=configs)])[topic].result(TIMEOUT_S)


def produce(broker: TierlogBroker, topic: str, count: int, **settings: object) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
    for number in range(count):
        producer.produce(topic, b"value %d" % number * 20, headers=HEADERS)
        if number % 50 == 49:
            producer.flush(TIMEOUT_S)
    assert producer.flush(TIMEOUT_S) == 0


def consume(broker: TierlogBroker, topic: str, count: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert len(consumer.consume(count, TIMEOUT_S)) == count
    consumer.close()


def test_produce_fetch_upload_and_commits_are_traced(
    tierlog_broker_factory: TierlogBrokerFactory, received: Collector
) -> None:
    broker = broker_of(tierlog_broker_factory, received.url)
    create(broker, "history", **{"remote.storage.enable": "true", "segment.bytes": "20000"})
    produce(broker, "history", 200, **{"client.id": "shop", "compression.type": "lz4"})
    consume(broker, "history", 200)
    AdminApi(broker.admin_url).post("/v1/tier/flush", {"topic": "history"})
    until(lambda: bool(received.named("upload")), "an upload is traced", within_s=TIMEOUT_S)
    broker.stop()

    spans = {span["id"]: span for span in received.spans}
    produced = received.named("Produce")[-1]
    assert (produced["messaging.client.id"], produced["messaging.destination.name"]) == ("shop", "history")
    assert (produced["tierlog.partitions"], produced["tierlog.acks"]) == (1, -1)
    assert produced["links"] == [TRACE] and produced["parent"] == ""
    assert produced["resource"]["service.name"] == "tierlog"
    assert produced["resource"]["service.instance.id"] == "1"
    assert produced["resource"]["deployment.environment"] == "test"
    steps = {span["name"] for span in spans.values() if span["parent"] == produced["id"]}
    assert "append" in steps
    fetched = [span for span in received.named("Fetch") if span.get("tierlog.response.bytes", 0) > 500]
    assert fetched, str(received.named("Fetch"))
    assert fetched[0]["messaging.destination.name"] == "history"
    upload = received.named("upload")[0]
    steps = [span for span in spans.values() if span["parent"] == upload["id"]]
    assert {span["name"] for span in steps} == {"metadata commit", "put segment"}
    assert [span["tierlog.command"] for span in steps if span["name"] == "metadata commit"] == [
        "StartCopy",
        "FinishCopy",
    ]
    commands = {span["tierlog.command"] for span in received.named("metadata commit") if not span["parent"]}
    assert "CreateTopics" in commands


def test_errors_mark_the_span_of_the_request(
    tierlog_broker_factory: TierlogBrokerFactory, received: Collector
) -> None:
    broker = broker_of(tierlog_broker_factory, received.url)
    create(broker, "small", **{"max.message.bytes": "100"})
    errors: list[int] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("small", bytes(1000), on_delivery=lambda error, _: errors.append(error.code()))
    producer.flush(TIMEOUT_S)
    assert errors == [KafkaError.MSG_SIZE_TOO_LARGE]
    until(lambda: bool(received.named("Produce")), "the request is traced", within_s=TIMEOUT_S)
    assert received.named("Produce")[-1]["failed"] == "MESSAGE_TOO_LARGE"


def test_nothing_is_traced_by_default(
    tierlog_broker_factory: TierlogBrokerFactory, received: Collector
) -> None:
    broker = broker_of(tierlog_broker_factory, received.url, ratio=0)
    create(broker, "t")
    produce(broker, "t", 10)
    broker.stop()
    assert received.spans == []


def test_a_collector_that_is_down_costs_one_log_line_and_no_request(
    tierlog_broker_factory: TierlogBrokerFactory, tmp_path: Path
) -> None:
    """One line says that it is down, and one that it is up again: on a busy machine this may happen twice."""
    with collector(tmp_path) as before:
        port = before.port
    broker = broker_of(tierlog_broker_factory, before.url, queue=64)
    create(broker, "t")
    produce(broker, "t", 2_000)
    until(lambda: "traces.export_failed" in broker.log_tail(), "the failure is logged", within_s=TIMEOUT_S)
    assert metric(broker, "tierlog_trace_spans_exported_total") == 0
    with collector(tmp_path, port) as after:

        def is_received() -> bool:
            produce(broker, "t", 1)
            return bool(after.named("Produce"))

        until(is_received, "spans are exported again", within_s=TIMEOUT_S)
        until(lambda: "'traces.exported'" in broker.log_tail(), "the end is logged", within_s=TIMEOUT_S)
    log = broker.log_tail()
    logged = re.findall(r"event='traces\.(export_failed|exported)'", log)
    assert [each == "export_failed" for each in logged] == [at % 2 == 0 for at in range(len(logged))]
    assert "library.message" not in log
    assert re.search(r"event='traces.export_failed' .* why=['\"]\w", log)
    begun, exported = (metric(broker, f"tierlog_trace_spans{part}_total") for part in ("", "_exported"))
    assert 0 < exported < begun


def test_a_node_without_the_dependency_says_what_to_install(
    tierlog_broker_factory: TierlogBrokerFactory, tmp_path: Path
) -> None:
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry/__init__.py").write_text("raise ImportError('not installed')\n")
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    settings = {"traces.sampler.ratio": "1"}
    broker = tierlog_broker_factory(settings, start=False, environment={"PYTHONPATH": path})
    with pytest.raises(Exception, match=r"pip install 'tierlog\[traces\]'"):
        broker.start()
