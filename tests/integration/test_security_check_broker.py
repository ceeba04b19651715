"""`tierlog security check` of a running broker: open, closed, and closed badly."""

import json

from cli_inline import call
from confluent_kafka.admin import AclOperation, AdminClient
from secured_cluster import allow, create_users
from waiting import until

from tierlog.cli.errors import ExitCode
from tierlog.testing import TierlogBroker, TierlogBrokerFactory


def check(*words: str) -> list[tuple[str, str]]:
    """Level and check of each finding."""
    ended = call("security", "check", "--json", *words)
    rows = json.loads(ended.stdout)["findings"]
    assert ended.code == (ExitCode.INSECURE if rows else ExitCode.OK), ended
    return [(row["level"], row["check"]) for row in rows]


def test_open_broker(tierlog_broker: TierlogBroker) -> None:
    found = check("--bootstrap", tierlog_broker.bootstrap)
    assert found == [
        ("open", "no-login"),
        ("open", "no-authorizer"),
        ("open", "open-admin-api"),
        ("weak", "no-audit-log"),
    ]


def test_secure_broker_and_what_opens_it(tierlog_broker_factory: TierlogBrokerFactory) -> None:
    broker = tierlog_broker_factory(secure=True)
    file = ("--client-config", str(broker.client_file))
    assert check(*file) == []
    assert check(*file, "--days", "3650") == [("expires", "certificate")]
    admin = AdminClient(broker.client_settings())
    create_users(admin, {"ada": "lovelace"})
    allow(admin, "*", AclOperation.WRITE, "orders")
    expected = [("open", "acl-for-everyone"), ("weak", "few-iterations")]
    until(lambda: check(*file) == expected, "the broker applies both")
    assert check(*file, "--ignore", "few-iterations", "--ignore", "acl-for-everyone") == []


def test_tokens_in_their_last_day(tierlog_broker_factory: TierlogBrokerFactory) -> None:
    broker = tierlog_broker_factory({"delegation.token.secret.key": "canary-of-tokens"}, secure=True)
    file = ("--client-config", str(broker.client_file))
    for lifetime in ("1h", "6d"):
        created = call("token", "create", "--max-lifetime", lifetime, "--json", *file)
        assert created.code == 0, created
    until(lambda: check(*file) == [("expires", "token")], "the broker applies both tokens")


def test_check_needs_a_login(tierlog_broker_factory: TierlogBrokerFactory) -> None:
    broker = tierlog_broker_factory(secure=True)
    ended = call("security", "check", "--bootstrap", broker.bootstrap)
    assert ended.code not in (ExitCode.OK, ExitCode.INSECURE) and not ended.stdout


def test_roles_are_those_of_the_settings(tierlog_broker_factory: TierlogBrokerFactory) -> None:
    settings = {"admin.viewers": "User:prometheus;User:grafana", "admin.operators": "User:oncall"}
    broker = tierlog_broker_factory(settings, secure=True)
    file = ("--client-config", str(broker.client_file))
    listed = call("security", "roles", "--json", *file)
    rows = json.loads(listed.stdout)["roles"]
    assert [(row["role"], row["principals"], row["brokers"]) for row in rows] == [
        ("viewer", ["User:grafana", "User:prometheus"], [1]),
        ("operator", ["User:oncall"], [1]),
        ("admin", ["User:admin", "User:broker"], [1]),
    ]
    shown = call("security", "roles", *file)
    assert "User:oncall" in shown.stdout and "admin.authentication" not in shown.stdout + shown.stderr


def test_roles_of_an_open_broker_have_no_effect(tierlog_session_broker: TierlogBroker) -> None:
    shown = call("security", "roles", "--bootstrap", tierlog_session_broker.bootstrap)
    assert "every client that reaches the admin API may do everything" in shown.stdout + shown.stderr
