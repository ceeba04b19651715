"""ListTransactions (API key 66). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class ListTransactionsRequest:
    state_filters: list[str] = field(default_factory=list)
    producer_id_filters: list[int] = field(default_factory=list)
    duration_filter: int = -1
    transactional_id_pattern: str | None = None

    VERSIONS: ClassVar[Versions] = (0, 2)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("state_filters", "string", 0, 2, array=True),
        Field("producer_id_filters", "int64", 0, 2, array=True),
        Field("duration_filter", "int64", 1, 2),
        Field("transactional_id_pattern", "string", 2, 2, nullable=(2, 2)),
    )


@dataclass(slots=True, kw_only=True)
class TransactionState:
    transactional_id: str = ""
    producer_id: int = 0
    transaction_state: str = ""

    FIELDS: ClassVar[Fields] = (
        Field("transactional_id", "string", 0, 2),
        Field("producer_id", "int64", 0, 2),
        Field("transaction_state", "string", 0, 2),
    )


@dataclass(slots=True, kw_only=True)
class ListTransactionsResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    unknown_state_filters: list[str] = field(default_factory=list)
    transaction_states: list[TransactionState] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 2)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 2),
        Field("error_code", "int16", 0, 2),
        Field("unknown_state_filters", "string", 0, 2, array=True),
        Field("transaction_states", "struct", 0, 2, array=True, nested=TransactionState),
    )
