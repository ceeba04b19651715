"""OffsetDelete (API key 47). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class OffsetDeleteRequestPartition:
    partition_index: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 0, 0),
    )


@dataclass(slots=True, kw_only=True)
class OffsetDeleteRequestTopic:
    name: str = ""
    partitions: list[OffsetDeleteRequestPartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 0, 0),
        Field("partitions", "struct", 0, 0, array=True, nested=OffsetDeleteRequestPartition),
    )


@dataclass(slots=True, kw_only=True)
class OffsetDeleteRequest:
    group_id: str = ""
    topics: list[OffsetDeleteRequestTopic] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 0)
    FLEXIBLE: ClassVar[int | None] = None
    FIELDS: ClassVar[Fields] = (
        Field("group_id", "string", 0, 0),
        Field("topics", "struct", 0, 0, array=True, nested=OffsetDeleteRequestTopic),
    )


@dataclass(slots=True, kw_only=True)
class OffsetDeleteResponsePartition:
    partition_index: int = 0
    error_code: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 0, 0),
        Field("error_code", "int16", 0, 0),
    )


@dataclass(slots=True, kw_only=True)
class OffsetDeleteResponseTopic:
    name: str = ""
    partitions: list[OffsetDeleteResponsePartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 0, 0),
        Field("partitions", "struct", 0, 0, array=True, nested=OffsetDeleteResponsePartition),
    )


@dataclass(slots=True, kw_only=True)
class OffsetDeleteResponse:
    error_code: int = 0
    throttle_time_ms: int = 0
    topics: list[OffsetDeleteResponseTopic] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 0)
    FLEXIBLE: ClassVar[int | None] = None
    FIELDS: ClassVar[Fields] = (
        Field("error_code", "int16", 0, 0),
        Field("throttle_time_ms", "int32", 0, 0),
        Field("topics", "struct", 0, 0, array=True, nested=OffsetDeleteResponseTopic),
    )
