"""UpdateFeatures (API key 57). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class FeatureUpdateKey:
    feature: str = ""
    max_version_level: int = 0
    allow_downgrade: bool = False
    upgrade_type: int = 1

    FIELDS: ClassVar[Fields] = (
        Field("feature", "string", 0, 2),
        Field("max_version_level", "int16", 0, 2),
        Field("allow_downgrade", "bool", 0, 0),
        Field("upgrade_type", "int8", 1, 2),
    )


@dataclass(slots=True, kw_only=True)
class UpdateFeaturesRequest:
    timeout_ms: int = 60000
    feature_updates: list[FeatureUpdateKey] = field(default_factory=list)
    validate_only: bool = False

    VERSIONS: ClassVar[Versions] = (0, 2)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("timeout_ms", "int32", 0, 2),
        Field("feature_updates", "struct", 0, 2, array=True, nested=FeatureUpdateKey),
        Field("validate_only", "bool", 1, 2),
    )


@dataclass(slots=True, kw_only=True)
class UpdatableFeatureResult:
    feature: str = ""
    error_code: int = 0
    error_message: str | None = ""

    FIELDS: ClassVar[Fields] = (
        Field("feature", "string", 0, 1),
        Field("error_code", "int16", 0, 1),
        Field("error_message", "string", 0, 1, nullable=(0, 1)),
    )


@dataclass(slots=True, kw_only=True)
class UpdateFeaturesResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    results: list[UpdatableFeatureResult] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 2)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 2),
        Field("error_code", "int16", 0, 2),
        Field("error_message", "string", 0, 2, nullable=(0, 2)),
        Field("results", "struct", 0, 1, array=True, nested=UpdatableFeatureResult),
    )
