"""`tierlog generate clients|systemd`: six languages with the settings of a profile, none with its secret."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cli_inline import call

from tierlog.client.properties import read_properties
from tierlog.config.jaas import parse_jaas

ROOT = Path(__file__).parents[3]
FILES = {"client.properties", "client.py", "client.go", "client.rs", "client.js", "Client.cs"}
BOOTSTRAP = "broker-1.example:9092"


@pytest.fixture(autouse=True)
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("TIERLOG_BOOTSTRAP", raising=False)


def generated(tmp_path: Path, password: str) -> dict[str, str]:
    login = ("--user", "ada", "--password", password, "--ca", "/etc/ca.pem")
    assert call("profile", "create", "prod", "-b", BOOTSTRAP, *login).code == 0
    ended = call("generate", "clients", str(tmp_path / "clients"), "--profile", "prod")
    assert ended.code == 0, ended.stderr
    return {file.name: file.read_text() for file in (tmp_path / "clients").iterdir()}


@pytest.mark.parametrize("kind", ["env", "file"])
def test_six_languages_have_the_settings_and_no_secret(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSWORD_OF_ADA", "open sesame")
    (tmp_path / "password").write_text("open sesame\n")
    reference = "env:PASSWORD_OF_ADA" if kind == "env" else f"file:{tmp_path}/password"
    files = generated(tmp_path, reference)
    assert files.keys() == FILES
    for name, text in files.items():
        assert BOOTSTRAP in text and "/etc/ca.pem" in text and "ada" in text, name
        assert "sesame" not in text, name
    program = "import json, client; print(json.dumps(client.settings()))"
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path / "clients", capture_output=True, text=True, check=True
    )
    assert json.loads(ended.stdout) == {
        "bootstrap.servers": BOOTSTRAP,
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "ada",
        "sasl.password": "open sesame",
        "ssl.ca.location": "/etc/ca.pem",
    }


def test_java_reads_the_password_by_a_provider(tmp_path: Path) -> None:
    generated(tmp_path, "env:PASSWORD_OF_ADA")
    found = read_properties(tmp_path / "clients" / "client.properties")
    options = parse_jaas(found["sasl.jaas.config"])
    assert (options["username"], options["password"]) == ("ada", "${env:PASSWORD_OF_ADA}")
    assert found["config.providers.env.class"].endswith(".EnvVarConfigProvider")
    assert found["ssl.truststore.location"] == "/etc/ca.pem"


def test_workers_of_kafka_connect_and_their_connectors_log_in(tmp_path: Path) -> None:
    generated(tmp_path, f"file:{tmp_path}/password")
    words = ("--group", "pipes", "--profile", "prod")
    assert call("generate", "connect", str(tmp_path), *words).code == 0
    file = tmp_path / "connect-distributed.properties"
    found = read_properties(file)
    assert (found["group.id"], found["config.storage.topic"]) == ("pipes", "pipes-configs")
    for prefix in ("", "producer.", "consumer.", "admin."):
        assert (
            parse_jaas(found[f"{prefix}sasl.jaas.config"])["password"]
            == f"${{directory:{tmp_path}:password}}"
        )
        assert found[f"{prefix}security.protocol"] == "SASL_SSL"
        assert found[f"{prefix}ssl.truststore.location"] == "/etc/ca.pem"
    assert "Read on the group pipes" in file.read_text()
    assert "must not end with a line break" in file.read_text()


def test_without_a_profile_there_are_addresses_alone(tmp_path: Path) -> None:
    assert call("generate", "clients", str(tmp_path / "out"), "--bootstrap", BOOTSTRAP).code == 0
    assert (tmp_path / "out" / "client.properties").read_text() == f"bootstrap.servers={BOOTSTRAP}\n"


def test_the_unit_is_that_of_the_docs(tmp_path: Path) -> None:
    assert call("generate", "systemd", str(tmp_path)).code == 0
    expected = (ROOT / "terraform/host/tierlog@.service").read_text()
    assert (tmp_path / "tierlog@.service").read_text() == expected
    words = ("--program", "/usr/bin/tierlog", "--user", "log")
    assert call("generate", "systemd", str(tmp_path), *words).code == 0
    text = (tmp_path / "tierlog@.service").read_text()
    assert "ExecStart=/usr/bin/tierlog server" in text and "User=log\nGroup=log\n" in text
