"""Fetcher partitions: builds the fetch requests of one replica fetcher, and processes each partition's
response.

A partition is due when its fetch state may have changed. A request names the due partitions whose state the
leader does not know yet (fetch sessions). The replica processes its own response, and appends the records
from the receive buffer. A partition which cannot continue leaves the session for `replica.fetch.backoff.ms`,
and delays no other partition. Nothing here awaits; the replica fetcher does, which owns this.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import structlog

from tierlog.base.clock import Clock
from tierlog.base.leader_epochs import UNKNOWN_END, EpochEnd
from tierlog.base.network import Network
from tierlog.base.tasks import TaskGroup
from tierlog.broker.quotas.replication import Throttle
from tierlog.broker.replication.core.follower import Append, Fetched, Retry, StartFromTier, Step
from tierlog.broker.replication.fetch_session_handler import FetchSessionHandler, FetchState, Key
from tierlog.broker.replication.replica import Replica
from tierlog.config.node import NodeSettings
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData, ReplicaState

_NO_RECORDS = memoryview(b"")
Buffered = bytes | bytearray | memoryview
_log = structlog.get_logger("tierlog.fetchers")


@dataclass(frozen=True, slots=True, kw_only=True)
class FetcherDependencies:
    """Dependencies that all fetchers of a broker share. `broker_epoch` is that of the current registration.

    `start_from_tier` starts a replica after offsets that are remote (`remote.tier_state_machine`); it returns
    whether that succeeded.
    """

    settings: NodeSettings
    network: Network
    clock: Clock
    tasks: TaskGroup
    rng: random.Random
    broker_epoch: Callable[[], int]
    image: Callable[[], ClusterImage]
    throttle: Throttle = field(default_factory=Throttle)
    start_from_tier: Callable[[Replica, StartFromTier], Coroutine[Any, Any, bool]] | None = None


class FetcherPartition:
    def __init__(self, key: Key, replica: Replica) -> None:
        self.key = key
        self.replica = replica
        self.listener: Callable[[Replica], None] | None = None
        self.backoff: asyncio.TimerHandle | None = None
        self.is_starting_from_tier = False


class PartitionResponse(NamedTuple):
    partition: FetcherPartition
    requested: FetchState
    data: PartitionData


class FetcherPartitions:
    def __init__(self, source: int, dependencies: FetcherDependencies, wake: Callable[[], None]) -> None:
        """`source`: the leader's broker id. `wake`: called when a partition is due or was removed."""
        self.flushing: set[Key] = set()
        """Partitions which wait for a flush or a checkpoint; they become due when it ends."""
        self._source = source
        self._deps = dependencies
        self._settings = dependencies.settings
        self._wake = wake
        self._partitions: dict[Key, FetcherPartition] = {}
        self._due: dict[Key, None] = {}
        self._forgotten: dict[Key, None] = {}  # in the session; the next request removes them
        self._session = FetchSessionHandler(self._settings.replica_fetch_max_bytes)

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def has_work(self) -> bool:
        """False while all partitions back off: the session stays as it is until one of them continues."""
        return bool(self._due) or self._session_has_partitions

    @property
    def _session_has_partitions(self) -> bool:
        return len(self._session.session_partitions) > len(self._forgotten)

    def add(self, key: Key, replica: Replica) -> bool:
        """Returns False if the replica was added before; that ends its backoff."""
        known = self._partitions.get(key)
        if known is not None and known.replica is replica:
            self._end_backoff(known)
            return False
        partition = FetcherPartition(key, replica)

        def on_replica_changed(_: Replica) -> None:
            if key in self.flushing:
                self._make_due(key)

        partition.listener = on_replica_changed
        replica.listeners.append(on_replica_changed)
        self._partitions[key] = partition
        self._forgotten.pop(key, None)
        self._make_due(key)
        return True

    def remove(self, key: Key) -> None:
        partition = self._partitions.pop(key, None)
        if partition is None:
            return
        listeners, listener = partition.replica.listeners, partition.listener
        if listener is not None and listener in listeners:
            listeners.remove(listener)
        if partition.backoff is not None:
            partition.backoff.cancel()
        self._due.pop(key, None)
        self.flushing.discard(key)
        self._leave_session(key)
        self._wake()

    def clear(self) -> None:
        for key in list(self._partitions):
            self.remove(key)

    def reset_session(self) -> None:
        """Start a new session, whose first request names all partitions."""
        self._session.reset()
        self._forgotten.clear()
        self._due = dict.fromkeys(self._partitions)

    # --- requests

    def next_request(self, *, wait_for_flush: bool = True) -> FetchRequest | None:
        """None if there is nothing to fetch, or, with `wait_for_flush`, while a partition waits for its
        flush.

        A fetch offset promises that everything below is durable. A short wait for the flush is better than a
        request without the partition, which the leader may hold for replica.fetch.wait.max.ms.
        """
        changed = self._due_states()
        if (wait_for_flush and self.flushing) or not (changed or self._session_has_partitions):
            for key in changed:
                self._due[key] = None
            return None
        settings = self._settings
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=settings.node_id, replica_epoch=self._deps.broker_epoch()),
            max_wait_ms=settings.replica_fetch_wait_max_ms,
            min_bytes=settings.replica_fetch_min_bytes,
            max_bytes=settings.replica_fetch_response_max_bytes,
        )
        forgotten, self._forgotten = self._forgotten, {}
        self._session.fill(request, changed, [key for key in forgotten if key not in changed])
        return request

    def _due_states(self) -> dict[Key, FetchState]:
        """The fetch states of the due partitions which can fetch now."""
        changed: dict[Key, FetchState] = {}
        due, self._due = self._due, {}
        throttled = self._deps.throttle.is_set
        for key in due:
            partition = self._partitions.get(key)
            if partition is None or partition.backoff is not None or partition.is_starting_from_tier:
                continue
            self.flushing.discard(key)
            if throttled and (throttle_ms := self._throttle_ms(partition)):
                self._leave_session(key)
                self._delay(partition, throttle_ms)
                continue
            try:
                self._add_state(partition, changed)
            except Exception as failure:
                self._handle_failure(partition, failure)
        return changed

    def _add_state(self, partition: FetcherPartition, changed: dict[Key, FetchState]) -> None:
        """A replica that needs a checkpoint waits until it is written."""
        replica = partition.replica
        position = None if replica.needs_checkpoint else replica.as_follower.fetch_position()
        if position is not None:
            changed[partition.key] = FetchState(position, replica.log_start_offset)
            return
        self._leave_session(partition.key)
        if replica.needs_checkpoint:
            replica.lower_checkpoint()
        if replica.failed is None:
            self.flushing.add(partition.key)

    # --- responses

    def handle_response(self, response: FetchResponse) -> list[PartitionResponse]:
        """Take a response without an error; returns what to pass to `process`, in order."""
        requested = self._session.session_partitions
        self._session.handle_response(response.session_id)
        if not self._session.is_open:
            self._due.update(dict.fromkeys(self._partitions))
        responses: list[PartitionResponse] = []
        for topic in response.responses:
            for data in topic.partitions:
                key = (topic.topic_id, data.partition_index)
                partition = self._partitions.get(key)
                if partition is None:
                    self._leave_session(key)  # else the leader responds for it at once, again and again
                elif key in requested:
                    responses.append(PartitionResponse(partition, requested[key], data))
        return responses

    def process(self, response: PartitionResponse, now_ms: int) -> None:
        """Process one partition's response. A failure delays this partition only."""
        partition = response.partition
        if self._partitions.get(partition.key) is not partition:
            return  # removed while others were processed
        try:
            self._process(partition, response.requested, response.data, now_ms)
        except Exception as failure:
            self._handle_failure(partition, failure)

    def _process(
        self, partition: FetcherPartition, requested: FetchState, data: PartitionData, now_ms: int
    ) -> None:
        diverging = data.diverging_epoch
        agrees = diverging.epoch < 0 and diverging.end_offset < 0
        fetched = Fetched(
            ErrorCode(data.error_code) if data.error_code else ErrorCode.NONE,
            data.high_watermark,
            data.log_start_offset,
            UNKNOWN_END if agrees else EpochEnd(diverging.epoch, diverging.end_offset),
        )
        content = data.records
        records = memoryview(content) if isinstance(content, Buffered) else _NO_RECORDS
        if records and self._deps.throttle.is_set and self._is_throttled(partition):
            self._deps.throttle.record(len(records))
        if self._may_skip_tiered(partition.replica, requested, fetched):
            self._start_from_tier(partition, StartFromTier(fetched.log_start_offset))
            return
        step = partition.replica.as_follower.take_fetched(requested.position, fetched, records, now_ms)
        if isinstance(step, Append):
            self._make_due(partition.key)
        elif isinstance(step, Retry):
            self._back_off(partition, step)
        elif isinstance(step, StartFromTier):
            self._start_from_tier(partition, step)
        else:
            _log_truncation(partition.replica, step)
            self._make_due(partition.key)

    def _may_skip_tiered(self, replica: Replica, requested: FetchState, fetched: Fetched) -> bool:
        """Whether a new replica starts after what the object store has, although its leader may have that
        locally, too (follower.fetch.last.tiered.offset.enable, KIP-1023). As in Kafka, only a log that ends
        at 0 does."""
        is_new = replica.log.is_empty and requested.position.offset == 0
        if not (self._settings.follower_fetch_last_tiered_offset_enable and is_new):
            return False
        if fetched.error not in _ANSWERED or replica.as_follower.fetch_position() != requested.position:
            return False
        tiered_end = self._deps.image().remote_partition(*replica.id).end_offset or 0
        return _is_tiered(replica) and tiered_end > max(fetched.log_start_offset, 0)

    # --- delays

    def _handle_failure(self, partition: FetcherPartition, failure: Exception) -> None:
        _log.error("fetch.partition.failed", partition=str(partition.replica.name), exc_info=failure)
        self._back_off(partition, Retry(ErrorCode.UNKNOWN_SERVER_ERROR))

    def _back_off(self, partition: FetcherPartition, step: Retry) -> None:
        if step.error not in _EXPECTED_ERRORS:
            _log.warning(
                "fetch.partition.rejected",
                partition=str(partition.replica.name),
                leader=self._source,
                error=step.error.name,
            )
        self._leave_session(partition.key)
        self._delay(partition, self._settings.replica_fetch_backoff_ms)

    def _delay(self, partition: FetcherPartition, delay_ms: int) -> None:
        if partition.backoff is None:
            loop = asyncio.get_running_loop()
            partition.backoff = loop.call_later(delay_ms / 1000, self._end_backoff, partition)

    def _throttle_ms(self, partition: FetcherPartition) -> int:
        """How long a throttled replica must not fetch."""
        throttle = self._deps.throttle
        if not self._is_throttled(partition) or throttle.available_bytes(self._deps.clock.monotonic_ms()):
            return 0
        return throttle.wait_ms()

    def _is_throttled(self, partition: FetcherPartition) -> bool:
        topic_id, number = partition.key
        topic = self._deps.image().topics.get(topic_id)
        if topic is None or not self._deps.throttle.is_throttled(partition.replica.name):
            return False
        return self._settings.node_id not in topic.partitions[number].in_sync

    def _end_backoff(self, partition: FetcherPartition) -> None:
        if partition.backoff is not None:
            partition.backoff.cancel()
            partition.backoff = None
        if self._partitions.get(partition.key) is partition:
            self._make_due(partition.key)

    def _start_from_tier(self, partition: FetcherPartition, step: StartFromTier) -> None:
        start = self._deps.start_from_tier
        if start is None:
            self._back_off(partition, Retry(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE))
            return
        self._leave_session(partition.key)
        partition.is_starting_from_tier = True

        def on_done(started: "asyncio.Future[bool]") -> None:
            partition.is_starting_from_tier = False
            if self._partitions.get(partition.key) is not partition:
                return
            if not started.cancelled() and started.exception() is None and started.result():
                self._end_backoff(partition)
            else:
                self._back_off(partition, Retry(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE))

        name = f"start {partition.replica.name} from tier"
        self._deps.tasks.spawn(name, start(partition.replica, step)).add_done_callback(on_done)

    # --- helpers

    def _make_due(self, key: Key) -> None:
        self._due[key] = None
        self._wake()

    def _leave_session(self, key: Key) -> None:
        if key in self._session.session_partitions:
            self._forgotten[key] = None


def _is_tiered(replica: Replica) -> bool:
    return replica.is_tiered and replica.config.remote_storage_enable


_ANSWERED = frozenset(
    {ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE}
)
"""Codes of a leader that serves the partition, whether it has the requested offset or not."""

_EXPECTED_ERRORS = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE,
    }
)
"""Errors that are not logged here: one of the two brokers has not seen the newest image yet, or the tier
state machine has logged why a start failed."""


def _log_truncation(replica: Replica, step: Step) -> None:
    _log.info("log.aligned", partition=str(replica.name), step=str(step))
