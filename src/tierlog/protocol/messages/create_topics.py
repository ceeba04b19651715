"""CreateTopics (API key 19). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tierlog.protocol.schema import ZERO_UUID, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class CreatableReplicaAssignment:
    partition_index: int = 0
    broker_ids: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 2, 7),
        Field("broker_ids", "int32", 2, 7, array=True),
    )


@dataclass(slots=True, kw_only=True)
class CreatableTopicConfig:
    name: str = ""
    value: str | None = ""

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 2, 7),
        Field("value", "string", 2, 7, nullable=(2, 7)),
    )


@dataclass(slots=True, kw_only=True)
class CreatableTopic:
    name: str = ""
    num_partitions: int = 0
    replication_factor: int = 0
    assignments: list[CreatableReplicaAssignment] = field(default_factory=list)
    configs: list[CreatableTopicConfig] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 2, 7),
        Field("num_partitions", "int32", 2, 7),
        Field("replication_factor", "int16", 2, 7),
        Field("assignments", "struct", 2, 7, array=True, nested=CreatableReplicaAssignment),
        Field("configs", "struct", 2, 7, array=True, nested=CreatableTopicConfig),
    )


@dataclass(slots=True, kw_only=True)
class CreateTopicsRequest:
    topics: list[CreatableTopic] = field(default_factory=list)
    timeout_ms: int = 60000
    validate_only: bool = False

    VERSIONS: ClassVar[Versions] = (2, 7)
    FLEXIBLE: ClassVar[int | None] = 5
    FIELDS: ClassVar[Fields] = (
        Field("topics", "struct", 2, 7, array=True, nested=CreatableTopic),
        Field("timeout_ms", "int32", 2, 7),
        Field("validate_only", "bool", 2, 7),
    )


@dataclass(slots=True, kw_only=True)
class CreatableTopicConfigs:
    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: int = -1
    is_sensitive: bool = False

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 5, 7),
        Field("value", "string", 5, 7, nullable=(5, 7)),
        Field("read_only", "bool", 5, 7),
        Field("config_source", "int8", 5, 7),
        Field("is_sensitive", "bool", 5, 7),
    )


@dataclass(slots=True, kw_only=True)
class CreatableTopicResult:
    name: str = ""
    topic_id: UUID = ZERO_UUID
    error_code: int = 0
    error_message: str | None = ""
    topic_config_error_code: int = 0
    num_partitions: int = -1
    replication_factor: int = -1
    configs: list[CreatableTopicConfigs] | None = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 2, 7),
        Field("topic_id", "uuid", 7, 7),
        Field("error_code", "int16", 2, 7),
        Field("error_message", "string", 2, 7, nullable=(2, 7)),
        Field("topic_config_error_code", "int16", 5, 7, tag=0, tagged=(5, 7)),
        Field("num_partitions", "int32", 5, 7),
        Field("replication_factor", "int16", 5, 7),
        Field("configs", "struct", 5, 7, array=True, nullable=(5, 7), nested=CreatableTopicConfigs),
    )


@dataclass(slots=True, kw_only=True)
class CreateTopicsResponse:
    throttle_time_ms: int = 0
    topics: list[CreatableTopicResult] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (2, 7)
    FLEXIBLE: ClassVar[int | None] = 5
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 2, 7),
        Field("topics", "struct", 2, 7, array=True, nested=CreatableTopicResult),
    )
