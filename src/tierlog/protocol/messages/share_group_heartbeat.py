"""ShareGroupHeartbeat (API key 76). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tierlog.protocol.schema import ZERO_UUID, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class ShareGroupHeartbeatRequest:
    group_id: str = ""
    member_id: str = ""
    member_epoch: int = 0
    rack_id: str | None = None
    subscribed_topic_names: list[str] | None = None

    VERSIONS: ClassVar[Versions] = (1, 1)
    FLEXIBLE: ClassVar[int | None] = 1
    FIELDS: ClassVar[Fields] = (
        Field("group_id", "string", 1, 1),
        Field("member_id", "string", 1, 1),
        Field("member_epoch", "int32", 1, 1),
        Field("rack_id", "string", 1, 1, nullable=(1, 1)),
        Field("subscribed_topic_names", "string", 1, 1, array=True, nullable=(1, 1)),
    )


@dataclass(slots=True, kw_only=True)
class TopicPartitions:
    topic_id: UUID = ZERO_UUID
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic_id", "uuid", 1, 1),
        Field("partitions", "int32", 1, 1, array=True),
    )


@dataclass(slots=True, kw_only=True)
class Assignment:
    topic_partitions: list[TopicPartitions] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic_partitions", "struct", 1, 1, array=True, nested=TopicPartitions),
    )


@dataclass(slots=True, kw_only=True)
class ShareGroupHeartbeatResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None

    VERSIONS: ClassVar[Versions] = (1, 1)
    FLEXIBLE: ClassVar[int | None] = 1
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 1, 1),
        Field("error_code", "int16", 1, 1),
        Field("error_message", "string", 1, 1, nullable=(1, 1)),
        Field("member_id", "string", 1, 1, nullable=(1, 1)),
        Field("member_epoch", "int32", 1, 1),
        Field("heartbeat_interval_ms", "int32", 1, 1),
        Field("assignment", "struct", 1, 1, nullable=(1, 1), nested=Assignment),
    )
