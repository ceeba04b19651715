"""The programs of `tierlog generate clients`: compiled, and run against a broker with TLS and logins."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from cli_inline import succeed
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourceType,
)
from confluent_kafka.admin import ResourcePatternType as Pattern
from java_process import TOOLS, java

from tierlog.testing import TierlogBroker, TierlogBrokerFactory

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(1200)]

USER, TOPIC, VARIABLE = "ada", "my-topic", "PASSWORD_OF_ADA"
BUILD_TIMEOUT_S = 500


@pytest.fixture
def broker(tierlog_broker_factory: TierlogBrokerFactory) -> TierlogBroker:
    """With the topic of the programs, which the user may write to."""
    broker = tierlog_broker_factory(secure=True, users=[USER])
    admin = AdminClient(broker.client_settings())
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(60)
    may = (f"User:{USER}", "*", AclOperation.WRITE, AclPermissionType.ALLOW)
    [created] = admin.create_acls([AclBinding(ResourceType.TOPIC, TOPIC, Pattern.LITERAL, *may)]).values()
    created.result(60)
    return broker


def test_go(
    broker: TierlogBroker, go_with_librdkafka: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the password of a variable and of a file: the programs differ."""
    for offset, kind in enumerate(("env", "file")):
        program = generate(broker, kind, tmp_path, monkeypatch) / "client.go"
        shutil.copy(program, go_with_librdkafka)
        run(["go", "build", "-o", "client", "client.go"], go_with_librdkafka, BUILD_TIMEOUT_S)
        assert run(["./client"], go_with_librdkafka) == f"my-topic, partition 0, offset {offset}\n"


def test_java_with_the_generated_properties(
    broker: TierlogBroker, java_classpath: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no program: a tool of Kafka takes the file. Java keeps a line break at the end of a password's
    file."""
    reader = Consumer({**broker.client_settings(), "group.id": "reader"})
    for count, kind in enumerate(("env", "file"), 1):
        file = generate(broker, kind, tmp_path, monkeypatch, end="") / "client.properties"
        to = ("--bootstrap-server", broker.bootstrap, "--topic", TOPIC, "--command-config", str(file))
        java(java_classpath, f"{TOOLS}.ConsoleProducer", *to, text="hello\n")
        assert reader.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=60) == (0, count)
    reader.close()


def generate(
    broker: TierlogBroker, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str = "\n"
) -> Path:
    """The directory of the programs, whose password comes from a variable, or from a file with this end."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / f"config-{kind}"))
    client = broker.client_settings(USER)
    monkeypatch.setenv(VARIABLE, client["sasl.password"])
    password = tmp_path / "password"
    password.write_text(client["sasl.password"] + end, encoding="utf-8")
    reference = f"env:{VARIABLE}" if kind == "env" else f"file:{password}"
    login = ("--user", USER, "--password", reference, "--ca", client["ssl.ca.location"])
    target = tmp_path / kind
    succeed("profile", "create", "prod", "-b", broker.bootstrap, *login)
    succeed("generate", "clients", str(target), "--profile", "prod")
    return target


def run(command: Sequence[str], directory: Path, timeout_s: float = 60) -> str:
    """Standard output of a program that succeeds."""
    ended = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
