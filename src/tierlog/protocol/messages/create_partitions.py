"""CreatePartitions (API key 37). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class CreatePartitionsAssignment:
    broker_ids: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("broker_ids", "int32", 0, 3, array=True),
    )


@dataclass(slots=True, kw_only=True)
class CreatePartitionsTopic:
    name: str = ""
    count: int = 0
    assignments: list[CreatePartitionsAssignment] | None = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 0, 3),
        Field("count", "int32", 0, 3),
        Field("assignments", "struct", 0, 3, array=True, nullable=(0, 3), nested=CreatePartitionsAssignment),
    )


@dataclass(slots=True, kw_only=True)
class CreatePartitionsRequest:
    topics: list[CreatePartitionsTopic] = field(default_factory=list)
    timeout_ms: int = 0
    validate_only: bool = False

    VERSIONS: ClassVar[Versions] = (0, 3)
    FLEXIBLE: ClassVar[int | None] = 2
    FIELDS: ClassVar[Fields] = (
        Field("topics", "struct", 0, 3, array=True, nested=CreatePartitionsTopic),
        Field("timeout_ms", "int32", 0, 3),
        Field("validate_only", "bool", 0, 3),
    )


@dataclass(slots=True, kw_only=True)
class CreatePartitionsTopicResult:
    name: str = ""
    error_code: int = 0
    error_message: str | None = None

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 0, 3),
        Field("error_code", "int16", 0, 3),
        Field("error_message", "string", 0, 3, nullable=(0, 3)),
    )


@dataclass(slots=True, kw_only=True)
class CreatePartitionsResponse:
    throttle_time_ms: int = 0
    results: list[CreatePartitionsTopicResult] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 3)
    FLEXIBLE: ClassVar[int | None] = 2
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 3),
        Field("results", "struct", 0, 3, array=True, nested=CreatePartitionsTopicResult),
    )
