"""DescribeTopicPartitions (API key 75). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tierlog.protocol.schema import ZERO_UUID, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class TopicRequest:
    name: str = ""

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 0, 0),
    )


@dataclass(slots=True, kw_only=True)
class Cursor:
    topic_name: str = ""
    partition_index: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("topic_name", "string", 0, 0),
        Field("partition_index", "int32", 0, 0),
    )


@dataclass(slots=True, kw_only=True)
class DescribeTopicPartitionsRequest:
    topics: list[TopicRequest] = field(default_factory=list)
    response_partition_limit: int = 2000
    cursor: Cursor | None = None

    VERSIONS: ClassVar[Versions] = (0, 0)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("topics", "struct", 0, 0, array=True, nested=TopicRequest),
        Field("response_partition_limit", "int32", 0, 0),
        Field("cursor", "struct", 0, 0, nullable=(0, 0), nested=Cursor),
    )


@dataclass(slots=True, kw_only=True)
class DescribeTopicPartitionsResponsePartition:
    error_code: int = 0
    partition_index: int = 0
    leader_id: int = 0
    leader_epoch: int = -1
    replica_nodes: list[int] = field(default_factory=list)
    isr_nodes: list[int] = field(default_factory=list)
    eligible_leader_replicas: list[int] | None = None
    last_known_elr: list[int] | None = None
    offline_replicas: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("error_code", "int16", 0, 0),
        Field("partition_index", "int32", 0, 0),
        Field("leader_id", "int32", 0, 0),
        Field("leader_epoch", "int32", 0, 0),
        Field("replica_nodes", "int32", 0, 0, array=True),
        Field("isr_nodes", "int32", 0, 0, array=True),
        Field("eligible_leader_replicas", "int32", 0, 0, array=True, nullable=(0, 0)),
        Field("last_known_elr", "int32", 0, 0, array=True, nullable=(0, 0)),
        Field("offline_replicas", "int32", 0, 0, array=True),
    )


@dataclass(slots=True, kw_only=True)
class DescribeTopicPartitionsResponseTopic:
    error_code: int = 0
    name: str | None = ""
    topic_id: UUID = ZERO_UUID
    is_internal: bool = False
    partitions: list[DescribeTopicPartitionsResponsePartition] = field(default_factory=list)
    topic_authorized_operations: int = -2147483648

    FIELDS: ClassVar[Fields] = (
        Field("error_code", "int16", 0, 0),
        Field("name", "string", 0, 0, nullable=(0, 0)),
        Field("topic_id", "uuid", 0, 0),
        Field("is_internal", "bool", 0, 0),
        Field("partitions", "struct", 0, 0, array=True, nested=DescribeTopicPartitionsResponsePartition),
        Field("topic_authorized_operations", "int32", 0, 0),
    )


@dataclass(slots=True, kw_only=True)
class DescribeTopicPartitionsResponse:
    throttle_time_ms: int = 0
    topics: list[DescribeTopicPartitionsResponseTopic] = field(default_factory=list)
    next_cursor: Cursor | None = None

    VERSIONS: ClassVar[Versions] = (0, 0)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 0),
        Field("topics", "struct", 0, 0, array=True, nested=DescribeTopicPartitionsResponseTopic),
        Field("next_cursor", "struct", 0, 0, nullable=(0, 0), nested=Cursor),
    )
