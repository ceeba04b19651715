"""WriteShareGroupState (API key 85). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tierlog.protocol.schema import ZERO_UUID, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class StateBatch:
    first_offset: int = 0
    last_offset: int = 0
    delivery_state: int = 0
    delivery_count: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("first_offset", "int64", 0, 1),
        Field("last_offset", "int64", 0, 1),
        Field("delivery_state", "int8", 0, 1),
        Field("delivery_count", "int16", 0, 1),
    )


@dataclass(slots=True, kw_only=True)
class PartitionData:
    partition: int = 0
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = 0
    delivery_complete_count: int = -1
    state_batches: list[StateBatch] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("partition", "int32", 0, 1),
        Field("state_epoch", "int32", 0, 1),
        Field("leader_epoch", "int32", 0, 1),
        Field("start_offset", "int64", 0, 1),
        Field("delivery_complete_count", "int32", 1, 1),
        Field("state_batches", "struct", 0, 1, array=True, nested=StateBatch),
    )


@dataclass(slots=True, kw_only=True)
class WriteStateData:
    topic_id: UUID = ZERO_UUID
    partitions: list[PartitionData] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic_id", "uuid", 0, 1),
        Field("partitions", "struct", 0, 1, array=True, nested=PartitionData),
    )


@dataclass(slots=True, kw_only=True)
class WriteShareGroupStateRequest:
    group_id: str = ""
    topics: list[WriteStateData] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 1)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("group_id", "string", 0, 1),
        Field("topics", "struct", 0, 1, array=True, nested=WriteStateData),
    )


@dataclass(slots=True, kw_only=True)
class PartitionResult:
    partition: int = 0
    error_code: int = 0
    error_message: str | None = None

    FIELDS: ClassVar[Fields] = (
        Field("partition", "int32", 0, 1),
        Field("error_code", "int16", 0, 1),
        Field("error_message", "string", 0, 1, nullable=(0, 1)),
    )


@dataclass(slots=True, kw_only=True)
class WriteStateResult:
    topic_id: UUID = ZERO_UUID
    partitions: list[PartitionResult] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic_id", "uuid", 0, 1),
        Field("partitions", "struct", 0, 1, array=True, nested=PartitionResult),
    )


@dataclass(slots=True, kw_only=True)
class WriteShareGroupStateResponse:
    results: list[WriteStateResult] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 1)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("results", "struct", 0, 1, array=True, nested=WriteStateResult),
    )
