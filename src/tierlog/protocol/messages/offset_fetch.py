"""OffsetFetch (API key 9). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tierlog.protocol.schema import ZERO_UUID, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class OffsetFetchRequestTopic:
    name: str = ""
    partition_indexes: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 1, 7),
        Field("partition_indexes", "int32", 1, 7, array=True),
    )


@dataclass(slots=True, kw_only=True)
class OffsetFetchRequestTopics:
    name: str = ""
    topic_id: UUID = ZERO_UUID
    partition_indexes: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 8, 9),
        Field("topic_id", "uuid", 10, 10),
        Field("partition_indexes", "int32", 8, 10, array=True),
    )


@dataclass(slots=True, kw_only=True)
class OffsetFetchRequestGroup:
    group_id: str = ""
    member_id: str | None = None
    member_epoch: int = -1
    topics: list[OffsetFetchRequestTopics] | None = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("group_id", "string", 8, 10),
        Field("member_id", "string", 9, 10, nullable=(9, 10)),
        Field("member_epoch", "int32", 9, 10),
        Field("topics", "struct", 8, 10, array=True, nullable=(8, 10), nested=OffsetFetchRequestTopics),
    )


@dataclass(slots=True, kw_only=True)
class OffsetFetchRequest:
    group_id: str = ""
    topics: list[OffsetFetchRequestTopic] | None = field(default_factory=list)
    groups: list[OffsetFetchRequestGroup] = field(default_factory=list)
    require_stable: bool = False

    VERSIONS: ClassVar[Versions] = (1, 10)
    FLEXIBLE: ClassVar[int | None] = 6
    FIELDS: ClassVar[Fields] = (
        Field("group_id", "string", 1, 7),
        Field("topics", "struct", 1, 7, array=True, nullable=(2, 7), nested=OffsetFetchRequestTopic),
        Field("groups", "struct", 8, 10, array=True, nested=OffsetFetchRequestGroup),
        Field("require_stable", "bool", 7, 10),
    )


@dataclass(slots=True, kw_only=True)
class OffsetFetchResponsePartition:
    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1
    metadata: str | None = ""
    error_code: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 1, 7),
        Field("committed_offset", "int64", 1, 7),
        Field("committed_leader_epoch", "int32", 5, 7),
        Field("metadata", "string", 1, 7, nullable=(1, 7)),
        Field("error_code", "int16", 1, 7),
    )


@dataclass(slots=True, kw_only=True)
class OffsetFetchResponseTopic:
    name: str = ""
    partitions: list[OffsetFetchResponsePartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 1, 7),
        Field("partitions", "struct", 1, 7, array=True, nested=OffsetFetchResponsePartition),
    )


@dataclass(slots=True, kw_only=True)
class OffsetFetchResponsePartitions:
    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1
    metadata: str | None = ""
    error_code: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 8, 10),
        Field("committed_offset", "int64", 8, 10),
        Field("committed_leader_epoch", "int32", 8, 10),
        Field("metadata", "string", 8, 10, nullable=(8, 10)),
        Field("error_code", "int16", 8, 10),
    )


@dataclass(slots=True, kw_only=True)
class OffsetFetchResponseTopics:
    name: str = ""
    topic_id: UUID = ZERO_UUID
    partitions: list[OffsetFetchResponsePartitions] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 8, 9),
        Field("topic_id", "uuid", 10, 10),
        Field("partitions", "struct", 8, 10, array=True, nested=OffsetFetchResponsePartitions),
    )


@dataclass(slots=True, kw_only=True)
class OffsetFetchResponseGroup:
    group_id: str = ""
    topics: list[OffsetFetchResponseTopics] = field(default_factory=list)
    error_code: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("group_id", "string", 8, 10),
        Field("topics", "struct", 8, 10, array=True, nested=OffsetFetchResponseTopics),
        Field("error_code", "int16", 8, 10),
    )


@dataclass(slots=True, kw_only=True)
class OffsetFetchResponse:
    throttle_time_ms: int = 0
    topics: list[OffsetFetchResponseTopic] = field(default_factory=list)
    error_code: int = 0
    groups: list[OffsetFetchResponseGroup] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (1, 10)
    FLEXIBLE: ClassVar[int | None] = 6
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 3, 10),
        Field("topics", "struct", 1, 7, array=True, nested=OffsetFetchResponseTopic),
        Field("error_code", "int16", 2, 7),
        Field("groups", "struct", 8, 10, array=True, nested=OffsetFetchResponseGroup),
    )
