"""Access of consumers and replicas to Fetch, decided by ACLs."""

from pathlib import Path
from typing import Any

import pytest
from fetch_node import LED, NEWEST, fetch_node

from tierlog.broker.handlers.access import CLUSTER
from tierlog.metadata.acls import AccessControlEntry, AclOperation, PatternType, Permission, ResourceType
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.fetch import ReplicaState

RECORDS, FOLLOWERS = 5, (2, 3)
REPLICA_STATE_FROM = 15
VERSIONS = range(REPLICA_STATE_FROM, NEWEST + 1)
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def allowing(operation: AclOperation, resource: ResourceType, name: str) -> AccessControlEntry:
    return AccessControlEntry(
        resource=resource,
        pattern=PatternType.LITERAL,
        name=name,
        principal="User:ANONYMOUS",
        host="*",
        operation=operation,
        permission=Permission.ALLOW,
    )


READ = allowing(AclOperation.READ, ResourceType.TOPIC, "t")
CLUSTER_ACTION = allowing(AclOperation.CLUSTER_ACTION, *CLUSTER)


def replica(broker_id: int) -> dict[str, Any]:
    """Fields of the requests of a broker whose epoch is its id."""
    return {"replica_state": ReplicaState(replica_id=broker_id, replica_epoch=broker_id)}


def made(directory: Path) -> Path:
    directory.mkdir()
    return directory


@pytest.mark.parametrize("version", VERSIONS)
async def test_replica_needs_cluster_action(tmp_path: Path, version: int) -> None:
    async with fetch_node(made(tmp_path / "denied"), [READ]) as node:
        node.lead(RECORDS)
        for follower in FOLLOWERS:
            answer = await node.read(LED, RECORDS, version=version, **replica(follower))
            assert (answer.error_code, answer.records) == (DENIED, b"")
        assert node.replica(LED).high_watermark == 0, "a denied request proves nothing"
    async with fetch_node(made(tmp_path / "allowed"), [CLUSTER_ACTION]) as node:
        node.lead(RECORDS)
        answer = await node.read(LED, 0, version=version, **replica(2))
        assert answer.error_code == ErrorCode.NONE
        assert answer.records
        for follower in FOLLOWERS:
            await node.read(LED, RECORDS, version=version, **replica(follower))
        assert node.replica(LED).high_watermark == RECORDS


async def test_consumer_needs_read(tmp_path: Path) -> None:
    async with fetch_node(made(tmp_path / "denied"), [CLUSTER_ACTION]) as node:
        assert (await node.read(LED, 0)).error_code == DENIED
    async with fetch_node(made(tmp_path / "allowed"), [READ]) as node:
        assert (await node.read(LED, 0)).error_code == ErrorCode.NONE
