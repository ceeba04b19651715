"""ConsumerGroupDescribe (API key 69). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tierlog.protocol.schema import ZERO_UUID, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class ConsumerGroupDescribeRequest:
    group_ids: list[str] = field(default_factory=list)
    include_authorized_operations: bool = False

    VERSIONS: ClassVar[Versions] = (0, 1)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("group_ids", "string", 0, 1, array=True),
        Field("include_authorized_operations", "bool", 0, 1),
    )


@dataclass(slots=True, kw_only=True)
class TopicPartitions:
    topic_id: UUID = ZERO_UUID
    topic_name: str = ""
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic_id", "uuid", 0, 1),
        Field("topic_name", "string", 0, 1),
        Field("partitions", "int32", 0, 1, array=True),
    )


@dataclass(slots=True, kw_only=True)
class Assignment:
    topic_partitions: list[TopicPartitions] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic_partitions", "struct", 0, 1, array=True, nested=TopicPartitions),
    )


@dataclass(slots=True, kw_only=True)
class Member:
    member_id: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: int = 0
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = field(default_factory=list)
    subscribed_topic_regex: str | None = None
    assignment: Assignment = field(default_factory=Assignment)
    target_assignment: Assignment = field(default_factory=Assignment)
    member_type: int = -1

    FIELDS: ClassVar[Fields] = (
        Field("member_id", "string", 0, 1),
        Field("instance_id", "string", 0, 1, nullable=(0, 1)),
        Field("rack_id", "string", 0, 1, nullable=(0, 1)),
        Field("member_epoch", "int32", 0, 1),
        Field("client_id", "string", 0, 1),
        Field("client_host", "string", 0, 1),
        Field("subscribed_topic_names", "string", 0, 1, array=True),
        Field("subscribed_topic_regex", "string", 0, 1, nullable=(0, 1)),
        Field("assignment", "struct", 0, 1, nested=Assignment),
        Field("target_assignment", "struct", 0, 1, nested=Assignment),
        Field("member_type", "int8", 1, 1),
    )


@dataclass(slots=True, kw_only=True)
class DescribedGroup:
    error_code: int = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    members: list[Member] = field(default_factory=list)
    authorized_operations: int = -2147483648

    FIELDS: ClassVar[Fields] = (
        Field("error_code", "int16", 0, 1),
        Field("error_message", "string", 0, 1, nullable=(0, 1)),
        Field("group_id", "string", 0, 1),
        Field("group_state", "string", 0, 1),
        Field("group_epoch", "int32", 0, 1),
        Field("assignment_epoch", "int32", 0, 1),
        Field("assignor_name", "string", 0, 1),
        Field("members", "struct", 0, 1, array=True, nested=Member),
        Field("authorized_operations", "int32", 0, 1),
    )


@dataclass(slots=True, kw_only=True)
class ConsumerGroupDescribeResponse:
    throttle_time_ms: int = 0
    groups: list[DescribedGroup] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 1)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 1),
        Field("groups", "struct", 0, 1, array=True, nested=DescribedGroup),
    )
