"""SaslAuthenticate (API key 36). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass
from typing import ClassVar

from tierlog.protocol.schema import Buffer, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class SaslAuthenticateRequest:
    auth_bytes: Buffer = b""

    VERSIONS: ClassVar[Versions] = (0, 2)
    FLEXIBLE: ClassVar[int | None] = 2
    FIELDS: ClassVar[Fields] = (
        Field("auth_bytes", "bytes", 0, 2),
    )


@dataclass(slots=True, kw_only=True)
class SaslAuthenticateResponse:
    error_code: int = 0
    error_message: str | None = ""
    auth_bytes: Buffer = b""
    session_lifetime_ms: int = 0

    VERSIONS: ClassVar[Versions] = (0, 2)
    FLEXIBLE: ClassVar[int | None] = 2
    FIELDS: ClassVar[Fields] = (
        Field("error_code", "int16", 0, 2),
        Field("error_message", "string", 0, 2, nullable=(0, 2)),
        Field("auth_bytes", "bytes", 0, 2),
        Field("session_lifetime_ms", "int64", 1, 2),
    )
