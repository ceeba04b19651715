"""Replication throttle on the leader's side (KIP-73), over a socket."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fetch_node import EPOCH, LED, NEWEST, TOPIC, Node, fetch_node

from tierlog.base.clock import SystemClock
from tierlog.protocol.api import FETCH_KEY
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import fetch

IN_SYNC, BEHIND = 2, 4  # brokers; their epochs are their ids


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with fetch_node(tmp_path) as made:
        yield made


async def replicate(node: Node, follower: int, offset: int = 0) -> Any:
    requested = fetch.FetchPartition(
        partition=LED, fetch_offset=offset, partition_max_bytes=1_000_000, current_leader_epoch=EPOCH
    )
    state = fetch.ReplicaState(replica_id=follower, replica_epoch=follower)
    topic = fetch.FetchTopic(topic_id=TOPIC, partitions=[requested])
    request = fetch.FetchRequest(max_wait_ms=0, min_bytes=1, topics=[topic], replica_state=state)
    answer = await node.client.ask(FETCH_KEY, NEWEST, request)
    reported = answer.responses[0].partitions[0]
    assert reported.error_code == ErrorCode.NONE
    return len(reported.records)


async def test_throttle_stops_lagging_followers_and_not_those_in_sync(
    node: Node,
) -> None:
    for _ in range(3):
        node.lead(1)
    everything = await replicate(node, BEHIND)
    node.throttles.leader.configure(0, {"t": None})
    assert await replicate(node, BEHIND) == 0
    assert await replicate(node, IN_SYNC) == everything > 0
    node.throttles.leader.configure(0, {"t": frozenset({LED + 1})})
    assert await replicate(node, BEHIND) == everything  # not named


async def test_throttled_response_has_the_allowed_bytes_and_at_least_a_batch(node: Node) -> None:
    for _ in range(9):
        node.lead(1)
    everything = await replicate(node, BEHIND)
    batch = everything // 9
    throttle = node.throttles.leader
    throttle.configure(3 * batch, {"t": None})
    assert await replicate(node, BEHIND) == 3 * batch
    throttle.configure(1, {"t": None})
    throttle.record(-2 * batch)  # pays back the excess: bytes are allowed again
    assert await replicate(node, BEHIND) == batch


async def test_only_throttled_bytes_count_against_the_rate(node: Node) -> None:
    for _ in range(4):
        node.lead(1)
    batch = await replicate(node, BEHIND) // 4
    throttle = node.throttles.leader
    throttle.configure(batch, {"t": None})
    clock = SystemClock()
    assert await replicate(node, IN_SYNC) == 4 * batch
    assert throttle.byte_rate(clock.monotonic_ms()) == 0
    assert await replicate(node, BEHIND) == batch
    assert throttle.wait_ms() > 0
    assert throttle.byte_rate(clock.monotonic_ms()) > 0
