"""ListOffsets (API key 2). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class ListOffsetsPartition:
    partition_index: int = 0
    current_leader_epoch: int = -1
    timestamp: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 1, 11),
        Field("current_leader_epoch", "int32", 4, 11),
        Field("timestamp", "int64", 1, 11),
    )


@dataclass(slots=True, kw_only=True)
class ListOffsetsTopic:
    name: str = ""
    partitions: list[ListOffsetsPartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 1, 11),
        Field("partitions", "struct", 1, 11, array=True, nested=ListOffsetsPartition),
    )


@dataclass(slots=True, kw_only=True)
class ListOffsetsRequest:
    replica_id: int = 0
    isolation_level: int = 0
    topics: list[ListOffsetsTopic] = field(default_factory=list)
    timeout_ms: int = 0

    VERSIONS: ClassVar[Versions] = (1, 11)
    FLEXIBLE: ClassVar[int | None] = 6
    FIELDS: ClassVar[Fields] = (
        Field("replica_id", "int32", 1, 11),
        Field("isolation_level", "int8", 2, 11),
        Field("topics", "struct", 1, 11, array=True, nested=ListOffsetsTopic),
        Field("timeout_ms", "int32", 10, 11),
    )


@dataclass(slots=True, kw_only=True)
class ListOffsetsPartitionResponse:
    partition_index: int = 0
    error_code: int = 0
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 1, 11),
        Field("error_code", "int16", 1, 11),
        Field("timestamp", "int64", 1, 11),
        Field("offset", "int64", 1, 11),
        Field("leader_epoch", "int32", 4, 11),
    )


@dataclass(slots=True, kw_only=True)
class ListOffsetsTopicResponse:
    name: str = ""
    partitions: list[ListOffsetsPartitionResponse] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 1, 11),
        Field("partitions", "struct", 1, 11, array=True, nested=ListOffsetsPartitionResponse),
    )


@dataclass(slots=True, kw_only=True)
class ListOffsetsResponse:
    throttle_time_ms: int = 0
    topics: list[ListOffsetsTopicResponse] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (1, 11)
    FLEXIBLE: ClassVar[int | None] = 6
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 2, 11),
        Field("topics", "struct", 1, 11, array=True, nested=ListOffsetsTopicResponse),
    )
