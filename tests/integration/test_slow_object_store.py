"""An S3 server that hangs or sends a byte at a time: what waits for it is bounded and ends (guarantee 18)."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import s3_servers
from connection_harness import until
from s3_proxy import S3Proxy
from tier_handlers import dependencies
from tier_node import TierNode, produce

from tierlog.broker.handlers.context import Connection, RequestContext
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.fetch import fetch_handler
from tierlog.broker.handlers.offsets import list_offsets_handler
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from tierlog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tierlog.tiering import remote_log
from tierlog.tiering.local_store import LocalStore
from tierlog.tiering.object_store import ObjectStoreError
from tierlog.tiering.remote_log import RemoteLog
from tierlog.tiering.s3 import S3Options, S3Store
from tierlog.tiering.segment_index import LOADS_AT_ONCE

PARTITIONS = 60
KEYS = {"access_key": s3_servers.ACCESS_KEY, "secret_key": s3_servers.SECRET_KEY}
CALLS: dict[str, Callable[[S3Store], Awaitable[Any]]] = {
    "object": lambda store: store.get("large"),
    "range": lambda store: store.get("large", 10, 500_000),
    "range into a buffer": lambda store: store.get_into("large", 10, memoryview(bytearray(500_000))),
    "with its ETag": lambda store: store.get_with_etag("large"),
    "list": lambda store: anext(store.list("")),
}


@pytest.mark.parametrize("call", CALLS)
async def test_response_that_trickles_ends_at_the_calls_deadline(proxy: S3Proxy, call: str) -> None:
    """The time between two bytes never reaches a limit."""
    options = S3Options.from_url(proxy.url("trickle"), **KEYS)
    patient, store = S3Store(options), S3Store(options, call_s=3)  # it takes a second to open the client
    await patient.put("large", bytes(1 << 20))
    await patient.put("small", b"x")
    await patient.close()
    proxy.trickles = True
    with pytest.raises(ObjectStoreError, match="timed out after"):
        await CALLS[call](store)
    await proxy.until_closed()  # the connection is not used again
    proxy.trickles = False
    assert await store.get("small") == b"x"
    await store.close()


async def test_cancelled_range_lets_go_of_its_buffer_and_its_connection(proxy: S3Proxy) -> None:
    store = S3Store(S3Options.from_url(proxy.url("cancelled"), **KEYS))
    await store.put("large", bytes(1 << 20))
    buffer = bytearray(b"-" * 500_000)
    proxy.trickles = True
    getting = asyncio.ensure_future(store.get_into("large", 0, memoryview(buffer)))
    await until(lambda: buffer[0] == 0)
    getting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await getting
    buffer[:] = b"-" * len(buffer)
    await proxy.until_closed()
    assert buffer.count(b"-") == len(buffer)
    proxy.trickles = False
    assert await store.get("large", 0, 3) == bytes(3)
    await store.close()


async def test_call_of_a_directory_that_hangs_ends_at_its_deadline(tmp_path: Path) -> None:
    """A FIFO without a writer blocks a thread that opens it, as a network file system without its server."""
    store = LocalStore(tmp_path, call_s=0.05)
    os.mkfifo(tmp_path / "hung")
    with pytest.raises(ObjectStoreError, match="timed out after"):
        await store.get("hung")
    os.close(os.open(tmp_path / "hung", os.O_WRONLY))
    await store.put("other", b"x")
    assert await store.get("other") == b"x"
    await store.close()


@pytest.fixture
async def cold(tmp_path: Path, proxy: S3Proxy) -> AsyncIterator[tuple[TierNode, RemoteLog]]:
    """A node with PARTITIONS partitions whose records are only in the bucket, and a reader of them without
    cached data."""
    store = S3Store(S3Options.from_url(proxy.url(tmp_path.name), **KEYS))
    async with TierNode(tmp_path, store) as node:
        await node.create("t", PARTITIONS)
        for replica in node:
            produce(replica, 1)
        await node.log_manager.flush("t")
        while jobs := node.log_manager.jobs():
            await asyncio.wait(jobs)
        assert all(one.local_log_start_offset == one.log_end_offset for one in node)
        proxy.gets.clear()
        yield node, node.fresh_remote_log()
        proxy.resume()
    await store.close()


async def fetch(deps: Dependencies) -> list[PartitionData]:
    """Fetch all partitions from their start."""
    requested = [
        FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1 << 16)
        for number in range(PARTITIONS)
    ]
    request = FetchRequest(max_bytes=100 << 20, topics=[FetchTopic(topic="t", partitions=requested)])
    context = RequestContext(1, 12, 1, "test", Connection(1, "127.0.0.1", 1))
    response: Any = await fetch_handler(deps)(context, request)  # type: ignore[misc]
    found: list[PartitionData] = response.responses[0].partitions
    return found


def with_records(answers: list[PartitionData]) -> set[int]:
    assert all(answer.error_code == ErrorCode.NONE for answer in answers)
    return {answer.partition_index for answer in answers if answer.records}


async def test_fetches_of_a_store_that_hangs_join_the_loads_that_run_and_leave_no_task(
    cold: tuple[TierNode, RemoteLog], proxy: S3Proxy
) -> None:
    node, remote = cold
    deps, idle = dependencies(node, remote, wait_ms=50), len(node.tasks)
    proxy.hang()
    for _ in range(5):
        assert with_records(await fetch(deps)) == set()
        await turns()
        await proxy.until_gets(LOADS_AT_ONCE)  # threads send them
        assert len(node.tasks) == idle + LOADS_AT_ONCE
        assert proxy.gets.total() == LOADS_AT_ONCE
    proxy.resume()
    seen: set[int] = set()
    while len(seen) < PARTITIONS:
        seen |= with_records(await fetch(deps))
    assert set(proxy.gets.values()) == {1}, "each object was requested once"
    assert len(proxy.gets) == 2 * PARTITIONS  # indexes and logs


async def test_partitions_beyond_the_bound_of_readers_wait_without_a_task(
    cold: tuple[TierNode, RemoteLog], proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, remote = cold
    monkeypatch.setattr(remote_log, "READERS_MAX", 4)
    deps, idle = dependencies(node, remote, wait_ms=50), len(node.tasks)
    proxy.hang()
    first = asyncio.ensure_future(fetch(dependencies(node, remote, wait_ms=60_000)))
    await proxy.until_gets(4)
    assert (remote.readers, remote.readers_refused) == (4, PARTITIONS - 4)
    assert with_records(await fetch(deps)) == set()
    assert await look_up(deps) == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(node.tasks) == idle + 2 * 4  # readers and loads
    proxy.resume()
    assert with_records(await first) == {0, 1, 2, 3}
    assert remote.readers == 0
    assert await look_up(deps) == ErrorCode.NONE


async def test_client_that_leaves_leaves_no_task(cold: tuple[TierNode, RemoteLog], proxy: S3Proxy) -> None:
    node, remote = cold
    idle = len(node.tasks)
    proxy.hang()
    waiting = asyncio.ensure_future(fetch(dependencies(node, remote, wait_ms=60_000)))
    await proxy.until_gets(LOADS_AT_ONCE)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await turns()
    assert len(node.tasks) == idle + LOADS_AT_ONCE
    assert remote.readers == 0


async def turns() -> None:
    """Let cancelled tasks end."""
    for _ in range(5):
        await asyncio.sleep(0)


async def look_up(deps: Dependencies) -> int:
    """The error of a lookup by timestamp in the remote records of partition 0."""
    requested = ListOffsetsPartition(partition_index=0, timestamp=0)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=[requested])])
    context = RequestContext(2, 8, 1, "test", Connection(1, "127.0.0.1", 1))
    response: Any = await list_offsets_handler(deps)(context, request)  # type: ignore[misc]
    return int(response.topics[0].partitions[0].error_code)
