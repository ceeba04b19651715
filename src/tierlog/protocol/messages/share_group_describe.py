"""ShareGroupDescribe (API key 77). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tierlog.protocol.schema import ZERO_UUID, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class ShareGroupDescribeRequest:
    group_ids: list[str] = field(default_factory=list)
    include_authorized_operations: bool = False

    VERSIONS: ClassVar[Versions] = (1, 1)
    FLEXIBLE: ClassVar[int | None] = 1
    FIELDS: ClassVar[Fields] = (
        Field("group_ids", "string", 1, 1, array=True),
        Field("include_authorized_operations", "bool", 1, 1),
    )


@dataclass(slots=True, kw_only=True)
class TopicPartitions:
    topic_id: UUID = ZERO_UUID
    topic_name: str = ""
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic_id", "uuid", 1, 1),
        Field("topic_name", "string", 1, 1),
        Field("partitions", "int32", 1, 1, array=True),
    )


@dataclass(slots=True, kw_only=True)
class Assignment:
    topic_partitions: list[TopicPartitions] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic_partitions", "struct", 1, 1, array=True, nested=TopicPartitions),
    )


@dataclass(slots=True, kw_only=True)
class Member:
    member_id: str = ""
    rack_id: str | None = None
    member_epoch: int = 0
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = field(default_factory=list)
    assignment: Assignment = field(default_factory=Assignment)

    FIELDS: ClassVar[Fields] = (
        Field("member_id", "string", 1, 1),
        Field("rack_id", "string", 1, 1, nullable=(1, 1)),
        Field("member_epoch", "int32", 1, 1),
        Field("client_id", "string", 1, 1),
        Field("client_host", "string", 1, 1),
        Field("subscribed_topic_names", "string", 1, 1, array=True),
        Field("assignment", "struct", 1, 1, nested=Assignment),
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
        Field("error_code", "int16", 1, 1),
        Field("error_message", "string", 1, 1, nullable=(1, 1)),
        Field("group_id", "string", 1, 1),
        Field("group_state", "string", 1, 1),
        Field("group_epoch", "int32", 1, 1),
        Field("assignment_epoch", "int32", 1, 1),
        Field("assignor_name", "string", 1, 1),
        Field("members", "struct", 1, 1, array=True, nested=Member),
        Field("authorized_operations", "int32", 1, 1),
    )


@dataclass(slots=True, kw_only=True)
class ShareGroupDescribeResponse:
    throttle_time_ms: int = 0
    groups: list[DescribedGroup] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (1, 1)
    FLEXIBLE: ClassVar[int | None] = 1
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 1, 1),
        Field("groups", "struct", 1, 1, array=True, nested=DescribedGroup),
    )
