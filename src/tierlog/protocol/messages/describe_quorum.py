"""DescribeQuorum (API key 55). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tierlog.protocol.schema import ZERO_UUID, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class PartitionData:
    partition_index: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 0, 2),
    )


@dataclass(slots=True, kw_only=True)
class TopicData:
    topic_name: str = ""
    partitions: list[PartitionData] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic_name", "string", 0, 2),
        Field("partitions", "struct", 0, 2, array=True, nested=PartitionData),
    )


@dataclass(slots=True, kw_only=True)
class DescribeQuorumRequest:
    topics: list[TopicData] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 2)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("topics", "struct", 0, 2, array=True, nested=TopicData),
    )


@dataclass(slots=True, kw_only=True)
class ReplicaState:
    replica_id: int = 0
    replica_directory_id: UUID = ZERO_UUID
    log_end_offset: int = 0
    last_fetch_timestamp: int = -1
    last_caught_up_timestamp: int = -1

    FIELDS: ClassVar[Fields] = (
        Field("replica_id", "int32", 0, 2),
        Field("replica_directory_id", "uuid", 2, 2),
        Field("log_end_offset", "int64", 0, 2),
        Field("last_fetch_timestamp", "int64", 1, 2),
        Field("last_caught_up_timestamp", "int64", 1, 2),
    )


@dataclass(slots=True, kw_only=True)
class PartitionDataResponse:
    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = ""
    leader_id: int = 0
    leader_epoch: int = 0
    high_watermark: int = 0
    current_voters: list[ReplicaState] = field(default_factory=list)
    observers: list[ReplicaState] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 0, 2),
        Field("error_code", "int16", 0, 2),
        Field("error_message", "string", 2, 2, nullable=(2, 2)),
        Field("leader_id", "int32", 0, 2),
        Field("leader_epoch", "int32", 0, 2),
        Field("high_watermark", "int64", 0, 2),
        Field("current_voters", "struct", 0, 2, array=True, nested=ReplicaState),
        Field("observers", "struct", 0, 2, array=True, nested=ReplicaState),
    )


@dataclass(slots=True, kw_only=True)
class TopicDataResponse:
    topic_name: str = ""
    partitions: list[PartitionDataResponse] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic_name", "string", 0, 2),
        Field("partitions", "struct", 0, 2, array=True, nested=PartitionDataResponse),
    )


@dataclass(slots=True, kw_only=True)
class Listener:
    name: str = ""
    host: str = ""
    port: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 2, 2),
        Field("host", "string", 2, 2),
        Field("port", "uint16", 2, 2),
    )


@dataclass(slots=True, kw_only=True)
class Node:
    node_id: int = 0
    listeners: list[Listener] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("node_id", "int32", 2, 2),
        Field("listeners", "struct", 2, 2, array=True, nested=Listener),
    )


@dataclass(slots=True, kw_only=True)
class DescribeQuorumResponse:
    error_code: int = 0
    error_message: str | None = ""
    topics: list[TopicDataResponse] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 2)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("error_code", "int16", 0, 2),
        Field("error_message", "string", 2, 2, nullable=(2, 2)),
        Field("topics", "struct", 0, 2, array=True, nested=TopicDataResponse),
        Field("nodes", "struct", 2, 2, array=True, nested=Node),
    )
