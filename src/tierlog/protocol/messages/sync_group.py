"""SyncGroup (API key 14). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Buffer, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class SyncGroupRequestAssignment:
    member_id: str = ""
    assignment: Buffer = b""

    FIELDS: ClassVar[Fields] = (
        Field("member_id", "string", 0, 5),
        Field("assignment", "bytes", 0, 5),
    )


@dataclass(slots=True, kw_only=True)
class SyncGroupRequest:
    group_id: str = ""
    generation_id: int = 0
    member_id: str = ""
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: list[SyncGroupRequestAssignment] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 5)
    FLEXIBLE: ClassVar[int | None] = 4
    FIELDS: ClassVar[Fields] = (
        Field("group_id", "string", 0, 5),
        Field("generation_id", "int32", 0, 5),
        Field("member_id", "string", 0, 5),
        Field("group_instance_id", "string", 3, 5, nullable=(3, 5)),
        Field("protocol_type", "string", 5, 5, nullable=(5, 5)),
        Field("protocol_name", "string", 5, 5, nullable=(5, 5)),
        Field("assignments", "struct", 0, 5, array=True, nested=SyncGroupRequestAssignment),
    )


@dataclass(slots=True, kw_only=True)
class SyncGroupResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: Buffer = b""

    VERSIONS: ClassVar[Versions] = (0, 5)
    FLEXIBLE: ClassVar[int | None] = 4
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 1, 5),
        Field("error_code", "int16", 0, 5),
        Field("protocol_type", "string", 5, 5, nullable=(5, 5)),
        Field("protocol_name", "string", 5, 5, nullable=(5, 5)),
        Field("assignment", "bytes", 0, 5),
    )
