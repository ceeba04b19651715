"""InitializeShareGroupState (API key 83). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tierlog.protocol.schema import ZERO_UUID, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class PartitionData:
    partition: int = 0
    state_epoch: int = 0
    start_offset: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("partition", "int32", 0, 0),
        Field("state_epoch", "int32", 0, 0),
        Field("start_offset", "int64", 0, 0),
    )


@dataclass(slots=True, kw_only=True)
class InitializeStateData:
    topic_id: UUID = ZERO_UUID
    partitions: list[PartitionData] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic_id", "uuid", 0, 0),
        Field("partitions", "struct", 0, 0, array=True, nested=PartitionData),
    )


@dataclass(slots=True, kw_only=True)
class InitializeShareGroupStateRequest:
    group_id: str = ""
    topics: list[InitializeStateData] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 0)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("group_id", "string", 0, 0),
        Field("topics", "struct", 0, 0, array=True, nested=InitializeStateData),
    )


@dataclass(slots=True, kw_only=True)
class PartitionResult:
    partition: int = 0
    error_code: int = 0
    error_message: str | None = None

    FIELDS: ClassVar[Fields] = (
        Field("partition", "int32", 0, 0),
        Field("error_code", "int16", 0, 0),
        Field("error_message", "string", 0, 0, nullable=(0, 0)),
    )


@dataclass(slots=True, kw_only=True)
class InitializeStateResult:
    topic_id: UUID = ZERO_UUID
    partitions: list[PartitionResult] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic_id", "uuid", 0, 0),
        Field("partitions", "struct", 0, 0, array=True, nested=PartitionResult),
    )


@dataclass(slots=True, kw_only=True)
class InitializeShareGroupStateResponse:
    results: list[InitializeStateResult] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 0)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("results", "struct", 0, 0, array=True, nested=InitializeStateResult),
    )
