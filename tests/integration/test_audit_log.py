"""The audit log of a real broker: what clients did, and what was refused; through SIGKILL and a full disk."""

import json
import threading
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from audit_entries import AuditEntries
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from mounts import tmpfs
from scram_broker import ScramBroker
from waiting import until

from tierlog.broker.audit.entries import DENIED_ACCESS, DENIED_LOGIN, FAILED_ACTION
from tierlog.config.authorization import STANDARD_AUTHORIZER

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
SETTINGS = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "audit.log.repeat.ms": 1000,
    "connection.failed.authentication.delay.ms": 0,
}


class Audited(ScramBroker):
    """A broker whose clients log in, and its audit log."""

    def __init__(self, directory: Path, log: Path, **settings: object) -> None:
        changed = {name.replace("_", "."): value for name, value in settings.items()}
        super().__init__(directory, SETTINGS | {"audit.log.dir": str(log)} | changed, "ada", "eve")
        self.entries = AuditEntries(log)

    def metrics(self) -> dict[str, float]:
        with urllib.request.urlopen(f"{self.broker.admin_url}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[:1] != "#"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    directory = tmp_path_factory.mktemp("audited")
    node = Audited(directory, directory / "audit")
    with node.broker:
        yield node


def create(client: AdminClient, *names: str, **more: Any) -> None:
    for created in client.create_topics([NewTopic(name, 1, **more) for name in names]).values():
        created.result(60)


def error_of(work: Any) -> int:
    with pytest.raises(KafkaException) as caught:
        work.result(60)
    return int(caught.value.args[0].code())


def test_entry_says_which_user_deleted_a_topic(node: Audited) -> None:
    client = node.admin()
    create(client, "flights", config={"retention.ms": "60000"})
    client.delete_topics(["flights"])["flights"].result(60)
    assert error_of(client.delete_topics(["flights"])["flights"]) == KafkaError.UNKNOWN_TOPIC_OR_PART
    [entry] = node.entries.actions("DeleteTopics")
    assert entry["principal"] == "User:admin"
    assert entry["client"] == "127.0.0.1"
    assert entry["listener"] == "SASL_PLAINTEXT"
    assert entry["client_id"] == "admins laptop"
    assert entry["resources"] == [{"type": "TOPIC", "name": "flights", "outcome": "OK"}]
    until(lambda: bool(node.entries.denials(FAILED_ACTION)), "the second deletion has an entry")
    failed = node.entries.denials(FAILED_ACTION)[0]
    assert failed["principal"] == "User:admin"
    assert (failed["outcome"], failed["resource_name"]) == ("UNKNOWN_TOPIC_OR_PARTITION", "flights")
    created = node.entries.actions("CreateTopics")[0]["resources"]
    assert created[0].items() >= {"name": "flights", "outcome": "OK", "settings": ["retention.ms"]}.items()


def test_changes_of_settings_and_users_are_recorded_without_values(node: Audited) -> None:
    client = node.admin()
    create(client, "orders")
    entry = ConfigEntry("retention.ms", "77777777", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "orders", incremental_configs=[entry])
    client.incremental_alter_configs([resource])[resource].result(60)
    change = UserScramCredentialUpsertion(
        "newcomer", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), b"canary-of-newcomer"
    )
    client.alter_user_scram_credentials([change])["newcomer"].result(60)
    client.create_partitions([NewPartitions("orders", 3)])["orders"].result(60)
    rule = AclBinding(
        ResourceType.TOPIC, "orders", ResourcePatternType.LITERAL, "User:ada", "*",
        AclOperation.DELETE, AclPermissionType.ALLOW,
    )  # fmt: skip
    client.create_acls([rule])[rule].result(60)
    assert node.entries.actions("IncrementalAlterConfigs")[-1]["resources"] == [
        {"type": "TOPIC", "name": "orders", "outcome": "OK", "settings": ["SET retention.ms"]}
    ]
    assert node.entries.actions("AlterUserScramCredentials")[-1]["resources"] == [
        {"type": "USER", "name": "newcomer", "outcome": "OK", "change": "SET", "mechanism": "SCRAM-SHA-512"}
    ]
    assert node.entries.actions("CreatePartitions")[-1]["resources"][0]["partitions"] == 3
    assert node.entries.actions("CreateAcls")[-1]["resources"] == [
        {
            "type": "TOPIC",
            "name": "orders",
            "outcome": "OK",
            "pattern": "LITERAL",
            "principal": "User:ada",
            "host": "*",
            "operation": "DELETE",
            "permission": "ALLOW",
        }
    ]
    text = node.entries.text()
    assert "canary" not in text and "77777777" not in text


def test_denied_accesses_are_recorded_and_repeats_counted(node: Audited) -> None:
    create(node.admin(), "secret", "open")
    denied = KafkaError.TOPIC_AUTHORIZATION_FAILED
    producer = Producer(node.login("eve"))
    for _ in range(20):
        assert producer.list_topics("secret", timeout=60).topics["secret"].error.code() == denied
    consumer = Consumer(node.login("eve") | {"group.id": "spies"})
    consumer.subscribe(["open"])
    until(lambda: any(message.error() for message in consumer.consume(1, 1.0)), "the group is denied")
    consumer.close()
    stranger = node.admin("eve")
    assert error_of(stranger.delete_topics(["secret"])["secret"]) == denied

    def found() -> dict[tuple[str, ...], dict[str, Any]]:
        return {
            (one["api"], one["operation"], one["resource_type"], one["resource_name"]): one
            for one in node.entries.denials(DENIED_ACCESS)
            if one["principal"] == "User:eve"
        }

    # the response does not wait for a denial's entry
    deletion = ("DeleteTopics", "DELETE", "TOPIC", "secret")
    until(lambda: deletion in found(), "the last denial has an entry")
    assert ("Metadata", "DESCRIBE", "TOPIC", "secret") in found()
    assert ("FindCoordinator", "DESCRIBE", "GROUP", "spies") in found()
    assert found()[deletion]["client_id"] == "eves laptop"
    assert all("secret" not in str(one["resources"]) for one in node.entries.actions("DeleteTopics"))

    def repeated() -> bool:
        return any(one.get("count", 0) > 1 and "first" in one for one in node.entries.denials(DENIED_ACCESS))

    until(repeated, "repeats have an entry with their number")
    assert "canary" not in node.entries.text()


