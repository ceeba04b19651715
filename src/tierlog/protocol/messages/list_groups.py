"""ListGroups (API key 16). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class ListGroupsRequest:
    states_filter: list[str] = field(default_factory=list)
    types_filter: list[str] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 5)
    FLEXIBLE: ClassVar[int | None] = 3
    FIELDS: ClassVar[Fields] = (
        Field("states_filter", "string", 4, 5, array=True),
        Field("types_filter", "string", 5, 5, array=True),
    )


@dataclass(slots=True, kw_only=True)
class ListedGroup:
    group_id: str = ""
    protocol_type: str = ""
    group_state: str = ""
    group_type: str = ""

    FIELDS: ClassVar[Fields] = (
        Field("group_id", "string", 0, 5),
        Field("protocol_type", "string", 0, 5),
        Field("group_state", "string", 4, 5),
        Field("group_type", "string", 5, 5),
    )


@dataclass(slots=True, kw_only=True)
class ListGroupsResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    groups: list[ListedGroup] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 5)
    FLEXIBLE: ClassVar[int | None] = 3
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 1, 5),
        Field("error_code", "int16", 0, 5),
        Field("groups", "struct", 0, 5, array=True, nested=ListedGroup),
    )
