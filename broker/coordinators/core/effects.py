"""Events, effects and the reply that all coordinator cores share.

`handle(event, now_ms)` of a core returns effects, which must be performed in order. A `Token` identifies a
request that waits for a response; each token gets exactly one `Reply`, at once or after a later event. State
that must be durable before it counts is returned as `AppendRecords`. The driver submits `Appended`, in the
order of the appends, when the records are below the high watermark or have failed. Only then does the core
reply, unless the append is late: then it replies before, with REQUEST_TIMED_OUT.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple, NewType

from tierlog.broker.coordinators.core.stored import StoredRecord
from tierlog.protocol.errors import ErrorCode

Token = NewType("Token", int)
WriteId = NewType("WriteId", int)


# ---- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired:
    key: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The records of an AppendRecords are durable, or have failed with `error`."""

    write_id: WriteId
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendTimedOut:
    """The records of an AppendRecords are not durable within the coordinator's append timeout. The waiting
    requests time out; `Appended` still follows.
    """

    write_id: WriteId


# ---- effects --------------------------------------------------------------------------------------


class Producer(NamedTuple):
    """A transactional producer. `guard`: proves to the log that its transaction has this partition."""

    producer_id: int
    producer_epoch: int
    guard: Any = None


@dataclass(frozen=True, slots=True)
class AppendRecords:
    """`producer`: the records belong to its transaction; None: to no transaction."""

    write_id: WriteId
    records: tuple[StoredRecord, ...]
    producer: Producer | None = None


@dataclass(frozen=True, slots=True)
class AppendMarker:
    """Ends a transaction in this partition."""

    write_id: WriteId
    producer: Producer
    committed: bool
    coordinator_epoch: int
    transaction_version: int


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Sets the timer of this key, replacing an earlier one."""

    key: Hashable
    delay_ms: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    key: Hashable


@dataclass(frozen=True, slots=True)
class Reply:
    token: Token
    response: object


class ServiceEffect:
    """Base of the effects of one kind of coordinator, which its service performs."""

    __slots__ = ()


Effect = AppendRecords | AppendMarker | SetTimer | CancelTimer | Reply | ServiceEffect


# ---- responses ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorResponse:
    """For a request that failed completely, or whose response is only an error code."""

    error: ErrorCode = ErrorCode.NONE
