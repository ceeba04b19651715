"""Turn: the handling of one event, with its time and the effects so far. Lives for one `handle` call.

`PendingWrites` holds what a core does once its records are durable. Each core owns one.
"""

from collections.abc import Callable, Hashable
from typing import Any

from tierlog.broker.coordinators.core.effects import (
    Appended,
    AppendMarker,
    AppendRecords,
    AppendTimedOut,
    CancelTimer,
    Effect,
    Producer,
    Reply,
    SetTimer,
    Token,
    WriteId,
)
from tierlog.broker.coordinators.core.stored import StoredRecord
from tierlog.protocol.errors import ErrorCode

AfterAppend = Callable[[Any, ErrorCode], None]
"""Called with a later turn, in the order of the appends: when the records are durable, when they have failed,
or with REQUEST_TIMED_OUT when that takes too long. Then they may still become durable, and it is called
again. Requests that it answered the first time get no other reply.
"""


class PendingWrites:
    """Appended records that are not durable yet: what follows when they are."""

    def __init__(self) -> None:
        self._then: dict[WriteId, AfterAppend] = {}
        self._next = 0

    def register(self, then: AfterAppend) -> WriteId:
        self._next += 1
        write_id = WriteId(self._next)
        self._then[write_id] = then
        return write_id

    def appended(self, event: Appended, turn: "Turn") -> None:
        self._then.pop(event.write_id)(turn, event.error)

    def timed_out(self, event: AppendTimedOut, turn: "Turn") -> None:
        then, before = self._then[event.write_id], len(turn.effects)
        then(turn, ErrorCode.REQUEST_TIMED_OUT)
        answered = {each.token for each in turn.effects[before:] if isinstance(each, Reply)}
        self._then[event.write_id] = _without_replies(then, answered)


class Turn:
    def __init__(self, now_ms: int, writes: PendingWrites) -> None:
        self.now_ms = now_ms
        self.effects: list[Effect] = []
        self._writes = writes

    def reply(self, token: Token, response: object) -> None:
        self.effects.append(Reply(token, response))

    def append(
        self, records: list[StoredRecord], then: AfterAppend, producer: Producer | None = None
    ) -> WriteId:
        write_id = self._writes.register(then)
        self.effects.append(AppendRecords(write_id, tuple(records), producer))
        return write_id

    def append_marker(
        self,
        producer: Producer,
        then: AfterAppend,
        *,
        committed: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> None:
        write_id = self._writes.register(then)
        marker = AppendMarker(write_id, producer, committed, coordinator_epoch, transaction_version)
        self.effects.append(marker)

    def set_timer(self, key: Hashable, delay_ms: int) -> None:
        self.effects.append(SetTimer(key, delay_ms))

    def cancel_timer(self, key: Hashable) -> None:
        self.effects.append(CancelTimer(key))


def _without_replies(then: AfterAppend, answered: set[Token]) -> AfterAppend:
    """The same callback without replies to requests that have been answered."""

    def stored(turn: Turn, error: ErrorCode) -> None:
        then(turn, error)
        turn.effects[:] = [
            each for each in turn.effects if not (isinstance(each, Reply) and each.token in answered)
        ]

    return stored


def response_error(error: ErrorCode) -> ErrorCode:
    """The error for the client after a failed append. The same table as in Kafka's coordinators."""
    return _RESPONSES.get(error, error)


_RESPONSES = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
