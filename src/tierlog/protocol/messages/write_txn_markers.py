"""WriteTxnMarkers (API key 27). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class WritableTxnMarkerTopic:
    name: str = ""
    partition_indexes: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 1, 2),
        Field("partition_indexes", "int32", 1, 2, array=True),
    )


@dataclass(slots=True, kw_only=True)
class WritableTxnMarker:
    producer_id: int = 0
    producer_epoch: int = 0
    transaction_result: bool = False
    topics: list[WritableTxnMarkerTopic] = field(default_factory=list)
    coordinator_epoch: int = 0
    transaction_version: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("producer_id", "int64", 1, 2),
        Field("producer_epoch", "int16", 1, 2),
        Field("transaction_result", "bool", 1, 2),
        Field("topics", "struct", 1, 2, array=True, nested=WritableTxnMarkerTopic),
        Field("coordinator_epoch", "int32", 1, 2),
        Field("transaction_version", "int8", 2, 2),
    )


@dataclass(slots=True, kw_only=True)
class WriteTxnMarkersRequest:
    markers: list[WritableTxnMarker] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (1, 2)
    FLEXIBLE: ClassVar[int | None] = 1
    FIELDS: ClassVar[Fields] = (
        Field("markers", "struct", 1, 2, array=True, nested=WritableTxnMarker),
    )


@dataclass(slots=True, kw_only=True)
class WritableTxnMarkerPartitionResult:
    partition_index: int = 0
    error_code: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("partition_index", "int32", 1, 2),
        Field("error_code", "int16", 1, 2),
    )


@dataclass(slots=True, kw_only=True)
class WritableTxnMarkerTopicResult:
    name: str = ""
    partitions: list[WritableTxnMarkerPartitionResult] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 1, 2),
        Field("partitions", "struct", 1, 2, array=True, nested=WritableTxnMarkerPartitionResult),
    )


@dataclass(slots=True, kw_only=True)
class WritableTxnMarkerResult:
    producer_id: int = 0
    topics: list[WritableTxnMarkerTopicResult] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("producer_id", "int64", 1, 2),
        Field("topics", "struct", 1, 2, array=True, nested=WritableTxnMarkerTopicResult),
    )


@dataclass(slots=True, kw_only=True)
class WriteTxnMarkersResponse:
    markers: list[WritableTxnMarkerResult] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (1, 2)
    FLEXIBLE: ClassVar[int | None] = 1
    FIELDS: ClassVar[Fields] = (
        Field("markers", "struct", 1, 2, array=True, nested=WritableTxnMarkerResult),
    )
