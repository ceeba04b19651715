"""`tierlog cluster config lint`: each finding in a settings file, and no finding in good ones."""

import json
from pathlib import Path

import pytest
from cli_inline import call

from tierlog.cli.settings_lint import RETIRED, lint
from tierlog.config.kafka_names import INERT_SETTINGS
from tierlog.config.node import NODE_SETTINGS

ROOT = Path(__file__).parents[3]
CLUSTER = {
    "controller.quorum.voters": "1@a:9644,2@b:9644,3@c:9644",
    "controller.quorum.secret": "${directory:/run/secrets:quorum}",
    "log.dirs": "/var/lib/tierlog",
    "object.store.url": "s3://bucket/prefix",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
}


def found(**changes: str) -> set[tuple[str, str]]:
    """Level and setting of each finding in a good file with these changes; `_` stands for a dot."""
    texts = CLUSTER | {name.replace("_", "."): text for name, text in changes.items()}
    return {(finding.level.value, finding.name) for finding in lint(texts)}


def test_a_good_file_has_no_findings() -> None:
    assert found() == set()


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"num_partitons": "3"}, ("invalid", "num.partitons")),
        ({"num_io_threads": "8"}, ("invalid", "num.io.threads")),
        ({"request_timeout_ms": "8"}, ("invalid", "request.timeout.ms")),
        ({"zookeeper_connect": "z:2181"}, ("invalid", "zookeeper.connect")),
        ({"max_connections": "many"}, ("invalid", "max.connections")),
        ({"log_retention_hours": "x"}, ("invalid", "log.retention.hours")),
        ({"listener_name_client_node_id": "3"}, ("invalid", "listener.name.client.node.id")),
        ({"broker_heartbeat_interval_ms": "5000"}, ("invalid", "broker.heartbeat.interval.ms")),
        ({"log_retention_ms": "1", "log_retention_hours": "1"}, ("warning", "log.retention.hours")),
        ({"default_replication_factor": "1"}, ("danger", "default.replication.factor")),
        ({"min_insync_replicas": "4"}, ("danger", "min.insync.replicas")),
        ({"min_insync_replicas": "3"}, ("danger", "min.insync.replicas")),
        ({"min_insync_replicas": "1"}, ("danger", "min.insync.replicas")),
        ({"offsets_topic_replication_factor": "1"}, ("danger", "offsets.topic.replication.factor")),
        ({"unclean_leader_election_enable": "true"}, ("danger", "unclean.leader.election.enable")),
        (
            {"transaction_partition_verification_enable": "false"},
            ("danger", "transaction.partition.verification.enable"),
        ),
        (
            {"log_retention_ms": "5", "log_local_retention_ms": "6"},
            ("danger", "log.local.retention.ms"),
        ),
        ({"object_store_url": "memory://"}, ("danger", "object.store.url")),
        ({"object_store_url": ""}, ("warning", "object.store.url")),
        ({"object_store_url": "file:///objects"}, ("warning", "object.store.url")),
        ({"log_dirs": "/tmp/tierlog"}, ("danger", "log.dirs")),
        ({"log_dirs": "data"}, ("warning", "log.dirs")),
        ({"metadata_reserve_bytes": "0"}, ("warning", "metadata.reserve.bytes")),
        ({"listeners": "PLAINTEXT://:9092"}, ("danger", "advertised.listeners")),
        ({"controller_quorum_voters": "1@a:1,2@b:1"}, ("warning", "controller.quorum.voters")),
        (
            {"controller_quorum_election_timeout_ms": "9000"},
            ("warning", "controller.quorum.fetch.timeout.ms"),
        ),
        ({"replica_fetch_wait_max_ms": "20000"}, ("danger", "replica.fetch.wait.max.ms")),
        ({"socket_request_max_bytes": "1024"}, ("danger", "message.max.bytes")),
    ],
)
def test_each_fault_of_a_file_is_found(changes: dict[str, str], finding: tuple[str, str]) -> None:
    assert finding in found(**changes)


def test_a_finding_names_the_nearest_setting_and_the_remedy() -> None:
    misspelled, old, *_ = lint({"log.retention.mss": "5", "advertised.port": "9092"})
    assert "did you mean 'log.retention.ms'?" in misspelled.what
    assert old.next == "Set advertised.listeners instead."


def test_old_names_are_not_settings_of_this_version() -> None:
    assert RETIRED.keys() & (NODE_SETTINGS.keys() | INERT_SETTINGS.keys()) == set()


def test_the_example_for_a_host_has_no_findings() -> None:
    ended = call("cluster", "config", "lint", str(ROOT / "terraform/host/node.toml"), "--strict")
    assert ended.code == 0, ended.stdout


def test_lines_and_exit_codes(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('# a node\n"node.id" = 7\n"log.dirs" = ["data"]\n')
    assert call("cluster", "config", "lint", str(file)).code == 0
    assert call("cluster", "config", "lint", str(file), "--strict").code == 1
    kafka = tmp_path / "server.properties"
    kafka.write_text("broker.id=7\nlog.dirs=/data\nunclean.leader.election.enable=true\n")
    ended = call("cluster", "config", "lint", str(kafka), "--json")
    [finding] = json.loads(ended.stdout)["findings"]
    assert ended.code == 1
    assert (finding["name"], finding["line"]) == ("unclean.leader.election.enable", 3)
