"""JoinGroup (API key 11). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Buffer, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class JoinGroupRequestProtocol:
    name: str = ""
    metadata: Buffer = b""

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 0, 9),
        Field("metadata", "bytes", 0, 9),
    )


@dataclass(slots=True, kw_only=True)
class JoinGroupRequest:
    group_id: str = ""
    session_timeout_ms: int = 0
    rebalance_timeout_ms: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    protocol_type: str = ""
    protocols: list[JoinGroupRequestProtocol] = field(default_factory=list)
    reason: str | None = None

    VERSIONS: ClassVar[Versions] = (0, 9)
    FLEXIBLE: ClassVar[int | None] = 6
    FIELDS: ClassVar[Fields] = (
        Field("group_id", "string", 0, 9),
        Field("session_timeout_ms", "int32", 0, 9),
        Field("rebalance_timeout_ms", "int32", 1, 9),
        Field("member_id", "string", 0, 9),
        Field("group_instance_id", "string", 5, 9, nullable=(5, 9)),
        Field("protocol_type", "string", 0, 9),
        Field("protocols", "struct", 0, 9, array=True, nested=JoinGroupRequestProtocol),
        Field("reason", "string", 8, 9, nullable=(8, 9)),
    )


@dataclass(slots=True, kw_only=True)
class JoinGroupResponseMember:
    member_id: str = ""
    group_instance_id: str | None = None
    metadata: Buffer = b""

    FIELDS: ClassVar[Fields] = (
        Field("member_id", "string", 0, 9),
        Field("group_instance_id", "string", 5, 9, nullable=(5, 9)),
        Field("metadata", "bytes", 0, 9),
    )


@dataclass(slots=True, kw_only=True)
class JoinGroupResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = ""
    leader: str = ""
    skip_assignment: bool = False
    member_id: str = ""
    members: list[JoinGroupResponseMember] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 9)
    FLEXIBLE: ClassVar[int | None] = 6
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 2, 9),
        Field("error_code", "int16", 0, 9),
        Field("generation_id", "int32", 0, 9),
        Field("protocol_type", "string", 7, 9, nullable=(7, 9)),
        Field("protocol_name", "string", 0, 9, nullable=(7, 9)),
        Field("leader", "string", 0, 9),
        Field("skip_assignment", "bool", 9, 9),
        Field("member_id", "string", 0, 9),
        Field("members", "struct", 0, 9, array=True, nested=JoinGroupResponseMember),
    )
