"""Group lag: how far the groups that this broker coordinates are behind, for /metrics and the web page.

The coordinator knows the committed offsets. It knows the high watermark of partitions that it leads, and asks
the other leaders with ListOffsets. That happens when metrics are requested, at most once in
REFRESH_INTERVAL_MS, so a broker that nothing scrapes does no work. If a leader does not answer within
LEADER_TIMEOUT_S, its partitions have no lag until the next request.

Bounded by group.lag.metrics.max.partitions, for each broker. A group is exported with all its partitions or
not at all. The groups that do not fit are counted and logged. All work is done in portions of
PARTITIONS_PER_TURN, between which other work gets a turn on the event loop. Owned by the group service.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import structlog

from tierlog.base.network import Caller, Network, Unreachable
from tierlog.base.types import TopicPartition, numbers_by_topic
from tierlog.broker.coordinators.shard import Shard
from tierlog.broker.coordinators.shards import Host, Shards
from tierlog.broker.groups.core.coordinator import Coordinator
from tierlog.broker.groups.lag_history import LagHistory
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

REFRESH_INTERVAL_MS = 5_000
LEADER_TIMEOUT_S = 1.0
PARTITIONS_PER_TURN = 250
"""Also the partitions of one request: a leader looks them up in one turn of its event loop."""

LIST_OFFSETS_VERSION = 6
LATEST = -1

_log = structlog.get_logger("tierlog.groups")
T = TypeVar("T")
Ends = dict[TopicPartition, int]


class PartitionLag(NamedTuple):
    """`lag`: None if the leader did not say where the partition ends."""

    group: str
    partition: TopicPartition
    committed_offset: int
    lag: int | None


class TopicLag(NamedTuple):
    """The sum over the partitions of a topic of which the group has a committed offset."""

    group: str
    topic: str
    lag: int


@dataclass(slots=True)
class _ShardLag:
    """The groups of one shard. They are shown only while this broker has the shard."""

    shard: Shard[Coordinator]
    partitions: list[PartitionLag] = field(default_factory=list)
    topics: list[TopicLag] = field(default_factory=list)


class GroupLag:
    def __init__(
        self,
        shards: Shards[Coordinator],
        host: Host,
        network: Network | None,
        max_partitions: int,
    ) -> None:
        """`network`: to other brokers, None if there are none. `max_partitions`:
        group.lag.metrics.max.partitions."""
        self.left_out = 0
        """Partitions of groups that are not exported, because there are too many."""
        self.history = LagHistory()
        self._shards = shards
        self._host = host
        self._network = network
        self._max_partitions = max_partitions
        self._callers: dict[int, Caller] = {}
        self._found: list[_ShardLag] = []
        self._refreshed_ms: int | None = None
        self._refreshing = asyncio.Lock()

    def close(self) -> None:
        for caller in self._callers.values():
            caller.close()
        self._callers.clear()

    # ---- for metrics ----

    @property
    def partitions(self) -> Iterator[PartitionLag]:
        return (row for each in self._current() for row in each.partitions)

    @property
    def topics(self) -> Iterator[TopicLag]:
        return (row for each in self._current() for row in each.topics)

    def _current(self) -> list[_ShardLag]:
        """Without shards that another broker has taken over since: it exports their groups."""
        _, ready = self._shards.ready()
        return [each for each in self._found if each.shard in ready]

    async def refresh(self) -> None:
        """Collect the lag again, unless that was done a moment ago."""
        if self._max_partitions == 0:
            return
        async with self._refreshing:
            now_ms = self._host.clock.monotonic_ms()
            if self._refreshed_ms is not None and now_ms < self._refreshed_ms + REFRESH_INTERVAL_MS:
                return
            found = await self._committed()
            ends = await self._ends(found)
            for each in found:
                await _add_lag(each, ends)
            self._found, self._refreshed_ms = found, self._host.clock.monotonic_ms()
            await self._sample()

    async def _sample(self) -> None:
        """Add the sums of all groups to the history."""
        now_ms = self._host.clock.now_ms()
        if not self.history.is_due(now_ms):
            return
        sums: dict[str, int] = {}
        async for some in _portions(list(self.topics)):
            for row in some:
                sums[row.group] = sums.get(row.group, 0) + row.lag
        self.history.add(now_ms, sums)

    # ---- committed offsets ----

    async def _committed(self) -> list[_ShardLag]:
        """The offsets of the first groups of each shard that fit, so that the same ones are exported each
        time."""
        found: list[_ShardLag] = []
        exported = left_out = groups_left_out = work = 0
        for shard in self._shards.ready()[1]:
            found.append(_ShardLag(shard))
            for group_id in shard.core.groups_with_offsets():
                offsets = shard.core.offsets(group_id)
                work += 1
                if exported + len(offsets) > self._max_partitions:
                    left_out += len(offsets)
                    groups_left_out += 1
                else:
                    exported += len(offsets)
                    async for some in _portions(list(offsets.items())):
                        found[-1].partitions += [
                            PartitionLag(group_id, partition, committed.offset, None)
                            for partition, committed in some
                        ]
                        work += len(some)
                if work >= PARTITIONS_PER_TURN:
                    work = 0
                    await asyncio.sleep(0)
        if groups_left_out and not self.left_out:
            _log.warning(
                "group.lag.incomplete",
                limit=self._max_partitions,
                groups=groups_left_out,
                partitions=left_out,
            )
        self.left_out = left_out
        return found

    # ---- ends of partitions ----

    async def _ends(self, found: Sequence[_ShardLag]) -> Ends:
        """The high watermarks that are known."""
        ends: Ends = {}
        elsewhere: defaultdict[int, set[TopicPartition]] = defaultdict(set)
        for each in found:
            async for some in _portions(each.partitions):
                for row in some:
                    self._look_up(row.partition, ends, elsewhere)
        requests = [self._ask(leader, sorted(wanted), ends) for leader, wanted in elsewhere.items()]
        await asyncio.gather(*requests)
        return ends

    def _look_up(
        self, partition: TopicPartition, ends: Ends, elsewhere: Mapping[int, set[TopicPartition]]
    ) -> None:
        topic = self._shards.image.topic(partition.topic)
        if topic is None or partition.partition >= len(topic.partitions):
            return
        leader = topic.partitions[partition.partition].leader
        if leader == self._host.node_id:
            replica = self._host.replicas.get(*partition)
            if replica is not None and replica.high_watermark_is_current:
                ends[partition] = replica.high_watermark
            return
        broker = self._shards.image.brokers.get(leader)
        if broker is not None and not broker.fenced:
            elsewhere[leader].add(partition)

    async def _ask(self, leader: int, partitions: Sequence[TopicPartition], ends: Ends) -> None:
        """Add the ends of partitions that another broker leads, as far as it answers in time."""
        try:
            async with asyncio.timeout(LEADER_TIMEOUT_S):
                caller = await self._caller(leader)
                for first in range(0, len(partitions), PARTITIONS_PER_TURN):
                    await _list_offsets(caller, partitions[first : first + PARTITIONS_PER_TURN], ends)
        except (Unreachable, TimeoutError):
            self._drop(leader)
        except asyncio.CancelledError:
            self._drop(leader)  # its response may still come
            raise

    async def _caller(self, leader: int) -> Caller:
        caller = self._callers.get(leader)
        broker = self._shards.image.brokers.get(leader)
        if broker is None or self._network is None:
            raise Unreachable(f"broker {leader} is not registered")
        if caller is None or not caller.is_open:
            caller = await self._network.connect(broker, "group lag")
            self._callers[leader] = caller
        return caller

    def _drop(self, leader: int) -> None:
        if caller := self._callers.pop(leader, None):
            caller.close()


async def _list_offsets(caller: Caller, partitions: Sequence[TopicPartition], ends: Ends) -> None:
    request = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsTopic(
                name=topic,
                partitions=[ListOffsetsPartition(partition_index=one, timestamp=LATEST) for one in numbers],
            )
            for topic, numbers in numbers_by_topic(partitions).items()
        ],
    )
    key = BY_NAME["ListOffsets"].key
    response: ListOffsetsResponse = await caller.call(key, LIST_OFFSETS_VERSION, request, LEADER_TIMEOUT_S)
    for topic in response.topics:
        for each in topic.partitions:
            if each.error_code == ErrorCode.NONE:
                ends[TopicPartition(topic.name, each.partition_index)] = each.offset


async def _add_lag(found: _ShardLag, ends: Ends) -> None:
    """The offsets were read before the ends, so a lag may be a little too large, and never too small.

    It is 0 and not negative after an unclean election, or a commit beyond the end. Without the end of one of
    its partitions a topic has no sum.
    """
    rows, found.partitions = found.partitions, []
    sums: dict[str, int | None] = {}
    group = ""
    async for some in _portions(rows):
        for row in some:
            if row.group != group:
                found.topics += _topic_lags(group, sums)
                sums, group = {}, row.group
            end = ends.get(row.partition)
            lag = None if end is None else max(end - row.committed_offset, 0)
            found.partitions.append(row._replace(lag=lag))
            before = sums.get(row.partition.topic, 0)
            sums[row.partition.topic] = None if lag is None or before is None else before + lag
    found.topics += _topic_lags(group, sums)


def _topic_lags(group: str, sums: Mapping[str, int | None]) -> list[TopicLag]:
    return [TopicLag(group, topic, lag) for topic, lag in sums.items() if lag is not None]


async def _portions(items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
    """The items in portions; other work gets a turn between two of them."""
    for first in range(0, len(items), PARTITIONS_PER_TURN):
        if first:
            await asyncio.sleep(0)
        yield items[first : first + PARTITIONS_PER_TURN]
