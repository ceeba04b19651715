"""An in-memory driver of the transaction coordinator's core: performs effects, keeps the log, writes markers,
and writes a transcript."""

from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from tierlog.base.types import TopicPartition
from tierlog.broker.coordinators.core.effects import (
    Appended,
    AppendRecords,
    AppendTimedOut,
    CancelTimer,
    Effect,
    Reply,
    SetTimer,
    TimerFired,
    Token,
)
from tierlog.broker.coordinators.core.stored import StoredRecord
from tierlog.broker.storage.core.producer_state import NO_PRODUCER_ID
from tierlog.broker.transactions.core.coordinator import Coordinator, TransactionSettings
from tierlog.broker.transactions.core.events import (
    AddPartitions,
    EndTransaction,
    Event,
    ExpireIds,
    InitProducerId,
    MarkersWritten,
    PartitionsResponse,
    TimerKey,
    WriteMarkers,
)
from tierlog.broker.transactions.core.formats import decode_key, decode_value, encode_key, encode_value
from tierlog.broker.transactions.core.states import TransactionState
from tierlog.broker.transactions.core.transaction import Transaction
from tierlog.protocol.errors import ErrorCode

EVENTS_MAX = 2_000
ROUNDS_OF_A_DAY = 25
"""With the default interval of an hour. The first one sees no time pass."""

"""Events that may follow from one: more are an endless loop."""

Producer = tuple[int, int]


