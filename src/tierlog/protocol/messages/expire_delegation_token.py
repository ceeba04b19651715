"""ExpireDelegationToken (API key 40). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass
from typing import ClassVar

from tierlog.protocol.schema import Buffer, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class ExpireDelegationTokenRequest:
    hmac: Buffer = b""
    expiry_time_period_ms: int = 0

    VERSIONS: ClassVar[Versions] = (1, 2)
    FLEXIBLE: ClassVar[int | None] = 2
    FIELDS: ClassVar[Fields] = (
        Field("hmac", "bytes", 1, 2),
        Field("expiry_time_period_ms", "int64", 1, 2),
    )


@dataclass(slots=True, kw_only=True)
class ExpireDelegationTokenResponse:
    error_code: int = 0
    expiry_timestamp_ms: int = 0
    throttle_time_ms: int = 0

    VERSIONS: ClassVar[Versions] = (1, 2)
    FLEXIBLE: ClassVar[int | None] = 2
    FIELDS: ClassVar[Fields] = (
        Field("error_code", "int16", 1, 2),
        Field("expiry_timestamp_ms", "int64", 1, 2),
        Field("throttle_time_ms", "int32", 1, 2),
    )
