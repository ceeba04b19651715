"""ElectLeaders (API key 43). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class TopicPartitions:
    topic: str = ""
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic", "string", 0, 2),
        Field("partitions", "int32", 0, 2, array=True),
    )


@dataclass(slots=True, kw_only=True)
class ElectLeadersRequest:
    election_type: int = 0
    topic_partitions: list[TopicPartitions] | None = field(default_factory=list)
    timeout_ms: int = 60000

    VERSIONS: ClassVar[Versions] = (0, 2)
    FLEXIBLE: ClassVar[int | None] = 2
    FIELDS: ClassVar[Fields] = (
        Field("election_type", "int8", 1, 2),
        Field("topic_partitions", "struct", 0, 2, array=True, nullable=(0, 2), nested=TopicPartitions),
        Field("timeout_ms", "int32", 0, 2),
    )


@dataclass(slots=True, kw_only=True)
class PartitionResult:
    partition_id: int = 0
    error_code: int = 0
    error_message: str | None = ""

    FIELDS: ClassVar[Fields] = (
        Field("partition_id", "int32", 0, 2),
        Field("error_code", "int16", 0, 2),
        Field("error_message", "string", 0, 2, nullable=(0, 2)),
    )


@dataclass(slots=True, kw_only=True)
class ReplicaElectionResult:
    topic: str = ""
    partition_result: list[PartitionResult] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic", "string", 0, 2),
        Field("partition_result", "struct", 0, 2, array=True, nested=PartitionResult),
    )


@dataclass(slots=True, kw_only=True)
class ElectLeadersResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    replica_election_results: list[ReplicaElectionResult] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 2)
    FLEXIBLE: ClassVar[int | None] = 2
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 2),
        Field("error_code", "int16", 1, 2),
        Field("replica_election_results", "struct", 0, 2, array=True, nested=ReplicaElectionResult),
    )
