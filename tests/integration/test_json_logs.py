"""The log of a real broker as JSON: each line parses, and its event is in the catalogue."""

import json
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from waiting import until

from tierlog.broker.log_events.catalogue import EVENTS
from tierlog.cli.admin import AdminApi
from tierlog.cli.cluster_files import free_ports
from tierlog.testing import TierlogBroker, TierlogBrokerFactory

TIMEOUT_S = 30.0
PASSWORD = "canary-of-json-logs"
STATUS = "stopped; "  # what `tierlog dev` says at its end


def lines_of(broker: TierlogBroker) -> list[dict[str, Any]]:
    lines = broker.log_path.read_text().splitlines(keepends=True)
    of_node = [line for line in lines if line.endswith("\n") and not line.startswith(STATUS)]
    return [json.loads(line) for line in of_node]


def events_of(broker: TierlogBroker) -> list[str]:
    return [line["event"] for line in lines_of(broker)]


def produce_and_upload(broker: TierlogBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    configs = {"remote.storage.enable": "true", "segment.bytes": "200000"}
    admin.create_topics([NewTopic("history", 1, 1, config=configs)])["history"].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.size": 16_384})
    for number in range(2_000):
        producer.produce("history", b"value %d" % number * 20)
    assert producer.flush(TIMEOUT_S) == 0
    AdminApi(broker.admin_url).post("/v1/tier/flush", {"topic": "history"})


def fail_to_log_in(port: int) -> None:
    settings = {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ada",
        "sasl.password": f"not-{PASSWORD}",
    }
    with pytest.raises(KafkaException):
        AdminClient(settings).list_topics(timeout=2)


def test_each_line_of_a_broker_is_json_with_an_event_of_the_catalogue(
    tierlog_broker_factory: TierlogBrokerFactory,
) -> None:
    (port,) = free_ports(1)
    broker = tierlog_broker_factory(
        {
            "logger.format": "json",
            "listeners": f"PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:{port}",
            "sasl.enabled.mechanisms": "PLAIN",
            "plain.sasl.jaas.config": f'PlainLoginModule required user_ada="{PASSWORD}";',
        }
    )
    produce_and_upload(broker)
    until(lambda: "upload.segment" in events_of(broker), "a segment is uploaded")
    fail_to_log_in(port)
    until(lambda: "authentication.failed" in events_of(broker), "the failed login is logged")
    broker.kill()
    before = len(lines_of(broker))
    broker.start()
    broker.stop()

    lines = lines_of(broker)
    assert {line["event"] for line in lines} <= set(EVENTS)
    assert {line["event"] for line in lines[before:]} >= {
        "logs.opened",
        "node.serving",
    }
    for line in lines:
        assert list(line)[:4] == ["timestamp", "level", "event", "message"]
        assert line["message"] == EVENTS[line["event"]].says and line["level"] in ("info", "warning", "error")
        assert line.get("next", "") == EVENTS[line["event"]].remedy
    (failed,) = {line["listener"] for line in lines if line["event"] == "authentication.failed"}
    assert failed == "SASL_PLAINTEXT"
    assert "canary" not in broker.log_path.read_text()
