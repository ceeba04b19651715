"""IncrementalAlterConfigs (API key 44). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class AlterableConfig:
    name: str = ""
    config_operation: int = 0
    value: str | None = ""

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 0, 1),
        Field("config_operation", "int8", 0, 1),
        Field("value", "string", 0, 1, nullable=(0, 1)),
    )


@dataclass(slots=True, kw_only=True)
class AlterConfigsResource:
    resource_type: int = 0
    resource_name: str = ""
    configs: list[AlterableConfig] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("resource_type", "int8", 0, 1),
        Field("resource_name", "string", 0, 1),
        Field("configs", "struct", 0, 1, array=True, nested=AlterableConfig),
    )


@dataclass(slots=True, kw_only=True)
class IncrementalAlterConfigsRequest:
    resources: list[AlterConfigsResource] = field(default_factory=list)
    validate_only: bool = False

    VERSIONS: ClassVar[Versions] = (0, 1)
    FLEXIBLE: ClassVar[int | None] = 1
    FIELDS: ClassVar[Fields] = (
        Field("resources", "struct", 0, 1, array=True, nested=AlterConfigsResource),
        Field("validate_only", "bool", 0, 1),
    )


@dataclass(slots=True, kw_only=True)
class AlterConfigsResourceResponse:
    error_code: int = 0
    error_message: str | None = ""
    resource_type: int = 0
    resource_name: str = ""

    FIELDS: ClassVar[Fields] = (
        Field("error_code", "int16", 0, 1),
        Field("error_message", "string", 0, 1, nullable=(0, 1)),
        Field("resource_type", "int8", 0, 1),
        Field("resource_name", "string", 0, 1),
    )


@dataclass(slots=True, kw_only=True)
class IncrementalAlterConfigsResponse:
    throttle_time_ms: int = 0
    responses: list[AlterConfigsResourceResponse] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 1)
    FLEXIBLE: ClassVar[int | None] = 1
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 1),
        Field("responses", "struct", 0, 1, array=True, nested=AlterConfigsResourceResponse),
    )