class Bench:
    """One transactional id `t` by default. `lines` is the transcript; `responses` every reply by token.
    Producer ids begin with 1."""

    def __init__(self, **settings: Any) -> None:
        self.settings = TransactionSettings(**settings)
        self.core = Coordinator(self.settings)
        self.now_ms = 1_000_000
        self.producer_ids = count(1)
        self.timers: dict[TimerKey, int] = {}
        self.log: list[StoredRecord] = []
        self.markers: list[WriteMarkers] = []  # those that were written
        self.lines: list[str] = []
        self.responses: dict[int, Any] = {}
        self.tokens: list[int] = []
        self.lost: set[int] = set()  # requests that waited for a coordinator which is gone
        self.hold_appends = self.hold_markers = False
        self.append_error = ErrorCode.NONE
        self.held: list[AppendRecords] = []
        self.held_markers: list[WriteMarkers] = []
        self.told_late: set[int] = set()
        self._inbox: deque[Event] = deque()
        self._handling = False
        self._perform(self.core.finish_replay(self.now_ms, None))

    # ---- what clients do; each returns its token ----

    def init(self, name: str = "t", expected: Producer | None = None, **more: Any) -> int:
        """It brings a producer id if it needs one, as the service's does."""
        more = {"timeout_ms": 60_000, "spare_producer_id": self._spare(name), **more}
        line = f"init {name}" + (f" expected={_producer(expected)}" if expected else "")
        line += " keep" if more.get("keep") else ""
        return self._ask(InitProducerId, line, transactional_id=name, expected=expected, **more)

    def add(self, producer: Producer, *partitions: str, name: str = "t", **more: Any) -> int:
        wanted = frozenset(map(_partition, partitions))
        line = "verify" if more.get("verify_only") else "add"
        return self._ask(
            AddPartitions,
            f"{line} {name} {_producer(producer)} {' '.join(partitions)}",
            transactional_id=name,
            producer_id=producer[0],
            producer_epoch=producer[1],
            partitions=wanted,
            **{"client_version": 2, **more},
        )

    def verify(self, producer: Producer, *partitions: str, name: str = "t") -> int:
        return self.add(producer, *partitions, name=name, verify_only=True, client_version=0)

    def commit(self, producer: Producer, *, name: str = "t", version: int = 2, **more: Any) -> int:
        return self._end(producer, name, version, commit=True, **more)

    def abort(self, producer: Producer, *, name: str = "t", version: int = 2, **more: Any) -> int:
        return self._end(producer, name, version, commit=False, **more)

    def _end(self, producer: Producer, name: str, version: int, *, commit: bool, **more: Any) -> int:
        return self._ask(
            EndTransaction,
            f"{'commit' if commit else 'abort'} {name} {_producer(producer)} v{version}",
            transactional_id=name,
            producer_id=producer[0],
            producer_epoch=producer[1],
            commit=commit,
            client_version=version,
            **{"spare_producer_id": self._spare(name), **more},
        )

    def _spare(self, name: str) -> int:
        return next(self.producer_ids) if self.core.needs_producer_id(name) else NO_PRODUCER_ID

    # ---- what the world does ----

    def advance(self, ms: int) -> None:
        """Time passes; timers fire in order."""
        end_ms = self.now_ms + ms
        while due := [key for key, at_ms in self.timers.items() if at_ms <= end_ms]:
            key = min(due, key=lambda each: self.timers[each])
            self.now_ms = max(self.now_ms, self.timers.pop(key))
            self.lines.append(f"{self.now_ms - 1_000_000} {key.kind} timer {key.transactional_id}")
            self.send(TimerFired(key=key))
        self.now_ms = end_ms

    def expire(self, rounds: int = ROUNDS_OF_A_DAY) -> None:
        """So many rounds of expiration pass: by default those of the time that an id must be seen unused."""
        for _ in range(rounds):
            self.lines.append(f"{self.now_ms - 1_000_000} expire ids")
            self.send(ExpireIds())

    def release(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """The held appends become durable, in order; or all fail."""
        held, self.held = self.held, []
        for effect in held:
            self._appended(effect, error)

    def late(self) -> None:
        """Requests that wait for held appends time out, once."""
        for effect in [effect for effect in self.held if effect.write_id not in self.told_late]:
            self.told_late.add(effect.write_id)
            self.lines.append("    late")
            self.send(AppendTimedOut(write_id=effect.write_id))

    def write_markers(self) -> None:
        """The held markers are written."""
        held, self.held_markers = self.held_markers, []
        for effect in held:
            self._write_markers(effect)

    def restart(self, survivors: int = 0) -> None:
        """A new coordinator replays the log. `survivors`: held appends, the oldest, that are durable."""
        for effect in self.held[:survivors]:
            self.log += effect.records
        self.lines.append(f"{self.now_ms - 1_000_000} restart")
        self.core = Coordinator(self.settings)
        self.timers.clear()
        self.held.clear()
        self.held_markers.clear()
        self.told_late.clear()
        self.lost.update(self.waiting)
        for key, value in self.log:
            self.core.replay(key, value)
        self._perform(self.core.finish_replay(self.now_ms, None))
        self._drain()

    def store(self, **fields: Any) -> Transaction:
        """Start from this state, as after a restart."""
        fields = {"producer_id": next(self.producer_ids), "producer_epoch": 0, **fields}
        times = {"timeout_ms": 60_000, "updated_ms": self.now_ms, "started_ms": self.now_ms}
        found = Transaction(**{"transactional_id": "t", **times, **fields})
        self.log.append(StoredRecord(encode_key(found.transactional_id), encode_value(found)))
        self.restart()
        self.lines.clear()
        return found

    def send(self, event: Event) -> None:
        """Handle an event after those before it, as a shard does."""
        self._inbox.append(event)
        self._drain()

    def _drain(self) -> None:
        if self._handling:
            return
        self._handling = True
        try:
            for _ in range(EVENTS_MAX):
                if not self._inbox:
                    return
                self._perform(self.core.handle(self._inbox.popleft(), self.now_ms))
                self.core.check()
            raise AssertionError("one event leads to others without end:\n" + self.transcript[-2_000:])
        finally:
            self._handling = False

    # ---- what came of it ----

    def response(self, token: int) -> Any:
        return self.responses.get(token)

    def error(self, token: int) -> ErrorCode:
        return ErrorCode(self.responses[token].error)

    def producer(self, token: int) -> Producer:
        """The producer id and epoch that a successful InitProducerId or EndTxn returned."""
        assert self.error(token) == ErrorCode.NONE, self.error(token).name
        return self.responses[token].producer_id, self.responses[token].producer_epoch

    @property
    def waiting(self) -> list[int]:
        return [each for each in self.tokens if each not in self.responses and each not in self.lost]

    @property
    def state(self) -> TransactionState | None:
        known = self.core.find("t")
        return None if known is None else known.state

    @property
    def transcript(self) -> str:
        return "\n".join(self.lines)

    def stored(self, name: str = "t") -> Transaction | None:
        """The last record of an id in the log."""
        for key, value in reversed(self.log):
            if decode_key(key) == name:
                return None if value is None else decode_value(name, value)
        return None

    def open(self, *partitions: str, version: int = 2, **more: Any) -> Producer:
        """A producer with an open transaction."""
        producer = self.producer(self.init(**more))
        assert self.error(self.add(producer, *(partitions or ("a-0",)), client_version=version)) == 0
        return producer

    # ---- effects ----

    def _ask(self, kind: Callable[..., Event], line: str, **fields: Any) -> int:
        token = len(self.tokens) + 1
        self.tokens.append(token)
        self.lines.append(f"{self.now_ms - 1_000_000} #{token} {line}")
        self.send(kind(token=Token(token), **fields))
        return token

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SetTimer(key, delay_ms):
                    self.timers[key] = self.now_ms + delay_ms
                case CancelTimer(key):
                    self.timers.pop(key, None)
                case Reply(token, response):
                    assert token not in self.responses, f"#{token} is answered twice"
                    self.responses[token] = response
                    self.lines.append(f"    #{token} {describe(response)}")
                    self.on_reply(token, response)
                case AppendRecords():
                    self.lines.append("    append " + ", ".join(map(describe_record, effect.records)))
                    if self.hold_appends:
                        self.held.append(effect)
                    else:
                        self._appended(effect, self.append_error)
                case WriteMarkers():
                    self._check_markers(effect)
                    self.lines.append("    markers " + describe_markers(effect))
                    if self.hold_markers:
                        self.held_markers.append(effect)
                    else:
                        self._write_markers(effect)

    def on_reply(self, token: int, response: Any) -> None:
        """For the model test."""

    def _check_markers(self, effect: WriteMarkers) -> None:
        """Markers follow from a durable record only."""
        stored = self.stored(effect.transactional_id)
        assert stored is not None and stored.state.is_prepared, "markers of a transaction that is not decided"
        assert (effect.producer_id, effect.producer_epoch) == (stored.producer_id, stored.producer_epoch)
        assert effect.commit == (stored.state is TransactionState.PREPARE_COMMIT)
        assert effect.partitions == stored.partitions

    def _write_markers(self, effect: WriteMarkers) -> None:
        self.markers.append(effect)
        self.send(
            MarkersWritten(
                transactional_id=effect.transactional_id,
                producer_id=effect.producer_id,
                producer_epoch=effect.producer_epoch,
            )
        )

    def _appended(self, effect: AppendRecords, error: ErrorCode) -> None:
        if error == ErrorCode.NONE:
            self.log += effect.records
        self.send(Appended(write_id=effect.write_id, error=error))


def _partition(text: str) -> TopicPartition:
    topic, number = text.rsplit("-", 1)
    return TopicPartition(topic, int(number))


def _producer(producer: Producer) -> str:
    return f"{producer[0]}/{producer[1]}"


def _names(partitions: frozenset[TopicPartition]) -> str:
    return ",".join(f"{topic}-{number}" for topic, number in sorted(partitions)) or "-"


def describe(response: Any) -> str:
    if response.error != ErrorCode.NONE:
        return ErrorCode(response.error).name
    if isinstance(response, PartitionsResponse):
        return f"missing {_names(response.failed)}" if response.failed else "ok"
    return _producer((response.producer_id, response.producer_epoch))


def describe_record(record: StoredRecord) -> str:
    name = decode_key(record.key)
    if name is None or record.value is None:
        return f"{name} deleted"
    found = decode_value(name, record.value)
    line = f"{name} {found.state.title} {found.producer_id}/{found.producer_epoch} {_names(found.partitions)}"
    has_next = found.next_producer_id != NO_PRODUCER_ID
    return line + (f" next={_producer(found.client)}" if has_next else "")


def describe_markers(effect: WriteMarkers) -> str:
    outcome = "commit" if effect.commit else "abort"
    producer = _producer((effect.producer_id, effect.producer_epoch))
    return f"{outcome} {effect.transactional_id} {producer} {_names(effect.partitions)}"


@pytest.fixture
def bench() -> Callable[..., Bench]:
    return Bench
