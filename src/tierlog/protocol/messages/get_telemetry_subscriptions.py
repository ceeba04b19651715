"""GetTelemetrySubscriptions (API key 71). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tierlog.protocol.schema import ZERO_UUID, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class GetTelemetrySubscriptionsRequest:
    client_instance_id: UUID = ZERO_UUID

    VERSIONS: ClassVar[Versions] = (0, 0)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("client_instance_id", "uuid", 0, 0),
    )


@dataclass(slots=True, kw_only=True)
class GetTelemetrySubscriptionsResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    client_instance_id: UUID = ZERO_UUID
    subscription_id: int = 0
    accepted_compression_types: list[int] = field(default_factory=list)
    push_interval_ms: int = 0
    telemetry_max_bytes: int = 0
    delta_temporality: bool = False
    requested_metrics: list[str] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 0)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 0),
        Field("error_code", "int16", 0, 0),
        Field("client_instance_id", "uuid", 0, 0),
        Field("subscription_id", "int32", 0, 0),
        Field("accepted_compression_types", "int8", 0, 0, array=True),
        Field("push_interval_ms", "int32", 0, 0),
        Field("telemetry_max_bytes", "int32", 0, 0),
        Field("delta_temporality", "bool", 0, 0),
        Field("requested_metrics", "string", 0, 0, array=True),
    )
