"""ConsumerGroupHeartbeat (API key 68). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tierlog.protocol.schema import ZERO_UUID, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class TopicPartitions:
    topic_id: UUID = ZERO_UUID
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic_id", "uuid", 0, 1),
        Field("partitions", "int32", 0, 1, array=True),
    )


@dataclass(slots=True, kw_only=True)
class ConsumerGroupHeartbeatRequest:
    group_id: str = ""
    member_id: str = ""
    member_epoch: int = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: list[str] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    topic_partitions: list[TopicPartitions] | None = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 1)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("group_id", "string", 0, 1),
        Field("member_id", "string", 0, 1),
        Field("member_epoch", "int32", 0, 1),
        Field("instance_id", "string", 0, 1, nullable=(0, 1)),
        Field("rack_id", "string", 0, 1, nullable=(0, 1)),
        Field("rebalance_timeout_ms", "int32", 0, 1),
        Field("subscribed_topic_names", "string", 0, 1, array=True, nullable=(0, 1)),
        Field("subscribed_topic_regex", "string", 1, 1, nullable=(1, 1)),
        Field("server_assignor", "string", 0, 1, nullable=(0, 1)),
        Field("topic_partitions", "struct", 0, 1, array=True, nullable=(0, 1), nested=TopicPartitions),
    )


@dataclass(slots=True, kw_only=True)
class Assignment:
    topic_partitions: list[TopicPartitions] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic_partitions", "struct", 0, 1, array=True, nested=TopicPartitions),
    )


@dataclass(slots=True, kw_only=True)
class ConsumerGroupHeartbeatResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None

    VERSIONS: ClassVar[Versions] = (0, 1)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 1),
        Field("error_code", "int16", 0, 1),
        Field("error_message", "string", 0, 1, nullable=(0, 1)),
        Field("member_id", "string", 0, 1, nullable=(0, 1)),
        Field("member_epoch", "int32", 0, 1),
        Field("heartbeat_interval_ms", "int32", 0, 1),
        Field("assignment", "struct", 0, 1, nullable=(0, 1), nested=Assignment),
    )
