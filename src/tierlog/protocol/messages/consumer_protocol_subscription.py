"""ConsumerProtocolSubscription, as consumers put it into group messages. Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Buffer, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class TopicPartition:
    topic: str = ""
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic", "string", 1, 3),
        Field("partitions", "int32", 1, 3, array=True),
    )


@dataclass(slots=True, kw_only=True)
class ConsumerProtocolSubscription:
    topics: list[str] = field(default_factory=list)
    user_data: Buffer | None = None
    owned_partitions: list[TopicPartition] = field(default_factory=list)
    generation_id: int = -1
    rack_id: str | None = None

    VERSIONS: ClassVar[Versions] = (0, 3)
    FLEXIBLE: ClassVar[int | None] = None
    FIELDS: ClassVar[Fields] = (
        Field("topics", "string", 0, 3, array=True),
        Field("user_data", "bytes", 0, 3, nullable=(0, 3)),
        Field("owned_partitions", "struct", 1, 3, array=True, nested=TopicPartition),
        Field("generation_id", "int32", 2, 3),
        Field("rack_id", "string", 3, 3, nullable=(3, 3)),
    )
