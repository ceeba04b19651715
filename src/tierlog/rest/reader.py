"""Reader of one stream: fetches partitions of a topic from their leaders, one request at a time for each.

It yields the batches of one response, and asks the leader again only after these are consumed: a slow client
therefore holds at most one response per leader, whose bytes the budget of the gateway counts. Each leader
has a connection of its own, since a Fetch that waits delays the requests behind it.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicPartition
from tierlog.client.errors import (
    UNKNOWN_END_REMEDY,
    ErrorResponse,
    NotAvailable,
    TimedOut,
    Unreachable,
    raise_for,
    unknown_ends,
)
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from tierlog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tierlog.records.batch import iter_batches
from tierlog.records.codecs import Codec
from tierlog.records.record import Record, iter_records
from tierlog.rest.budget import Budget
from tierlog.rest.cluster import TIMEOUT_S, Cluster
from tierlog.rest.connection import Connection

LATEST, EARLIEST = -1, -2
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
TIMEOUT_MS = 30_000
END_TIMEOUT_S = 5.0
"""How long to wait for the end of a partition. After an election it is known at once if enough replicas are
in sync."""

MAX_WAIT_MS = 5_000
"""How long a Fetch waits at the broker for records."""

CONNECTION_AGE_S = 600.0
"""How long a stream keeps its connections, so that a password that was changed ends it. Longer than for
requests, because thousands of streams log in again."""

END_FETCH_BYTES = 16 << 10
"""Bytes of a Fetch at the end of the log, where thousands of streams wait, and of other Fetches while the
budget is half used, so that slow clients cannot hold all of it."""
FETCH_BYTES = 512 << 10
"""Bytes of other Fetches. A larger batch comes nevertheless."""
BATCH_MAX_BYTES = 64 << 20  # decompressed; protects against decompression bombs


class Consumed(NamedTuple):
    partition: int
    record: Record


async def offsets_at(
    cluster: Cluster, topic: str, partitions: Sequence[int], position: int, isolation: int
) -> dict[int, int]:
    """Partition -> offset of a position: a timestamp in ms, LATEST or EARLIEST. A timestamp behind the last
    record is the end. Waits for partitions without a leader. Raises ClientError.

    Partitions are left out if their leader does not know their end after END_TIMEOUT_S (KIP-207).
    """
    end_deadline = time.monotonic() + END_TIMEOUT_S
    deadline = time.monotonic() + TIMEOUT_S
    found: dict[int, int] = {}
    without_end: set[int] = set()
    while missing := [one for one in partitions if one not in found and one not in without_end]:
        problem = ""
        by_leader: dict[int, list[int]] = {}
        for partition in missing:
            by_leader.setdefault(await cluster.leader(topic, partition, deadline), []).append(partition)
        for leader, group in by_leader.items():
            wanted = [ListOffsetsPartition(partition_index=one, timestamp=position) for one in group]
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=isolation,
                topics=[ListOffsetsTopic(name=topic, partitions=wanted)],
                timeout_ms=TIMEOUT_MS,
            )
            for result in (await cluster.call(request, leader)).topics[0].partitions:
                code = ErrorCode(result.error_code)
                subject = f"offsets of {topic}-{result.partition_index}"
                if code == ErrorCode.OFFSET_NOT_AVAILABLE and time.monotonic() >= end_deadline:
                    without_end.add(result.partition_index)
                    continue
                if code.retriable:
                    problem = f"{subject}: {code.name}"
                    continue
                raise_for(code, None, subject)
                found[result.partition_index] = result.offset
        if problem:
            await cluster.refresh(topic, deadline, problem)
    if position >= 0 and (behind := [partition for partition, offset in found.items() if offset < 0]):
        ends = await offsets_at(cluster, topic, behind, LATEST, isolation)
        found = {one: ends.get(one, offset) for one, offset in found.items() if offset >= 0 or one in ends}
    return found


def explain_unknown_ends(partitions: Sequence[TopicPartition]) -> str:
    """Message about partitions whose leader does not know their end, and what to do."""
    return f"{unknown_ends(partitions)}. {UNKNOWN_END_REMEDY}"


@dataclass(slots=True)
class _Leader:
    connection: Connection
    partitions: list[int]
    is_at_end: bool = False


@dataclass(slots=True)
class Reader:
    """`positions`: next offset of each partition. `ends`: a partition is done there; without an end it is
    read forever."""

    cluster: Cluster
    topic: str
    positions: dict[int, int]
    ends: Mapping[int, int]
    isolation: int
    budget: Budget
    tasks: TaskGroup
    _failing_since: float | None = field(default=None, init=False)

    def remaining(self) -> list[int]:
        """Partitions that are not done."""
        return [one for one, position in self.positions.items() if position < self.ends.get(one, 1 << 63)]

    async def read(self, wait_ms: int = MAX_WAIT_MS) -> AsyncGenerator[list[Consumed], None]:
        """Records of one batch after the other, until all partitions are done. An empty list says that a
        leader had none within `wait_ms`. Raises ClientError and RecordsError."""
        while self.remaining():
            try:
                async with aclosing(self._read_while_leaders_stay(wait_ms)) as batches:
                    async for batch in batches:
                        self._failing_since = None
                        yield batch
            except (Unreachable, TimedOut) as failure:
                await self._retry(str(failure))
            except ErrorResponse as failure:
                code = ErrorCode(failure.code)
                if not code.retriable:
                    raise
                await self._retry(f"cannot read {failure.subject}: {code.name}")

    async def _retry(self, problem: str) -> None:
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if now > self._failing_since + TIMEOUT_S:
            raise NotAvailable(problem)
        await self.cluster.refresh(self.topic, now + 1, problem)

    async def _read_while_leaders_stay(self, wait_ms: int) -> AsyncGenerator[list[Consumed], None]:
        groups: dict[int, list[int]] = {}
        for partition in self.remaining():
            groups.setdefault(await self.cluster.leader(self.topic, partition), []).append(partition)
        pending: dict[asyncio.Task[tuple[int, list[PartitionData]]], _Leader] = {}
        renew_at = time.monotonic() + CONNECTION_AGE_S
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._abandon, pending)
            for node, partitions in groups.items():
                connection = await stack.enter_async_context(self.cluster.private(node))
                leader = _Leader(connection, partitions)
                pending[self._start(leader, wait_ms)] = leader
            while pending:
                done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    leader = pending.pop(task)
                    held, found = task.result()
                    try:
                        served: set[int] = set()
                        for data in found:
                            batches = self._batches(data)
                            for batch in batches:
                                served.add(data.partition_index)
                                unpacked = batches.unpacked_bytes
                                self.budget.resize(0, unpacked)
                                try:
                                    yield batch
                                finally:
                                    self.budget.release(unpacked)
                    finally:
                        self.budget.release(held)
                    leader.is_at_end = not served
                    # a leader fills its response in the order of the request: the others come first now
                    left = set(self.remaining()).intersection(leader.partitions)
                    leader.partitions = sorted(
                        (one for one in leader.partitions if one in left), key=served.__contains__
                    )
                    if not served and leader.partitions:
                        yield []
                    if leader.partitions:
                        pending[self._start(leader, wait_ms)] = leader
                if time.monotonic() > renew_at:  # abandons the fetches that wait
                    return

    def _start(self, leader: _Leader, wait_ms: int) -> "asyncio.Task[tuple[int, list[PartitionData]]]":
        return asyncio.get_running_loop().create_task(self._fetch(leader, wait_ms))

    async def _abandon(self, pending: "dict[asyncio.Task[tuple[int, list[PartitionData]]], _Leader]") -> None:
        """Cancel fetches whose responses nothing reads any more."""
        for task in pending:
            task.cancel()
        results = await asyncio.gather(*pending, return_exceptions=True)
        for result in results:
            if not isinstance(result, BaseException):
                self.budget.release(result[0])

    async def _fetch(self, leader: _Leader, wait_ms: int) -> tuple[int, list[PartitionData]]:
        """The bytes that are reserved for the response, and the response. Only at the end of the log does a
        Fetch wait for records. It reserves nothing then, as thousands of streams may wait there."""
        is_small = leader.is_at_end or self.budget.used > self.budget.most // 2
        most = END_FETCH_BYTES if is_small else FETCH_BYTES
        wait_ms = wait_ms if leader.is_at_end else 0
        wanted = [
            FetchPartition(
                partition=partition, fetch_offset=self.positions[partition], partition_max_bytes=most
            )
            for partition in leader.partitions
        ]
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=most,
            isolation_level=self.isolation,
            topics=[FetchTopic(topic=self.topic, partitions=wanted)],
        )
        held = 0 if leader.is_at_end else most
        if held:
            await self.budget.reserve(held)
        try:
            response = await leader.connection.call(request, wait_ms / 1000 + TIMEOUT_S)
            raise_for(response.error_code, None, f"fetch from {self.topic}")
            found: list[PartitionData] = response.responses[0].partitions if response.responses else []
            size = sum(len(data.records) for data in found if isinstance(data.records, memoryview))
            self.budget.resize(held, size)
            held = size
        except BaseException:
            self.budget.release(held)
            raise
        return held, found

    def _batches(self, data: PartitionData) -> "_Batches":
        partition = data.partition_index
        raise_for(data.error_code, None, f"{self.topic}-{partition} at offset {self.positions[partition]}")
        return _Batches(self, data)

    def advance(self, partition: int, position: int) -> None:
        self.positions[partition] = max(self.positions[partition], position)


class _Batches(Iterator[list[Consumed]]):
    """Batches of one partition's response, without control records and aborted transactions."""

    def __init__(self, reader: Reader, data: PartitionData) -> None:
        self._reader = reader
        self._data = data
        self._aborted = sorted(
            data.aborted_transactions or [], key=lambda transaction: transaction.first_offset, reverse=True
        )
        self._aborting: set[int] = set()
        records = data.records if isinstance(data.records, memoryview) else b""
        self._records = records
        self._headers = iter_batches(records)
        self.unpacked_bytes = 0
        """Bytes that the last batch has beyond the response, if it is compressed."""

    def __next__(self) -> list[Consumed]:
        partition, reader = self._data.partition_index, self._reader
        end = reader.ends.get(partition, 1 << 63)
        at, header = next(self._headers)
        while self._aborted and self._aborted[-1].first_offset <= header.last_offset:
            self._aborting.add(self._aborted.pop().producer_id)
        skipped = header.is_control or (header.is_transactional and header.producer_id in self._aborting)
        if header.is_control:
            self._aborting.discard(header.producer_id)
        start = reader.positions[partition]
        found = [
            Consumed(partition, record)
            for record in (() if skipped else iter_records(self._records, at, max_bytes=BATCH_MAX_BYTES))
            if start <= record.offset < end
        ]
        reader.advance(partition, header.next_offset)
        is_packed = header.codec is not Codec.NONE
        sizes = (len(record.key or b"") + len(record.value or b"") for _, record in found if is_packed)
        self.unpacked_bytes = sum(sizes)
        return found
