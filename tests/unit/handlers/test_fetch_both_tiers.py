"""Fetch and ListOffsets over both tiers: aborted transactions, the high watermark, the largest timestamp."""

import asyncio
import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest
from tier_node import ABORT, PRODUCER, START_MS, TierNode, produce, write_transactional

from tierlog.broker.handlers.batch_validator import BatchValidator
from tierlog.broker.handlers.context import Connection, RequestContext
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.fetch import fetch_handler
from tierlog.broker.handlers.fetch_sessions import FetchSessions
from tierlog.broker.handlers.offsets import MAX_TIMESTAMP, list_offsets_handler
from tierlog.broker.handlers.purgatory import Purgatory
from tierlog.broker.handlers.recently_fenced import RecentlyFencedBrokers
from tierlog.broker.replication.replica import Replica
from tierlog.config.node import NodeSettings
from tierlog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from tierlog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tierlog.records.writer import NewRecord
from tierlog.tiering.memory_store import MemoryStore


def dependencies(node: TierNode) -> Dependencies:
    return Dependencies(
        settings=NodeSettings(remote_fetch_max_wait_ms=10_000),
        metadata=node.metadata,
        replicas=node,  # type: ignore[arg-type]
        purgatory=Purgatory(10),
        sessions=FetchSessions(0, random.Random(1)),
        producer_ids=None,  # type: ignore[arg-type]
        clock=node.clock,
        tasks=node.tasks,
        recently_fenced=RecentlyFencedBrokers(node.clock),
        remote=node.remote_log,
    )


async def fetch(node: TierNode, replica: Replica, offset: int) -> PartitionData:
    asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_bytes=1 << 20,
        isolation_level=1,
        topics=[FetchTopic(topic=replica.name.topic, partitions=[asked])],
    )
    context = RequestContext(1, 12, 1, "test", Connection(1, "127.0.0.1", 1))
    response = await fetch_handler(dependencies(node))(context, request)  # type: ignore[misc]
    answer: PartitionData = response.responses[0].partitions[0]
    return answer


@pytest.mark.parametrize("marker_tiered", [False, True])
async def test_aborted_remote_transactions_are_returned_wherever_the_marker_is(
    tmp_path: Path, marker_tiered: bool
) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t")
        first = write_transactional(replica, [NewRecord(START_MS, b"k", b"v", ())], base_sequence=0)
        replica.log.roll(START_MS)
        write_transactional(replica, ABORT, control=True)
        produce(replica, 1)
        if marker_tiered:
            await node.log_manager.flush("t")
        await settled(node)
        assert replica.local_log_start_offset == (replica.log_end_offset if marker_tiered else first + 1)
        answer = await fetch(node, replica, first)
        assert answer.records.size > 0
        assert [(line.producer_id, line.first_offset) for line in answer.aborted_transactions or ()] == [
            (PRODUCER, first)
        ]


async def settled(node: TierNode) -> None:
    node.log_manager.wake_all()
    while jobs := node.log_manager.jobs():
        await asyncio.wait(jobs)


async def test_no_remote_record_is_returned_above_the_returned_high_watermark(tmp_path: Path) -> None:
    """A new leader's high watermark may be behind, although all remote records are committed."""
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t")
        produce(replica, 3)
        await node.log_manager.flush("t")
        await settled(node)
        replica._core.high_watermark = 3
        answer = await fetch(node, replica, 0)
        assert answer.records.end_offset == 15
        assert (answer.high_watermark, answer.last_stable_offset) == (15, 15)


async def test_largest_timestamp_is_found_if_its_segment_is_tiered_during_the_local_search(
    tmp_path: Path,
) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t")
        produce(replica, 2)
        await node.log_manager.flush("t")
        await settled(node)
        newest = replica.log_end_offset
        produce(replica, 1)

        class Tiering(BatchValidator):
            """Tiers all local records before a search of them begins."""

            async def run(self, steps: Any) -> Any:
                await node.log_manager.flush("t")
                await settled(node)
                assert replica.local_log_start_offset == replica.log_end_offset > newest
                return await super().run(steps)

        deps = dataclasses.replace(dependencies(node), validator=Tiering())
        asked = ListOffsetsPartition(partition_index=0, timestamp=MAX_TIMESTAMP)
        request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=[asked])])
        context = RequestContext(2, 8, 1, "test", Connection(1, "127.0.0.1", 1))
        answer = await list_offsets_handler(deps)(context, request)  # type: ignore[misc]
        [found] = answer.topics[0].partitions
        last = replica.log_end_offset - 1
        assert (found.error_code, found.offset, found.timestamp) == (0, last, START_MS + last)
