"""Kafka's tools log in, and change users with kafka-configs."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_inline import call

from tierlog.cli.process import TierlogBroker

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(240)]
CONFIGS, TOPICS = "kafka.admin.ConfigCommand", "org.apache.kafka.tools.TopicCommand"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TierlogBroker]:
    running = TierlogBroker(tmp_path / "broker", {"listeners": "SASL_PLAINTEXT://127.0.0.1:0"})
    (tmp_path / "password").write_text("secret\n")
    first_user = f"SCRAM-SHA-512=[name=admin,password-file={tmp_path / 'password'}]"
    ended = call("storage", "format", "--set", f"log.dirs={running.data_dir}", "--add-scram", first_user)
    assert ended.code == 0, ended
    with running:
        yield running


def login(file: Path, mechanism: str, user: str, password: str) -> Path:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    file.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f'sasl.jaas.config={module} required username="{user}" password="{password}";\n'
    )
    return file


def run(classpath: str, tool: str, broker: TierlogBroker, config: Path, *options: str) -> str:
    command = ["java", "-Xmx256m", "-cp", classpath, tool, "--bootstrap-server", broker.bootstrap]
    ended = subprocess.run(
        [*command, "--command-config", str(config), *options],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return ended.stdout + ended.stderr


def test_kafka_configs_changes_users(java_classpath: str, broker: TierlogBroker, tmp_path: Path) -> None:
    admin = login(tmp_path / "admin.properties", "SCRAM-SHA-512", "admin", "secret")
    of_alice = ("--entity-type", "users", "--entity-name", "alice")
    added = "SCRAM-SHA-256=[iterations=8192,password=wonder]"
    changed = run(java_classpath, CONFIGS, broker, admin, "--alter", "--add-config", added, *of_alice)
    assert "Completed updating config for user alice" in changed
    assert "SCRAM-SHA-256=iterations=8192" in run(
        java_classpath, CONFIGS, broker, admin, "--describe", *of_alice
    )
    alice = login(tmp_path / "alice.properties", "SCRAM-SHA-256", "alice", "wonder")
    created = run(java_classpath, TOPICS, broker, alice, "--create", "--topic", "made-by-alice")
    assert "Created topic made-by-alice" in created
    removed = run(
        java_classpath, CONFIGS, broker, admin, "--alter", "--delete-config", "SCRAM-SHA-256", *of_alice
    )
    assert "Completed updating config for user alice" in removed
    refused = run(java_classpath, TOPICS, broker, alice, "--list")
    assert "invalid credentials with SASL mechanism SCRAM-SHA-256" in refused
