"""CreateAcls (API key 30). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class AclCreation:
    resource_type: int = 0
    resource_name: str = ""
    resource_pattern_type: int = 3
    principal: str = ""
    host: str = ""
    operation: int = 0
    permission_type: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("resource_type", "int8", 1, 3),
        Field("resource_name", "string", 1, 3),
        Field("resource_pattern_type", "int8", 1, 3),
        Field("principal", "string", 1, 3),
        Field("host", "string", 1, 3),
        Field("operation", "int8", 1, 3),
        Field("permission_type", "int8", 1, 3),
    )


@dataclass(slots=True, kw_only=True)
class CreateAclsRequest:
    creations: list[AclCreation] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (1, 3)
    FLEXIBLE: ClassVar[int | None] = 2
    FIELDS: ClassVar[Fields] = (
        Field("creations", "struct", 1, 3, array=True, nested=AclCreation),
    )


@dataclass(slots=True, kw_only=True)
class AclCreationResult:
    error_code: int = 0
    error_message: str | None = ""

    FIELDS: ClassVar[Fields] = (
        Field("error_code", "int16", 1, 3),
        Field("error_message", "string", 1, 3, nullable=(1, 3)),
    )


@dataclass(slots=True, kw_only=True)
class CreateAclsResponse:
    throttle_time_ms: int = 0
    results: list[AclCreationResult] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (1, 3)
    FLEXIBLE: ClassVar[int | None] = 2
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 1, 3),
        Field("results", "struct", 1, 3, array=True, nested=AclCreationResult),
    )
