"""Coordinator shard: drives the core of one partition of an internal topic, with its log and the requests
that wait.

All events pass one inbox, and are handled one after another on the event loop. The effects of one are
performed before the next, except responses beyond RESPONSES_PER_TURN, which follow in later turns. The core
receives the result of an append when the high watermark has passed it, or its flush has failed, in the order
of the appends. A core that breaks an invariant is discarded, and rebuilt from the log. Owned by
`coordinators.shards`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

import structlog

from tierlog.base.clock import Clock
from tierlog.base.safeguards import safeguard
from tierlog.base.slices import LogSlice
from tierlog.base.types import NO_OFFSET, TopicPartition
from tierlog.broker.coordinators.core.effects import (
    Appended,
    AppendMarker,
    AppendRecords,
    AppendTimedOut,
    CancelTimer,
    Effect,
    ErrorResponse,
    Reply,
    SetTimer,
    TimerFired,
    Token,
    WriteId,
)
from tierlog.broker.coordinators.core.stored import FormatError
from tierlog.broker.coordinators.timers import Timers
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.core.producer_state import NO_PRODUCER_ID
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import BatchHeader, check_batch, iter_batches
from tierlog.records.errors import RecordsError, RecordsFault
from tierlog.records.markers import EndMarker, read_marker
from tierlog.records.record import Record, iter_records
from tierlog.records.writer import NewRecord, encode_batch

LOAD_BYTES = 512 << 10
"""Bytes that a load reads at once."""

RECORDS_PER_TURN = 500
"""Records that a load replays before other work gets a turn on the event loop. They take about 5 ms: shorter
turns would let a busy broker delay the load, and all requests of the shard wait for it."""

RECORDS_MAX_BYTES = 64 << 20
"""Maximum size of a batch after decompression. tierlog does not compress these batches; Kafka may have."""
MAX_WAITING = 50_000
"""Maximum number of waiting requests of one shard before it refuses new members. Each holds a future and
blocks later requests of its connection. Other requests are served even then, so that members of other groups
do not expire. Their number is bounded: a member's request replaces its previous one, and commits time out."""

RESPONSES_PER_TURN = 200
"""A rebalance answers all members of its group at once. Their responses take some 30 microseconds each."""

R = TypeVar("R")
C = TypeVar("C", bound="Core")
_log = structlog.get_logger("tierlog.coordinators")


class Core(Protocol):
    """A pure coordinator core. Its state is rebuilt from the records of its partition."""

    def handle(self, event: Any, now_ms: int) -> list[Effect]: ...

    def replay(
        self, record_key: bytes | memoryview, value: bytes | memoryview | None, producer_id: int
    ) -> None:
        """`producer_id`: of the transaction to which the record belongs, or NO_PRODUCER_ID. Raises
        FormatError if the record is unusable."""

    def replay_marker(self, producer_id: int, *, committed: bool) -> None:
        """The transaction of this producer has ended."""

    def finish_replay(self, now_ms: int, topics: Any) -> list[Effect]:
        """Called after the last record. `topics`: what the core knows about topics."""

    def may_refuse(self, request: Any) -> bool:
        """Whether a request may be refused while too many wait: it adds a member."""


class LoadFailed(Exception):
    """The partition cannot be read now."""


@dataclass(slots=True)
class _Written:
    write_id: WriteId
    end_offset: int  # the high watermark that makes it durable; -1 if the append failed
    leader_epoch: int
    error: ErrorCode
    timeout_at_ms: int = 0  # monotonic; set if it is not durable at once
    is_timed_out: bool = False  # the waiting requests have timed out


@dataclass(slots=True)
class _Waiter:
    future: "asyncio.Future[Any]"
    convert: Callable[[Any], Any]


@dataclass(slots=True)
class _Load:
    """Counts of a replay. One log line reports all skipped records, because there may be any number of
    them."""

    damaged_at: int = NO_OFFSET  # offset of the first damaged batch
    records: int = 0
    skipped: int = 0
    first_skipped: str = ""

    def skip(self, offset: int, error: Exception) -> None:
        self.first_skipped = self.first_skipped or f"offset {offset}: {error}"
        self.skipped += 1

    def skip_damaged(self, offset: int, error: Exception) -> None:
        self.skip(offset, error)
        if self.damaged_at == NO_OFFSET:
            self.damaged_at = offset


