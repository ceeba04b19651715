"""DescribeGroups (API key 15). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Buffer, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class DescribeGroupsRequest:
    groups: list[str] = field(default_factory=list)
    include_authorized_operations: bool = False

    VERSIONS: ClassVar[Versions] = (0, 6)
    FLEXIBLE: ClassVar[int | None] = 5
    FIELDS: ClassVar[Fields] = (
        Field("groups", "string", 0, 6, array=True),
        Field("include_authorized_operations", "bool", 3, 6),
    )


@dataclass(slots=True, kw_only=True)
class DescribedGroupMember:
    member_id: str = ""
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    member_metadata: Buffer = b""
    member_assignment: Buffer = b""

    FIELDS: ClassVar[Fields] = (
        Field("member_id", "string", 0, 6),
        Field("group_instance_id", "string", 4, 6, nullable=(4, 6)),
        Field("client_id", "string", 0, 6),
        Field("client_host", "string", 0, 6),
        Field("member_metadata", "bytes", 0, 6),
        Field("member_assignment", "bytes", 0, 6),
    )


@dataclass(slots=True, kw_only=True)
class DescribedGroup:
    error_code: int = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: list[DescribedGroupMember] = field(default_factory=list)
    authorized_operations: int = -2147483648

    FIELDS: ClassVar[Fields] = (
        Field("error_code", "int16", 0, 6),
        Field("error_message", "string", 6, 6, nullable=(6, 6)),
        Field("group_id", "string", 0, 6),
        Field("group_state", "string", 0, 6),
        Field("protocol_type", "string", 0, 6),
        Field("protocol_data", "string", 0, 6),
        Field("members", "struct", 0, 6, array=True, nested=DescribedGroupMember),
        Field("authorized_operations", "int32", 3, 6),
    )


@dataclass(slots=True, kw_only=True)
class DescribeGroupsResponse:
    throttle_time_ms: int = 0
    groups: list[DescribedGroup] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 6)
    FLEXIBLE: ClassVar[int | None] = 5
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 1, 6),
        Field("groups", "struct", 0, 6, array=True, nested=DescribedGroup),
    )
