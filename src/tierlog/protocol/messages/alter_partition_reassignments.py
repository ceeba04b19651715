"""AlterPartitionReassignments (API key 45). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class ReassignablePartition:
    partition_index: int = 0
    replicas: list[int] | None = None

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 0, 1),
        Field("replicas", "int32", 0, 1, array=True, nullable=(0, 1)),
    )


@dataclass(slots=True, kw_only=True)
class ReassignableTopic:
    name: str = ""
    partitions: list[ReassignablePartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 0, 1),
        Field("partitions", "struct", 0, 1, array=True, nested=ReassignablePartition),
    )


@dataclass(slots=True, kw_only=True)
class AlterPartitionReassignmentsRequest:
    timeout_ms: int = 60000
    allow_replication_factor_change: bool = True
    topics: list[ReassignableTopic] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 1)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("timeout_ms", "int32", 0, 1),
        Field("allow_replication_factor_change", "bool", 1, 1),
        Field("topics", "struct", 0, 1, array=True, nested=ReassignableTopic),
    )


@dataclass(slots=True, kw_only=True)
class ReassignablePartitionResponse:
    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = ""

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 0, 1),
        Field("error_code", "int16", 0, 1),
        Field("error_message", "string", 0, 1, nullable=(0, 1)),
    )


@dataclass(slots=True, kw_only=True)
class ReassignableTopicResponse:
    name: str = ""
    partitions: list[ReassignablePartitionResponse] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 0, 1),
        Field("partitions", "struct", 0, 1, array=True, nested=ReassignablePartitionResponse),
    )


@dataclass(slots=True, kw_only=True)
class AlterPartitionReassignmentsResponse:
    throttle_time_ms: int = 0
    allow_replication_factor_change: bool = True
    error_code: int = 0
    error_message: str | None = ""
    responses: list[ReassignableTopicResponse] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 1)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 1),
        Field("allow_replication_factor_change", "bool", 1, 1),
        Field("error_code", "int16", 0, 1),
        Field("error_message", "string", 0, 1, nullable=(0, 1)),
        Field("responses", "struct", 0, 1, array=True, nested=ReassignableTopicResponse),
    )
