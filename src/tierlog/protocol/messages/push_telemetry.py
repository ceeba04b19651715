"""PushTelemetry (API key 72). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from tierlog.protocol.schema import ZERO_UUID, Buffer, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class PushTelemetryRequest:
    client_instance_id: UUID = ZERO_UUID
    subscription_id: int = 0
    terminating: bool = False
    compression_type: int = 0
    metrics: Buffer = b""

    VERSIONS: ClassVar[Versions] = (0, 0)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("client_instance_id", "uuid", 0, 0),
        Field("subscription_id", "int32", 0, 0),
        Field("terminating", "bool", 0, 0),
        Field("compression_type", "int8", 0, 0),
        Field("metrics", "bytes", 0, 0),
    )


@dataclass(slots=True, kw_only=True)
class PushTelemetryResponse:
    throttle_time_ms: int = 0
    error_code: int = 0

    VERSIONS: ClassVar[Versions] = (0, 0)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 0),
        Field("error_code", "int16", 0, 0),
    )
