"""DescribeAcls and DeleteAcls with many ACLs: read a bounded number between two turns of the event loop."""

from types import SimpleNamespace
from typing import Any

import pytest
from loop_steps import LoopSteps
from msgspec.structs import replace
from wire_client import message

from tierlog.broker.handlers import acls as module
from tierlog.broker.handlers.acls import acl_handlers
from tierlog.broker.handlers.context import Connection, RawReply, RequestContext
from tierlog.broker.handlers.turns import ENTRIES_PER_TURN
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
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.codec import decode
from tierlog.protocol.errors import ErrorCode

COUNT = 300
ANY = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
NOTHING = {"resource_name_filter": None, "principal_filter": None, "host_filter": None}


class Quorum:
    """Decides and applies commands at once, and keeps them."""

    def __init__(self) -> None:
        entries = (
            AccessControlEntry(
                resource=ResourceType.TOPIC,
                pattern=PatternType.PREFIXED,
                name=f"t{n:03}",
                principal=f"User:{n % 100}",
                host="*",
                operation=AclOperation.READ,
                permission=Permission.ALLOW,
            )
            for n in range(COUNT)
        )
        self.image = ClusterImage(cluster_id="c", format_version=3, acls=index_of(entries))
        self.commands: list[DeleteAcls] = []

    async def submit(self, command: DeleteAcls) -> AclsDeleted:
        self.commands.append(command)
        decision = acls.delete(self.image, command)
        self.image = evolve_all(self.image, decision.records)
        return decision.reply

    async def current(self) -> ClusterImage:
        return self.image

    async def ask(self, name: str, fields: dict[str, Any]) -> Any:
        api = BY_NAME[name]
        context = RequestContext(api.key, api.max_version, 1, "c", Connection(1, "h", 1))
        deps: Any = SimpleNamespace(metadata=self, authorizer=object())
        reply = await acl_handlers(deps)[name](context, message(name, fields))  # type: ignore[misc]
        if isinstance(reply, RawReply):
            body = b"".join(bytes(part) for part in reply.parts)  # type: ignore[arg-type]
            reply = decode(api.response, api.max_version, body)
        return reply


def wanted(**more: Any) -> dict[str, Any]:
    return ANY | NOTHING | more


async def test_descriptions_are_read_and_built_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATTERNS_PER_TURN", 20)
    quorum = Quorum()
    for host in ("*", "192.0.2.1"):
        names = ["selected_entries", "selecting_patterns"]
        with LoopSteps("metadata/acl_index.py", functions=names) as steps:
            described = await quorum.ask("DescribeAcls", wanted(host_filter=host))
        names = [resource.resource_name for resource in described.resources]
        assert names == ([f"t{n:03}" for n in range(COUNT)] if host == "*" else [])
        assert steps.total >= COUNT
        assert steps.most <= (3 * ENTRIES_PER_TURN if host == "*" else 2 * 20)


@pytest.mark.parametrize("operation", [AclOperation.READ, AclOperation.WRITE])
async def test_principals_of_one_resource_are_described_in_turns(
    monkeypatch: pytest.MonkeyPatch, operation: AclOperation
) -> None:
    monkeypatch.setattr(module, "PATTERNS_PER_TURN", 100)
    quorum = Quorum()
    entries = [
        replace(entry, name="t", principal=f"User:{n:05}", host=f"192.0.2.{n % 200}")
        for n in range(5_000)
        for entry in [next(iter(quorum.image.acls))]
    ]
    quorum.image = ClusterImage(cluster_id="c", format_version=3, acls=index_of(entries))
    names = ["selected_entries", "selecting_patterns"]
    with LoopSteps("metadata/acl_index.py", functions=names) as steps:
        described = await quorum.ask("DescribeAcls", wanted(operation=operation))
    found = [(acl.principal, acl.host) for resource in described.resources for acl in resource.acls]
    expected = [(entry.principal, entry.host) for entry in entries]
    assert found == (expected if operation is AclOperation.READ else [])
    assert 0 < steps.most <= ENTRIES_PER_TURN + 101


async def test_command_has_few_filters_that_read_many_acls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATTERNS_PER_COMMAND", 225)
    monkeypatch.setattr(module, "FILTER_COST", 0)
    quorum = Quorum()
    by_principal = [wanted(principal_filter=f"User:{n}") for n in range(100)]
    answer = await quorum.ask("DeleteAcls", {"filters": by_principal})
    assert [len(command.filters) for command in quorum.commands] == [75, 25]
    assert [len(result.matching_acls) for result in answer.filter_results] == [3] * 100
    assert len(quorum.image.acls) == 0


@pytest.mark.parametrize(
    ("fields", "selected"),
    [
        ({}, COUNT),
        ({"host_filter": "*", "permission_type": 3}, COUNT),
        ({"host_filter": "192.0.2.1"}, 0),
        ({"resource_type_filter": 2, "pattern_type_filter": 2, "resource_name_filter": "t007x"}, 1),
        ({"resource_type_filter": 3}, 0),
    ],
)
async def test_acls_of_a_filter_that_reads_all_are_found_in_turns(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], selected: int
) -> None:
    monkeypatch.setattr(module, "PATTERNS_PER_COMMAND", COUNT)
    monkeypatch.setattr(module, "PATTERNS_PER_TURN", 20)
    monkeypatch.setattr(module, "ACLS_PER_COMMAND", 20)
    quorum = Quorum()
    first = wanted(principal_filter="User:7", resource_name_filter="none")
    with LoopSteps("metadata/acl_index.py", functions=["selected_entries"]) as steps:
        answer = await quorum.ask("DeleteAcls", {"filters": [first, wanted(**fields)]})
    none, result = answer.filter_results
    assert (none.error_code, none.matching_acls) == (0, [])
    names = {acl.resource_name for acl in result.matching_acls}
    assert (result.error_code, len(names), len(result.matching_acls)) == (0, selected, selected)
    assert {entry.name for entry in quorum.image.acls}.isdisjoint(names)
    assert len(quorum.image.acls) == COUNT - selected
    assert 0 < steps.most <= 5 * 20  # each item of a generator counts


async def test_principals_of_one_resource_are_found_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATTERNS_PER_COMMAND", COUNT)
    monkeypatch.setattr(module, "ACLS_PER_COMMAND", 20)
    quorum = Quorum()
    entries = [replace(entry, name="t", principal=f"User:{n}") for n, entry in enumerate(quorum.image.acls)]
    quorum.image = ClusterImage(cluster_id="c", format_version=3, acls=index_of(entries))
    names_it = {"resource_type_filter": 2, "pattern_type_filter": 4, "resource_name_filter": "t"}
    answer = await quorum.ask("DeleteAcls", {"filters": [wanted(**names_it)]})
    assert len(answer.filter_results[0].matching_acls) == COUNT
    assert max(len(command.filters) for command in quorum.commands) == 20
    assert len(quorum.image.acls) == 0


async def test_filter_that_reads_all_acls_is_refused_if_it_is_invalid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PATTERNS_PER_COMMAND", COUNT)
    quorum = Quorum()
    answer = await quorum.ask("DeleteAcls", {"filters": [wanted(operation=0)]})
    assert answer.filter_results[0].error_code == ErrorCode.INVALID_REQUEST
    assert len(quorum.image.acls) == COUNT
