"""Reads of a read_committed consumer, and of the committed offset of the loop."""

import asyncio
from typing import NamedTuple

from simulator.transaction_producer import INPUTS, LOOP_GROUP, call, find_coordinator
from simulator.workload import FETCH, MAX_RECORDS, RETRY_S, Client
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from tierlog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from tierlog.records.batch import iter_batches
from tierlog.records.record import iter_records

OFFSETS_FETCHED = BY_NAME["OffsetFetch"].key
READ_COMMITTED = 1


class Fetched(NamedTuple):
    """`is_end`: nothing follows `next_offset`, and no transaction is open."""

    records: list[tuple[int, bytes]]
    next_offset: int
    is_end: bool


async def fetch(client: Client, partition: int, offset: int) -> Fetched | None:
    """Fetch as a read_committed consumer. Returns None after a pause if there is no response."""
    wanted = FetchPartition(
        partition=partition,
        current_leader_epoch=client.leader_epoch(partition),
        fetch_offset=offset,
        partition_max_bytes=1 << 16,
    )
    topics = [FetchTopic(topic=client.topic, partitions=[wanted])]
    request = FetchRequest(max_wait_ms=100, min_bytes=1, isolation_level=READ_COMMITTED, topics=topics)
    answer = await client.call_leader(partition, FETCH, 12, request)
    if answer is None:
        return None
    data: PartitionData = answer.responses[0].partitions[0]  # type: ignore[attr-defined]
    if data.error_code != ErrorCode.NONE:
        await client.lost(partition)
        return None
    records, next_offset = committed_records(data, offset)
    return Fetched(records, next_offset, next_offset >= data.last_stable_offset >= data.high_watermark)


def committed_records(data: PartitionData, offset: int) -> tuple[list[tuple[int, bytes]], int]:
    """The records of committed transactions from `offset` on, and the offset after them, as clients find
    them."""
    aborted = sorted(data.aborted_transactions or [], key=lambda one: one.first_offset, reverse=True)
    aborting, found = set[int](), list[tuple[int, bytes]]()
    records = bytes(data.records or b"")
    for at, header in iter_batches(records):
        while aborted and aborted[-1].first_offset <= header.last_offset:
            aborting.add(aborted.pop().producer_id)
        is_hidden = header.is_control or (header.is_transactional and header.producer_id in aborting)
        if header.is_control:
            aborting.discard(header.producer_id)
        for record in () if is_hidden else iter_records(records, at, max_bytes=MAX_RECORDS):
            if record.offset >= offset:
                found.append((record.offset, record.value or b""))
        offset = max(offset, header.next_offset)
    return found, offset


async def fetch_offset(client: Client, *, is_stable: bool) -> int:
    """The committed offset of the loop's input; -1 if there is none."""
    topics = [OffsetFetchRequestTopic(name=INPUTS, partition_indexes=[0])]
    request = OffsetFetchRequest(group_id=LOOP_GROUP, topics=topics, require_stable=is_stable)
    while True:
        node = await find_coordinator(client, LOOP_GROUP)
        answer = await call(client, node, OFFSETS_FETCHED, 7, request)
        if answer is not None and answer.error_code == ErrorCode.NONE:
            [partition] = answer.topics[0].partitions
            if partition.error_code == ErrorCode.NONE:
                return int(partition.committed_offset)
        await asyncio.sleep(client.rng.uniform(*RETRY_S))
