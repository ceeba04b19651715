"""Fetch and ListOffsets over both tiers: aborted transactions, the high watermark, the largest timestamp."""

import dataclasses
from pathlib import Path
from typing import Any

import crc32c
import msgspec
import pytest
from compaction import clean
from tier_handlers import dependencies
from tier_node import ABORT, PRODUCER, START_MS, TierNode, content, produce, write_transactional

from tierlog.broker.handlers.batch_validator import BatchValidator
from tierlog.broker.handlers.context import Connection, Pending, RequestContext
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.fetch import fetch_handler
from tierlog.broker.handlers.offsets import MAX_TIMESTAMP, list_offsets_handler
from tierlog.broker.replication.replica import Replica
from tierlog.metadata.controller import commands as c
from tierlog.metadata.records import RemoteSegment
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from tierlog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tierlog.records.batch import iter_batches
from tierlog.records.chunks import ChunkBuilder
from tierlog.records.record import iter_records
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.tiering.format.bundle import ChunkTable, decode_bundle, encode_bundle
from tierlog.tiering.memory_store import MemoryStore


def request(replica: Replica, offset: int, isolation_level: int) -> tuple[RequestContext, FetchRequest]:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    message = FetchRequest(
        max_bytes=1 << 20,
        isolation_level=isolation_level,
        topics=[FetchTopic(topic=replica.name.topic, partitions=[partition])],
    )
    return RequestContext(1, 12, 1, "test", Connection(1, "127.0.0.1", 1)), message


async def fetch(
    node: TierNode, replica: Replica, offset: int, deps: Dependencies | None = None
) -> PartitionData:
    """One partition of a response to a `read_committed` consumer."""
    reply: Any = fetch_handler(deps or dependencies(node))(*request(replica, offset, isolation_level=1))
    response = await reply if isinstance(reply, Pending) else reply
    data: PartitionData = response.responses[0].partitions[0]
    return data


@pytest.mark.parametrize("marker_is_remote", [False, True])
async def test_aborted_remote_transactions_are_returned_for_local_and_remote_markers(
    tmp_path: Path, marker_is_remote: bool
) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t")
        first = write_transactional(replica, [NewRecord(START_MS, b"k", b"v", ())], base_sequence=0)
        replica.log.roll(START_MS)
        write_transactional(replica, ABORT, control=True)
        produce(replica, 1)
        if marker_is_remote:
            await node.log_manager.flush("t")
        await node.finish_tiering()
        assert replica.local_log_start_offset == (replica.log_end_offset if marker_is_remote else first + 1)
        data = await fetch(node, replica, first)
        assert data.records.size > 0
        assert [
            (aborted.producer_id, aborted.first_offset) for aborted in data.aborted_transactions or ()
        ] == [(PRODUCER, first)]


async def test_returned_high_watermark_covers_the_returned_remote_records(tmp_path: Path) -> None:
    """A new leader's high watermark may lag, although all remote records are committed."""
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t")
        produce(replica, 3)
        await node.log_manager.flush("t")
        await node.finish_tiering()
        replica._core.high_watermark = 3
        data = await fetch(node, replica, 0)
        assert data.records.end_offset == 15
        assert (data.high_watermark, data.last_stable_offset) == (15, 15)


