"""ListOffsets of a new leader that does not know yet what its predecessor had committed (KIP-207)."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fetch_node import EPOCH, FOLLOWED, LIST_OFFSETS_KEY, Node, fetch_node

from tierlog.base.clock import SystemClock
from tierlog.broker.handlers.offsets import EARLIEST, LATEST, LATEST_TIERED, MAX_TIMESTAMP
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

RECORDS, COMMITTED = 3, 1
UNCOMMITTED_ONLY, COMMITTED_ONLY = 0, 1
BEFORE_ALL, AFTER_ALL = 0, 1 << 40
"""Timestamps: that of all records, and a later one."""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """It leads since a moment: RECORDS records are from the leader before, and it knows of COMMITTED."""
    async with fetch_node(tmp_path) as made:
        made.follow(RECORDS, COMMITTED)
        made.take_lead(FOLLOWED, EPOCH + 1)
        yield made


async def listed(
    node: Node, target: int, version: int = 9, isolation: int = UNCOMMITTED_ONLY
) -> tuple[ErrorCode, int]:
    wanted = ListOffsetsPartition(partition_index=FOLLOWED, timestamp=target)
    topics = [ListOffsetsTopic(name="t", partitions=[wanted])]
    request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics)
    answer = await node.client.ask(LIST_OFFSETS_KEY, version, request)
    [found] = answer.topics[0].partitions
    return ErrorCode(found.error_code), found.offset


def all_fetch(node: Node) -> None:
    """The in-sync followers fetch behind the last record."""
    for follower in (2, 3):
        now_ms = SystemClock().monotonic_ms()
        node.replica(FOLLOWED).as_leader.follower_fetched(follower, follower, RECORDS, now_ms)


@pytest.mark.parametrize("isolation", [UNCOMMITTED_ONLY, COMMITTED_ONLY])
@pytest.mark.parametrize(
    ("version", "error"),
    [
        (1, "LEADER_NOT_AVAILABLE"),
        (4, "LEADER_NOT_AVAILABLE"),
        (5, "OFFSET_NOT_AVAILABLE"),
        (11, "OFFSET_NOT_AVAILABLE"),
    ],
)
async def test_latest_offset_is_unknown_until_the_in_sync_replicas_have_fetched(
    node: Node, version: int, error: str, isolation: int
) -> None:
    assert await listed(node, LATEST, version, isolation) == (ErrorCode[error], -1)
    all_fetch(node)
    assert await listed(node, LATEST, version, isolation) == (ErrorCode.NONE, RECORDS)


async def test_a_record_behind_the_known_ones_may_be_committed(node: Node) -> None:
    assert await listed(node, AFTER_ALL) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    all_fetch(node)
    assert await listed(node, AFTER_ALL) == (ErrorCode.NONE, -1)


async def test_offsets_that_no_election_can_change_are_known(node: Node) -> None:
    assert await listed(node, EARLIEST) == (ErrorCode.NONE, 0)
    assert await listed(node, BEFORE_ALL) == (ErrorCode.NONE, 0)
    assert await listed(node, MAX_TIMESTAMP) == (ErrorCode.NONE, 0)
    assert await listed(node, LATEST_TIERED) == (ErrorCode.NONE, -1)
