"""Fetch (API key 1). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tierlog.protocol.schema import ZERO_UUID, Field, Fields, Records, Versions


@dataclass(slots=True, kw_only=True)
class ReplicaState:
    replica_id: int = -1
    replica_epoch: int = -1

    FIELDS: ClassVar[Fields] = (
        Field("replica_id", "int32", 15, 18),
        Field("replica_epoch", "int64", 15, 18),
    )


@dataclass(slots=True, kw_only=True)
class FetchPartition:
    partition: int = 0
    current_leader_epoch: int = -1
    fetch_offset: int = 0
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    partition_max_bytes: int = 0
    replica_directory_id: UUID = ZERO_UUID
    high_watermark: int = 9223372036854775807

    FIELDS: ClassVar[Fields] = (
        Field("partition", "int32", 4, 18),
        Field("current_leader_epoch", "int32", 9, 18),
        Field("fetch_offset", "int64", 4, 18),
        Field("last_fetched_epoch", "int32", 12, 18),
        Field("log_start_offset", "int64", 5, 18),
        Field("partition_max_bytes", "int32", 4, 18),
        Field("replica_directory_id", "uuid", 17, 18, tag=0, tagged=(17, 18)),
        Field("high_watermark", "int64", 18, 18, tag=1, tagged=(18, 18)),
    )


@dataclass(slots=True, kw_only=True)
class FetchTopic:
    topic: str = ""
    topic_id: UUID = ZERO_UUID
    partitions: list[FetchPartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic", "string", 4, 12),
        Field("topic_id", "uuid", 13, 18),
        Field("partitions", "struct", 4, 18, array=True, nested=FetchPartition),
    )


@dataclass(slots=True, kw_only=True)
class ForgottenTopic:
    topic: str = ""
    topic_id: UUID = ZERO_UUID
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic", "string", 7, 12),
        Field("topic_id", "uuid", 13, 18),
        Field("partitions", "int32", 7, 18, array=True),
    )


@dataclass(slots=True, kw_only=True)
class FetchRequest:
    cluster_id: str | None = None
    replica_id: int = -1
    replica_state: ReplicaState = field(default_factory=ReplicaState)
    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = 2147483647
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = -1
    topics: list[FetchTopic] = field(default_factory=list)
    forgotten_topics_data: list[ForgottenTopic] = field(default_factory=list)
    rack_id: str = ""

    VERSIONS: ClassVar[Versions] = (4, 18)
    FLEXIBLE: ClassVar[int | None] = 12
    FIELDS: ClassVar[Fields] = (
        Field("cluster_id", "string", 12, 18, nullable=(12, 18), tag=0, tagged=(12, 18)),
        Field("replica_id", "int32", 4, 14),
        Field("replica_state", "struct", 15, 18, tag=1, tagged=(15, 18), nested=ReplicaState),
        Field("max_wait_ms", "int32", 4, 18),
        Field("min_bytes", "int32", 4, 18),
        Field("max_bytes", "int32", 4, 18),
        Field("isolation_level", "int8", 4, 18),
        Field("session_id", "int32", 7, 18),
        Field("session_epoch", "int32", 7, 18),
        Field("topics", "struct", 4, 18, array=True, nested=FetchTopic),
        Field("forgotten_topics_data", "struct", 7, 18, array=True, nested=ForgottenTopic),
        Field("rack_id", "string", 11, 18),
    )


@dataclass(slots=True, kw_only=True)
class EpochEndOffset:
    epoch: int = -1
    end_offset: int = -1

    FIELDS: ClassVar[Fields] = (
        Field("epoch", "int32", 12, 18),
        Field("end_offset", "int64", 12, 18),
    )


@dataclass(slots=True, kw_only=True)
class LeaderIdAndEpoch:
    leader_id: int = -1
    leader_epoch: int = -1

    FIELDS: ClassVar[Fields] = (
        Field("leader_id", "int32", 12, 18),
        Field("leader_epoch", "int32", 12, 18),
    )


@dataclass(slots=True, kw_only=True)
class SnapshotId:
    end_offset: int = -1
    epoch: int = -1

    FIELDS: ClassVar[Fields] = (
        Field("end_offset", "int64", 12, 18),
        Field("epoch", "int32", 12, 18),
    )


@dataclass(slots=True, kw_only=True)
class AbortedTransaction:
    producer_id: int = 0
    first_offset: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("producer_id", "int64", 4, 18),
        Field("first_offset", "int64", 4, 18),
    )


@dataclass(slots=True, kw_only=True)
class PartitionData:
    partition_index: int = 0
    error_code: int = 0
    high_watermark: int = 0
    last_stable_offset: int = -1
    log_start_offset: int = -1
    diverging_epoch: EpochEndOffset = field(default_factory=EpochEndOffset)
    current_leader: LeaderIdAndEpoch = field(default_factory=LeaderIdAndEpoch)
    snapshot_id: SnapshotId = field(default_factory=SnapshotId)
    aborted_transactions: list[AbortedTransaction] | None = field(default_factory=list)
    preferred_read_replica: int = -1
    records: Records | None = None

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 4, 18),
        Field("error_code", "int16", 4, 18),
        Field("high_watermark", "int64", 4, 18),
        Field("last_stable_offset", "int64", 4, 18),
        Field("log_start_offset", "int64", 5, 18),
        Field("diverging_epoch", "struct", 12, 18, tag=0, tagged=(12, 18), nested=EpochEndOffset),
        Field("current_leader", "struct", 12, 18, tag=1, tagged=(12, 18), nested=LeaderIdAndEpoch),
        Field("snapshot_id", "struct", 12, 18, tag=2, tagged=(12, 18), nested=SnapshotId),
        Field("aborted_transactions", "struct", 4, 18, array=True, nullable=(4, 18), nested=AbortedTransaction),
        Field("preferred_read_replica", "int32", 11, 18),
        Field("records", "records", 4, 18, nullable=(4, 18)),
    )


@dataclass(slots=True, kw_only=True)
class FetchableTopicResponse:
    topic: str = ""
    topic_id: UUID = ZERO_UUID
    partitions: list[PartitionData] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic", "string", 4, 12),
        Field("topic_id", "uuid", 13, 18),
        Field("partitions", "struct", 4, 18, array=True, nested=PartitionData),
    )


@dataclass(slots=True, kw_only=True)
class NodeEndpoint:
    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None

    FIELDS: ClassVar[Fields] = (
        Field("node_id", "int32", 16, 18),
        Field("host", "string", 16, 18),
        Field("port", "int32", 16, 18),
        Field("rack", "string", 16, 18, nullable=(16, 18)),
    )


@dataclass(slots=True, kw_only=True)
class FetchResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    session_id: int = 0
    responses: list[FetchableTopicResponse] = field(default_factory=list)
    node_endpoints: list[NodeEndpoint] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (4, 18)
    FLEXIBLE: ClassVar[int | None] = 12
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 4, 18),
        Field("error_code", "int16", 7, 18),
        Field("session_id", "int32", 7, 18),
        Field("responses", "struct", 4, 18, array=True, nested=FetchableTopicResponse),
        Field("node_endpoints", "struct", 16, 18, array=True, tag=0, tagged=(16, 18), nested=NodeEndpoint),
    )