class Shard(Generic[C]):
    def __init__(
        self,
        name: TopicPartition,
        replica: Replica,
        new_core: Callable[[], C],
        clock: Clock,
        timers: Timers,
        topics: Callable[[], Any],
        append_timeout_ms: int,
        must_verify: Callable[[], bool],
    ) -> None:
        """`topics`: what the core knows about topics, from the broker's image. `must_verify`: the setting
        transaction.partition.verification.enable."""
        self.name = name
        self.replica = replica
        self.core = new_core()
        self.ready = False
        self.skipped_records = 0
        self.leader_epoch = replica.leader_epoch
        self.is_replicated = False
        """Whether other brokers have replicas of the partition, which can repair it."""
        self.on_failure: Callable[[Shard[C]], None] = lambda shard: None
        self.on_service_effect: Callable[[Shard[C], Effect], None] = lambda shard, effect: None
        self._new_core = new_core
        self._clock = clock
        self._timers = timers
        self._topics = topics
        self._append_timeout_ms = append_timeout_ms
        self._must_verify = must_verify
        self._inbox: deque[Any] = deque()
        self._handling = False
        self._closed = False
        self._replica_changed = asyncio.Event()
        self._tokens = count(1)
        self._waiting: dict[Token, _Waiter | None] = {}
        self._responses: dict[Token, Any] = {}
        self._written: deque[_Written] = deque()
        self._late_timer_is_set = False
        replica.listeners.append(self._on_replica_change)

    # ---- requests and events ----

    def ask(self, build: Callable[[Token], Any], convert: Callable[[Any], R]) -> "R | asyncio.Future[R]":
        """Handle a request. Returns the converted response, or a future of it if the request has to wait."""
        if not self.ready:
            return convert(ErrorResponse(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        token = Token(next(self._tokens))
        request = build(token)
        if len(self._waiting) >= MAX_WAITING and self.core.may_refuse(request):
            return convert(ErrorResponse(error=ErrorCode.COORDINATOR_NOT_AVAILABLE))
        self._waiting[token] = None
        self.submit(request)
        response = self._responses.pop(token, None)
        if response is not None:
            return convert(response)
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting[token] = _Waiter(future, convert)
        return future

    def fail_waiting(self, error: ErrorCode) -> None:
        """Fail all waiting requests. They may still take effect: whether their records become durable is up
        to a later leader."""
        for token, waiter in list(self._waiting.items()):
            if waiter is not None:
                self._respond(token, ErrorResponse(error=error))

    def submit(self, event: Any) -> None:
        """Handle an event: at once, or after the current event or load."""
        self._inbox.append(event)
        if self.ready and not self._handling:
            self._handle_inbox()

    def _handle_inbox(self) -> None:
        self._handling = True
        try:
            while self._inbox:
                self._perform(self.core.handle(self._inbox.popleft(), self._clock.now_ms()))
        except Exception:
            _log.exception("coordinator.rebuilt", partition=str(self.name))
            self._fail()
        finally:
            self._handling = False

    # ---- start and stop ----

    @safeguard("a coordinator replays its partition before it serves")
    async def load(self) -> None:
        """Replay the partition. No event is handled before that is done. Raises LoadFailed."""
        log_end_offset = self.replica.log_end_offset
        while not (self._is_committed(log_end_offset) or self._closed):
            self._replica_changed.clear()
            await self._replica_changed.wait()
        core, offset, load = self._new_core(), self.replica.log_start_offset, _Load()
        while offset < self.replica.high_watermark and not self._closed:
            result = self.replica.read(offset, LOAD_BYTES)
            if result.error != ErrorCode.NONE or result.slice is None or not result.slice.parts:
                raise LoadFailed(f"{self.name} at offset {offset}: {ErrorCode(result.error).name}")
            data = await asyncio.to_thread(_bytes_of, result.slice)
            if len(data) != result.slice.size:
                raise LoadFailed(f"{self.name} at offset {offset}: the file is too short")
            await _replay(core, data, offset, load)
            offset = result.slice.end_offset
            if load.damaged_at >= 0:
                self._damage_found(load.damaged_at)
                load.damaged_at = NO_OFFSET
        if self._closed:
            return
        self.core = core
        self._perform(core.finish_replay(self._clock.now_ms(), self._topics()))
        self.ready = True
        self.skipped_records = load.skipped
        self._handle_inbox()
        if load.skipped:
            # Older records of the same keys stay in effect. Consumers then read some records again. They skip
            # none, which a wrong offset could make them do.
            _log.error(
                "coordinator.records.skipped",
                partition=str(self.name),
                records=load.skipped,
                first=load.first_skipped,
            )
        if load.records:
            _log.info("coordinator.loaded", partition=str(self.name), records=load.records)

    def _is_committed(self, log_end_offset: int) -> bool:
        """Whether a load may begin. A new leader may have committed records, with offsets of clients, above
        its high watermark. A core that failed may have appended records that count once they are durable."""
        replica = self.replica
        return replica.high_watermark_is_current and replica.high_watermark >= log_end_offset

    def _damage_found(self, offset: int) -> None:
        """Have a damaged batch repaired. Raises LoadFailed if that is possible: without the batch the core
        would contradict what is durable, for example abort a transaction that is committed. A log without
        other replicas is loaded without it."""
        self.replica.suspect(offset, "a coordinator cannot replay it")
        if self.is_replicated:
            raise LoadFailed(f"{self.name} is damaged at offset {offset}, and waits for its repair")

    def start_empty(self) -> None:
        """Start a shard without records at once, so that the first request of a new cluster need not wait."""
        self._perform(self.core.finish_replay(self._clock.now_ms(), self._topics()))
        self.ready = True

    def close(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
        """Stop coordinating. Waiting requests fail, so that clients find the new coordinator."""
        self._closed = True
        self._replica_changed.set()
        self.ready = False
        if self._on_replica_change in self.replica.listeners:
            self.replica.listeners.remove(self._on_replica_change)
        self._fail_and_clear(error)

    def _fail(self) -> None:
        self.ready = False
        self._fail_and_clear(ErrorCode.NOT_COORDINATOR)
        self.on_failure(self)

    def _fail_and_clear(self, error: ErrorCode) -> None:
        self._timers.cancel_where(lambda key: isinstance(key, tuple) and key[0] == self.name)
        self._inbox.clear()
        self._written.clear()
        self._late_timer_is_set = False
        for token in list(self._waiting):
            self._respond(token, ErrorResponse(error=error))

    # ---- effects ----

    def _perform(self, effects: list[Effect]) -> None:
        """Responses beyond `RESPONSES_PER_TURN` are sent in later turns of the event loop. The response to
        the request that `ask` is handling is always sent now."""
        count, later = 0, deque[Reply]()
        for effect in effects:
            match effect:
                case Reply(token, response):
                    count += 1
                    if count > RESPONSES_PER_TURN and self._waiting.get(token) is not None:
                        later.append(effect)
                    else:
                        self._respond(token, response)
                case SetTimer(key, delay_ms):
                    event = TimerFired(key=key)
                    self._timers.set((self.name, key), delay_ms, lambda event=event: self.submit(event))  # type: ignore[misc]
                case CancelTimer(key):
                    self._timers.cancel((self.name, key))
                case AppendRecords():
                    self._append(effect)
                case AppendMarker():
                    self._append_marker(effect)
                case _:
                    self.on_service_effect(self, effect)
        if later:
            asyncio.get_running_loop().call_soon(self._respond_in_turns, later)

    def _respond_in_turns(self, responses: deque[Reply]) -> None:
        try:
            for _ in range(min(RESPONSES_PER_TURN, len(responses))):
                reply = responses.popleft()
                self._respond(reply.token, reply.response)
        except Exception:
            _log.exception("coordinator.rebuilt", partition=str(self.name))
            self._fail()  # and answers the requests that wait
        if responses:
            asyncio.get_running_loop().call_soon(self._respond_in_turns, responses)

    def _respond(self, token: Token, response: Any) -> None:
        if token not in self._waiting:
            return  # it has already failed
        waiter = self._waiting.pop(token)
        if waiter is None:  # still inside ask()
            self._responses[token] = response
        elif not waiter.future.done():
            waiter.future.set_result(waiter.convert(response))

    def _append(self, effect: AppendRecords) -> None:
        if not self.is_current:
            self._await_durable(effect.write_id, ErrorCode.NOT_LEADER_OR_FOLLOWER, NO_OFFSET)
            return
        now_ms = self._clock.now_ms()
        records = [NewRecord(now_ms, key, value) for key, value in effect.records]
        leader, producer = self.replica.as_leader, effect.producer
        if producer is None:
            batch = memoryview(encode_batch(records))
            result = leader.append(batch, now_ms, acks=-1, from_client=False)
        else:
            batch = memoryview(
                encode_batch(
                    records,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    transactional=True,
                )
            )
            guard, must_verify = producer.guard, self._must_verify()
            result = leader.append(
                batch, now_ms, acks=-1, from_client=False, guard=guard, must_verify=must_verify
            )
        self._await_durable(effect.write_id, ErrorCode(result.error), result.last_offset + 1)

    def _append_marker(self, effect: AppendMarker) -> None:
        if not self.is_current:
            self._await_durable(effect.write_id, ErrorCode.NOT_LEADER_OR_FOLLOWER, NO_OFFSET)
            return
        result = self.replica.as_leader.append_marker(
            effect.producer.producer_id,
            effect.producer.producer_epoch,
            EndMarker(effect.committed, effect.coordinator_epoch),
            self._clock.now_ms(),
            transaction_version=effect.transaction_version,
        )
        self._await_durable(effect.write_id, ErrorCode(result.error), result.last_offset + 1)

    def _await_durable(self, write_id: WriteId, error: ErrorCode, end_offset: int) -> None:
        end_offset = end_offset if error == ErrorCode.NONE else NO_OFFSET
        written = _Written(write_id, end_offset, self.leader_epoch, error)
        self._written.append(written)
        self._report_durable()
        if self._written:
            written.timeout_at_ms = self._clock.monotonic_ms() + self._append_timeout_ms
            if not self._late_timer_is_set:
                self._set_late_timer(self._append_timeout_ms)

    def _set_late_timer(self, delay_ms: int) -> None:
        self._late_timer_is_set = True
        self._timers.set((self.name, "late appends"), delay_ms, self._time_out_late)

    def _time_out_late(self) -> None:
        """Time out the requests of late appends. Their records stay in the log and take effect once
        durable."""
        self._late_timer_is_set = False
        now_ms = self._clock.monotonic_ms()
        for written in [each for each in self._written if not each.is_timed_out]:
            if not self._written:
                return  # the shard has failed
            if written.timeout_at_ms > now_ms:
                self._set_late_timer(written.timeout_at_ms - now_ms)
                return
            written.is_timed_out = True
            self.submit(AppendTimedOut(write_id=written.write_id))

    def _on_replica_change(self, replica: Replica) -> None:
        self._replica_changed.set()
        self._report_durable()

    @property
    def is_current(self) -> bool:
        """Whether the replica still leads in the epoch in which this shard was loaded. Another broker may
        have coordinated before a later epoch."""
        return self.replica.leader_epoch == self.leader_epoch

    def _report_durable(self) -> None:
        """Report results in the order of the appends, even if a later append failed at once."""
        while self._written:
            written = self._written[0]
            error = written.error or self.replica.as_leader.acknowledgement(
                written.end_offset, -1, written.leader_epoch
            )
            if error is None:
                return
            self._written.popleft()
            self.submit(Appended(write_id=written.write_id, error=error))


def _bytes_of(found: LogSlice) -> bytes:
    return b"".join(
        part if isinstance(part, (bytes, bytearray, memoryview)) else part.read() for part in found.parts
    )


async def _replay(core: Core, data: bytes, offset: int, load: _Load) -> None:
    """`offset`: at which the data begins."""
    turn_at = load.records + RECORDS_PER_TURN
    for at, header in _batches(data, offset, load):
        try:
            check_batch(data, at)
        except RecordsError as error:
            load.skip_damaged(header.base_offset, error)
            continue
        if header.is_control:
            if (marker := read_marker(memoryview(data)[at:])) is not None:
                core.replay_marker(header.producer_id, committed=marker.committed)
            continue
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
        try:
            for record in iter_records(data, at, max_bytes=RECORDS_MAX_BYTES):
                load.records += 1
                _replay_record(core, record, producer_id, load)
                if load.records >= turn_at:
                    turn_at += RECORDS_PER_TURN
                    await asyncio.sleep(0)
        except RecordsError as error:
            load.skip(header.base_offset, error)  # the rest of the batch, from the unreadable record on


def _batches(data: bytes, offset: int, load: _Load) -> Iterator[tuple[int, BatchHeader]]:
    """Whole batches from an offset on. A length with a flipped bit hides what follows it, and is damage."""
    end, fault = 0, RecordsError(RecordsFault.CORRUPT, "a batch is longer than what was read")
    try:
        for at, header in iter_batches(data):
            yield at, header
            end, offset = at + header.size, header.next_offset
    except RecordsError as error:
        fault = error
    if end < len(data):
        load.skip_damaged(offset, fault)


def _replay_record(core: Core, record: Record, producer_id: int, load: _Load) -> None:
    if record.key is None:
        return
    try:
        core.replay(record.key, record.value, producer_id)
    except FormatError as error:
        load.skip(record.offset, error)
