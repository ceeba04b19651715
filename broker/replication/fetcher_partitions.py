"""The partitions that one replica fetcher follows: what to ask for next, and what an answer means to each.

What has moved is due; the next request names what of it the leader does not know yet (fetch sessions). An
answer is carried out by the replica itself, which appends the records from where they were received. A
partition that cannot go on now rests for `replica.fetch.backoff.ms`, out of the session, and holds up no
other. Nothing waits in here: the fetcher does. Owned by it.
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
from tierlog.broker.replication.fetch_session_handler import Asked, FetchingSession, Key
from tierlog.broker.replication.replica import Replica
from tierlog.config.node import NodeSettings
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData, ReplicaState

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


class Partition:
    """One of them."""

    def __init__(self, key: Key, replica: Replica) -> None:
        self.key = key
        self.replica = replica
        self.listener: Callable[[Replica], None] | None = None
        self.rests: asyncio.TimerHandle | None = None
        self.moves_in = False  # from the tier, which takes its time


class Answer(NamedTuple):
    partition: Partition
    asked: Asked
    data: PartitionData


class Followed:
    def __init__(self, source: int, dependencies: FollowerDependencies, wake: Callable[[], None]) -> None:
        """`source`: the leader. `wake`: something is due, or the last partition is gone."""
        self.flushing: set[Key] = set()
        """Those that wait for their disk; they become due when they can go on."""
        self._source = source
        self._deps = dependencies
        self._settings = dependencies.settings
        self._wake = wake
        self._partitions: dict[Key, Partition] = {}
        self._due: dict[Key, None] = {}  # whose position has to be looked at
        self._gone: dict[Key, None] = {}
        self._session = FetchingSession(self._settings.replica_fetch_max_bytes)

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def has_work(self) -> bool:
        """Not so while all rest: the session stays as it is until one of them goes on."""
        return bool(self._due) or self._session_goes_on

    @property
    def _session_goes_on(self) -> bool:
        return len(self._session.asked) > len(self._gone)

    def add(self, key: Key, replica: Replica) -> bool:
        """False if it was followed before; then it rests no more."""
        known = self._partitions.get(key)
        if known is not None and known.replica is replica:
            self._end_rest(known)
            return False
        partition = Partition(key, replica)

        def moved(_: Replica) -> None:
            if key in self.flushing:
                self._make_due(key)

        partition.listener = moved
        replica.listeners.append(moved)
        self._partitions[key] = partition
        self._gone.pop(key, None)
        self._make_due(key)
        return True

    def remove(self, key: Key) -> None:
        partition = self._partitions.pop(key, None)
        if partition is None:
            return
        listeners, listener = partition.replica.listeners, partition.listener
        if listener is not None and listener in listeners:
            listeners.remove(listener)
        if partition.rests is not None:
            partition.rests.cancel()
        self._due.pop(key, None)
        self.flushing.discard(key)
        self._leave_session(key)
        self._wake()

    def clear(self) -> None:
        for key in list(self._partitions):
            self.remove(key)

    def start_over(self) -> None:
        """The leader knows nothing any more: the next request names everything."""
        self._session.reset()
        self._gone.clear()
        self._due = dict.fromkeys(self._partitions)

    # --- what to ask for

    def next_request(self, *, patient: bool = True) -> FetchRequest | None:
        """None if there is nothing to ask for; or, if it is `patient`, while a partition waits for its disk:
        its offset may be claimed only once it is durable, and better to wait for that than to have the leader
        hold a request that does not name it.
        """
        changed = self._look()
        if (patient and self.flushing) or not (changed or self._session_goes_on):
            for key in changed:  # it may have moved by then, or be gone
                self._due[key] = None
            return None
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

    def _look(self) -> dict[Key, Asked]:
        """Where those stand that may have moved."""
        changed: dict[Key, Asked] = {}
        due, self._due = self._due, {}
        throttled = self._deps.throttle.is_set
        for key in due:
            partition = self._partitions.get(key)
            if partition is None or partition.rests is not None or partition.moves_in:
                continue
            self.flushing.discard(key)
            if throttled and (rest_ms := self._throttled_ms(partition)):
                self._leave_session(key)
                self._rest_for(partition, rest_ms)
                continue
            try:
                self._look_at(partition, changed)
            except Exception as failure:
                self._failed(partition, failure)
        return changed

    def _look_at(self, partition: Partition, changed: dict[Key, Asked]) -> None:
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
            self.flushing.add(partition.key)

    # --- what came

    def answered(self, response: FetchResponse) -> list[Answer]:
        """A response without an error: what there is to `take` of it."""
        asked = self._session.asked
        self._session.answered(response.session_id)
        if not self._session.is_open:
            self._due.update(dict.fromkeys(self._partitions))
        answers: list[Answer] = []
        for topic in response.responses:
            for data in topic.partitions:
                key = (topic.topic_id, data.partition_index)
                partition = self._partitions.get(key)
                if partition is None:
                    self._leave_session(key)  # or the leader answers at once for it, again and again
                elif key in asked:
                    answers.append(Answer(partition, asked[key], data))
        return answers

    def take(self, answer: Answer, now_ms: int) -> None:
        """What one partition's log or answer has that cannot be is not the others' trouble."""
        partition = answer.partition
        if self._partitions.get(partition.key) is not partition:
            return  # it went while others were taken
        try:
            self._take(partition, answer.asked, answer.data, now_ms)
        except Exception as failure:
            self._failed(partition, failure)

    def _take(self, partition: Partition, asked: Asked, answer: PartitionData, now_ms: int) -> None:
        diverging = answer.diverging_epoch
        agrees = diverging.epoch < 0 and diverging.end_offset < 0
        fetched = Fetched(
            ErrorCode(answer.error_code) if answer.error_code else ErrorCode.NONE,
            answer.high_watermark,
            answer.log_start_offset,
            UNKNOWN_END if agrees else EpochEnd(diverging.epoch, diverging.end_offset),
        )
        content = answer.records
        records = memoryview(content) if isinstance(content, Buffered) else _NO_RECORDS
        if records and self._deps.throttle.is_set and self._is_throttled(partition):
            self._deps.throttle.took(len(records))
        step = partition.replica.take_fetched(asked.position, fetched, records, now_ms)
        if isinstance(step, Append):
            self._make_due(partition.key)
        elif isinstance(step, Retry):
            self._rest(partition, step)
        elif isinstance(step, StartFromTier):
            self._start_from_tier(partition, step)
        else:
            _note(partition.replica, step)
            self._make_due(partition.key)

    # --- what cannot go on now

    def _failed(self, partition: Partition, failure: Exception) -> None:
        _log.error("a follower failed", partition=str(partition.replica.name), exc_info=failure)
        self._rest(partition, Retry(ErrorCode.UNKNOWN_SERVER_ERROR))

    def _rest(self, partition: Partition, step: Retry) -> None:
        if step.error not in _ORDINARY:
            _log.warning(
                "a follower cannot fetch for now",
                partition=str(partition.replica.name),
                leader=self._source,
                error=step.error.name,
            )
        self._leave_session(partition.key)
        self._rest_for(partition, self._settings.replica_fetch_backoff_ms)

    def _rest_for(self, partition: Partition, rest_ms: int) -> None:
        if partition.rests is None:
            loop = asyncio.get_running_loop()
            partition.rests = loop.call_later(rest_ms / 1000, self._end_rest, partition)

    def _throttled_ms(self, partition: Partition) -> int:
        """How long it must not fetch, because it would catch up too fast."""
        throttle = self._deps.throttle
        if not self._is_throttled(partition) or throttle.room(self._deps.clock.monotonic_ms()):
            return 0
        return throttle.rest_ms()

    def _is_throttled(self, partition: Partition) -> bool:
        topic_id, number = partition.key
        topic = self._deps.image().topics.get(topic_id)
        if topic is None or not self._deps.throttle.names(partition.replica.name):
            return False
        return self._settings.node_id not in topic.partitions[number].in_sync

    def _end_rest(self, partition: Partition) -> None:
        if partition.rests is not None:
            partition.rests.cancel()
            partition.rests = None
        if self._partitions.get(partition.key) is partition:
            self._make_due(partition.key)

    def _start_from_tier(self, partition: Partition, step: StartFromTier) -> None:
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

    # --- small things

    def _make_due(self, key: Key) -> None:
        self._due[key] = None
        self._wake()

    def _leave_session(self, key: Key) -> None:
        if key in self._session.asked:
            self._gone[key] = None


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


def _note(replica: Replica, step: Step) -> None:
    _log.info("a follower's log goes back to its leader's", partition=str(replica.name), step=str(step))
