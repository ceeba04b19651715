"""DescribeConfigs (API key 32). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class DescribeConfigsResource:
    resource_type: int = 0
    resource_name: str = ""
    configuration_keys: list[str] | None = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("resource_type", "int8", 1, 4),
        Field("resource_name", "string", 1, 4),
        Field("configuration_keys", "string", 1, 4, array=True, nullable=(1, 4)),
    )


@dataclass(slots=True, kw_only=True)
class DescribeConfigsRequest:
    resources: list[DescribeConfigsResource] = field(default_factory=list)
    include_synonyms: bool = False
    include_documentation: bool = False

    VERSIONS: ClassVar[Versions] = (1, 4)
    FLEXIBLE: ClassVar[int | None] = 4
    FIELDS: ClassVar[Fields] = (
        Field("resources", "struct", 1, 4, array=True, nested=DescribeConfigsResource),
        Field("include_synonyms", "bool", 1, 4),
        Field("include_documentation", "bool", 3, 4),
    )


@dataclass(slots=True, kw_only=True)
class DescribeConfigsSynonym:
    name: str = ""
    value: str | None = ""
    source: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 1, 4),
        Field("value", "string", 1, 4, nullable=(1, 4)),
        Field("source", "int8", 1, 4),
    )


@dataclass(slots=True, kw_only=True)
class DescribeConfigsResourceResult:
    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: int = -1
    is_sensitive: bool = False
    synonyms: list[DescribeConfigsSynonym] = field(default_factory=list)
    config_type: int = 0
    documentation: str | None = ""

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 1, 4),
        Field("value", "string", 1, 4, nullable=(1, 4)),
        Field("read_only", "bool", 1, 4),
        Field("config_source", "int8", 1, 4),
        Field("is_sensitive", "bool", 1, 4),
        Field("synonyms", "struct", 1, 4, array=True, nested=DescribeConfigsSynonym),
        Field("config_type", "int8", 3, 4),
        Field("documentation", "string", 3, 4, nullable=(3, 4)),
    )


@dataclass(slots=True, kw_only=True)
class DescribeConfigsResult:
    error_code: int = 0
    error_message: str | None = ""
    resource_type: int = 0
    resource_name: str = ""
    configs: list[DescribeConfigsResourceResult] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("error_code", "int16", 1, 4),
        Field("error_message", "string", 1, 4, nullable=(1, 4)),
        Field("resource_type", "int8", 1, 4),
        Field("resource_name", "string", 1, 4),
        Field("configs", "struct", 1, 4, array=True, nested=DescribeConfigsResourceResult),
    )


@dataclass(slots=True, kw_only=True)
class DescribeConfigsResponse:
    throttle_time_ms: int = 0
    results: list[DescribeConfigsResult] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (1, 4)
    FLEXIBLE: ClassVar[int | None] = 4
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 1, 4),
        Field("results", "struct", 1, 4, array=True, nested=DescribeConfigsResult),
    )
