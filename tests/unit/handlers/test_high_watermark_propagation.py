"""Propagation of the high watermark to followers: at once if consumers may read there (KIP-392)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from connection_harness import until
from fetch_node import EPOCH, LED, NEWEST, TOPIC, Node, fetch_node

from tierlog.config.node import RACK_AWARE_SELECTOR
from tierlog.protocol.api import FETCH_KEY
from tierlog.protocol.messages import fetch

FOLLOWER, OTHER, BEHIND = 2, 3, 4  # brokers; their epochs are their ids
LONG_MS, TIMEOUT_S = 600_000, 20


@pytest.fixture
async def node(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    selector = getattr(request, "param", RACK_AWARE_SELECTOR)
    async with fetch_node(tmp_path, **{"replica.selector.class": selector}) as made:
        yield made


def asks(offset: int, *, session: tuple[int, int], wait_ms: int, follower: int) -> fetch.FetchRequest:
    requested = fetch.FetchPartition(
        partition=LED, fetch_offset=offset, partition_max_bytes=1_000_000, current_leader_epoch=EPOCH
    )
    return fetch.FetchRequest(
        session_id=session[0],
        session_epoch=session[1],
        max_wait_ms=wait_ms,
        min_bytes=1,
        topics=[fetch.FetchTopic(topic_id=TOPIC, partitions=[requested])],
        replica_state=fetch.ReplicaState(replica_id=follower, replica_epoch=follower),
    )


def offsets_of(answer: Any) -> tuple[int, int, int]:
    [partition] = answer.responses[0].partitions
    return partition.error_code, partition.high_watermark, len(partition.records)


async def open_session(node: Node, follower: int = FOLLOWER) -> int:
    """Open a fetch session and fetch a new record, which the other follower acknowledges first."""
    node.lead(1)
    request = asks(0, session=(0, 0), wait_ms=0, follower=follower)
    first = await node.client.ask(FETCH_KEY, NEWEST, request)
    assert offsets_of(first)[:2] == (0, 0)
    assert offsets_of(first)[2] > 0
    node.hear(OTHER, 1)
    return int(first.session_id)


async def waits(node: Node, request: fetch.FetchRequest) -> None:
    node.client.send(FETCH_KEY, NEWEST, request)
    await until(lambda: len(node.purgatory) == 1)


async def test_the_fetch_that_commits_is_answered_with_the_commit(node: Node) -> None:
    session = await open_session(node)
    request = asks(1, session=(session, 1), wait_ms=LONG_MS, follower=FOLLOWER)
    async with asyncio.timeout(TIMEOUT_S):
        assert offsets_of(await node.client.ask(FETCH_KEY, NEWEST, request)) == (0, 1, 0)
    await waits(node, asks(1, session=(session, 2), wait_ms=LONG_MS, follower=FOLLOWER))  # once is enough


async def test_delayed_fetch_completes_when_another_follower_commits(node: Node) -> None:
    session = await open_session(node)
    request = asks(1, session=(session, 1), wait_ms=LONG_MS, follower=FOLLOWER)
    async with asyncio.timeout(TIMEOUT_S):
        await node.client.ask(FETCH_KEY, NEWEST, request)
    node.lead(1)
    request = asks(1, session=(session, 2), wait_ms=LONG_MS, follower=FOLLOWER)
    assert offsets_of(await node.client.ask(FETCH_KEY, NEWEST, request))[1] == 1
    await waits(node, asks(2, session=(session, 3), wait_ms=LONG_MS, follower=FOLLOWER))
    node.hear(OTHER, 2)
    async with asyncio.timeout(TIMEOUT_S):
        _, answer = await node.client.receive(FETCH_KEY, NEWEST)
    assert offsets_of(answer) == (0, 2, 0)


async def test_fetch_without_a_session_waits_and_does_not_loop(node: Node) -> None:
    await open_session(node)
    await waits(node, asks(1, session=(0, -1), wait_ms=LONG_MS, follower=FOLLOWER))


async def test_fetch_of_a_replica_that_is_not_in_sync_waits(node: Node) -> None:
    session = await open_session(node, BEHIND)
    node.hear(FOLLOWER, 1)
    await waits(node, asks(1, session=(session, 1), wait_ms=LONG_MS, follower=BEHIND))
    assert node.replica(LED).high_watermark == 1


@pytest.mark.parametrize("node", [""], indirect=True)
async def test_fetch_waits_without_a_replica_selector(node: Node) -> None:
    session = await open_session(node)
    await waits(node, asks(1, session=(session, 1), wait_ms=LONG_MS, follower=FOLLOWER))
    assert node.replica(LED).high_watermark == 1
