"""AddPartitionsToTxn (API key 24). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class AddPartitionsToTxnTopic:
    name: str = ""
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 0, 5),
        Field("partitions", "int32", 0, 5, array=True),
    )


@dataclass(slots=True, kw_only=True)
class AddPartitionsToTxnTransaction:
    transactional_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    verify_only: bool = False
    topics: list[AddPartitionsToTxnTopic] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("transactional_id", "string", 4, 5),
        Field("producer_id", "int64", 4, 5),
        Field("producer_epoch", "int16", 4, 5),
        Field("verify_only", "bool", 4, 5),
        Field("topics", "struct", 4, 5, array=True, nested=AddPartitionsToTxnTopic),
    )


@dataclass(slots=True, kw_only=True)
class AddPartitionsToTxnRequest:
    v3_and_below_transactional_id: str = ""
    v3_and_below_producer_id: int = 0
    v3_and_below_producer_epoch: int = 0
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = field(default_factory=list)
    transactions: list[AddPartitionsToTxnTransaction] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 5)
    FLEXIBLE: ClassVar[int | None] = 3
    FIELDS: ClassVar[Fields] = (
        Field("v3_and_below_transactional_id", "string", 0, 3),
        Field("v3_and_below_producer_id", "int64", 0, 3),
        Field("v3_and_below_producer_epoch", "int16", 0, 3),
        Field("v3_and_below_topics", "struct", 0, 3, array=True, nested=AddPartitionsToTxnTopic),
        Field("transactions", "struct", 4, 5, array=True, nested=AddPartitionsToTxnTransaction),
    )


@dataclass(slots=True, kw_only=True)
class AddPartitionsToTxnPartitionResult:
    partition_index: int = 0
    partition_error_code: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 0, 5),
        Field("partition_error_code", "int16", 0, 5),
    )


@dataclass(slots=True, kw_only=True)
class AddPartitionsToTxnTopicResult:
    name: str = ""
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 0, 5),
        Field("results_by_partition", "struct", 0, 5, array=True, nested=AddPartitionsToTxnPartitionResult),
    )


@dataclass(slots=True, kw_only=True)
class AddPartitionsToTxnResult:
    transactional_id: str = ""
    topic_results: list[AddPartitionsToTxnTopicResult] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("transactional_id", "string", 4, 5),
        Field("topic_results", "struct", 4, 5, array=True, nested=AddPartitionsToTxnTopicResult),
    )


@dataclass(slots=True, kw_only=True)
class AddPartitionsToTxnResponse:
    throttle_time_ms: int = 0
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field(default_factory=list)
    error_code: int = 0
    results_by_transaction: list[AddPartitionsToTxnResult] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 5)
    FLEXIBLE: ClassVar[int | None] = 3
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 5),
        Field("results_by_topic_v3_and_below", "struct", 0, 3, array=True, nested=AddPartitionsToTxnTopicResult),
        Field("error_code", "int16", 4, 5),
        Field("results_by_transaction", "struct", 4, 5, array=True, nested=AddPartitionsToTxnResult),
    )
