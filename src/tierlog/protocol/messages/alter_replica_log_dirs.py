"""AlterReplicaLogDirs (API key 34). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class AlterReplicaLogDirTopic:
    name: str = ""
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 1, 2),
        Field("partitions", "int32", 1, 2, array=True),
    )


@dataclass(slots=True, kw_only=True)
class AlterReplicaLogDir:
    path: str = ""
    topics: list[AlterReplicaLogDirTopic] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("path", "string", 1, 2),
        Field("topics", "struct", 1, 2, array=True, nested=AlterReplicaLogDirTopic),
    )


@dataclass(slots=True, kw_only=True)
class AlterReplicaLogDirsRequest:
    dirs: list[AlterReplicaLogDir] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (1, 2)
    FLEXIBLE: ClassVar[int | None] = 2
    FIELDS: ClassVar[Fields] = (
        Field("dirs", "struct", 1, 2, array=True, nested=AlterReplicaLogDir),
    )


@dataclass(slots=True, kw_only=True)
class AlterReplicaLogDirPartitionResult:
    partition_index: int = 0
    error_code: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 1, 2),
        Field("error_code", "int16", 1, 2),
    )


@dataclass(slots=True, kw_only=True)
class AlterReplicaLogDirTopicResult:
    topic_name: str = ""
    partitions: list[AlterReplicaLogDirPartitionResult] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic_name", "string", 1, 2),
        Field("partitions", "struct", 1, 2, array=True, nested=AlterReplicaLogDirPartitionResult),
    )


@dataclass(slots=True, kw_only=True)
class AlterReplicaLogDirsResponse:
    throttle_time_ms: int = 0
    results: list[AlterReplicaLogDirTopicResult] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (1, 2)
    FLEXIBLE: ClassVar[int | None] = 2
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 1, 2),
        Field("results", "struct", 1, 2, array=True, nested=AlterReplicaLogDirTopicResult),
    )
