"""DescribeTransactions (API key 65). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class DescribeTransactionsRequest:
    transactional_ids: list[str] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 0)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("transactional_ids", "string", 0, 0, array=True),
    )


@dataclass(slots=True, kw_only=True)
class TopicData:
    topic: str = ""
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic", "string", 0, 0),
        Field("partitions", "int32", 0, 0, array=True),
    )


@dataclass(slots=True, kw_only=True)
class TransactionState:
    error_code: int = 0
    transactional_id: str = ""
    transaction_state: str = ""
    transaction_timeout_ms: int = 0
    transaction_start_time_ms: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    topics: list[TopicData] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("error_code", "int16", 0, 0),
        Field("transactional_id", "string", 0, 0),
        Field("transaction_state", "string", 0, 0),
        Field("transaction_timeout_ms", "int32", 0, 0),
        Field("transaction_start_time_ms", "int64", 0, 0),
        Field("producer_id", "int64", 0, 0),
        Field("producer_epoch", "int16", 0, 0),
        Field("topics", "struct", 0, 0, array=True, nested=TopicData),
    )


@dataclass(slots=True, kw_only=True)
class DescribeTransactionsResponse:
    throttle_time_ms: int = 0
    transaction_states: list[TransactionState] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 0)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 0),
        Field("transaction_states", "struct", 0, 0, array=True, nested=TransactionState),
    )