def test_failed_logins_are_recorded_without_what_was_typed(node: Audited) -> None:
    refused = [
        AdminClient(node.login(user, password))
        for user, password in (("ada", "canary-wrong"), ("canary-typed-as-user", "x"))
    ]

    def users() -> set[str | None]:
        return {one["user"] for one in node.entries.denials(DENIED_LOGIN) if "user" in one}

    until(lambda: users() == {"ada", None}, "both users have entries")
    entry = next(one for one in node.entries.denials(DENIED_LOGIN) if one["user"] == "ada")
    assert entry["mechanism"] == "SCRAM-SHA-512"
    assert entry["client"] == "127.0.0.1"
    assert "invalid credentials" in entry["reason"]
    for client in refused:
        with pytest.raises(KafkaException):
            client.list_topics(timeout=1)
    assert "canary" not in node.entries.text()


def test_metrics_count_entries(node: Audited) -> None:
    found = node.metrics()
    assert found['tierlog_audit_entries_total{event="action"}'] >= 1
    assert found['tierlog_audit_entries_dropped_total{reason="write_failed"}'] == 0
    assert found['tierlog_audit_entries_dropped_total{reason="queue_full"}'] == 0
    assert found["tierlog_audit_denials_collapsed_total"] >= 1


def test_admin_api_actions_and_refusals_are_recorded(tmp_path: Path) -> None:
    node = Audited(tmp_path, tmp_path / "audit", admin_authentication="basic", admin_operators="User:ada")
    with node.broker:
        create(node.admin(), "moved")

        def ask(user: str, password: str, method: str, path: str, body: Any = None) -> int:
            pair = b64encode(f"{user}:{password}".encode()).decode()
            headers = {"Authorization": f"Basic {pair}", "Content-Type": "application/json"}
            data = json.dumps(body or {}).encode()
            url = f"{node.broker.admin_url}{path}"
            sent = urllib.request.Request(url, data, headers, method=method)
            try:
                with urllib.request.urlopen(sent, timeout=60) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as refused:
                return refused.code

        move = {"moves": [{"topic": "moved", "partition": 0, "replicas": [1]}]}
        assert ask("ada", node.passwords["ada"], "POST", "/v1/partitions/move", move) == 200
        assert ask("ada", node.passwords["ada"], "DELETE", "/v1/brokers/1") == 403
        assert ask("admin", node.passwords["admin"], "DELETE", "/v1/brokers/9") == 404
        assert ask("ada", "canary-wrong", "POST", "/v1/partitions/move", move) == 401
        moved, removed = (entry for entry in node.entries.actions() if entry["listener"] == "admin")
        assert (moved["principal"], moved["api"]) == ("User:ada", "POST /v1/partitions/move")
        assert moved["resources"] == [
            {"type": "PATH", "name": "/v1/partitions/move", "outcome": "OK"},
            {"type": "PARTITION", "name": "moved-0", "replicas": [1], "outcome": "OK"},
        ]
        assert removed["resources"] == [{"type": "PATH", "name": "/v1/brokers/9", "outcome": "HTTP_404"}]
        [denied] = [one for one in node.entries.denials(DENIED_ACCESS) if one["listener"] == "admin"]
        assert (denied["principal"], denied["operation"]) == ("User:ada", "admin")
        [login] = node.entries.denials(DENIED_LOGIN)
        assert (login["listener"], login["mechanism"], login["user"]) == ("admin", "basic", "ada")
        assert "canary" not in node.entries.text()


def test_answered_actions_are_in_the_log_after_sigkill(tmp_path: Path) -> None:
    node = Audited(tmp_path, tmp_path / "audit")
    answered: list[str] = []
    with node.broker:
        client, enough = node.admin(), threading.Event()

        def create_many() -> None:
            for number in range(10_000):
                try:
                    client.create_topics([NewTopic(f"t{number}", 1)])[f"t{number}"].result(60)
                except KafkaException:
                    return
                answered.append(f"t{number}")
                if number == 30:
                    enough.set()

        creator = threading.Thread(target=create_many)
        creator.start()
        assert enough.wait(60)
        node.broker.kill()  # between two requests, or within one
        creator.join(60)
    recorded = {
        resource["name"]
        for entry in node.entries.actions("CreateTopics")
        for resource in entry["resources"]
        if resource["outcome"] == "OK"
    }
    assert set(answered) <= recorded


def test_full_disk_of_the_log_stops_nothing_and_is_counted(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", 64 << 10) as disk:
        node = Audited(tmp_path, disk / "audit")
        with node.broker:
            client = node.admin()
            create(client, "before")
            ballast = disk / "ballast"
            with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
                while True:
                    file.write(bytes(4096))
            for number in range(20):
                create(client, *(f"during-{number}-{one}-{'x' * 150}" for one in range(10)))
            dropped = node.metrics()['tierlog_audit_entries_dropped_total{reason="write_failed"}']
            assert dropped > 0
            ballast.unlink()
            create(client, "after")
            names = [one["name"] for entry in node.entries.actions() for one in entry["resources"]]
            assert names[0] == "before" and names[-1] == "after"
            assert len(node.entries.actions()) == 22 - dropped
