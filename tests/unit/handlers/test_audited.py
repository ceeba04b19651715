"""Entries of requests that change the cluster: made of the request only for what is written."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from loop_steps import LoopSteps
from wire_client import message

from tierlog.base.clock import SystemClock
from tierlog.broker.audit.log import AuditLog
from tierlog.broker.handlers import actions
from tierlog.broker.handlers.acls import acl_handlers
from tierlog.broker.handlers.audited import audited_handlers
from tierlog.broker.handlers.context import Connection, Handler, Pending, RequestContext
from tierlog.broker.handlers.guard import guarded_handlers
from tierlog.broker.security.authorizer import Authorizer
from tierlog.config.node import NodeSettings
from tierlog.metadata.acl_index import index_of
from tierlog.metadata.acls import (
    AccessControlEntry,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
)
from tierlog.metadata.controller import acls
from tierlog.metadata.controller.commands import AclsDeleted, DeleteAcls
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsResponse

ADMIN, GUEST = "User:admin", "User:guest"
COUNT = 1_500


def rule(n: int, name: str = "") -> AccessControlEntry:
    return AccessControlEntry(
        resource=ResourceType.TOPIC,
        pattern=PatternType.LITERAL,
        name=name or f"t{n:04}",
        principal=f"User:{n % 100}",
        host="*",
        operation=AclOperation.READ,
        permission=Permission.ALLOW,
    )


class Node:
    """A node whose super user is `admin`, with ACLs and an audit log. `commands_left`: how many the quorum
    carries out before it is lost."""

    def __init__(self, directory: Path) -> None:
        self.image = ClusterImage(cluster_id="c", format_version=3, acls=index_of(map(rule, range(COUNT))))
        self.authorizer = Authorizer(self, frozenset({ADMIN}))
        self.audit = AuditLog(NodeSettings(audit_log_dir=str(directory)), 1, SystemClock())
        self.commands_left = 1_000
        self._directory = directory

    async def submit(self, command: DeleteAcls) -> AclsDeleted:
        if not self.commands_left:
            raise MetadataUnavailable("no quorum", applied_unknown=True)
        self.commands_left -= 1
        decision = acls.delete(self.image, command)
        self.image = evolve_all(self.image, decision.records)
        return decision.reply

    async def current(self) -> ClusterImage:
        return self.image

    async def ask(
        self, principal: str, api: str, fields: dict[str, Any], handler: Handler | None = None
    ) -> Any:
        deps: Any = SimpleNamespace(metadata=self, authorizer=self.authorizer, audit=self.audit)
        key = BY_NAME[api].key
        handler = handler or acl_handlers(deps)[api]
        guarded = guarded_handlers({key: handler}, deps, self.authorizer)
        [handle] = audited_handlers(guarded, deps, self.audit).values()
        connection = Connection(1, "10.0.0.1", 1)
        connection.principal = principal
        reply = handle(
            RequestContext(key, BY_NAME[api].max_version, 1, "c", connection), message(api, fields)
        )
        return await reply if isinstance(reply, Pending) else reply

    async def entries(self) -> list[dict[str, Any]]:
        await self.audit.close()
        path = self._directory / "audit-1.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def wanted(**more: Any) -> dict[str, Any]:
    return {
        "resource_type_filter": ResourceType.TOPIC,
        "resource_name_filter": None,
        "pattern_type_filter": PatternType.ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": AclOperation.ANY,
        "permission_type": Permission.ANY,
    } | more


def deleted(entries: list[dict[str, Any]]) -> list[str]:
    return [acl["name"] for entry in entries for one in entry["resources"] for acl in one.get("deleted", ())]


async def test_entry_names_the_acls_that_went(node: Node) -> None:
    await node.ask(
        ADMIN, "DeleteAcls", {"filters": [wanted(principal_filter="User:7"), wanted(principal_filter="?")]}
    )
    [entry] = await node.entries()
    first, second = entry["resources"]
    assert deleted([entry]) == [f"t{n:04}" for n in range(7, COUNT, 100)]
    assert first["deleted"][0] == {
        "type": "TOPIC",
        "name": "t0007",
        "pattern": "LITERAL",
        "principal": "User:7",
        "host": "*",
        "operation": "READ",
        "permission": "ALLOW",
    }
    assert (first["name"], first["principal"], first["outcome"]) == ("", "User:7", "OK")
    assert second["outcome"] == "OK" and "deleted" not in second


async def test_entries_name_all_acls_of_a_broad_filter(node: Node) -> None:
    await node.ask(ADMIN, "DeleteAcls", {"filters": [wanted()]})
    assert sorted(deleted(await node.entries())) == [f"t{n:04}" for n in range(COUNT)]


async def test_acls_that_went_before_the_quorum_was_lost_have_an_entry(node: Node) -> None:
    node.commands_left = 1
    reply = await node.ask(ADMIN, "DeleteAcls", {"filters": [wanted(), wanted()]})
    assert [one.error_code for one in reply.filter_results] == [ErrorCode.REQUEST_TIMED_OUT] * 2
    entries = await node.entries()
    gone = {rule(n).name for n in range(COUNT)} - {pattern[2] for pattern in node.image.acls.patterns}
    assert len(gone) > 0 and set(deleted(entries)) == gone
    assert {one["outcome"] for entry in entries for one in entry["resources"]} == {"REQUEST_TIMED_OUT"}


def reading(monkeypatch: pytest.MonkeyPatch, api: str) -> list[str]:
    """Names of the targets that the audit log reads from requests of this API."""
    found: list[str] = []
    action = actions.ACTIONS[api]

    def targets(request: Any, image: ClusterImage) -> Iterator[actions.Target]:
        for target in action.targets(request, image):
            found.append(target.name)
            yield target

    counting = actions.Action(action.resources, action.details, targets, action.results, action.changes)
    monkeypatch.setitem(actions.ACTIONS, api, counting)  # type: ignore[arg-type]
    return found


async def test_request_without_access_is_not_read(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    found = reading(monkeypatch, "DeleteAcls")
    reply = await node.ask(GUEST, "DeleteAcls", {"filters": [wanted()] * 500})
    assert {one.error_code for one in reply.filter_results} == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    assert await node.entries() == [] and found == []


async def test_items_without_access_are_not_read(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def delete_groups(context: RequestContext, request: Any) -> DeleteGroupsResponse:
        return DeleteGroupsResponse(
            results=[DeletableGroupResult(group_id=group_id) for group_id in request.groups_names]
        )

    mine = AccessControlEntry(
        resource=ResourceType.GROUP,
        pattern=PatternType.PREFIXED,
        name="mine",
        principal=GUEST,
        host="*",
        operation=AclOperation.DELETE,
        permission=Permission.ALLOW,
    )
    node.image = ClusterImage(cluster_id="c", acls=index_of([mine]))
    found = reading(monkeypatch, "DeleteGroups")
    names = [f"other-{number}" for number in range(5_000)]
    await node.ask(GUEST, "DeleteGroups", {"groups_names": [*names, "mine-1"]}, delete_groups)
    [entry] = await node.entries()
    assert entry["resources"] == [{"type": "GROUP", "name": "mine-1", "outcome": "OK"}]
    assert set(found) == {"mine-1"}


async def test_resources_of_an_entry_are_read_in_turns(node: Node) -> None:
    def delete_groups(context: RequestContext, request: Any) -> DeleteGroupsResponse:
        return DeleteGroupsResponse()

    names = [f"group-{number}" for number in range(20_000)]
    with LoopSteps("broker/handlers/actions", functions=["_named"]) as steps:
        await node.ask(ADMIN, "DeleteGroups", {"groups_names": names}, delete_groups)
    assert 0 < steps.most <= 250
    assert sum(len(entry["resources"]) for entry in await node.entries()) == len(names)
