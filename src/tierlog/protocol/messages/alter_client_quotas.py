"""AlterClientQuotas (API key 49). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class EntityData:
    entity_type: str = ""
    entity_name: str | None = ""

    FIELDS: ClassVar[Fields] = (
        Field("entity_type", "string", 0, 1),
        Field("entity_name", "string", 0, 1, nullable=(0, 1)),
    )


@dataclass(slots=True, kw_only=True)
class OpData:
    key: str = ""
    value: float = 0.0
    remove: bool = False

    FIELDS: ClassVar[Fields] = (
        Field("key", "string", 0, 1),
        Field("value", "float64", 0, 1),
        Field("remove", "bool", 0, 1),
    )


@dataclass(slots=True, kw_only=True)
class EntryData:
    entity: list[EntityData] = field(default_factory=list)
    ops: list[OpData] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("entity", "struct", 0, 1, array=True, nested=EntityData),
        Field("ops", "struct", 0, 1, array=True, nested=OpData),
    )


@dataclass(slots=True, kw_only=True)
class AlterClientQuotasRequest:
    entries: list[EntryData] = field(default_factory=list)
    validate_only: bool = False

    VERSIONS: ClassVar[Versions] = (0, 1)
    FLEXIBLE: ClassVar[int | None] = 1
    FIELDS: ClassVar[Fields] = (
        Field("entries", "struct", 0, 1, array=True, nested=EntryData),
        Field("validate_only", "bool", 0, 1),
    )


@dataclass(slots=True, kw_only=True)
class EntryDataResponse:
    error_code: int = 0
    error_message: str | None = ""
    entity: list[EntityData] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("error_code", "int16", 0, 1),
        Field("error_message", "string", 0, 1, nullable=(0, 1)),
        Field("entity", "struct", 0, 1, array=True, nested=EntityData),
    )


@dataclass(slots=True, kw_only=True)
class AlterClientQuotasResponse:
    throttle_time_ms: int = 0
    entries: list[EntryDataResponse] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 1)
    FLEXIBLE: ClassVar[int | None] = 1
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 1),
        Field("entries", "struct", 0, 1, array=True, nested=EntryDataResponse),
    )
