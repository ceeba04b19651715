"""DeleteAcls (API key 31). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class DeleteAclsFilter:
    resource_type_filter: int = 0
    resource_name_filter: str | None = ""
    pattern_type_filter: int = 3
    principal_filter: str | None = ""
    host_filter: str | None = ""
    operation: int = 0
    permission_type: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("resource_type_filter", "int8", 1, 3),
        Field("resource_name_filter", "string", 1, 3, nullable=(1, 3)),
        Field("pattern_type_filter", "int8", 1, 3),
        Field("principal_filter", "string", 1, 3, nullable=(1, 3)),
        Field("host_filter", "string", 1, 3, nullable=(1, 3)),
        Field("operation", "int8", 1, 3),
        Field("permission_type", "int8", 1, 3),
    )


@dataclass(slots=True, kw_only=True)
class DeleteAclsRequest:
    filters: list[DeleteAclsFilter] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (1, 3)
    FLEXIBLE: ClassVar[int | None] = 2
    FIELDS: ClassVar[Fields] = (
        Field("filters", "struct", 1, 3, array=True, nested=DeleteAclsFilter),
    )


@dataclass(slots=True, kw_only=True)
class DeleteAclsMatchingAcl:
    error_code: int = 0
    error_message: str | None = ""
    resource_type: int = 0
    resource_name: str = ""
    pattern_type: int = 3
    principal: str = ""
    host: str = ""
    operation: int = 0
    permission_type: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("error_code", "int16", 1, 3),
        Field("error_message", "string", 1, 3, nullable=(1, 3)),
        Field("resource_type", "int8", 1, 3),
        Field("resource_name", "string", 1, 3),
        Field("pattern_type", "int8", 1, 3),
        Field("principal", "string", 1, 3),
        Field("host", "string", 1, 3),
        Field("operation", "int8", 1, 3),
        Field("permission_type", "int8", 1, 3),
    )


@dataclass(slots=True, kw_only=True)
class DeleteAclsFilterResult:
    error_code: int = 0
    error_message: str | None = ""
    matching_acls: list[DeleteAclsMatchingAcl] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("error_code", "int16", 1, 3),
        Field("error_message", "string", 1, 3, nullable=(1, 3)),
        Field("matching_acls", "struct", 1, 3, array=True, nested=DeleteAclsMatchingAcl),
    )


@dataclass(slots=True, kw_only=True)
class DeleteAclsResponse:
    throttle_time_ms: int = 0
    filter_results: list[DeleteAclsFilterResult] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (1, 3)
    FLEXIBLE: ClassVar[int | None] = 2
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 1, 3),
        Field("filter_results", "struct", 1, 3, array=True, nested=DeleteAclsFilterResult),
    )
