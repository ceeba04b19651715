"""Turn: the handling of one event, with its time, the settings and the effects so far. Lives for one `handle`
call."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tierlog.broker.groups.core.events import (
    AppendRecords,
    CancelTimer,
    Effect,
    Reply,
    Response,
    SetTimer,
    TimerKey,
    Token,
    WriteId,
)
from tierlog.broker.groups.core.formats import StoredRecord
from tierlog.protocol.errors import ErrorCode

AfterAppend = Callable[["Turn", ErrorCode], None]
"""Called once, in a later turn and in the order of the appends: when the records are durable, when they have
failed, or with REQUEST_TIMED_OUT when that takes too long. Then they may still become durable.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The node's settings group.* and offsets.*, with `_` for `.`."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600_000  # offsets.retention.minutes
    # A member in its first join does not know its id, so it cannot send heartbeats. Kafka's constant.
    new_member_join_timeout_ms: int = 5 * 60_000
    # Until a member's first request after the response to its first join; clients send it at once. Kafka
    # waits for the session timeout, which lets a client fill the memory for members for half an hour.
    new_member_response_timeout_ms: int = 60_000


@dataclass(slots=True)
class Turn:
    now_ms: int
    settings: GroupSettings
    register_write: Callable[[AfterAppend], WriteId]
    effects: list[Effect] = field(default_factory=list)

    def reply(self, token: Token, response: Response) -> None:
        self.effects.append(Reply(token, response))

    def append(self, records: list[StoredRecord], then: AfterAppend) -> WriteId:
        write_id = self.register_write(then)
        self.effects.append(AppendRecords(write_id, tuple(records)))
        return write_id

    def set_timer(self, key: TimerKey, delay_ms: int) -> None:
        self.effects.append(SetTimer(key, delay_ms))

    def cancel_timer(self, key: TimerKey) -> None:
        self.effects.append(CancelTimer(key))


def without_replies(then: AfterAppend) -> AfterAppend:
    """The same callback without replies, for requests that have been answered."""

    def stored(turn: Turn, error: ErrorCode) -> None:
        before = len(turn.effects)
        then(turn, error)
        turn.effects[before:] = [each for each in turn.effects[before:] if not isinstance(each, Reply)]

    return stored


def response_error(error: ErrorCode) -> ErrorCode:
    """The error for the client after a failed append. The same table as in Kafka's coordinator."""
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
