"""ListConfigResources (API key 74). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class ListConfigResourcesRequest:
    resource_types: list[int] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 1)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("resource_types", "int8", 1, 1, array=True),
    )


@dataclass(slots=True, kw_only=True)
class ConfigResource:
    resource_name: str = ""
    resource_type: int = 16

    FIELDS: ClassVar[Fields] = (
        Field("resource_name", "string", 0, 1),
        Field("resource_type", "int8", 1, 1),
    )


@dataclass(slots=True, kw_only=True)
class ListConfigResourcesResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    config_resources: list[ConfigResource] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 1)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 1),
        Field("error_code", "int16", 0, 1),
        Field("config_resources", "struct", 0, 1, array=True, nested=ConfigResource),
    )
