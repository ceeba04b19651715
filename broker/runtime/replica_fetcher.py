"""Followers fetch from leaders over the ordinary Fetch API: `num.replica.fetchers` fetchers for each broker
that leads something here, each with a connection, one request of it under way at a time, and its share of the
partitions.

A fetcher asks only for what has changed since the last request (fetch sessions); an answer is carried out by
the replica itself, which appends the records from where they were received. A partition that cannot go on now
rests for `replica.fetch.backoff.ms`, a leader that cannot be reached for a while that grows; neither holds up
any other, and the connection stays while anything is followed. Owned by the replica manager.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import structlog

from tierlog.broker.partition.epochs import EpochEnd
from tierlog.broker.partition.follower import Append, Fetched, Retry, StartFromTier, Step
from tierlog.broker.ports.clock import Clock
from tierlog.broker.ports.network import Caller, Network, Unreachable
from tierlog.broker.ports.tasks import TaskGroup
from tierlog.broker.quotas.replication import Throttle
from tierlog.broker.runtime.fetching_session import Asked, FetchingSession, Key
from tierlog.broker.runtime.replica import Replica
from tierlog.broker.settings.node import NodeSettings
from tierlog.broker.wire.api import FETCH_KEY
from tierlog.broker.wire.errors import ErrorCode
from tierlog.broker.wire.messages.fetch import FetchRequest, FetchResponse, PartitionData, ReplicaState
from tierlog.metadata.image import ClusterImage

FETCH_VERSION = 17
ANSWER_TIMEOUT_S = 10.0
"""Beyond replica.fetch.wait.max.ms: then the leader, or the way to it, is given up and tried anew."""

BACKOFF_MAX_S = 2.0

FLUSH_PATIENCE_S = 0.05
"""How long a request is held back for an fsync of some of its partitions; for a hanging disk, no longer."""

_NO_RECORDS = memoryview(b"")
Buffered = bytes | bytearray | memoryview
_log = structlog.get_logger("tierlog.fetchers")


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerDependencies:
    """What all fetchers of a broker share. `broker_epoch`: that of the current registration.

    `lower_checkpoint` is asked for a replica that owes one; it is not fetched for until that is written.
    `from_tier` brings a replica to where the leader's local log begins, what lies before it being remote; it
    answers whether that was possible.
    """

    settings: NodeSettings
    network: Network
    clock: Clock
    tasks: TaskGroup
    rng: random.Random
    broker_epoch: Callable[[], int]
    image: Callable[[], ClusterImage]
    lower_checkpoint: Callable[[Replica], None] | None = None
    throttle: Throttle = field(default_factory=Throttle)
    from_tier: Callable[[Replica, StartFromTier], Coroutine[Any, Any, bool]] | None = None


class ReplicaFetchers:
    """The fetchers of a broker, by the broker that they fetch from and their number."""

    def __init__(self, dependencies: FollowerDependencies) -> None:
        self._deps = dependencies
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._sources: dict[Key, tuple[int, int]] = {}

    def follow(self, replica: Replica) -> None:
        """Fetches for the replica from the leader that it follows; or not any more, if it follows nobody."""
        key = (replica.topic_id, replica.name.partition)
        source = replica.leader, _share(key, self._deps.settings.num_replica_fetchers)
        before = self._sources.get(key)
        if before is not None and before != source:
            self._fetchers[before].remove(key)
            del self._sources[key]
        if replica.leader < 0:
            return
        fetcher = self._fetchers.get(source)
        if fetcher is None:
            fetcher = self._fetchers[source] = ReplicaFetcher(replica.leader, self._deps)
        self._sources[key] = source
        fetcher.add(key, replica)

    def forget(self, replica: Replica) -> None:
        key = (replica.topic_id, replica.name.partition)
        source = self._sources.pop(key, None)
        if source is not None:
            self._fetchers[source].remove(key)

    def brokers_changed(self) -> None:
        """Addresses may have: who waits to try a leader again tries now."""
        for fetcher in self._fetchers.values():
            fetcher.try_again()

    def close(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()
        self._sources.clear()


@dataclass(slots=True, eq=False)
class _Partition:
    key: Key
    replica: Replica
    unlisten: Callable[[], None] = field(default=lambda: None)
    rests: asyncio.TimerHandle | None = None
    moves_in: bool = False  # from the tier, which takes its time

    @property
    def is_ready(self) -> bool:
        return self.rests is None and not self.moves_in


class ReplicaFetcher:
    """Fetches partitions that one other broker leads."""

    def __init__(self, source: int, dependencies: FollowerDependencies) -> None:
        self.source = source
        self._deps = dependencies
        self._settings = dependencies.settings
        self._partitions: dict[Key, _Partition] = {}
        self._due: dict[Key, None] = {}  # whose position has to be looked at
        self._gone: dict[Key, None] = {}
        self._session = FetchingSession(self._settings.replica_fetch_max_bytes)
        self._something_due = asyncio.Event()
        self._try_now = asyncio.Event()
        self._caller: Caller | None = None
        self._failures = 0
        self._flushing: set[Key] = set()  # which wait for their disk: they tell when they can go on
        self._interruptible = False
        self._interrupted = False
        self._task = dependencies.tasks.spawn(f"fetch from broker {source}", self._run())

    def __len__(self) -> int:
        return len(self._partitions)

    def add(self, key: Key, replica: Replica) -> None:
        known = self._partitions.get(key)
        if known is not None and known.replica is replica:
            self._end_rest(known)
            return
        partition = _Partition(key, replica)

        def moved(_: Replica) -> None:
            if key in self._flushing:
                self._make_due(key)

        replica.listeners.append(moved)
        partition.unlisten = lambda: _remove(replica.listeners, moved)
        self._partitions[key] = partition
        self._gone.pop(key, None)
        self._make_due(key)
        self._interrupt()

    def remove(self, key: Key) -> None:
        partition = self._partitions.pop(key, None)
        if partition is None:
            return
        partition.unlisten()
        if partition.rests is not None:
            partition.rests.cancel()
        self._due.pop(key, None)
        self._flushing.discard(key)
        self._leave_session(key)
        self._something_due.set()  # it may have been the last

    def try_again(self) -> None:
        self._try_now.set()

    def close(self) -> None:
        self._task.cancel()
        for key in list(self._partitions):
            self.remove(key)
        self._disconnect()

    # --- the loop

    async def _run(self) -> None:
        while True:
            await self._something_due.wait()
            self._something_due.clear()
            while self._partitions and self._has_work:
                try:
                    caller = await self._connected()
                    await self._fetch(caller)
                except Unreachable as failure:
                    interrupted, self._interrupted = self._interrupted, False
                    if not interrupted:
                        await self._wait_for(failure)
                except Exception as failure:  # replication from this leader must not end with it
                    _log.error("a fetcher failed and begins anew", leader=self.source, exc_info=failure)
                    await self._wait_for(Unreachable(str(failure)))
            if not self._partitions:
                self._disconnect()

    @property
    def _has_work(self) -> bool:
        """Not so while all rest: the session stays as it is until one of them goes on."""
        return bool(self._due) or self._session_goes_on

    @property
    def _session_goes_on(self) -> bool:
        return len(self._session.asked) > len(self._gone)

    async def _connected(self) -> Caller:
        if self._caller is not None and self._caller.is_open:
            return self._caller
        self._start_over()
        broker = self._deps.image().brokers.get(self.source)
        if broker is None:
            raise Unreachable(f"broker {self.source} is not registered")
        client_id = f"replica-{self._settings.node_id}"
        self._caller = await self._deps.network.connect(broker.host, broker.port, client_id)
        self._interrupted = False
        return self._caller

    async def _fetch(self, caller: Caller) -> None:
        changed = self._look()
        if self._flushing:
            # Their offsets may be claimed only once they are durable. Better to wait for that than to have
            # the leader hold a request that does not name them.
            self._something_due.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_PATIENCE_S):
                    await self._something_due.wait()
            self._due.update(dict.fromkeys(changed))  # they may have moved meanwhile, or be gone
            changed = self._look()
        if not changed and not self._session_goes_on:
            return
        request = self._request(changed)
        wait_s = self._settings.replica_fetch_wait_max_ms / 1000
        self._interruptible = True
        try:
            response: FetchResponse = await caller.call(
                FETCH_KEY, FETCH_VERSION, request, wait_s + ANSWER_TIMEOUT_S
            )
        finally:
            self._interruptible = False
        self._failures = 0
        if response.error_code != ErrorCode.NONE:
            self._session_failed(ErrorCode(response.error_code))
            await asyncio.sleep(self._settings.replica_fetch_backoff_ms / 1000)
            return
        asked = self._session.asked
        self._session.answered(response.session_id)
        if not self._session.is_open:
            self._due.update(dict.fromkeys(self._partitions))
        now_ms = self._deps.clock.now_ms()
        for topic in response.responses:
            for answer in topic.partitions:
                key = (topic.topic_id, answer.partition_index)
                partition = self._partitions.get(key)
                if partition is None:
                    self._leave_session(key)  # or the leader answers at once for it, again and again
                elif key in asked:
                    self._try_take(partition, asked[key], answer, now_ms)
                    if partition.replica.log.is_empty:  # it may have begun anew: a turn for each
                        await asyncio.sleep(0)

    def _look(self) -> dict[Key, Asked]:
        """Where those stand that may have moved."""
        changed: dict[Key, Asked] = {}
        due, self._due = self._due, {}
        for key in due:
            partition = self._partitions.get(key)
            if partition is None or not partition.is_ready:
                continue
            self._flushing.discard(key)
            if self._deps.throttle.is_set and (rest_ms := self._throttled_ms(partition)):
                self._leave_session(key)
                self._rest_for(partition, rest_ms)
                continue
            try:
                self._look_at(partition, changed)
            except Exception as failure:
                _log.error("a follower failed", partition=str(partition.replica.name), exc_info=failure)
                self._rest(partition, Retry(ErrorCode.UNKNOWN_SERVER_ERROR))
        return changed

    def _look_at(self, partition: _Partition, changed: dict[Key, Asked]) -> None:
        replica, lower = partition.replica, self._deps.lower_checkpoint
        owes = lower is not None and replica.owes_checkpoint
        position = None if owes else replica.fetch_position()
        if position is not None:
            changed[partition.key] = Asked(position, replica.log_start_offset)
            return
        self._leave_session(partition.key)
        if lower is not None and owes:
            lower(replica)
        if replica.failed is None:
            self._flushing.add(partition.key)

    def _request(self, changed: dict[Key, Asked]) -> FetchRequest:
        settings = self._settings
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=settings.node_id, replica_epoch=self._deps.broker_epoch()),
            max_wait_ms=settings.replica_fetch_wait_max_ms,
            min_bytes=settings.replica_fetch_min_bytes,
            max_bytes=settings.replica_fetch_response_max_bytes,
        )
        gone, self._gone = self._gone, {}
        self._session.fill(request, changed, [key for key in gone if key not in changed])
        return request

    def _try_take(self, partition: _Partition, asked: Asked, answer: PartitionData, now_ms: int) -> None:
        """What one partition's log or answer has that cannot be is not the others' trouble."""
        try:
            self._take(partition, asked, answer, now_ms)
        except Exception as failure:
            _log.error("a follower failed", partition=str(partition.replica.name), exc_info=failure)
            self._rest(partition, Retry(ErrorCode.UNKNOWN_SERVER_ERROR))

    def _take(self, partition: _Partition, asked: Asked, answer: PartitionData, now_ms: int) -> None:
        diverging = answer.diverging_epoch
        fetched = Fetched(
            ErrorCode(answer.error_code),
            answer.high_watermark,
            answer.log_start_offset,
            EpochEnd(diverging.epoch, diverging.end_offset),
        )
        records = memoryview(answer.records) if isinstance(answer.records, Buffered) else _NO_RECORDS
        if records and self._deps.throttle.is_set and self._is_throttled(partition):
            self._deps.throttle.took(len(records))
        step = partition.replica.take_fetched(asked.position, fetched, records, now_ms)
        if isinstance(step, Retry):
            self._rest(partition, step)
        elif isinstance(step, StartFromTier):
            self._start_from_tier(partition, step)
        else:
            if not isinstance(step, Append):
                _note(partition.replica, step)
            self._make_due(partition.key)

    # --- what cannot go on now

    def _rest(self, partition: _Partition, step: Retry) -> None:
        if step.error not in _ORDINARY:
            _log.warning(
                "a follower cannot fetch for now",
                partition=str(partition.replica.name),
                leader=self.source,
                error=step.error.name,
            )
        self._leave_session(partition.key)
        self._rest_for(partition, self._settings.replica_fetch_backoff_ms)

    def _rest_for(self, partition: _Partition, rest_ms: int) -> None:
        if partition.rests is None:
            loop = asyncio.get_running_loop()
            partition.rests = loop.call_later(rest_ms / 1000, self._end_rest, partition)

    def _throttled_ms(self, partition: _Partition) -> int:
        """How long it must not fetch, because it would catch up too fast."""
        throttle = self._deps.throttle
        if not self._is_throttled(partition) or throttle.room(self._deps.clock.monotonic_ms()):
            return 0
        return throttle.rest_ms()

    def _is_throttled(self, partition: _Partition) -> bool:
        topic_id, number = partition.key
        topic = self._deps.image().topics.get(topic_id)
        if topic is None or not self._deps.throttle.names(partition.replica.name):
            return False
        return self._settings.node_id not in topic.partitions[number].in_sync

    def _end_rest(self, partition: _Partition) -> None:
        if partition.rests is not None:
            partition.rests.cancel()
            partition.rests = None
        if self._partitions.get(partition.key) is partition:
            self._make_due(partition.key)

    def _start_from_tier(self, partition: _Partition, step: StartFromTier) -> None:
        start = self._deps.from_tier
        if start is None:
            self._rest(partition, Retry(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE))
            return
        self._leave_session(partition.key)
        partition.moves_in = True

        def ended(moving: "asyncio.Future[bool]") -> None:
            partition.moves_in = False
            if self._partitions.get(partition.key) is not partition:
                return
            if not moving.cancelled() and moving.exception() is None and moving.result():
                self._end_rest(partition)
            else:
                self._rest(partition, Retry(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE))

        name = f"start of {partition.replica.name}"
        self._deps.tasks.spawn(name, start(partition.replica, step)).add_done_callback(ended)

    def _session_failed(self, error: ErrorCode) -> None:
        if error not in _SESSION_LOST:
            _log.warning("a leader refuses to be followed", leader=self.source, error=error.name)
        self._start_over()

    async def _wait_for(self, failure: Unreachable) -> None:
        """Until the leader may be tried again: longer each time, or until its address may be another."""
        if self._failures == 0:
            _log.info("a leader cannot be reached", leader=self.source, why=str(failure))
        self._disconnect()
        backoff_s = self._settings.replica_fetch_backoff_ms / 1000
        wait_s = min(backoff_s * 2**self._failures, BACKOFF_MAX_S) * self._deps.rng.uniform(0.5, 1.0)
        self._failures = min(self._failures + 1, 16)
        self._try_now.clear()
        try:
            async with asyncio.timeout(wait_s):
                await self._try_now.wait()
        except TimeoutError:
            return

    # --- small things

    def _interrupt(self) -> None:
        """The leader may hold the request that is under way for replica.fetch.wait.max.ms: who is new (after
        a failover, above all) must not wait for that, and so the connection is given up for another.
        """
        if self._interruptible and not self._interrupted and self._caller is not None:
            self._interrupted = True
            asyncio.get_running_loop().call_soon(self._caller.close)  # all of one image together

    def _make_due(self, key: Key) -> None:
        self._due[key] = None
        self._something_due.set()

    def _leave_session(self, key: Key) -> None:
        if key in self._session.asked:
            self._gone[key] = None

    def _start_over(self) -> None:
        self._session.reset()
        self._gone.clear()
        self._due = dict.fromkeys(self._partitions)

    def _disconnect(self) -> None:
        if self._caller is not None:
            self._caller.close()
            self._caller = None
        self._start_over()


_ORDINARY = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE,
    }
)
"""One of both brokers has not seen the newest image yet."""

_SESSION_LOST = frozenset({ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH})


def _share(key: Key, count: int) -> int:
    """Which of so many fetchers has the partition: those of one topic are spread evenly."""
    topic_id, partition = key
    return (topic_id.int + partition) % count


def _note(replica: Replica, step: Step) -> None:
    _log.info("a follower's log goes back to its leader's", partition=str(replica.name), step=str(step))


def _remove(listeners: list[Callable[[Replica], None]], listener: Callable[[Replica], None]) -> None:
    if listener in listeners:
        listeners.remove(listener)
