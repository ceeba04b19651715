"""DeleteRecords (API key 21). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class DeleteRecordsPartition:
    partition_index: int = 0
    offset: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 0, 2),
        Field("offset", "int64", 0, 2),
    )


@dataclass(slots=True, kw_only=True)
class DeleteRecordsTopic:
    name: str = ""
    partitions: list[DeleteRecordsPartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 0, 2),
        Field("partitions", "struct", 0, 2, array=True, nested=DeleteRecordsPartition),
    )


@dataclass(slots=True, kw_only=True)
class DeleteRecordsRequest:
    topics: list[DeleteRecordsTopic] = field(default_factory=list)
    timeout_ms: int = 0

    VERSIONS: ClassVar[Versions] = (0, 2)
    FLEXIBLE: ClassVar[int | None] = 2
    FIELDS: ClassVar[Fields] = (
        Field("topics", "struct", 0, 2, array=True, nested=DeleteRecordsTopic),
        Field("timeout_ms", "int32", 0, 2),
    )


@dataclass(slots=True, kw_only=True)
class DeleteRecordsPartitionResult:
    partition_index: int = 0
    low_watermark: int = 0
    error_code: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 0, 2),
        Field("low_watermark", "int64", 0, 2),
        Field("error_code", "int16", 0, 2),
    )


@dataclass(slots=True, kw_only=True)
class DeleteRecordsTopicResult:
    name: str = ""
    partitions: list[DeleteRecordsPartitionResult] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 0, 2),
        Field("partitions", "struct", 0, 2, array=True, nested=DeleteRecordsPartitionResult),
    )


@dataclass(slots=True, kw_only=True)
class DeleteRecordsResponse:
    throttle_time_ms: int = 0
    topics: list[DeleteRecordsTopicResult] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 2)
    FLEXIBLE: ClassVar[int | None] = 2
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 2),
        Field("topics", "struct", 0, 2, array=True, nested=DeleteRecordsTopicResult),
    )
