"""ApiVersions (API key 18). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class ApiVersionsRequest:
    client_software_name: str = ""
    client_software_version: str = ""

    VERSIONS: ClassVar[Versions] = (0, 4)
    FLEXIBLE: ClassVar[int | None] = 3
    FIELDS: ClassVar[Fields] = (
        Field("client_software_name", "string", 3, 4),
        Field("client_software_version", "string", 3, 4),
    )


@dataclass(slots=True, kw_only=True)
class ApiVersion:
    api_key: int = 0
    min_version: int = 0
    max_version: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("api_key", "int16", 0, 4),
        Field("min_version", "int16", 0, 4),
        Field("max_version", "int16", 0, 4),
    )


@dataclass(slots=True, kw_only=True)
class SupportedFeatureKey:
    name: str = ""
    min_version: int = 0
    max_version: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 3, 4),
        Field("min_version", "int16", 3, 4),
        Field("max_version", "int16", 3, 4),
    )


@dataclass(slots=True, kw_only=True)
class FinalizedFeatureKey:
    name: str = ""
    max_version_level: int = 0
    min_version_level: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 3, 4),
        Field("max_version_level", "int16", 3, 4),
        Field("min_version_level", "int16", 3, 4),
    )


@dataclass(slots=True, kw_only=True)
class ApiVersionsResponse:
    error_code: int = 0
    api_keys: list[ApiVersion] = field(default_factory=list)
    throttle_time_ms: int = 0
    supported_features: list[SupportedFeatureKey] = field(default_factory=list)
    finalized_features_epoch: int = -1
    finalized_features: list[FinalizedFeatureKey] = field(default_factory=list)
    zk_migration_ready: bool = False

    VERSIONS: ClassVar[Versions] = (0, 4)
    FLEXIBLE: ClassVar[int | None] = 3
    FIELDS: ClassVar[Fields] = (
        Field("error_code", "int16", 0, 4),
        Field("api_keys", "struct", 0, 4, array=True, nested=ApiVersion),
        Field("throttle_time_ms", "int32", 1, 4),
        Field("supported_features", "struct", 3, 4, array=True, tag=0, tagged=(3, 4), nested=SupportedFeatureKey),
        Field("finalized_features_epoch", "int64", 3, 4, tag=1, tagged=(3, 4)),
        Field("finalized_features", "struct", 3, 4, array=True, tag=2, tagged=(3, 4), nested=FinalizedFeatureKey),
        Field("zk_migration_ready", "bool", 3, 4, tag=3, tagged=(3, 4)),
    )
