"""ConsumerProtocolAssignment, as consumers put it into group messages. Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Buffer, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class TopicPartition:
    topic: str = ""
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("topic", "string", 0, 3),
        Field("partitions", "int32", 0, 3, array=True),
    )


@dataclass(slots=True, kw_only=True)
class ConsumerProtocolAssignment:
    assigned_partitions: list[TopicPartition] = field(default_factory=list)
    user_data: Buffer | None = None

    VERSIONS: ClassVar[Versions] = (0, 3)
    FLEXIBLE: ClassVar[int | None] = None
    FIELDS: ClassVar[Fields] = (
        Field("assigned_partitions", "struct", 0, 3, array=True, nested=TopicPartition),
        Field("user_data", "bytes", 0, 3, nullable=(0, 3)),
    )
