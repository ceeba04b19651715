"""Produce (API key 0). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tierlog.protocol.schema import ZERO_UUID, Buffer, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class PartitionProduceData:
    index: int = 0
    records: Buffer | None = None

    FIELDS: ClassVar[Fields] = (
        Field("index", "int32", 3, 13),
        Field("records", "records", 3, 13, nullable=(3, 13)),
    )


@dataclass(slots=True, kw_only=True)
class TopicProduceData:
    name: str = ""
    topic_id: UUID = ZERO_UUID
    partition_data: list[PartitionProduceData] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 3, 12),
        Field("topic_id", "uuid", 13, 13),
        Field("partition_data", "struct", 3, 13, array=True, nested=PartitionProduceData),
    )


@dataclass(slots=True, kw_only=True)
class ProduceRequest:
    transactional_id: str | None = None
    acks: int = 0
    timeout_ms: int = 0
    topic_data: list[TopicProduceData] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (3, 13)
    FLEXIBLE: ClassVar[int | None] = 9
    FIELDS: ClassVar[Fields] = (
        Field("transactional_id", "string", 3, 13, nullable=(3, 13)),
        Field("acks", "int16", 3, 13),
        Field("timeout_ms", "int32", 3, 13),
        Field("topic_data", "struct", 3, 13, array=True, nested=TopicProduceData),
    )


@dataclass(slots=True, kw_only=True)
class BatchIndexAndErrorMessage:
    batch_index: int = 0
    batch_index_error_message: str | None = None

    FIELDS: ClassVar[Fields] = (
        Field("batch_index", "int32", 8, 13),
        Field("batch_index_error_message", "string", 8, 13, nullable=(8, 13)),
    )


@dataclass(slots=True, kw_only=True)
class LeaderIdAndEpoch:
    leader_id: int = -1
    leader_epoch: int = -1

    FIELDS: ClassVar[Fields] = (
        Field("leader_id", "int32", 10, 13),
        Field("leader_epoch", "int32", 10, 13),
    )


@dataclass(slots=True, kw_only=True)
class PartitionProduceResponse:
    index: int = 0
    error_code: int = 0
    base_offset: int = 0
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: list[BatchIndexAndErrorMessage] = field(default_factory=list)
    error_message: str | None = None
    current_leader: LeaderIdAndEpoch = field(default_factory=LeaderIdAndEpoch)

    FIELDS: ClassVar[Fields] = (
        Field("index", "int32", 3, 13),
        Field("error_code", "int16", 3, 13),
        Field("base_offset", "int64", 3, 13),
        Field("log_append_time_ms", "int64", 3, 13),
        Field("log_start_offset", "int64", 5, 13),
        Field("record_errors", "struct", 8, 13, array=True, nested=BatchIndexAndErrorMessage),
        Field("error_message", "string", 8, 13, nullable=(8, 13)),
        Field("current_leader", "struct", 10, 13, tag=0, tagged=(10, 13), nested=LeaderIdAndEpoch),
    )


@dataclass(slots=True, kw_only=True)
class TopicProduceResponse:
    name: str = ""
    topic_id: UUID = ZERO_UUID
    partition_responses: list[PartitionProduceResponse] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 3, 12),
        Field("topic_id", "uuid", 13, 13),
        Field("partition_responses", "struct", 3, 13, array=True, nested=PartitionProduceResponse),
    )


@dataclass(slots=True, kw_only=True)
class NodeEndpoint:
    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None

    FIELDS: ClassVar[Fields] = (
        Field("node_id", "int32", 10, 13),
        Field("host", "string", 10, 13),
        Field("port", "int32", 10, 13),
        Field("rack", "string", 10, 13, nullable=(10, 13)),
    )


@dataclass(slots=True, kw_only=True)
class ProduceResponse:
    responses: list[TopicProduceResponse] = field(default_factory=list)
    throttle_time_ms: int = 0
    node_endpoints: list[NodeEndpoint] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (3, 13)
    FLEXIBLE: ClassVar[int | None] = 9
    FIELDS: ClassVar[Fields] = (
        Field("responses", "struct", 3, 13, array=True, nested=TopicProduceResponse),
        Field("throttle_time_ms", "int32", 3, 13),
        Field("node_endpoints", "struct", 10, 13, array=True, tag=0, tagged=(10, 13), nested=NodeEndpoint),
    )
