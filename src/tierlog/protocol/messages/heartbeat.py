"""Heartbeat (API key 12). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class HeartbeatRequest:
    group_id: str = ""
    generation_id: int = 0
    member_id: str = ""
    group_instance_id: str | None = None

    VERSIONS: ClassVar[Versions] = (0, 4)
    FLEXIBLE: ClassVar[int | None] = 4
    FIELDS: ClassVar[Fields] = (
        Field("group_id", "string", 0, 4),
        Field("generation_id", "int32", 0, 4),
        Field("member_id", "string", 0, 4),
        Field("group_instance_id", "string", 3, 4, nullable=(3, 4)),
    )


@dataclass(slots=True, kw_only=True)
class HeartbeatResponse:
    throttle_time_ms: int = 0
    error_code: int = 0

    VERSIONS: ClassVar[Versions] = (0, 4)
    FLEXIBLE: ClassVar[int | None] = 4
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 1, 4),
        Field("error_code", "int16", 0, 4),
    )
