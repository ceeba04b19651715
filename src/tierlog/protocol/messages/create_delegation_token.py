"""CreateDelegationToken (API key 38). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Buffer, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class CreatableRenewers:
    principal_type: str = ""
    principal_name: str = ""

    FIELDS: ClassVar[Fields] = (
        Field("principal_type", "string", 1, 3),
        Field("principal_name", "string", 1, 3),
    )


@dataclass(slots=True, kw_only=True)
class CreateDelegationTokenRequest:
    owner_principal_type: str | None = ""
    owner_principal_name: str | None = ""
    renewers: list[CreatableRenewers] = field(default_factory=list)
    max_lifetime_ms: int = 0

    VERSIONS: ClassVar[Versions] = (1, 3)
    FLEXIBLE: ClassVar[int | None] = 2
    FIELDS: ClassVar[Fields] = (
        Field("owner_principal_type", "string", 3, 3, nullable=(3, 3)),
        Field("owner_principal_name", "string", 3, 3, nullable=(3, 3)),
        Field("renewers", "struct", 1, 3, array=True, nested=CreatableRenewers),
        Field("max_lifetime_ms", "int64", 1, 3),
    )


@dataclass(slots=True, kw_only=True)
class CreateDelegationTokenResponse:
    error_code: int = 0
    principal_type: str = ""
    principal_name: str = ""
    token_requester_principal_type: str = ""
    token_requester_principal_name: str = ""
    issue_timestamp_ms: int = 0
    expiry_timestamp_ms: int = 0
    max_timestamp_ms: int = 0
    token_id: str = ""
    hmac: Buffer = b""
    throttle_time_ms: int = 0

    VERSIONS: ClassVar[Versions] = (1, 3)
    FLEXIBLE: ClassVar[int | None] = 2
    FIELDS: ClassVar[Fields] = (
        Field("error_code", "int16", 1, 3),
        Field("principal_type", "string", 1, 3),
        Field("principal_name", "string", 1, 3),
        Field("token_requester_principal_type", "string", 3, 3),
        Field("token_requester_principal_name", "string", 3, 3),
        Field("issue_timestamp_ms", "int64", 1, 3),
        Field("expiry_timestamp_ms", "int64", 1, 3),
        Field("max_timestamp_ms", "int64", 1, 3),
        Field("token_id", "string", 1, 3),
        Field("hmac", "bytes", 1, 3),
        Field("throttle_time_ms", "int32", 1, 3),
    )
