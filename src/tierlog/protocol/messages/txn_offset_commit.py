"""TxnOffsetCommit (API key 28). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class TxnOffsetCommitRequestPartition:
    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1
    committed_metadata: str | None = ""

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 0, 5),
        Field("committed_offset", "int64", 0, 5),
        Field("committed_leader_epoch", "int32", 2, 5),
        Field("committed_metadata", "string", 0, 5, nullable=(0, 5)),
    )


@dataclass(slots=True, kw_only=True)
class TxnOffsetCommitRequestTopic:
    name: str = ""
    partitions: list[TxnOffsetCommitRequestPartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 0, 5),
        Field("partitions", "struct", 0, 5, array=True, nested=TxnOffsetCommitRequestPartition),
    )


@dataclass(slots=True, kw_only=True)
class TxnOffsetCommitRequest:
    transactional_id: str = ""
    group_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    topics: list[TxnOffsetCommitRequestTopic] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 5)
    FLEXIBLE: ClassVar[int | None] = 3
    FIELDS: ClassVar[Fields] = (
        Field("transactional_id", "string", 0, 5),
        Field("group_id", "string", 0, 5),
        Field("producer_id", "int64", 0, 5),
        Field("producer_epoch", "int16", 0, 5),
        Field("generation_id", "int32", 3, 5),
        Field("member_id", "string", 3, 5),
        Field("group_instance_id", "string", 3, 5, nullable=(3, 5)),
        Field("topics", "struct", 0, 5, array=True, nested=TxnOffsetCommitRequestTopic),
    )


@dataclass(slots=True, kw_only=True)
class TxnOffsetCommitResponsePartition:
    partition_index: int = 0
    error_code: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 0, 5),
        Field("error_code", "int16", 0, 5),
    )


@dataclass(slots=True, kw_only=True)
class TxnOffsetCommitResponseTopic:
    name: str = ""
    partitions: list[TxnOffsetCommitResponsePartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 0, 5),
        Field("partitions", "struct", 0, 5, array=True, nested=TxnOffsetCommitResponsePartition),
    )


@dataclass(slots=True, kw_only=True)
class TxnOffsetCommitResponse:
    throttle_time_ms: int = 0
    topics: list[TxnOffsetCommitResponseTopic] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 5)
    FLEXIBLE: ClassVar[int | None] = 3
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 5),
        Field("topics", "struct", 0, 5, array=True, nested=TxnOffsetCommitResponseTopic),
    )
