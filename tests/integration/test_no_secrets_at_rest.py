"""Directories of a real node have no password of its users, and none that an administrator tries to store."""

from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from scram_broker import ScramBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
MARK = b"canary"


def test_no_password_is_in_the_directories_of_a_node(tmp_path: Path) -> None:
    node = ScramBroker(tmp_path, {"audit.log.dir": str(tmp_path / "node" / "audit")}, "ada")
    with node.broker:
        client = node.admin()
        change = UserScramCredentialUpsertion(
            "bob", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), b"canary-of-bob"
        )
        client.alter_user_scram_credentials([change])["bob"].result(30)
        for name in ("my.plugin.password", "ssl.key.password", "listener.name.x.ssl.keystore.password"):
            entry = ConfigEntry(name, "canary-of-plugin", incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
            with pytest.raises(KafkaException) as refused:
                client.incremental_alter_configs([resource])[resource].result(30)
            assert refused.value.args[0].code() == KafkaError.INVALID_REQUEST
            assert "canary" not in str(refused.value)
        node.broker.stop()  # cleanly: all logs are closed
    files = [file for file in (tmp_path / "node").rglob("*") if file.is_file()]
    assert any("bob" in file.read_bytes().decode("latin-1") for file in files)  # its verifier
    assert [file.name for file in files if MARK in file.read_bytes()] == []
