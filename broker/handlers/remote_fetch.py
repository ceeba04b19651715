"""Remote reads of a Fetch request: all its partitions with remote offsets are read concurrently, in tasks.

The tasks end with the request. Loads from the store that they began continue, and the next Fetch of the same
range joins them. Called by `fetch`.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from tierlog.base.slices import LogSlice
from tierlog.broker.handlers.context import Reply
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.fetch_response import FetchPartitionData
from tierlog.broker.replication.replica import Replica
from tierlog.protocol.errors import ErrorCode
from tierlog.tiering.object_store import CorruptObject, ObjectStoreError
from tierlog.tiering.remote_log import RemoteLog


@dataclass(slots=True)
class RemoteRead:
    """A partition whose fetch offset is below the local log start. The read fills `data` with remote records,
    or with the first local ones if compaction has removed all remote ones. `max_bytes` is its share of the
    response.
    """

    replica: Replica
    offset: int
    max_bytes: int
    min_one: bool
    data: FetchPartitionData


def read_cached(
    remote: RemoteLog | None,
    reads: list[RemoteRead],
    committed_only: bool,
    sources: list[tuple[Replica, int]],
) -> list[RemoteRead]:
    """Serve the reads whose records are in memory. Returns the others, also those that fail: `read_remote`
    reports why. `sources`: as for `read_remote`."""
    if remote is None:
        return reads
    waiting, clock = [], asyncio.get_running_loop().time
    for item in reads:
        begun, found = clock(), None
        with suppress(ObjectStoreError, OSError):
            found = remote.read_cached(
                item.replica.id,
                item.offset,
                item.max_bytes,
                min_one=item.min_one,
                committed=committed_only,
            )
        if found is None:
            waiting.append(item)
            continue
        remote.fetches.requests.add(item.replica.topic_id)
        remote.fetches.bytes.add(item.replica.topic_id, found.size)
        remote.fetches.seconds.observe(clock() - begun)
        _serve(item, found, sources)
        if committed_only:
            item.data.aborted = []
    return waiting


def _serve(item: RemoteRead, found: LogSlice, sources: list[tuple[Replica, int]]) -> None:
    item.data.records = found if found.size else None
    # remote records are committed, even if a new leader or a follower does not know it yet
    item.data.high_watermark = max(item.data.high_watermark, found.end_offset)
    item.data.last_stable_offset = max(item.data.last_stable_offset, found.end_offset)
    sources.append((item.replica, found.size))


async def read_remote(
    deps: Dependencies,
    reads: list[RemoteRead],
    committed_only: bool,
    sources: list[tuple[Replica, int]],
    respond: Callable[[], Reply],
) -> Reply:
    """Wait up to remote.fetch.max.wait.ms for the reads. Data that arrives later is cached for the next
    fetch. A partition that has no result by then, or for which no place was left (`remote_log.READERS_MAX`),
    gets no records. Each replica whose records were read is appended to `sources` with the bytes read."""
    if deps.remote is None:
        for item in reads:
            item.data.fail(ErrorCode.KAFKA_STORAGE_ERROR)
        return respond()
    wait_s = deps.effective_settings.remote_fetch_max_wait_ms / 1000
    with deps.remote.admit(len(reads)) as admitted:
        tasks = {
            deps.tasks.spawn(
                f"remote read of {item.replica.name}", _read(deps.remote, item, committed_only)
            ): item
            for item in reads[:admitted]
        }
        try:
            if tasks:
                done, _ = await asyncio.wait(tasks, timeout=wait_s)
            else:
                done = set()
                await asyncio.sleep(
                    wait_s
                )  # else the client would fetch again at once and find no place again
        finally:
            for task in tasks:
                task.cancel()
    for task, item in tasks.items():
        if task not in done:
            continue
        found, aborted = task.result()
        if isinstance(found, LogSlice):
            _serve(item, found, sources)
            if committed_only:
                item.data.aborted = aborted
        else:
            item.data.fail(found)
    return respond()


async def _read(
    remote: RemoteLog, item: RemoteRead, committed_only: bool
) -> tuple[LogSlice | ErrorCode, list[tuple[int, int]]]:
    fetches, topic_id, clock = remote.fetches, item.replica.topic_id, asyncio.get_running_loop().time
    fetches.requests.add(topic_id)
    begun = clock()
    try:
        aborted: list[tuple[int, int]] = []
        if committed_only:
            found, aborted = await remote.read_committed(
                item.replica.id, item.offset, item.max_bytes, min_one=item.min_one
            )
        else:
            found = await remote.read(item.replica.id, item.offset, item.max_bytes, min_one=item.min_one)
        fetches.bytes.add(topic_id, found.size)
        if not found.size and found.base_offset > item.offset:
            return _read_local(item, found.base_offset, committed_only)
    except CorruptObject:
        fetches.errors.add(topic_id)
        return ErrorCode.CORRUPT_MESSAGE, []
    except (ObjectStoreError, OSError):  # the object store or the cache's disk is unavailable
        fetches.errors.add(topic_id)
        return ErrorCode.KAFKA_STORAGE_ERROR, []  # retriable, so that the consumer skips no records
    finally:
        fetches.seconds.observe(clock() - begun)
    return found, aborted


def _read_local(
    item: RemoteRead, offset: int, committed_only: bool
) -> tuple[LogSlice | ErrorCode, list[tuple[int, int]]]:
    """The first local records: compaction has removed all remote ones from the fetch offset on."""
    result = item.replica.read(offset, item.max_bytes, committed_only=committed_only, min_one=item.min_one)
    if result.error or result.remote or result.slice is None:
        return result.error or ErrorCode.KAFKA_STORAGE_ERROR, []  # a retry resolves the offset again
    return result.slice, result.aborted
