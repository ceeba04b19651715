"""`tierlog cluster up --secure`: the commands of an operator, and clients with and without permission."""

import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_inline import json_output, run
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation, AdminClient
from secured_cluster import deny, error_of_record, login
from waiting import until

from tierlog.cli.local_security import LocalSecurity

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for a cluster whose processes all end with the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield tmp_path / "cluster"
    run("cluster", "down", "--data-dir", tmp_path / "cluster")


def succeed(*words: str | Path) -> subprocess.CompletedProcess[str]:
    ended = run(*words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended


def healthy() -> bool:
    return run("cluster", "health").returncode == 0


def up(directory: Path, *words: str) -> dict[str, Any]:
    started: dict[str, Any] = json_output("cluster", "up", "--data-dir", directory, "--detach", *words)[0]
    return started


def add_user(name: str, password: str, directory: Path) -> None:
    file = directory / f"{name}.password"
    file.write_text(f"{password}\n")
    succeed("user", "create", name, "--password-file", file)


def is_refused(settings: dict[str, Any], code: int | None = None) -> bool:
    """Whether a client with these settings gets no metadata, and with `code` reports this error."""
    errors: list[KafkaError] = []
    client = AdminClient({"log_level": 0, "error_cb": errors.append, **settings})
    try:
        client.list_topics(timeout=5)
    except KafkaException:
        client.poll(0)  # calls error_cb
        return code is None or code in [error.code() for error in errors]
    return False


def test_clients_need_a_login_and_permission(directory: Path, tmp_path: Path) -> None:
    started = up(directory, "--secure", "--port", "0")
    assert started["client_config"] == str(directory / "security" / "admin.properties")
    until(healthy, "a new cluster is healthy")
    succeed("topic", "create", "orders", "--partitions", "1")
    root = LocalSecurity(directory).librdkafka_settings(started["bootstrap"])
    assert error_of_record(root, "orders") is None

    plain = {"bootstrap.servers": started["bootstrap"]}
    encrypted = {**plain, "ssl.ca.location": root["ssl.ca.location"], "security.protocol": "SSL"}
    assert not is_refused(root)
    assert is_refused(plain)
    assert is_refused(encrypted)
    assert is_refused({**root, **login("admin", "wrong")}, KafkaError._AUTHENTICATION)

    add_user("ada", "lovelace", tmp_path)
    ada = {**root, **login("ada", "lovelace")}
    assert error_of_record(ada, "orders") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    succeed("acl", "create", "--allow-principal", "ada", "--operation", "write", "--topic", "orders")
    until(lambda: error_of_record(ada, "orders") is None, "the permission reaches the leader")
    deny(AdminClient(root), "ada", AclOperation.WRITE, "orders")
    until(
        lambda: error_of_record(ada, "orders") == KafkaError.TOPIC_AUTHORIZATION_FAILED,
        "the denial wins over the permission",
    )
    for url in (node["admin"] for node in started["nodes"]):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{url}/v1/cluster", timeout=60)
        assert refused.value.code == 401


def test_commands_use_the_login_of_the_cluster(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = up(directory, "--secure", "--port", "0")
    until(healthy, "a new cluster is healthy")
    succeed("topic", "create", "orders", "--partitions", "3")
    (row,) = (row for row in json_output("cluster", "status")[0] if row["node"] == 2)
    assert row["state"] == "up" and row["replicas"] == 3
    succeed("cluster", "kill", "2")
    until(lambda: run("cluster", "health").returncode == 5, "the dead node is missed")
    succeed("cluster", "start", "2")
    until(healthy, "the node is back")
    succeed("topic", "list", "--bootstrap", started["bootstrap"])
    assert run("cluster", "health", "--admin", started["nodes"][2]["admin"]).returncode == 0

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    file, admin = started["client_config"], started["nodes"][1]["admin"]
    assert "orders" in succeed("topic", "list", "--client-config", file).stdout
    succeed("partition", "elect", "orders", "--client-config", file, "--admin", admin)
    by_login = ("--client-config", file, "--admin", admin)
    [explained] = json_output("partition", "balance", "--explain", "--seconds", "0.1", *by_login)
    assert explained["faults"] == [] and len(explained["brokers"]) == 3, (
        "brokers read the load by their login"
    )
    until(lambda: run("cluster", "health", "--client-config", file).returncode == 0, "the login shows health")
    without = run("cluster", "health", "--admin", admin)
    assert without.returncode == 1 and "--client-config" in without.stderr
    assert json_output("cluster", "status", "--data-dir", directory)[0][0]["leads"] is not None

    succeed("cluster", "down", "--data-dir", directory)
    again = up(directory)
    assert again["client_config"] == file and again["bootstrap"] == started["bootstrap"]
    assert "orders" in succeed("topic", "list", "--client-config", file).stdout
    for node in started["nodes"]:
        log = (directory / f"node-{node['node']}" / "broker.log").read_text()
        assert LocalSecurity(directory).password("admin") not in log
        assert LocalSecurity(directory).password("broker") not in log


def test_controller_nodes_are_closed_too(directory: Path) -> None:
    started = up(directory, "--secure", "--port", "0", "--nodes", "1", "--voters", "1")
    until(healthy, "a new cluster is healthy")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{started['nodes'][1]['admin']}/v1/cluster", timeout=60)
    assert refused.value.code == 401


def test_message_names_the_file_of_the_client(directory: Path) -> None:
    ended = succeed("cluster", "up", "--secure", "--nodes", "1", "--port", "0", "--detach", "-d", directory)
    assert f"export TIERLOG_CLIENT_CONFIG={directory / 'security' / 'admin.properties'}" in ended.stderr
