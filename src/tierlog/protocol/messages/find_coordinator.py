"""FindCoordinator (API key 10). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class FindCoordinatorRequest:
    key: str = ""
    key_type: int = 0
    coordinator_keys: list[str] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 6)
    FLEXIBLE: ClassVar[int | None] = 3
    FIELDS: ClassVar[Fields] = (
        Field("key", "string", 0, 3),
        Field("key_type", "int8", 1, 6),
        Field("coordinator_keys", "string", 4, 6, array=True),
    )


@dataclass(slots=True, kw_only=True)
class Coordinator:
    key: str = ""
    node_id: int = 0
    host: str = ""
    port: int = 0
    error_code: int = 0
    error_message: str | None = ""

    FIELDS: ClassVar[Fields] = (
        Field("key", "string", 4, 6),
        Field("node_id", "int32", 4, 6),
        Field("host", "string", 4, 6),
        Field("port", "int32", 4, 6),
        Field("error_code", "int16", 4, 6),
        Field("error_message", "string", 4, 6, nullable=(4, 6)),
    )


@dataclass(slots=True, kw_only=True)
class FindCoordinatorResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    node_id: int = 0
    host: str = ""
    port: int = 0
    coordinators: list[Coordinator] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 6)
    FLEXIBLE: ClassVar[int | None] = 3
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 1, 6),
        Field("error_code", "int16", 0, 3),
        Field("error_message", "string", 1, 3, nullable=(1, 3)),
        Field("node_id", "int32", 0, 3),
        Field("host", "string", 0, 3),
        Field("port", "int32", 0, 3),
        Field("coordinators", "struct", 4, 6, array=True, nested=Coordinator),
    )
