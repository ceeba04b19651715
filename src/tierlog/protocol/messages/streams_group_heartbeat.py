"""StreamsGroupHeartbeat (API key 88). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


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
class CopartitionGroup:
    source_topics: list[int] = field(default_factory=list)
    source_topic_regex: list[int] = field(default_factory=list)
    repartition_source_topics: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("source_topics", "int16", 0, 0, array=True),
        Field("source_topic_regex", "int16", 0, 0, array=True),
        Field("repartition_source_topics", "int16", 0, 0, array=True),
    )


@dataclass(slots=True, kw_only=True)
class Subtopology:
    subtopology_id: str = ""
    source_topics: list[str] = field(default_factory=list)
    source_topic_regex: list[str] = field(default_factory=list)
    state_changelog_topics: list[TopicInfo] = field(default_factory=list)
    repartition_sink_topics: list[str] = field(default_factory=list)
    repartition_source_topics: list[TopicInfo] = field(default_factory=list)
    copartition_groups: list[CopartitionGroup] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("subtopology_id", "string", 0, 0),
        Field("source_topics", "string", 0, 0, array=True),
        Field("source_topic_regex", "string", 0, 0, array=True),
        Field("state_changelog_topics", "struct", 0, 0, array=True, nested=TopicInfo),
        Field("repartition_sink_topics", "string", 0, 0, array=True),
        Field("repartition_source_topics", "struct", 0, 0, array=True, nested=TopicInfo),
        Field("copartition_groups", "struct", 0, 0, array=True, nested=CopartitionGroup),
    )


@dataclass(slots=True, kw_only=True)
class Topology:
    epoch: int = 0
    subtopologies: list[Subtopology] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("epoch", "int32", 0, 0),
        Field("subtopologies", "struct", 0, 0, array=True, nested=Subtopology),
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
class StreamsGroupHeartbeatRequest:
    group_id: str = ""
    member_id: str = ""
    member_epoch: int = 0
    endpoint_information_epoch: int = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topology: Topology | None = None
    active_tasks: list[TaskIds] | None = field(default_factory=list)
    standby_tasks: list[TaskIds] | None = field(default_factory=list)
    warmup_tasks: list[TaskIds] | None = field(default_factory=list)
    process_id: str | None = None
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] | None = field(default_factory=list)
    task_offsets: list[TaskOffset] | None = field(default_factory=list)
    task_end_offsets: list[TaskOffset] | None = field(default_factory=list)
    shutdown_application: bool = False

    VERSIONS: ClassVar[Versions] = (0, 0)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("group_id", "string", 0, 0),
        Field("member_id", "string", 0, 0),
        Field("member_epoch", "int32", 0, 0),
        Field("endpoint_information_epoch", "int32", 0, 0),
        Field("instance_id", "string", 0, 0, nullable=(0, 0)),
        Field("rack_id", "string", 0, 0, nullable=(0, 0)),
        Field("rebalance_timeout_ms", "int32", 0, 0),
        Field("topology", "struct", 0, 0, nullable=(0, 0), nested=Topology),
        Field("active_tasks", "struct", 0, 0, array=True, nullable=(0, 0), nested=TaskIds),
        Field("standby_tasks", "struct", 0, 0, array=True, nullable=(0, 0), nested=TaskIds),
        Field("warmup_tasks", "struct", 0, 0, array=True, nullable=(0, 0), nested=TaskIds),
        Field("process_id", "string", 0, 0, nullable=(0, 0)),
        Field("user_endpoint", "struct", 0, 0, nullable=(0, 0), nested=Endpoint),
        Field("client_tags", "struct", 0, 0, array=True, nullable=(0, 0), nested=KeyValue),
        Field("task_offsets", "struct", 0, 0, array=True, nullable=(0, 0), nested=TaskOffset),
        Field("task_end_offsets", "struct", 0, 0, array=True, nullable=(0, 0), nested=TaskOffset),
        Field("shutdown_application", "bool", 0, 0),
    )


@dataclass(slots=True, kw_only=True)
class Status:
    status_code: int = 0
    status_detail: str = ""

    FIELDS: ClassVar[Fields] = (
        Field("status_code", "int8", 0, 0),
        Field("status_detail", "string", 0, 0),
    )


@dataclass(slots=True, kw_only=True)
class TopicPartition:
    topic: str = ""
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic", "string", 0, 0),
        Field("partitions", "int32", 0, 0, array=True),
    )


@dataclass(slots=True, kw_only=True)
class EndpointToPartitions:
    user_endpoint: Endpoint = field(default_factory=Endpoint)
    active_partitions: list[TopicPartition] = field(default_factory=list)
    standby_partitions: list[TopicPartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("user_endpoint", "struct", 0, 0, nested=Endpoint),
        Field("active_partitions", "struct", 0, 0, array=True, nested=TopicPartition),
        Field("standby_partitions", "struct", 0, 0, array=True, nested=TopicPartition),
    )


@dataclass(slots=True, kw_only=True)
class StreamsGroupHeartbeatResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    acceptable_recovery_lag: int = 0
    task_offset_interval_ms: int = 0
    status: list[Status] | None = field(default_factory=list)
    active_tasks: list[TaskIds] | None = field(default_factory=list)
    standby_tasks: list[TaskIds] | None = field(default_factory=list)
    warmup_tasks: list[TaskIds] | None = field(default_factory=list)
    endpoint_information_epoch: int = 0
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 0)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 0),
        Field("error_code", "int16", 0, 0),
        Field("error_message", "string", 0, 0, nullable=(0, 0)),
        Field("member_id", "string", 0, 0),
        Field("member_epoch", "int32", 0, 0),
        Field("heartbeat_interval_ms", "int32", 0, 0),
        Field("acceptable_recovery_lag", "int32", 0, 0),
        Field("task_offset_interval_ms", "int32", 0, 0),
        Field("status", "struct", 0, 0, array=True, nullable=(0, 0), nested=Status),
        Field("active_tasks", "struct", 0, 0, array=True, nullable=(0, 0), nested=TaskIds),
        Field("standby_tasks", "struct", 0, 0, array=True, nullable=(0, 0), nested=TaskIds),
        Field("warmup_tasks", "struct", 0, 0, array=True, nullable=(0, 0), nested=TaskIds),
        Field("endpoint_information_epoch", "int32", 0, 0),
        Field("partitions_by_user_endpoint", "struct", 0, 0, array=True, nullable=(0, 0), nested=EndpointToPartitions),
    )
