"""DescribeProducers (API key 61). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class TopicRequest:
    name: str = ""
    partition_indexes: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 0, 0),
        Field("partition_indexes", "int32", 0, 0, array=True),
    )


@dataclass(slots=True, kw_only=True)
class DescribeProducersRequest:
    topics: list[TopicRequest] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 0)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("topics", "struct", 0, 0, array=True, nested=TopicRequest),
    )


@dataclass(slots=True, kw_only=True)
class ProducerState:
    producer_id: int = 0
    producer_epoch: int = 0
    last_sequence: int = -1
    last_timestamp: int = -1
    coordinator_epoch: int = 0
    current_txn_start_offset: int = -1

    FIELDS: ClassVar[Fields] = (
        Field("producer_id", "int64", 0, 0),
        Field("producer_epoch", "int32", 0, 0),
        Field("last_sequence", "int32", 0, 0),
        Field("last_timestamp", "int64", 0, 0),
        Field("coordinator_epoch", "int32", 0, 0),
        Field("current_txn_start_offset", "int64", 0, 0),
    )


@dataclass(slots=True, kw_only=True)
class PartitionResponse:
    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = None
    active_producers: list[ProducerState] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 0, 0),
        Field("error_code", "int16", 0, 0),
        Field("error_message", "string", 0, 0, nullable=(0, 0)),
        Field("active_producers", "struct", 0, 0, array=True, nested=ProducerState),
    )


@dataclass(slots=True, kw_only=True)
class TopicResponse:
    name: str = ""
    partitions: list[PartitionResponse] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 0, 0),
        Field("partitions", "struct", 0, 0, array=True, nested=PartitionResponse),
    )


@dataclass(slots=True, kw_only=True)
class DescribeProducersResponse:
    throttle_time_ms: int = 0
    topics: list[TopicResponse] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 0)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 0),
        Field("topics", "struct", 0, 0, array=True, nested=TopicResponse),
    )
