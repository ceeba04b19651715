"""DescribeClientQuotas (API key 48). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class ComponentData:
    entity_type: str = ""
    match_type: int = 0
    match: str | None = ""

    FIELDS: ClassVar[Fields] = (
        Field("entity_type", "string", 0, 1),
        Field("match_type", "int8", 0, 1),
        Field("match", "string", 0, 1, nullable=(0, 1)),
    )


@dataclass(slots=True, kw_only=True)
class DescribeClientQuotasRequest:
    components: list[ComponentData] = field(default_factory=list)
    strict: bool = False

    VERSIONS: ClassVar[Versions] = (0, 1)
    FLEXIBLE: ClassVar[int | None] = 1
    FIELDS: ClassVar[Fields] = (
        Field("components", "struct", 0, 1, array=True, nested=ComponentData),
        Field("strict", "bool", 0, 1),
    )


@dataclass(slots=True, kw_only=True)
class EntityData:
    entity_type: str = ""
    entity_name: str | None = ""

    FIELDS: ClassVar[Fields] = (
        Field("entity_type", "string", 0, 1),
        Field("entity_name", "string", 0, 1, nullable=(0, 1)),
    )


@dataclass(slots=True, kw_only=True)
class ValueData:
    key: str = ""
    value: float = 0.0

    FIELDS: ClassVar[Fields] = (
        Field("key", "string", 0, 1),
        Field("value", "float64", 0, 1),
    )


@dataclass(slots=True, kw_only=True)
class EntryData:
    entity: list[EntityData] = field(default_factory=list)
    values: list[ValueData] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("entity", "struct", 0, 1, array=True, nested=EntityData),
        Field("values", "struct", 0, 1, array=True, nested=ValueData),
    )


@dataclass(slots=True, kw_only=True)
class DescribeClientQuotasResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    entries: list[EntryData] | None = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 1)
    FLEXIBLE: ClassVar[int | None] = 1
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 1),
        Field("error_code", "int16", 0, 1),
        Field("error_message", "string", 0, 1, nullable=(0, 1)),
        Field("entries", "struct", 0, 1, array=True, nullable=(0, 1), nested=EntryData),
    )
