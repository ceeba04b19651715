"""The audit topic of real brokers: it has the entries of all of them, and only brokers write to it."""

import json
from pathlib import Path
from typing import Any

import pytest
from audit_entries import AuditEntries
from confluent_kafka import Consumer, KafkaError
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, NewTopic
from scram_broker import ScramBroker
from scraping import metric, wait_for_metric
from secured_cluster import allow, create_users, error_of_record, login
from waiting import until
from wire_client import Client, message

from tierlog.broker.audit.entries import DENIED_ACCESS
from tierlog.broker.audit.topic_queue import TOPIC_DROP_REASONS
from tierlog.cli.local_cluster import LocalCluster
from tierlog.config.authorization import STANDARD_AUTHORIZER
from tierlog.protocol.errors import ErrorCode
from tierlog.testing import TierlogBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
TOPIC = "_tierlog.audit"
WRITTEN = "tierlog_audit_topic_entries_total"
WAITING = "tierlog_audit_topic_waiting_bytes"


def settings_of(directory: Path) -> dict[str, object]:
    return {"audit.log.dir": str(directory), "audit.log.topic": TOPIC, "audit.log.repeat.ms": "1000"}


class Topic:
    """Reads the topic from its beginning."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._consumer = Consumer({**settings, "group.id": "siem", "auto.offset.reset": "earliest"})
        self._consumer.subscribe([TOPIC])
        self.entries: list[dict[str, Any]] = []

    def until_has(self, api: str, node: int, *names: str) -> None:
        """Wait until the topic has a node's actions on these resources."""

        def has_all() -> bool:
            self.read()
            found = [
                one["name"]
                for entry in self.entries
                if entry.get("api") == api and entry["node"] == node
                for one in entry["resources"]
            ]
            return list(dict.fromkeys(found)) == list(names)

        until(has_all, f"{api} of node {node}: {names}")

    def read(self) -> None:
        """Read more entries."""
        for record in self._consumer.consume(100, 0.2):
            assert record.error() is None
            self.entries.append(json.loads(record.value()))

    def repeats(self) -> list[dict[str, Any]]:
        """Counts of repeated denials among more entries."""
        self.read()
        return [one for one in self.entries if one["event"] == DENIED_ACCESS and one["count"] > 1]

    def close(self) -> None:
        self._consumer.close()


def create(admin: AdminClient, *topics: NewTopic) -> None:
    for topic in topics:
        admin.create_topics([topic])[topic.topic].result(60)


