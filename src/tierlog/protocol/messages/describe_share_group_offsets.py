"""DescribeShareGroupOffsets (API key 90). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tierlog.protocol.schema import ZERO_UUID, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class DescribeShareGroupOffsetsRequestTopic:
    topic_name: str = ""
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic_name", "string", 0, 1),
        Field("partitions", "int32", 0, 1, array=True),
    )


@dataclass(slots=True, kw_only=True)
class DescribeShareGroupOffsetsRequestGroup:
    group_id: str = ""
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("group_id", "string", 0, 1),
        Field("topics", "struct", 0, 1, array=True, nullable=(0, 1), nested=DescribeShareGroupOffsetsRequestTopic),
    )


@dataclass(slots=True, kw_only=True)
class DescribeShareGroupOffsetsRequest:
    groups: list[DescribeShareGroupOffsetsRequestGroup] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 1)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("groups", "struct", 0, 1, array=True, nested=DescribeShareGroupOffsetsRequestGroup),
    )


@dataclass(slots=True, kw_only=True)
class DescribeShareGroupOffsetsResponsePartition:
    partition_index: int = 0
    start_offset: int = 0
    leader_epoch: int = 0
    lag: int = -1
    error_code: int = 0
    error_message: str | None = None

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 0, 1),
        Field("start_offset", "int64", 0, 1),
        Field("leader_epoch", "int32", 0, 1),
        Field("lag", "int64", 1, 1),
        Field("error_code", "int16", 0, 1),
        Field("error_message", "string", 0, 1, nullable=(0, 1)),
    )


@dataclass(slots=True, kw_only=True)
class DescribeShareGroupOffsetsResponseTopic:
    topic_name: str = ""
    topic_id: UUID = ZERO_UUID
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic_name", "string", 0, 1),
        Field("topic_id", "uuid", 0, 1),
        Field("partitions", "struct", 0, 1, array=True, nested=DescribeShareGroupOffsetsResponsePartition),
    )


@dataclass(slots=True, kw_only=True)
class DescribeShareGroupOffsetsResponseGroup:
    group_id: str = ""
    topics: list[DescribeShareGroupOffsetsResponseTopic] = field(default_factory=list)
    error_code: int = 0
    error_message: str | None = None

    FIELDS: ClassVar[Fields] = (
        Field("group_id", "string", 0, 1),
        Field("topics", "struct", 0, 1, array=True, nested=DescribeShareGroupOffsetsResponseTopic),
        Field("error_code", "int16", 0, 1),
        Field("error_message", "string", 0, 1, nullable=(0, 1)),
    )


@dataclass(slots=True, kw_only=True)
class DescribeShareGroupOffsetsResponse:
    throttle_time_ms: int = 0
    groups: list[DescribeShareGroupOffsetsResponseGroup] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 1)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 1),
        Field("groups", "struct", 0, 1, array=True, nested=DescribeShareGroupOffsetsResponseGroup),
    )
