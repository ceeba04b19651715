"""LeaveGroup (API key 13). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class MemberIdentity:
    member_id: str = ""
    group_instance_id: str | None = None
    reason: str | None = None

    FIELDS: ClassVar[Fields] = (
        Field("member_id", "string", 3, 5),
        Field("group_instance_id", "string", 3, 5, nullable=(3, 5)),
        Field("reason", "string", 5, 5, nullable=(5, 5)),
    )


@dataclass(slots=True, kw_only=True)
class LeaveGroupRequest:
    group_id: str = ""
    member_id: str = ""
    members: list[MemberIdentity] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 5)
    FLEXIBLE: ClassVar[int | None] = 4
    FIELDS: ClassVar[Fields] = (
        Field("group_id", "string", 0, 5),
        Field("member_id", "string", 0, 2),
        Field("members", "struct", 3, 5, array=True, nested=MemberIdentity),
    )


@dataclass(slots=True, kw_only=True)
class MemberResponse:
    member_id: str = ""
    group_instance_id: str | None = ""
    error_code: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("member_id", "string", 3, 5),
        Field("group_instance_id", "string", 3, 5, nullable=(3, 5)),
        Field("error_code", "int16", 3, 5),
    )


@dataclass(slots=True, kw_only=True)
class LeaveGroupResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    members: list[MemberResponse] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 5)
    FLEXIBLE: ClassVar[int | None] = 4
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 1, 5),
        Field("error_code", "int16", 0, 5),
        Field("members", "struct", 3, 5, array=True, nested=MemberResponse),
    )