def test_topic_of_one_broker_has_what_its_files_have(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "audit") | {
        "auto.create.topics.enable": "true",
        "log.cleanup.policy": "compact",
    }
    with TierlogBroker(tmp_path / "node", settings) as broker:
        client = {"bootstrap.servers": broker.bootstrap}
        admin = AdminClient(client)
        create(admin, *(NewTopic(f"t{number}", 1) for number in range(20)))
        topic = Topic(client)
        topic.until_has("CreateTopics", 1, *(f"t{number}" for number in range(20)))
        topic.close()
        resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC)
        configs = admin.describe_configs([resource])[resource].result(60)
        assert configs["cleanup.policy"].value == "delete"
        assert topic.entries == AuditEntries(tmp_path / "audit").actions()
        assert len(admin.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions) == 1
        assert metric(broker, WRITTEN) == len(topic.entries) and metric(broker, WAITING) == 0
        assert [
            metric(broker, f"{WRITTEN[:-6]}_dropped_total", reason=one) for one in TOPIC_DROP_REASONS
        ] == [0] * 3
        assert error_of_record(client, TOPIC) == KafkaError.TOPIC_EXCEPTION
        deletion = {"topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "offset": 1}]}]}
        wire = Client(broker.bootstrap)
        answer = wire.send("DeleteRecords", 2, message("DeleteRecords", deletion | {"timeout_ms": 1000}))
        assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        wire.close()


def test_topic_has_the_counts_that_were_open_when_the_broker_stopped(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "audit") | {"authorizer.class.name": STANDARD_AUTHORIZER}
    node = ScramBroker(tmp_path, settings | {"audit.log.repeat.ms": "3600000"}, "eve")
    with node.broker:
        create(node.admin(), NewTopic("orders", 1))
        for _ in range(3):
            assert error_of_record(node.login("eve"), "orders") == KafkaError.TOPIC_AUTHORIZATION_FAILED
        node.broker.restart()
        topic = Topic(node.login("admin"))
        until(topic.repeats, "the topic has the counts")
        repeats = topic.repeats()
        topic.close()
    counted = [one for one in AuditEntries(tmp_path / "audit").denials(DENIED_ACCESS) if one["count"] > 1]
    assert repeats == counted


def test_entries_of_all_brokers_reach_the_topic_over_tls_and_sasl(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster", settings=settings_of(tmp_path / "audit"), secure=True) as cluster:
        assert cluster.security is not None
        root = cluster.security.librdkafka_settings(cluster.bootstrap)
        admin = AdminClient(root)
        create_users(admin, {"eve": "canary-of-eve"})
        for node in cluster.nodes:
            admin_of_node = AdminClient(root | {"bootstrap.servers": cluster.nodes[node].bootstrap})
            create(admin_of_node, NewTopic(f"by-{node}", 1, 3))
        topic = Topic(root)
        actions = {
            one["resources"][0]["name"]: one["node"]
            for node in cluster.nodes
            for one in AuditEntries(tmp_path / "audit", node).actions("CreateTopics")
        }
        for name, node in actions.items():
            topic.until_has("CreateTopics", node, *(each for each, by in actions.items() if by == node))
            assert name.startswith("by-")
        topic.close()
        refused = KafkaError.TOPIC_EXCEPTION
        assert error_of_record({**root, "acks": "all"}, TOPIC) == refused, "an administrator is no broker"
        allow(admin, "eve", AclOperation.ALL, TOPIC)
        eve = {**root, **login("eve", "canary-of-eve"), "acks": "all"}
        until(lambda: error_of_record(eve, TOPIC) == refused, "a permission to write is not enough")

        def recorded() -> list[dict[str, Any]]:
            return [
                one
                for node in cluster.nodes
                for one in AuditEntries(tmp_path / "audit", node).denials(DENIED_ACCESS)
                if one.get("principal") == "User:eve" and one.get("operation") == "CLUSTER_ACTION"
            ]

        until(lambda: bool(recorded()), "the refused write has an entry")
        assert {(one["api"], one["resource_name"]) for one in recorded()} == {("Produce", TOPIC)}


def test_client_of_a_cluster_without_users_is_no_broker(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster", settings=settings_of(tmp_path / "audit")) as cluster:
        client = {"bootstrap.servers": cluster.bootstrap}
        admin = AdminClient(client)
        for node in cluster.nodes:
            admin_of_node = AdminClient({"bootstrap.servers": cluster.nodes[node].bootstrap})
            create(admin_of_node, NewTopic(f"by-{node}", 1, 3))
        until(lambda: TOPIC in admin.list_topics(timeout=10).topics, "the topic exists")
        topic = Topic(client)
        assert error_of_record({**client, "acks": "all"}, TOPIC) == KafkaError.TOPIC_EXCEPTION
        made = [
            (node, one["resources"][0]["name"])
            for node in cluster.nodes
            for one in AuditEntries(tmp_path / "audit", node).actions("CreateTopics")
        ]
        for node in {node for node, _ in made}:
            topic.until_has("CreateTopics", node, *(name for by, name in made if by == node))
        topic.close()


def test_topic_without_a_leader_delays_no_request_and_loses_no_entry(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "audit") | {"offsets.topic.replication.factor": 1}
    with LocalCluster(tmp_path / "cluster", settings=settings) as cluster:
        first, last = cluster.nodes[1], cluster.nodes[3]
        wire = Client(first.bootstrap)
        fields = {
            "topics": [
                {
                    "name": TOPIC,
                    "num_partitions": -1,
                    "replication_factor": -1,
                    "assignments": [{"partition_index": 0, "broker_ids": [3]}],
                }
            ],
            "timeout_ms": 10_000,
        }
        assert wire.send("CreateTopics", 7, message("CreateTopics", fields)).topics[0].error_code == 0
        wait_for_metric(first, 1, WRITTEN)
        last.stop()
        names = [f"t{number}" for number in range(10)]
        for name in names:
            created = {"topics": [{"name": name, "num_partitions": 1, "replication_factor": 1}]}
            answer = wire.send("CreateTopics", 7, message("CreateTopics", created | {"timeout_ms": 10_000}))
            assert answer.topics[0].error_code == 0
        found = AuditEntries(tmp_path / "audit").actions("CreateTopics")
        assert [one["resources"][0]["name"] for one in found][-10:] == names
        assert metric(first, WAITING) > 0
        last.start()
        topic = Topic({"bootstrap.servers": cluster.bootstrap})
        topic.until_has("CreateTopics", 1, TOPIC, *names)
        topic.close()
        wire.close()