async def test_fetch_of_cached_remote_records_is_answered_at_once(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t")
        produce(replica, 3)
        await node.log_manager.flush("t")
        await node.finish_tiering()
        first = fetch_handler(dependencies(node))(*request(replica, 0, isolation_level=0))
        assert isinstance(first, Pending)
        expected: Any = await first.work
        replica._core.high_watermark = 3
        again: Any = fetch_handler(dependencies(node))(*request(replica, 0, isolation_level=0))
        [data], [before] = again.responses[0].partitions, expected.responses[0].partitions
        assert content(data.records) == content(before.records) and data.records.size > 0
        assert (data.high_watermark, data.last_stable_offset) == (15, 15)
        assert replica.bytes_out == 2 * data.records.size


async def test_largest_timestamp_is_found_if_its_segment_is_tiered_during_the_local_search(
    tmp_path: Path,
) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t")
        produce(replica, 2)
        await node.log_manager.flush("t")
        await node.finish_tiering()
        end_of_first_flush = replica.log_end_offset
        produce(replica, 1)

        class TieringValidator(BatchValidator):
            """Tiers all local records before a search of them begins."""

            async def run(self, steps: Any) -> Any:
                await node.log_manager.flush("t")
                await node.finish_tiering()
                assert replica.local_log_start_offset == replica.log_end_offset > end_of_first_flush
                return await super().run(steps)

        deps = dataclasses.replace(dependencies(node), batch_validator=TieringValidator())
        last = replica.log_end_offset - 1
        assert await largest_timestamp(deps) == (ErrorCode.NONE, last, START_MS + last)


@pytest.mark.parametrize("isolation_level", [0, 1])
async def test_largest_timestamp_of_an_open_transaction_is_not_shown_to_read_committed(
    tmp_path: Path, isolation_level: int
) -> None:
    """As in Kafka, no other record is searched then."""
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t")
        produce(replica, 1)
        newest = write_transactional(replica, [NewRecord(START_MS + 10**6, b"k", b"v", ())], base_sequence=0)
        replica.after_append()
        assert replica.last_stable_offset == newest < replica.high_watermark
        expected = (newest, START_MS + 10**6) if isolation_level == 0 else (-1, -1)
        assert await largest_timestamp(dependencies(node), isolation_level) == (ErrorCode.NONE, *expected)


async def largest_timestamp(deps: Dependencies, isolation_level: int = 0) -> tuple[int, int, int]:
    """Error code, offset and timestamp of a ListOffsets response."""
    partition = ListOffsetsPartition(partition_index=0, timestamp=MAX_TIMESTAMP)
    request = ListOffsetsRequest(
        isolation_level=isolation_level, topics=[ListOffsetsTopic(name="t", partitions=[partition])]
    )
    context = RequestContext(2, 8, 1, "test", Connection(1, "127.0.0.1", 1))
    reply: Any = list_offsets_handler(deps)(context, request)
    response = await reply if isinstance(reply, Pending) else reply
    [result] = response.topics[0].partitions
    return result.error_code, result.offset, result.timestamp


@pytest.mark.parametrize("start", [0, 30, 31, 45, 59, 100])
async def test_largest_timestamp_ignores_remote_records_below_the_log_start(
    tmp_path: Path, start: int
) -> None:
    """Timestamps fall with the offset, so the record at the log start always has the largest one."""
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t")
        timestamps = [START_MS + 1000 - 100 * (offset // 30) - offset % 30 for offset in range(120)]
        for base in range(0, 120, 5):
            batch = encode_batch([NewRecord(timestamps[base + n], b"k", b"v" * 400, ()) for n in range(5)])
            assert replica.as_leader.append(memoryview(batch), START_MS).error == ErrorCode.NONE
            if base % 30 == 25:
                replica.log.roll(START_MS)
        await node.log_manager.flush("t")
        await node.finish_tiering()
        await node.move_log_start(replica, start)
        replica.raise_log_start(start)
        expected = ErrorCode.NONE, start, timestamps[start]
        assert await largest_timestamp(dependencies(node)) == expected


async def test_records_with_gaps_between_their_offsets_are_served_after_their_upload(tmp_path: Path) -> None:
    """The topic was compacted before it was tiered."""
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", remote_storage_enable="false", cleanup_policy="compact")
        for number in range(300):
            batch = encode_batch([NewRecord(START_MS + number, b"%d" % (number % 7), b"%0200d" % number, ())])
            assert replica.as_leader.append(memoryview(batch), START_MS).error == ErrorCode.NONE
        assert clean(replica.log)
        changes = tuple(
            c.ConfigChange(key=key, operation=c.ConfigOperation.SET, value=value)
            for key, value in {"cleanup.policy": "delete", "remote.storage.enable": "true"}.items()
        )
        topic = c.ConfigResource(scope=c.ConfigScope.TOPIC, name="t", changes=changes)
        await node.metadata.submit(c.AlterConfigs(resources=(topic,)))
        kept = await consume(node, replica)
        assert len(kept) < 50
        await node.log_manager.flush("t")
        await node.finish_tiering()
        assert replica.local_log_start_offset == replica.log_end_offset
        for start in range(0, replica.log_end_offset, 9):
            assert await consume(node, replica, start) == [offset for offset in kept if offset >= start]


async def test_fetch_in_a_gap_at_the_end_of_a_remote_segment_returns_the_next_records(tmp_path: Path) -> None:
    """Apache Kafka's cleaner may remove the last batch of a segment. After the last gap, the next records are
    local."""
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", index_interval_bytes="100000")
        produce(replica, 20)
        await node.log_manager.flush("t")
        await node.finish_tiering()
        produce(replica, 1)
        remote, entries, gaps = node.remote(replica), [], []
        for entry in remote.entries:
            key = node.keys.log(node.where(replica), entry)
            data = await node.store.get(key)
            position, last = list(iter_batches(data))[-1]
            assert position > 0
            checksum = crc32c.crc32c(data[:position])
            await node.store.put(key, data[:position], crc32c=checksum)
            index = await shortened(node, replica, entry, data[:position])
            sizes = {"log_bytes": position, "index_bytes": len(index)}
            entries.append(msgspec.structs.replace(entry, log_crc32c=checksum, **sizes))
            gaps.append((last.base_offset, entry.end_offset))
        state = msgspec.structs.replace(remote, entries=tuple(entries))
        for start, end in gaps:
            deps = dependencies(node, node.fresh_remote_log(*[state] * 9))
            data = await fetch(node, replica, start, deps)
            assert data.error_code == ErrorCode.NONE
            assert next(iter(iter_batches(content(data.records))))[1].base_offset == end


async def shortened(node: TierNode, replica: Replica, entry: RemoteSegment, data: bytes) -> bytes:
    """Replace a segment's index bundle by that of its first batches."""
    chunks = ChunkBuilder()
    for at, header in iter_batches(data):
        chunks.add(header, memoryview(data)[at : at + header.size])
    key = node.keys.index(node.where(replica), entry)
    before = decode_bundle(await node.store.get(key))
    table = ChunkTable(entry.uuid, len(data), chunks.checksum, chunks.chunks)
    index = encode_bundle(dataclasses.replace(before, chunk_table=table))
    await node.store.put(key, index, crc32c=crc32c.crc32c(index))
    return index


async def consume(node: TierNode, replica: Replica, start: int = 0) -> list[int]:
    """Offsets of all records from `start` on, read as a consumer does: each fetch begins after the last batch
    of the previous one."""
    offsets: list[int] = []
    fetch_offset = start
    while fetch_offset < replica.high_watermark:
        data = await fetch(node, replica, fetch_offset)
        assert data.error_code == ErrorCode.NONE and data.records
        records = content(data.records)
        for position, header in iter_batches(records):
            offsets += [record.offset for record in iter_records(records, position, max_bytes=1 << 20)]
            fetch_offset = header.next_offset
    return [offset for offset in offsets if offset >= start]
