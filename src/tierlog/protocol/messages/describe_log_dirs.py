"""DescribeLogDirs (API key 35). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class DescribableLogDirTopic:
    topic: str = ""
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic", "string", 1, 5),
        Field("partitions", "int32", 1, 5, array=True),
    )


@dataclass(slots=True, kw_only=True)
class DescribeLogDirsRequest:
    topics: list[DescribableLogDirTopic] | None = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (1, 5)
    FLEXIBLE: ClassVar[int | None] = 2
    FIELDS: ClassVar[Fields] = (
        Field("topics", "struct", 1, 5, array=True, nullable=(1, 5), nested=DescribableLogDirTopic),
    )


@dataclass(slots=True, kw_only=True)
class DescribeLogDirsPartition:
    partition_index: int = 0
    partition_size: int = 0
    offset_lag: int = 0
    is_future_key: bool = False

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 1, 5),
        Field("partition_size", "int64", 1, 5),
        Field("offset_lag", "int64", 1, 5),
        Field("is_future_key", "bool", 1, 5),
    )


@dataclass(slots=True, kw_only=True)
class DescribeLogDirsTopic:
    name: str = ""
    partitions: list[DescribeLogDirsPartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 1, 5),
        Field("partitions", "struct", 1, 5, array=True, nested=DescribeLogDirsPartition),
    )


@dataclass(slots=True, kw_only=True)
class DescribeLogDirsResult:
    error_code: int = 0
    log_dir: str = ""
    topics: list[DescribeLogDirsTopic] = field(default_factory=list)
    total_bytes: int = -1
    usable_bytes: int = -1
    is_cordoned: bool = False

    FIELDS: ClassVar[Fields] = (
        Field("error_code", "int16", 1, 5),
        Field("log_dir", "string", 1, 5),
        Field("topics", "struct", 1, 5, array=True, nested=DescribeLogDirsTopic),
        Field("total_bytes", "int64", 4, 5),
        Field("usable_bytes", "int64", 4, 5),
        Field("is_cordoned", "bool", 5, 5),
    )


@dataclass(slots=True, kw_only=True)
class DescribeLogDirsResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    results: list[DescribeLogDirsResult] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (1, 5)
    FLEXIBLE: ClassVar[int | None] = 2
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 1, 5),
        Field("error_code", "int16", 3, 5),
        Field("results", "struct", 1, 5, array=True, nested=DescribeLogDirsResult),
    )
