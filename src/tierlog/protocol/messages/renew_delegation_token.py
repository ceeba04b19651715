"""RenewDelegationToken (API key 39). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass
from typing import ClassVar

from tierlog.protocol.schema import Buffer, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class RenewDelegationTokenRequest:
    hmac: Buffer = b""
    renew_period_ms: int = 0

    VERSIONS: ClassVar[Versions] = (1, 2)
    FLEXIBLE: ClassVar[int | None] = 2
    FIELDS: ClassVar[Fields] = (
        Field("hmac", "bytes", 1, 2),
        Field("renew_period_ms", "int64", 1, 2),
    )


@dataclass(slots=True, kw_only=True)
class RenewDelegationTokenResponse:
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
