"""AlterShareGroupOffsets (API key 91). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tierlog.protocol.schema import ZERO_UUID, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class AlterShareGroupOffsetsRequestPartition:
    partition_index: int = 0
    start_offset: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 0, 0),
        Field("start_offset", "int64", 0, 0),
    )


@dataclass(slots=True, kw_only=True)
class AlterShareGroupOffsetsRequestTopic:
    topic_name: str = ""
    partitions: list[AlterShareGroupOffsetsRequestPartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic_name", "string", 0, 0),
        Field("partitions", "struct", 0, 0, array=True, nested=AlterShareGroupOffsetsRequestPartition),
    )


@dataclass(slots=True, kw_only=True)
class AlterShareGroupOffsetsRequest:
    group_id: str = ""
    topics: list[AlterShareGroupOffsetsRequestTopic] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 0)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("group_id", "string", 0, 0),
        Field("topics", "struct", 0, 0, array=True, nested=AlterShareGroupOffsetsRequestTopic),
    )


@dataclass(slots=True, kw_only=True)
class AlterShareGroupOffsetsResponsePartition:
    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = None

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 0, 0),
        Field("error_code", "int16", 0, 0),
        Field("error_message", "string", 0, 0, nullable=(0, 0)),
    )


@dataclass(slots=True, kw_only=True)
class AlterShareGroupOffsetsResponseTopic:
    topic_name: str = ""
    topic_id: UUID = ZERO_UUID
    partitions: list[AlterShareGroupOffsetsResponsePartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic_name", "string", 0, 0),
        Field("topic_id", "uuid", 0, 0),
        Field("partitions", "struct", 0, 0, array=True, nested=AlterShareGroupOffsetsResponsePartition),
    )


@dataclass(slots=True, kw_only=True)
class AlterShareGroupOffsetsResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    responses: list[AlterShareGroupOffsetsResponseTopic] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 0)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 0),
        Field("error_code", "int16", 0, 0),
        Field("error_message", "string", 0, 0, nullable=(0, 0)),
        Field("responses", "struct", 0, 0, array=True, nested=AlterShareGroupOffsetsResponseTopic),
    )
