"""ListOffsets (v1-11), of local and remote records, and OffsetForLeaderEpoch (v2-4).

Just after an election a leader's high watermark may be below that of the leader before it. Until it has
reached the start of the leader's epoch, neither the latest offset nor "no such record" is known (KIP-207).
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from tierlog.base.safeguards import safeguard
from tierlog.base.types import NO_TIMESTAMP
from tierlog.broker.handlers.context import Handler, Pending, Reply, RequestContext
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.lookups import FoundTimestamp, TimestampSearch
from tierlog.broker.storage.segment import CorruptLog
from tierlog.metadata.image import RemotePartition
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tierlog.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from tierlog.records.errors import RecordsError
from tierlog.tiering.object_store import CorruptObject, ObjectStoreError
from tierlog.tiering.remote_log import FoundRecord, RemoteLog

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = (
    -1,
    -2,
    -3,
    -4,
    -5,
    -6,
)
KNOWN_FROM = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
"""Special timestamp -> version that introduced it (KIP-734, KIP-405, KIP-1005, KIP-1023)."""
OFFSET_NOT_AVAILABLE_FROM = 5
"""Version from which clients know OFFSET_NOT_AVAILABLE (KIP-207)."""
READ_COMMITTED = 1
REMOTE_SEARCH_S = 30.0
"""How long records are searched in the object store; what was read stays cached for the next request. Kafka's
default of remote.list.offsets.request.timeout.ms (KIP-1075)."""
STEPS_AT_ONCE = 4
"""Pieces of batches that a lookup by timestamp decompresses before it yields: 1.5 ms of gzip."""

UNREADABLE = (CorruptLog, CorruptObject, RecordsError)
"""A lookup by timestamp decodes records, not all of which were validated when they were appended (ADR
0004)."""


NOTHING = FoundTimestamp(-1, -1, -1)
Result = FoundTimestamp | ErrorCode
Lookup = Result | Coroutine[Any, Any, Result]
"""The result, or a coroutine where records must be searched in several turns or in the bucket."""


def list_offsets_handler(deps: Dependencies) -> Handler:
    def handle(context: RequestContext, request: ListOffsetsRequest) -> Reply | Pending:
        lookups = _Lookups(deps, context.version, committed_only=request.isolation_level == READ_COMMITTED)
        response = ListOffsetsResponse()
        slow: list[Coroutine[Any, Any, None]] = []
        named = Counter(
            (t.name, partition.partition_index) for t in request.topics for partition in t.partitions
        )
        for topic in request.topics:
            results = []
            for partition in {
                partition.partition_index: partition for partition in topic.partitions
            }.values():
                result = ListOffsetsPartitionResponse(partition_index=partition.partition_index)
                results.append(result)
                found = (
                    lookups.look_up(topic.name, partition)
                    if named[topic.name, partition.partition_index] == 1
                    else ErrorCode.INVALID_REQUEST  # a repeated partition is ambiguous
                )
                if isinstance(found, ErrorCode):
                    result.error_code = found
                elif isinstance(found, FoundTimestamp):
                    _fill(result, found)
                else:
                    slow.append(_fill_later(result, found))
            response.topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=results))
        return Pending(_all_of(slow, response)) if slow else response

    return handle


async def _all_of(slow: list[Coroutine[Any, Any, None]], response: ListOffsetsResponse) -> Reply:
    await asyncio.gather(*slow)
    return response


async def _fill_later(result: ListOffsetsPartitionResponse, search: Coroutine[Any, Any, Result]) -> None:
    found = await search
    if isinstance(found, ErrorCode):
        result.error_code = found
    else:
        _fill(result, found)


def _fill(result: ListOffsetsPartitionResponse, found: FoundTimestamp) -> None:
    result.offset, result.timestamp, result.leader_epoch = found


class _Lookups:
    """The lookups of one request. After STEPS_AT_ONCE steps for all its partitions together, searches of
    local records run one at a time in turns of the event loop."""

    def __init__(self, deps: Dependencies, version: int, *, committed_only: bool) -> None:
        self._deps, self._version, self._committed_only = deps, version, committed_only
        self._steps_left = STEPS_AT_ONCE
        self._one_at_a_time = asyncio.Lock()

    def look_up(self, topic: str, partition: ListOffsetsPartition) -> Lookup:
        replica = self._deps.find_leader(topic, partition.partition_index)
        if not isinstance(replica, Replica):
            return replica
        if (fenced := check_epoch(replica, partition.current_leader_epoch)) is not ErrorCode.NONE:
            return fenced
        target = partition.timestamp
        if target < EARLIEST_PENDING_UPLOAD or self._version < KNOWN_FROM.get(target, 0):
            return ErrorCode.UNSUPPORTED_VERSION
        remote = self._deps.metadata.image.remote_partition(replica.topic_id, partition.partition_index)
        nothing: Result = NOTHING if knows_end(replica) else self._end_unknown
        if target == LATEST and nothing is not NOTHING:
            return nothing
        if (number := self._by_number(replica, remote, target)) is not None:
            return number
        found = self._by_records(replica, remote, target)
        if isinstance(found, Result):
            return nothing if found is NOTHING else found
        return self._if_still_leader(topic, replica, replica.leader_epoch, nothing, found)

    @property
    def _end_unknown(self) -> ErrorCode:
        is_known = self._version >= OFFSET_NOT_AVAILABLE_FROM
        return ErrorCode.OFFSET_NOT_AVAILABLE if is_known else ErrorCode.LEADER_NOT_AVAILABLE

    def _by_number(self, replica: Replica, remote: RemotePartition, target: int) -> FoundTimestamp | None:
        """Resolve a special timestamp without reading records; None if records must be read."""
        if target == LATEST:
            end = replica.last_stable_offset if self._committed_only else replica.high_watermark
            return FoundTimestamp(end, -1, replica.leader_epoch)
        if target == EARLIEST:
            return _at(replica, replica.log_start_offset)
        if target == EARLIEST_LOCAL:
            return _at(replica, replica.local_log_start_offset)
        if target == LATEST_TIERED:
            return NOTHING if remote.end_offset is None else _at(replica, remote.end_offset - 1)
        if target == EARLIEST_PENDING_UPLOAD:
            if not replica.config.remote_storage_enable:
                return NOTHING
            return _at(replica, max(remote.end_offset or 0, replica.log_start_offset))
        return None

    def _by_records(self, replica: Replica, remote: RemotePartition, target: int) -> Lookup:
        end = remote.end_offset
        has_remote = end is not None and replica.log_start_offset < replica.local_log_start_offset
        if target == MAX_TIMESTAMP:
            limit = replica.last_stable_offset if self._committed_only else replica.high_watermark
            newest = replica.log.max_timestamp()
            return (
                self._max_timestamp(replica, newest, limit)
                if has_remote
                else self._local(_only_below(limit, newest))
            )
        local = replica.offset_for_timestamp(target, committed_only=self._committed_only)
        return self._by_timestamp(replica, target, local) if has_remote else self._local(local)

    async def _if_still_leader(
        self, topic: str, replica: Replica, epoch: int, nothing: Result, search: Coroutine[Any, Any, Result]
    ) -> Result:
        """The result of a search if the replica is still leader; another leader may have truncated the
        log. `nothing`: the result if no record was found, as of when the search started."""
        found = await search
        leading = self._deps.find_leader(topic, replica.name.partition)
        if not isinstance(leading, Replica):
            return leading
        if leading is not replica or leading.leader_epoch != epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return nothing if found is NOTHING else found

    def _local(self, search: TimestampSearch) -> Lookup:
        """Search at once if few steps suffice, else in turns of the event loop."""
        try:
            while self._steps_left:
                self._steps_left -= 1
                step = next(search)
                if step is None:
                    break
                step()
        except StopIteration as end:
            return end.value or NOTHING
        except OSError:
            return ErrorCode.KAFKA_STORAGE_ERROR
        except UNREADABLE:
            return ErrorCode.CORRUPT_MESSAGE
        return self._local_in_turns(search)

    async def _local_in_turns(self, search: TimestampSearch) -> Result:
        try:
            async with self._one_at_a_time:
                return await self._deps.batch_validator.run(search) or NOTHING
        except OSError:
            return ErrorCode.KAFKA_STORAGE_ERROR
        except UNREADABLE:
            return ErrorCode.CORRUPT_MESSAGE

    async def _by_timestamp(self, replica: Replica, timestamp: int, local: TimestampSearch) -> Result:
        """Search the manifest first, since remote records are older. Only offsets below the local start
        count."""
        found = await _search_remote(
            self._deps, lambda remote: remote.offset_for_timestamp(replica.id, timestamp)
        )
        if found is not NOTHING and (
            isinstance(found, ErrorCode) or found.offset < replica.local_log_start_offset
        ):
            return found
        return await self._local_in_turns(local)

    async def _max_timestamp(self, replica: Replica, search: TimestampSearch, limit: int) -> Result:
        """If both are equal, the remote one comes first."""
        local = await self._local_in_turns(search)
        if isinstance(local, ErrorCode):
            return local
        above = NO_TIMESTAMP if local is NOTHING else local.timestamp - 1
        found = await _search_remote(self._deps, lambda remote: remote.largest_timestamp(replica.id, above))
        return (local if local.offset < limit else NOTHING) if found is NOTHING else found


@safeguard("the latest offset is that of a current high watermark")
def knows_end(replica: Replica) -> bool:
    """Whether no earlier leader can have shown a later end to consumers (KIP-207)."""
    return replica.high_watermark_is_current


def _only_below(limit: int, search: TimestampSearch) -> TimestampSearch:
    """The result of a search if the client may read that record. As in Kafka, no other record is searched."""
    found = yield from search
    return found if found is not None and found.offset < limit else None


def _at(replica: Replica, offset: int) -> FoundTimestamp:
    return FoundTimestamp(offset, -1, replica.log.epochs.epoch_of(offset))


async def _search_remote(
    deps: Dependencies, search: Callable[[RemoteLog], Awaitable[FoundRecord | None]]
) -> Result:
    if deps.remote is None:
        return ErrorCode.KAFKA_STORAGE_ERROR
    try:
        with deps.remote.admit(1) as admitted:
            if not admitted:
                return ErrorCode.KAFKA_STORAGE_ERROR
            async with asyncio.timeout(REMOTE_SEARCH_S):
                found = await search(deps.remote)
    except TimeoutError:
        return ErrorCode.REQUEST_TIMED_OUT
    except UNREADABLE:
        return ErrorCode.CORRUPT_MESSAGE
    except (ObjectStoreError, OSError):  # the object store or the cache's disk is unavailable
        return ErrorCode.KAFKA_STORAGE_ERROR
    return NOTHING if found is None else FoundTimestamp(*found)


def check_epoch(replica: Replica, current_leader_epoch: int) -> ErrorCode:
    """Whether the client knows the current leader epoch (KIP-320); -1: it does not say."""
    if current_leader_epoch < 0 or current_leader_epoch == replica.leader_epoch:
        return ErrorCode.NONE
    if current_leader_epoch > replica.leader_epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.FENCED_LEADER_EPOCH


def offset_for_leader_epoch_handler(deps: Dependencies) -> Handler:
    def handle(context: RequestContext, request: OffsetForLeaderEpochRequest) -> Reply:
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[_epoch_end(deps, topic.topic, partition) for partition in topic.partitions],
                )
                for topic in request.topics
            ]
        )

    return handle


def _epoch_end(deps: Dependencies, topic: str, partition: OffsetForLeaderPartition) -> EpochEndOffset:
    result = EpochEndOffset(partition=partition.partition)
    replica = deps.find_leader(topic, partition.partition)
    error = check_epoch(replica, partition.current_leader_epoch) if isinstance(replica, Replica) else replica
    if error is not ErrorCode.NONE or not isinstance(replica, Replica):
        result.error_code = error
        return result
    end = replica.end_offset_for_epoch(partition.leader_epoch)
    result.leader_epoch, result.end_offset = end.epoch, end.end_offset
    return result
