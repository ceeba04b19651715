"""DeleteGroups (API key 42). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class DeleteGroupsRequest:
    groups_names: list[str] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 2)
    FLEXIBLE: ClassVar[int | None] = 2
    FIELDS: ClassVar[Fields] = (
        Field("groups_names", "string", 0, 2, array=True),
    )


@dataclass(slots=True, kw_only=True)
class DeletableGroupResult:
    group_id: str = ""
    error_code: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("group_id", "string", 0, 2),
        Field("error_code", "int16", 0, 2),
    )


@dataclass(slots=True, kw_only=True)
class DeleteGroupsResponse:
    throttle_time_ms: int = 0
    results: list[DeletableGroupResult] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 2)
    FLEXIBLE: ClassVar[int | None] = 2
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 2),
        Field("results", "struct", 0, 2, array=True, nested=DeletableGroupResult),
    )
