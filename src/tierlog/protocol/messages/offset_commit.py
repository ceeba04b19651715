"""OffsetCommit (API key 8). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tierlog.protocol.schema import ZERO_UUID, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class OffsetCommitRequestPartition:
    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1
    committed_metadata: str | None = ""

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 2, 10),
        Field("committed_offset", "int64", 2, 10),
        Field("committed_leader_epoch", "int32", 6, 10),
        Field("committed_metadata", "string", 2, 10, nullable=(2, 10)),
    )


@dataclass(slots=True, kw_only=True)
class OffsetCommitRequestTopic:
    name: str = ""
    topic_id: UUID = ZERO_UUID
    partitions: list[OffsetCommitRequestPartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 2, 9),
        Field("topic_id", "uuid", 10, 10),
        Field("partitions", "struct", 2, 10, array=True, nested=OffsetCommitRequestPartition),
    )


@dataclass(slots=True, kw_only=True)
class OffsetCommitRequest:
    group_id: str = ""
    generation_id_or_member_epoch: int = -1
    member_id: str = ""
    retention_time_ms: int = -1
    group_instance_id: str | None = None
    topics: list[OffsetCommitRequestTopic] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (2, 10)
    FLEXIBLE: ClassVar[int | None] = 8
    FIELDS: ClassVar[Fields] = (
        Field("group_id", "string", 2, 10),
        Field("generation_id_or_member_epoch", "int32", 2, 10),
        Field("member_id", "string", 2, 10),
        Field("retention_time_ms", "int64", 2, 4),
        Field("group_instance_id", "string", 7, 10, nullable=(7, 10)),
        Field("topics", "struct", 2, 10, array=True, nested=OffsetCommitRequestTopic),
    )


@dataclass(slots=True, kw_only=True)
class OffsetCommitResponsePartition:
    partition_index: int = 0
    error_code: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 2, 10),
        Field("error_code", "int16", 2, 10),
    )


@dataclass(slots=True, kw_only=True)
class OffsetCommitResponseTopic:
    name: str = ""
    topic_id: UUID = ZERO_UUID
    partitions: list[OffsetCommitResponsePartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 2, 9),
        Field("topic_id", "uuid", 10, 10),
        Field("partitions", "struct", 2, 10, array=True, nested=OffsetCommitResponsePartition),
    )


@dataclass(slots=True, kw_only=True)
class OffsetCommitResponse:
    throttle_time_ms: int = 0
    topics: list[OffsetCommitResponseTopic] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (2, 10)
    FLEXIBLE: ClassVar[int | None] = 8
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 3, 10),
        Field("topics", "struct", 2, 10, array=True, nested=OffsetCommitResponseTopic),
    )
