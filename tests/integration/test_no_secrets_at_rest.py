"""Directories of a real node have no password of its users, and none that an administrator tries to store."""

import urllib.request
from pathlib import Path

import pytest
from canaries import canary
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from scram_broker import ScramBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
MARK = b"canary-"


def test_no_password_is_in_the_directories_of_a_node(tmp_path: Path) -> None:
    node = ScramBroker(tmp_path, {"audit.log.dir": str(tmp_path / "node" / "audit")}, "ada")
    with node.broker:
        client = node.admin()
        change = UserScramCredentialUpsertion(
            "bob", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), b"canary-of-bob"
        )
        client.alter_user_scram_credentials([change])["bob"].result(60)
        for name in ("my.plugin.password", "ssl.key.password", "listener.name.x.ssl.keystore.password"):
            entry = ConfigEntry(name, "canary-of-plugin", incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
            with pytest.raises(KafkaException) as refused:
                client.incremental_alter_configs([resource])[resource].result(60)
            assert refused.value.args[0].code() == KafkaError.INVALID_REQUEST
            assert "canary" not in str(refused.value)
        node.broker.stop()  # cleanly: all logs are closed
    files = [file for file in (tmp_path / "node").rglob("*") if file.is_file()]
    assert any("bob" in file.read_bytes().decode("latin-1") for file in files)  # its verifier
    assert [file.name for file in files if MARK in file.read_bytes()] == []


@pytest.mark.usefixtures("brokers_from_scratch")
def test_no_password_is_in_what_a_node_shows(tmp_path: Path) -> None:
    """Its metrics, admin API, settings, log and command line."""
    password, words = canary("plain"), "org.apache.kafka.common.security.plain.PlainLoginModule required"
    settings: dict[str, object] = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
        "plain.sasl.jaas.config": f'{words} user_bob="{password}";',
        "sasl.jaas.config": f'ScramLoginModule required username="admin" password="{canary("admin")}";',
    }
    node = ScramBroker(tmp_path, settings)
    with node.broker:
        client = node.admin()
        AdminClient(node.login("bob", password) | {"sasl.mechanism": "PLAIN"}).list_topics(timeout=60)
        with pytest.raises(KafkaException):
            AdminClient(node.login("bob", canary("wrong")) | {"sasl.mechanism": "PLAIN"}).list_topics(
                timeout=2
            )
        resource = ConfigResource(ConfigResource.Type.BROKER, "1")
        described = client.describe_configs([resource])[resource].result(60)
        assert described["plain.sasl.jaas.config"].is_sensitive
        shown = [str(entry.value) for entry in described.values()]
        for path in ("/metrics", "/v1/cluster", "/v1/brokers", "/v1/directories", "/health", "/v1/scrub"):
            with urllib.request.urlopen(f"{node.broker.admin_url}{path}", timeout=60) as answer:
                shown.append(answer.read().decode())
        shown.append(node.tierlog("user", "list").stdout)
        shown.append(Path(f"/proc/{node.broker.pid}/cmdline").read_text())
    shown.append(node.broker.log_path.read_text())
    assert len(shown[-1]) > 100
    assert [number for number, text in enumerate(shown) if MARK.decode() in text] == []
