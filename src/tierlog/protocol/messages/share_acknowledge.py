"""ShareAcknowledge (API key 79). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tierlog.protocol.schema import ZERO_UUID, Field, Fields, Versions


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
class AcknowledgePartition:
    partition_index: int = 0
    acknowledgement_batches: list[AcknowledgementBatch] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 1, 2),
        Field("acknowledgement_batches", "struct", 1, 2, array=True, nested=AcknowledgementBatch),
    )


@dataclass(slots=True, kw_only=True)
class AcknowledgeTopic:
    topic_id: UUID = ZERO_UUID
    partitions: list[AcknowledgePartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic_id", "uuid", 1, 2),
        Field("partitions", "struct", 1, 2, array=True, nested=AcknowledgePartition),
    )


@dataclass(slots=True, kw_only=True)
class ShareAcknowledgeRequest:
    group_id: str | None = None
    member_id: str | None = ""
    share_session_epoch: int = 0
    is_renew_ack: bool = False
    topics: list[AcknowledgeTopic] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (1, 2)
    FLEXIBLE: ClassVar[int | None] = 1
    FIELDS: ClassVar[Fields] = (
        Field("group_id", "string", 1, 2, nullable=(1, 2)),
        Field("member_id", "string", 1, 2, nullable=(1, 2)),
        Field("share_session_epoch", "int32", 1, 2),
        Field("is_renew_ack", "bool", 2, 2),
        Field("topics", "struct", 1, 2, array=True, nested=AcknowledgeTopic),
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
class PartitionData:
    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = None
    current_leader: LeaderIdAndEpoch = field(default_factory=LeaderIdAndEpoch)

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 1, 2),
        Field("error_code", "int16", 1, 2),
        Field("error_message", "string", 1, 2, nullable=(1, 2)),
        Field("current_leader", "struct", 1, 2, nested=LeaderIdAndEpoch),
    )


@dataclass(slots=True, kw_only=True)
class ShareAcknowledgeTopicResponse:
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
class ShareAcknowledgeResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: int = 0
    responses: list[ShareAcknowledgeTopicResponse] = field(default_factory=list)
    node_endpoints: list[NodeEndpoint] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (1, 2)
    FLEXIBLE: ClassVar[int | None] = 1
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 1, 2),
        Field("error_code", "int16", 1, 2),
        Field("error_message", "string", 1, 2, nullable=(1, 2)),
        Field("acquisition_lock_timeout_ms", "int32", 2, 2),
        Field("responses", "struct", 1, 2, array=True, nested=ShareAcknowledgeTopicResponse),
        Field("node_endpoints", "struct", 1, 2, array=True, nested=NodeEndpoint),
    )
