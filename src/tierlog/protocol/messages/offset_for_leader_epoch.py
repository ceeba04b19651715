"""OffsetForLeaderEpoch (API key 23). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class OffsetForLeaderPartition:
    partition: int = 0
    current_leader_epoch: int = -1
    leader_epoch: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("partition", "int32", 2, 4),
        Field("current_leader_epoch", "int32", 2, 4),
        Field("leader_epoch", "int32", 2, 4),
    )


@dataclass(slots=True, kw_only=True)
class OffsetForLeaderTopic:
    topic: str = ""
    partitions: list[OffsetForLeaderPartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic", "string", 2, 4),
        Field("partitions", "struct", 2, 4, array=True, nested=OffsetForLeaderPartition),
    )


@dataclass(slots=True, kw_only=True)
class OffsetForLeaderEpochRequest:
    replica_id: int = -2
    topics: list[OffsetForLeaderTopic] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (2, 4)
    FLEXIBLE: ClassVar[int | None] = 4
    FIELDS: ClassVar[Fields] = (
        Field("replica_id", "int32", 3, 4),
        Field("topics", "struct", 2, 4, array=True, nested=OffsetForLeaderTopic),
    )


@dataclass(slots=True, kw_only=True)
class EpochEndOffset:
    error_code: int = 0
    partition: int = 0
    leader_epoch: int = -1
    end_offset: int = -1

    FIELDS: ClassVar[Fields] = (
        Field("error_code", "int16", 2, 4),
        Field("partition", "int32", 2, 4),
        Field("leader_epoch", "int32", 2, 4),
        Field("end_offset", "int64", 2, 4),
    )


@dataclass(slots=True, kw_only=True)
class OffsetForLeaderTopicResult:
    topic: str = ""
    partitions: list[EpochEndOffset] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic", "string", 2, 4),
        Field("partitions", "struct", 2, 4, array=True, nested=EpochEndOffset),
    )


@dataclass(slots=True, kw_only=True)
class OffsetForLeaderEpochResponse:
    throttle_time_ms: int = 0
    topics: list[OffsetForLeaderTopicResult] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (2, 4)
    FLEXIBLE: ClassVar[int | None] = 4
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 2, 4),
        Field("topics", "struct", 2, 4, array=True, nested=OffsetForLeaderTopicResult),
    )
