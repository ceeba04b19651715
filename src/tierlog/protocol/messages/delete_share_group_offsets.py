"""DeleteShareGroupOffsets (API key 92). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tierlog.protocol.schema import ZERO_UUID, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class DeleteShareGroupOffsetsRequestTopic:
    topic_name: str = ""

    FIELDS: ClassVar[Fields] = (
        Field("topic_name", "string", 0, 0),
    )


@dataclass(slots=True, kw_only=True)
class DeleteShareGroupOffsetsRequest:
    group_id: str = ""
    topics: list[DeleteShareGroupOffsetsRequestTopic] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 0)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("group_id", "string", 0, 0),
        Field("topics", "struct", 0, 0, array=True, nested=DeleteShareGroupOffsetsRequestTopic),
    )


@dataclass(slots=True, kw_only=True)
class DeleteShareGroupOffsetsResponseTopic:
    topic_name: str = ""
    topic_id: UUID = ZERO_UUID
    error_code: int = 0
    error_message: str | None = None

    FIELDS: ClassVar[Fields] = (
        Field("topic_name", "string", 0, 0),
        Field("topic_id", "uuid", 0, 0),
        Field("error_code", "int16", 0, 0),
        Field("error_message", "string", 0, 0, nullable=(0, 0)),
    )


@dataclass(slots=True, kw_only=True)
class DeleteShareGroupOffsetsResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    responses: list[DeleteShareGroupOffsetsResponseTopic] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 0)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 0),
        Field("error_code", "int16", 0, 0),
        Field("error_message", "string", 0, 0, nullable=(0, 0)),
        Field("responses", "struct", 0, 0, array=True, nested=DeleteShareGroupOffsetsResponseTopic),
    )
