"""DeleteTopics (API key 20). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tierlog.protocol.schema import ZERO_UUID, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class DeleteTopicState:
    name: str | None = None
    topic_id: UUID = ZERO_UUID

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 6, 6, nullable=(6, 6)),
        Field("topic_id", "uuid", 6, 6),
    )


@dataclass(slots=True, kw_only=True)
class DeleteTopicsRequest:
    topic_names: list[str] = field(default_factory=list)
    topics: list[DeleteTopicState] = field(default_factory=list)
    timeout_ms: int = 0

    VERSIONS: ClassVar[Versions] = (1, 6)
    FLEXIBLE: ClassVar[int | None] = 4
    FIELDS: ClassVar[Fields] = (
        Field("topic_names", "string", 1, 5, array=True),
        Field("topics", "struct", 6, 6, array=True, nested=DeleteTopicState),
        Field("timeout_ms", "int32", 1, 6),
    )


@dataclass(slots=True, kw_only=True)
class DeletableTopicResult:
    name: str | None = ""
    topic_id: UUID = ZERO_UUID
    error_code: int = 0
    error_message: str | None = None

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 1, 6, nullable=(6, 6)),
        Field("topic_id", "uuid", 6, 6),
        Field("error_code", "int16", 1, 6),
        Field("error_message", "string", 5, 6, nullable=(5, 6)),
    )


@dataclass(slots=True, kw_only=True)
class DeleteTopicsResponse:
    throttle_time_ms: int = 0
    responses: list[DeletableTopicResult] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (1, 6)
    FLEXIBLE: ClassVar[int | None] = 4
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 1, 6),
        Field("responses", "struct", 1, 6, array=True, nested=DeletableTopicResult),
    )
