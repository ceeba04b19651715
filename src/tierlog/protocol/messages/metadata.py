"""Metadata (API key 3). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tierlog.protocol.schema import ZERO_UUID, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class MetadataRequestTopic:
    topic_id: UUID = ZERO_UUID
    name: str | None = ""

    FIELDS: ClassVar[Fields] = (
        Field("topic_id", "uuid", 10, 13),
        Field("name", "string", 0, 13, nullable=(10, 13)),
    )


@dataclass(slots=True, kw_only=True)
class MetadataRequest:
    topics: list[MetadataRequestTopic] | None = field(default_factory=list)
    allow_auto_topic_creation: bool = True
    include_cluster_authorized_operations: bool = False
    include_topic_authorized_operations: bool = False

    VERSIONS: ClassVar[Versions] = (0, 13)
    FLEXIBLE: ClassVar[int | None] = 9
    FIELDS: ClassVar[Fields] = (
        Field("topics", "struct", 0, 13, array=True, nullable=(1, 13), nested=MetadataRequestTopic),
        Field("allow_auto_topic_creation", "bool", 4, 13),
        Field("include_cluster_authorized_operations", "bool", 8, 10),
        Field("include_topic_authorized_operations", "bool", 8, 13),
    )


@dataclass(slots=True, kw_only=True)
class MetadataResponseBroker:
    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None

    FIELDS: ClassVar[Fields] = (
        Field("node_id", "int32", 0, 13),
        Field("host", "string", 0, 13),
        Field("port", "int32", 0, 13),
        Field("rack", "string", 1, 13, nullable=(1, 13)),
    )


@dataclass(slots=True, kw_only=True)
class MetadataResponsePartition:
    error_code: int = 0
    partition_index: int = 0
    leader_id: int = 0
    leader_epoch: int = -1
    replica_nodes: list[int] = field(default_factory=list)
    isr_nodes: list[int] = field(default_factory=list)
    offline_replicas: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("error_code", "int16", 0, 13),
        Field("partition_index", "int32", 0, 13),
        Field("leader_id", "int32", 0, 13),
        Field("leader_epoch", "int32", 7, 13),
        Field("replica_nodes", "int32", 0, 13, array=True),
        Field("isr_nodes", "int32", 0, 13, array=True),
        Field("offline_replicas", "int32", 5, 13, array=True),
    )


@dataclass(slots=True, kw_only=True)
class MetadataResponseTopic:
    error_code: int = 0
    name: str | None = ""
    topic_id: UUID = ZERO_UUID
    is_internal: bool = False
    partitions: list[MetadataResponsePartition] = field(default_factory=list)
    topic_authorized_operations: int = -2147483648

    FIELDS: ClassVar[Fields] = (
        Field("error_code", "int16", 0, 13),
        Field("name", "string", 0, 13, nullable=(12, 13)),
        Field("topic_id", "uuid", 10, 13),
        Field("is_internal", "bool", 1, 13),
        Field("partitions", "struct", 0, 13, array=True, nested=MetadataResponsePartition),
        Field("topic_authorized_operations", "int32", 8, 13),
    )


@dataclass(slots=True, kw_only=True)
class MetadataResponse:
    throttle_time_ms: int = 0
    brokers: list[MetadataResponseBroker] = field(default_factory=list)
    cluster_id: str | None = None
    controller_id: int = -1
    topics: list[MetadataResponseTopic] = field(default_factory=list)
    cluster_authorized_operations: int = -2147483648
    error_code: int = 0

    VERSIONS: ClassVar[Versions] = (0, 13)
    FLEXIBLE: ClassVar[int | None] = 9
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 3, 13),
        Field("brokers", "struct", 0, 13, array=True, nested=MetadataResponseBroker),
        Field("cluster_id", "string", 2, 13, nullable=(2, 13)),
        Field("controller_id", "int32", 1, 13),
        Field("topics", "struct", 0, 13, array=True, nested=MetadataResponseTopic),
        Field("cluster_authorized_operations", "int32", 8, 10),
        Field("error_code", "int16", 13, 13),
    )
