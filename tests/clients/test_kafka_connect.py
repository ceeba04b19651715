"""A worker of Kafka Connect with the settings of `tierlog generate connect`, against a secure broker."""

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cli_inline import succeed
from java_process import java_command
from s3_servers import free_port
from waiting import until

from tierlog.testing import TierlogBroker, TierlogBrokerFactory

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(400)]

USER, GROUP, TOPIC = "ada", "pipes", "lines"
START_TIMEOUT_S = 180.0
FILES = "org.apache.kafka.connect.file.FileStream"


@pytest.fixture
def broker(tierlog_broker_factory: TierlogBrokerFactory) -> TierlogBroker:
    return tierlog_broker_factory(secure=True, users=[USER])


def test_worker_with_generated_settings_copies_a_file_through_a_topic(
    broker: TierlogBroker, java_classpath: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user has the rights that the head of the file names, and those of the two connectors. The source
    creates its topic by the client `admin.`, and writes by `producer.`; the sink reads by `consumer.`."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    settings = generated(broker, tmp_path)
    for topic in (f"{GROUP}-configs", f"{GROUP}-offsets", f"{GROUP}-status"):
        allow(broker, "--topic", topic, "read", "write", "create", "describe-configs")
    allow(broker, "--group", GROUP, "read")
    allow(broker, "--topic", TOPIC, "read", "write", "create")
    allow(broker, "--group", "connect-sink", "read")

    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    lines = [f"line {number}\n" for number in range(100)]
    source.write_text("".join(lines), encoding="utf-8")
    port = free_port()
    text = settings.read_text(encoding="utf-8")
    [connector_jar] = Path(java_classpath).parent.glob("connect-file-*.jar")
    for generated_line, here in (
        ("plugin.path=/usr/share/java\n", f"plugin.path={connector_jar}\n"),
        ("listeners=http://127.0.0.1:8083\n", f"listeners=http://127.0.0.1:{port}\n"),
    ):
        assert text.count(generated_line) == 1
        text = text.replace(generated_line, here)
    settings.write_text(text, encoding="utf-8")
    with worker(java_classpath, settings, f"http://127.0.0.1:{port}") as url:
        create(url, "source", "Source", file=source, topic=TOPIC, **{
            "topic.creation.default.replication.factor": 1, "topic.creation.default.partitions": 1,
        })  # fmt: skip
        create(url, "sink", "Sink", file=sink, topics=TOPIC)

        def are_copied() -> bool:
            return sink.exists() and sink.read_text(encoding="utf-8").splitlines(keepends=True) == lines

        until(are_copied, "the lines arrive", START_TIMEOUT_S)


def generated(broker: TierlogBroker, tmp_path: Path) -> Path:
    """The file that the command writes."""
    client = broker.client_settings(USER)
    password = tmp_path / "password"
    password.write_text(client["sasl.password"], encoding="utf-8")
    login = ("--user", USER, "--password", f"file:{password}", "--ca", client["ssl.ca.location"])
    succeed("profile", "create", "prod", "-b", broker.bootstrap, *login)
    succeed("generate", "connect", str(tmp_path / "settings"), "--profile", "prod", "--group", GROUP)
    [file] = (tmp_path / "settings").iterdir()
    return file


def allow(broker: TierlogBroker, kind: str, name: str, *operations: str) -> None:
    words = [word for operation in operations for word in ("--operation", operation)]
    to = ("--bootstrap", broker.bootstrap, "--client-config", str(broker.client_file))
    succeed("acl", "create", "--allow-principal", f"User:{USER}", kind, name, *words, *to)


@contextmanager
def worker(classpath: str, settings: Path, url: str) -> Iterator[str]:
    """A worker that serves its REST API at `url`."""
    log_path = settings.parent / "worker.log"
    command = java_command(classpath, "org.apache.kafka.connect.cli.ConnectDistributed", str(settings))
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)

    def is_ready() -> bool:
        assert process.poll() is None, log_path.read_text(encoding="utf-8")
        try:
            return bool(ask(f"{url}/connectors") == [])
        except OSError:
            return False

    try:
        until(is_ready, "the worker is ready", START_TIMEOUT_S)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def create(url: str, name: str, kind: str, **config: object) -> None:
    """Create a connector. A worker whose group is just forming responds with 409."""
    document = {
        "name": name,
        "config": {"connector.class": f"{FILES}{kind}Connector", "tasks.max": 1, **config},
    }

    def is_created() -> bool:
        try:
            ask(f"{url}/connectors", json.dumps(document, default=str).encode())
        except urllib.error.HTTPError as failure:
            assert failure.code == 409, failure.read()
            return False
        return True

    until(is_created, f"the connector {name} is created", START_TIMEOUT_S)


def ask(url: str, body: bytes | None = None) -> Any:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)
