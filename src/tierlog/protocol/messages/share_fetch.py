"""ShareFetch (API key 78). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tierlog.protocol.schema import ZERO_UUID, Buffer, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class AcknowledgementBatch:
    first_offset: int = 0
    last_offset: int = 0
    acknowledge_types: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("first_offset", "int64", 1, 2),
        Field("last_offset", "int64", 1, 2),
        Field("acknowledge_types", "int8", 1, 2, array=True),
    )


@dataclass(slots=True, kw_only=True)
class FetchPartition:
    partition_index: int = 0
    acknowledgement_batches: list[AcknowledgementBatch] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 1, 2),
        Field("acknowledgement_batches", "struct", 1, 2, array=True, nested=AcknowledgementBatch),
    )


@dataclass(slots=True, kw_only=True)
class FetchTopic:
    topic_id: UUID = ZERO_UUID
    partitions: list[FetchPartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic_id", "uuid", 1, 2),
        Field("partitions", "struct", 1, 2, array=True, nested=FetchPartition),
    )


@dataclass(slots=True, kw_only=True)
class ForgottenTopic:
    topic_id: UUID = ZERO_UUID
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic_id", "uuid", 1, 2),
        Field("partitions", "int32", 1, 2, array=True),
    )


@dataclass(slots=True, kw_only=True)
class ShareFetchRequest:
    group_id: str | None = None
    member_id: str | None = ""
    share_session_epoch: int = 0
    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = 2147483647
    max_records: int = 0
    batch_size: int = 0
    share_acquire_mode: int = 0
    is_renew_ack: bool = False
    topics: list[FetchTopic] = field(default_factory=list)
    forgotten_topics_data: list[ForgottenTopic] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (1, 2)
    FLEXIBLE: ClassVar[int | None] = 1
    FIELDS: ClassVar[Fields] = (
        Field("group_id", "string", 1, 2, nullable=(1, 2)),
        Field("member_id", "string", 1, 2, nullable=(1, 2)),
        Field("share_session_epoch", "int32", 1, 2),
        Field("max_wait_ms", "int32", 1, 2),
        Field("min_bytes", "int32", 1, 2),
        Field("max_bytes", "int32", 1, 2),
        Field("max_records", "int32", 1, 2),
        Field("batch_size", "int32", 1, 2),
        Field("share_acquire_mode", "int8", 2, 2),
        Field("is_renew_ack", "bool", 2, 2),
        Field("topics", "struct", 1, 2, array=True, nested=FetchTopic),
        Field("forgotten_topics_data", "struct", 1, 2, array=True, nested=ForgottenTopic),
    )


@dataclass(slots=True, kw_only=True)
class LeaderIdAndEpoch:
    leader_id: int = 0
    leader_epoch: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("leader_id", "int32", 1, 2),
        Field("leader_epoch", "int32", 1, 2),
    )


@dataclass(slots=True, kw_only=True)
class AcquiredRecords:
    first_offset: int = 0
    last_offset: int = 0
    delivery_count: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("first_offset", "int64", 1, 2),
        Field("last_offset", "int64", 1, 2),
        Field("delivery_count", "int16", 1, 2),
    )


@dataclass(slots=True, kw_only=True)
class PartitionData:
    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = None
    acknowledge_error_code: int = 0
    acknowledge_error_message: str | None = None
    current_leader: LeaderIdAndEpoch = field(default_factory=LeaderIdAndEpoch)
    records: Buffer = b""
    acquired_records: list[AcquiredRecords] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 1, 2),
        Field("error_code", "int16", 1, 2),
        Field("error_message", "string", 1, 2, nullable=(1, 2)),
        Field("acknowledge_error_code", "int16", 1, 2),
        Field("acknowledge_error_message", "string", 1, 2, nullable=(1, 2)),
        Field("current_leader", "struct", 1, 2, nested=LeaderIdAndEpoch),
        Field("records", "records", 1, 2),
        Field("acquired_records", "struct", 1, 2, array=True, nested=AcquiredRecords),
    )


@dataclass(slots=True, kw_only=True)
class ShareFetchableTopicResponse:
    topic_id: UUID = ZERO_UUID
    partitions: list[PartitionData] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic_id", "uuid", 1, 2),
        Field("partitions", "struct", 1, 2, array=True, nested=PartitionData),
    )


@dataclass(slots=True, kw_only=True)
class NodeEndpoint:
    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None

    FIELDS: ClassVar[Fields] = (
        Field("node_id", "int32", 1, 2),
        Field("host", "string", 1, 2),
        Field("port", "int32", 1, 2),
        Field("rack", "string", 1, 2, nullable=(1, 2)),
    )


@dataclass(slots=True, kw_only=True)
class ShareFetchResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: int = 0
    responses: list[ShareFetchableTopicResponse] = field(default_factory=list)
    node_endpoints: list[NodeEndpoint] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (1, 2)
    FLEXIBLE: ClassVar[int | None] = 1
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 1, 2),
        Field("error_code", "int16", 1, 2),
        Field("error_message", "string", 1, 2, nullable=(1, 2)),
        Field("acquisition_lock_timeout_ms", "int32", 1, 2),
        Field("responses", "struct", 1, 2, array=True, nested=ShareFetchableTopicResponse),
        Field("node_endpoints", "struct", 1, 2, array=True, nested=NodeEndpoint),
    )
