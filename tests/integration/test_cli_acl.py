"""`tierlog acl` against a running broker with an authorizer."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from access_cases import SETTINGS
from cli_inline import call

from tierlog.testing import TierlogBroker

Ask = Callable[..., Any]
SUPER_USER = SETTINGS | {"super.users": "User:ANONYMOUS"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TierlogBroker]:
    with TierlogBroker(tmp_path_factory.mktemp("node") / "node", SUPER_USER) as broker:
        yield broker


@pytest.fixture
def ask(broker: TierlogBroker) -> Ask:
    def ask(*words: str, code: int = 0) -> Any:
        ended = call("acl", *words, "--json", "--bootstrap", broker.bootstrap)
        assert ended.code == code, ended.stderr
        return json.loads(ended.stdout) if ended.stdout else ended.stderr

    return ask


def row(principal: str, resource: str, name: str, operation: str, **changes: str) -> dict[str, str]:
    fields = {"pattern": "literal", "host": "*", "permission": "allow"} | changes
    return {"principal": principal, "resource": resource, "name": name, "operation": operation, **fields}


def test_acls_are_created_listed_and_deleted(ask: Ask) -> None:
    ada = ("--allow-principal", "ada", "--allow-principal", "User:bob")
    ask("create", *ada, "--operation", "read", "--operation", "Describe", "--topic", "cli", "--group", "g")
    names = [("group", "g"), ("topic", "cli")]
    both = [
        row(f"User:{user}", resource, name, operation)
        for resource, name in names
        for user in ("ada", "bob")
        for operation in ("read", "describe")
    ]
    expected = {frozenset(each.items()) for each in both}
    assert {frozenset(each.items()) for each in ask("list", *ada)} == expected
    assert ask("list", "--topic", "other") == []
    planned = ask("delete", "--allow-principal", "ada", "--dry-run")
    assert (len(planned["deleted"]), planned["changed"]) == (4, False)
    assert {frozenset(each.items()) for each in ask("list", *ada)} == expected
    deleted = ask("delete", "--allow-principal", "ada", "--yes")
    assert (len(deleted["deleted"]), deleted["changed"]) == (4, True)
    assert [each["principal"] for each in ask("list", *ada)] == ["User:bob"] * 4
    ask("delete", *ada, "--yes")
    assert "no ACL matches" in ask("delete", *ada, "--yes", code=4)


def test_denials_hosts_prefixes_and_the_cluster(ask: Ask) -> None:
    eve = ("--deny-principal", "*", "--deny-host", "192.0.2.1")
    prefixed = ("--resource-pattern-type", "prefixed")
    ask("create", *eve, "--operation", "all", "--topic", "cli-", "--cluster", *prefixed)
    changes = {"host": "192.0.2.1", "permission": "deny"}
    on_cluster = row("User:*", "cluster", "kafka-cluster", "all", **changes)
    on_topics = row("User:*", "topic", "cli-", "all", pattern="prefixed", **changes)
    assert ask("list", *eve) == [on_topics, on_cluster]
    match = ("--resource-pattern-filter", "match")
    assert ask("list", "--topic", "cli-orders", *match) == [on_topics]
    assert ask("list", "--topic", "cli-orders") == []
    found = ask("delete", "--cluster", "--topic", "cli-", "--resource-pattern-filter", "any", "--yes")
    assert found["deleted"] == [on_topics, on_cluster]


def test_deletion_by_name_keeps_prefixed_acls(ask: Ask) -> None:
    zoe = ("--allow-principal", "zoe", "--operation", "read")
    ask("create", *zoe, "--topic", "orders")
    ask("create", *zoe, "--topic", "orders", "--resource-pattern-type", "prefixed")
    literal = row("User:zoe", "topic", "orders", "read")
    prefixed = literal | {"pattern": "prefixed"}
    assert ask("delete", "--topic", "orders", "--yes")["deleted"] == [literal]
    assert ask("list", *zoe) == [prefixed]
    ask("create", *zoe, "--topic", "orders")
    assert ask("delete", *zoe, "--yes")["deleted"] == [literal, prefixed]


def test_deletion_removes_only_the_acls_that_it_showed(
    broker: TierlogBroker, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    joe = ("--allow-principal", "joe", "--operation", "read")
    ask("create", *joe, "--topic", "one")

    def add_another(question: str) -> None:
        ask("create", *joe, "--topic", "two")

    monkeypatch.setattr("tierlog.cli.commands.acl.confirm", add_another)
    assert call("acl", "delete", *joe, "--bootstrap", broker.bootstrap).code == 0
    assert ask("list", *joe) == [row("User:joe", "topic", "two", "read")]


def test_names_of_principals_may_have_colons(broker: TierlogBroker, ask: Ask) -> None:
    where = ("--operation", "read", "--topic", "colons")
    for name in ("system:serviceaccount:a:b", "CN=a:b", "User:c:d"):
        ask("create", "--deny-principal", name, *where)
    found = [each["principal"] for each in ask("list", "--topic", "colons")]
    assert found == ["User:CN=a:b", "User:c:d", "User:system:serviceaccount:a:b"]


def test_refused_requests_have_a_message(ask: Ask) -> None:
    where = ("--operation", "read", "--topic", "t")
    assert "is not an IP address" in ask(
        "create", "--allow-principal", "ada", "--allow-host", "example.org", *where, code=1
    )
    assert "does not exist for a group" in ask(
        "create", "--allow-principal", "ada", "--operation", "write", "--group", "g", code=2
    )
    assert "unknown operation" in ask("list", "--operation", "fly", code=2)


def test_delete_prints_its_target_and_asks(broker: TierlogBroker, ask: Ask) -> None:
    ask("create", "--allow-principal", "kim", "--operation", "read", "--topic", "t")
    refused = call("acl", "delete", "--allow-principal", "kim", "--bootstrap", broker.bootstrap)
    assert refused.code == 1
    assert f"target: {broker.bootstrap}" in refused.stderr
    assert "--yes" in refused.stderr
    assert len(ask("list", "--allow-principal", "kim")) == 1
