"""StreamsGroupDescribe (API key 89). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class StreamsGroupDescribeRequest:
    group_ids: list[str] = field(default_factory=list)
    include_authorized_operations: bool = False

    VERSIONS: ClassVar[Versions] = (0, 0)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("group_ids", "string", 0, 0, array=True),
        Field("include_authorized_operations", "bool", 0, 0),
    )


@dataclass(slots=True, kw_only=True)
class KeyValue:
    key: str = ""
    value: str = ""

    FIELDS: ClassVar[Fields] = (
        Field("key", "string", 0, 0),
        Field("value", "string", 0, 0),
    )


@dataclass(slots=True, kw_only=True)
class TopicInfo:
    name: str = ""
    partitions: int = 0
    replication_factor: int = 0
    topic_configs: list[KeyValue] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 0, 0),
        Field("partitions", "int32", 0, 0),
        Field("replication_factor", "int16", 0, 0),
        Field("topic_configs", "struct", 0, 0, array=True, nested=KeyValue),
    )


@dataclass(slots=True, kw_only=True)
class Subtopology:
    subtopology_id: str = ""
    source_topics: list[str] = field(default_factory=list)
    repartition_sink_topics: list[str] = field(default_factory=list)
    state_changelog_topics: list[TopicInfo] = field(default_factory=list)
    repartition_source_topics: list[TopicInfo] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("subtopology_id", "string", 0, 0),
        Field("source_topics", "string", 0, 0, array=True),
        Field("repartition_sink_topics", "string", 0, 0, array=True),
        Field("state_changelog_topics", "struct", 0, 0, array=True, nested=TopicInfo),
        Field("repartition_source_topics", "struct", 0, 0, array=True, nested=TopicInfo),
    )


@dataclass(slots=True, kw_only=True)
class Topology:
    epoch: int = 0
    subtopologies: list[Subtopology] | None = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("epoch", "int32", 0, 0),
        Field("subtopologies", "struct", 0, 0, array=True, nullable=(0, 0), nested=Subtopology),
    )


@dataclass(slots=True, kw_only=True)
class Endpoint:
    host: str = ""
    port: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("host", "string", 0, 0),
        Field("port", "uint16", 0, 0),
    )


@dataclass(slots=True, kw_only=True)
class TaskOffset:
    subtopology_id: str = ""
    partition: int = 0
    offset: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("subtopology_id", "string", 0, 0),
        Field("partition", "int32", 0, 0),
        Field("offset", "int64", 0, 0),
    )


@dataclass(slots=True, kw_only=True)
class TaskIds:
    subtopology_id: str = ""
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("subtopology_id", "string", 0, 0),
        Field("partitions", "int32", 0, 0, array=True),
    )


@dataclass(slots=True, kw_only=True)
class Assignment:
    active_tasks: list[TaskIds] = field(default_factory=list)
    standby_tasks: list[TaskIds] = field(default_factory=list)
    warmup_tasks: list[TaskIds] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("active_tasks", "struct", 0, 0, array=True, nested=TaskIds),
        Field("standby_tasks", "struct", 0, 0, array=True, nested=TaskIds),
        Field("warmup_tasks", "struct", 0, 0, array=True, nested=TaskIds),
    )


@dataclass(slots=True, kw_only=True)
class Member:
    member_id: str = ""
    member_epoch: int = 0
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topology_epoch: int = 0
    process_id: str = ""
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] = field(default_factory=list)
    task_offsets: list[TaskOffset] = field(default_factory=list)
    task_end_offsets: list[TaskOffset] = field(default_factory=list)
    assignment: Assignment = field(default_factory=Assignment)
    target_assignment: Assignment = field(default_factory=Assignment)
    is_classic: bool = False

    FIELDS: ClassVar[Fields] = (
        Field("member_id", "string", 0, 0),
        Field("member_epoch", "int32", 0, 0),
        Field("instance_id", "string", 0, 0, nullable=(0, 0)),
        Field("rack_id", "string", 0, 0, nullable=(0, 0)),
        Field("client_id", "string", 0, 0),
        Field("client_host", "string", 0, 0),
        Field("topology_epoch", "int32", 0, 0),
        Field("process_id", "string", 0, 0),
        Field("user_endpoint", "struct", 0, 0, nullable=(0, 0), nested=Endpoint),
        Field("client_tags", "struct", 0, 0, array=True, nested=KeyValue),
        Field("task_offsets", "struct", 0, 0, array=True, nested=TaskOffset),
        Field("task_end_offsets", "struct", 0, 0, array=True, nested=TaskOffset),
        Field("assignment", "struct", 0, 0, nested=Assignment),
        Field("target_assignment", "struct", 0, 0, nested=Assignment),
        Field("is_classic", "bool", 0, 0),
    )


@dataclass(slots=True, kw_only=True)
class DescribedGroup:
    error_code: int = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    topology: Topology | None = None
    members: list[Member] = field(default_factory=list)
    authorized_operations: int = -2147483648

    FIELDS: ClassVar[Fields] = (
        Field("error_code", "int16", 0, 0),
        Field("error_message", "string", 0, 0, nullable=(0, 0)),
        Field("group_id", "string", 0, 0),
        Field("group_state", "string", 0, 0),
        Field("group_epoch", "int32", 0, 0),
        Field("assignment_epoch", "int32", 0, 0),
        Field("topology", "struct", 0, 0, nullable=(0, 0), nested=Topology),
        Field("members", "struct", 0, 0, array=True, nested=Member),
        Field("authorized_operations", "int32", 0, 0),
    )


@dataclass(slots=True, kw_only=True)
class StreamsGroupDescribeResponse:
    throttle_time_ms: int = 0
    groups: list[DescribedGroup] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 0)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 0),
        Field("groups", "struct", 0, 0, array=True, nested=DescribedGroup),
    )
