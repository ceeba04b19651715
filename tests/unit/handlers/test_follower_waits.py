"""Delayed Fetch of a follower: only changed partitions are read again."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from connection_harness import until
from fetch_node import EPOCH, FOLLOWED, LED, NEWEST, TOPIC, Node, fetch_node

from tierlog.broker.handlers.purgatory import COALESCED_TURNS
from tierlog.protocol.api import FETCH_KEY
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import fetch

FOLLOWER = 2
LONG_MS, TIMEOUT_S = 600_000, 20
SECOND = FOLLOWED


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """It leads both partitions."""
    async with fetch_node(tmp_path) as made:
        made.take_lead(SECOND, EPOCH + 1)
        yield made


async def parked(node: Node, min_bytes: int) -> None:
    both = [
        fetch.FetchPartition(
            partition=number, fetch_offset=0, partition_max_bytes=1_000_000, current_leader_epoch=epoch
        )
        for number, epoch in ((LED, EPOCH), (SECOND, EPOCH + 1))
    ]
    request = fetch.FetchRequest(
        session_epoch=-1,
        max_wait_ms=LONG_MS,
        min_bytes=min_bytes,
        topics=[fetch.FetchTopic(topic_id=TOPIC, partitions=both)],
        replica_state=fetch.ReplicaState(replica_id=FOLLOWER, replica_epoch=FOLLOWER),
    )
    node.client.send(FETCH_KEY, NEWEST, request)
    await until(lambda: len(node.purgatory) == 1)


async def answered(node: Node) -> list[tuple[int, int, bool]]:
    """Partition, error, and whether there are records."""
    async with asyncio.timeout(TIMEOUT_S):
        _, answer = await node.client.receive(FETCH_KEY, NEWEST)
    [topic] = answer.responses
    return [(one.partition_index, one.error_code, bool(one.records)) for one in topic.partitions]


async def test_append_to_one_partition_is_answered_without_the_others(node: Node) -> None:
    await parked(node, min_bytes=1)
    node.lead(1, SECOND)
    assert await answered(node) == [(LED, 0, False), (SECOND, 0, True)]


@pytest.mark.parametrize("in_one_turn", [True, False])
async def test_new_epoch_of_one_partition_is_sent_with_new_records_of_the_other(
    node: Node, in_one_turn: bool
) -> None:
    await parked(node, min_bytes=100_000)
    node.lead(1, SECOND)
    if not in_one_turn:
        for _ in range(COALESCED_TURNS + 3):
            await asyncio.sleep(0)
        assert len(node.purgatory) == 1, "it is not enough"
    node.take_lead(LED, EPOCH + 1)
    assert await answered(node) == [(LED, ErrorCode.FENCED_LEADER_EPOCH, False), (SECOND, 0, True)]
