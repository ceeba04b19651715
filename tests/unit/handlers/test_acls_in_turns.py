"""DescribeAcls and DeleteAcls with many ACLs: read a bounded number between two turns of the event loop."""

from types import SimpleNamespace
from typing import Any

import pytest
from loop_steps import LoopSteps
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
        with LoopSteps("metadata/acl_index.py", functions=["selected_entries"]) as steps:
            described = await quorum.ask("DescribeAcls", wanted(host_filter=host))
        names = [resource.resource_name for resource in described.resources]
        assert names == ([f"t{n:03}" for n in range(COUNT)] if host == "*" else [])
        assert steps.total >= COUNT
        assert steps.most <= (3 * ENTRIES_PER_TURN if host == "*" else 20)


async def test_command_has_few_filters_that_read_all_acls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATTERNS_PER_COMMAND", COUNT)
    monkeypatch.setattr(module, "FILTER_COST", 1)
    quorum = Quorum()
    by_host = [wanted(host_filter=f"192.0.2.{n}") for n in range(3)]
    by_principal = [wanted(principal_filter=f"User:{n}") for n in range(100)]
    answer = await quorum.ask("DeleteAcls", {"filters": by_host + by_principal})
    assert [len(command.filters) for command in quorum.commands] == [1, 1, 1, 75, 25]
    assert [len(result.matching_acls) for result in answer.filter_results] == [0] * 3 + [3] * 100
    assert len(quorum.image.acls) == 0
