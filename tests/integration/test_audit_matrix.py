"""Every API with an audit log: its action, and the denial of what it needs, have entries."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from access_cases import FILTERED, HOST, SETTINGS, Acls, permissions_of, rows_of, send
from audit_entries import AuditEntries
from every_request import place_for
from waiting import until
from wire_client import Client, message

from tierlog.broker.audit.entries import DENIED_ACCESS, FAILED_ACTION
from tierlog.broker.handlers.actions import ACTIONS, NO_ACTION
from tierlog.broker.handlers.table import SERVED
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.errors import ErrorCode
from tierlog.testing import TierlogBroker

OUTCOMES = {
    "AlterReplicaLogDirs": "LOG_DIR_NOT_FOUND",
    "CreateDelegationToken": "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
    "ElectLeaders": "ELECTION_NOT_NEEDED",
    "ExpireDelegationToken": "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
    "RenewDelegationToken": "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
    "UnregisterBroker": "BROKER_ID_NOT_REGISTERED",
}
"""Outcomes of allowed requests that this node cannot carry out."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audited")


@pytest.fixture(scope="module")
def broker(directory: Path) -> Iterator[TierlogBroker]:
    settings = SETTINGS | {"audit.log.dir": str(directory / "audit"), "audit.log.repeat.ms": "1000"}
    with TierlogBroker(directory / "node", settings) as broker:
        yield broker


@pytest.fixture(scope="module")
def entries(directory: Path) -> AuditEntries:
    return AuditEntries(directory / "audit")


@pytest.fixture(scope="module")
def admin(broker: TierlogBroker) -> Iterator[Client]:
    client = Client(broker.bootstrap)
    yield client
    client.close()


@pytest.fixture(scope="module")
def acls(admin: Client) -> Acls:
    return Acls(admin)


@pytest.fixture(scope="module")
def client(broker: TierlogBroker) -> Iterator[Client]:
    client = Client(broker.bootstrap, HOST)
    yield client
    client.close()


def test_every_api_is_an_action_or_says_why_not() -> None:
    others = [name for names in NO_ACTION.values() for name in names]
    assert sorted([*ACTIONS, *others]) == sorted(SERVED)


@pytest.mark.parametrize("version", ["min_version", "max_version"])
@pytest.mark.parametrize("api", sorted(ACTIONS))
def test_action_has_an_entry_with_its_outcome(
    admin: Client, acls: Acls, client: Client, entries: AuditEntries, api: str, version: str
) -> None:
    def failed(entry: dict[str, Any]) -> bool:
        wanted = api, HOST, OUTCOMES[api]
        return tuple(entry.get(field) for field in ("api", "client", "outcome")) == wanted

    place = place_for(admin, api)
    number = getattr(BY_NAME[api], version)
    with acls.granted(*permissions_of(rows_of(api, number))):
        before = len(entries.actions(api))
        send(client, api, number, place)
        if api in OUTCOMES:
            until(lambda: any(map(failed, entries.denials(FAILED_ACTION))), f"{api} has an entry")
            return
        [entry] = (one for one in entries.actions(api)[before:] if one["client"] == HOST)
    assert {one["outcome"] for one in entry["resources"]} == {"OK"}
    assert all(isinstance(one["type"], str) and isinstance(one["name"], str) for one in entry["resources"])


@pytest.mark.parametrize("topics", [1_000, 20_000], ids=["", "larger than what is decoded"])
def test_requests_that_change_nothing_push_no_action_out(
    acls: Acls, client: Client, entries: AuditEntries, topics: int
) -> None:
    """A client needs no permission to name topics by ids that do not exist."""
    ids = [{"topic_id": uuid.uuid4()} for _ in range(topics)]

    def failed() -> list[dict[str, Any]]:
        return [one for one in entries.denials(FAILED_ACTION) if one.get("resources") == len(ids)]

    with acls.granted():
        before = len(entries.actions())
        for _ in range(20):
            reply = client.send("DeleteTopics", 6, message("DeleteTopics", {"topics": ids}))
            assert {one.error_code for one in reply.responses} == {ErrorCode.UNKNOWN_TOPIC_ID}
    until(lambda: sum(one["count"] for one in failed()) == 20, "all requests are counted")
    assert [one for one in entries.actions()[before:] if one["client"] == HOST] == []


@pytest.mark.parametrize("api", sorted(name for name in SERVED if name not in FILTERED))
def test_denial_has_an_entry_for_what_is_missing(
    admin: Client, acls: Acls, client: Client, entries: AuditEntries, api: str
) -> None:
    version = BY_NAME[api].max_version
    rows = rows_of(api, version)
    if not rows:
        return
    place = place_for(admin, api)
    [(operation, kind, _)] = permissions_of(rows[:1])

    def denied(entry: dict[str, Any]) -> bool:
        wanted = api, HOST, operation.name, kind.name
        found = (entry.get(field) for field in ("api", "client", "operation", "resource_type"))
        return "first" not in entry and tuple(found) == wanted

    before = len(entries.denials(DENIED_ACCESS))
    actions = len([one for one in entries.actions(api) if one["client"] == HOST])
    with acls.granted():
        send(client, api, version, place)
        until(lambda: any(map(denied, entries.denials(DENIED_ACCESS)[before:])), f"{api} has an entry")
    assert len([one for one in entries.actions(api) if one["client"] == HOST]) == actions
