"""DescribeDelegationToken (API key 41). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Buffer, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class DescribeDelegationTokenOwner:
    principal_type: str = ""
    principal_name: str = ""

    FIELDS: ClassVar[Fields] = (
        Field("principal_type", "string", 1, 3),
        Field("principal_name", "string", 1, 3),
    )


@dataclass(slots=True, kw_only=True)
class DescribeDelegationTokenRequest:
    owners: list[DescribeDelegationTokenOwner] | None = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (1, 3)
    FLEXIBLE: ClassVar[int | None] = 2
    FIELDS: ClassVar[Fields] = (
        Field("owners", "struct", 1, 3, array=True, nullable=(1, 3), nested=DescribeDelegationTokenOwner),
    )


@dataclass(slots=True, kw_only=True)
class DescribedDelegationTokenRenewer:
    principal_type: str = ""
    principal_name: str = ""

    FIELDS: ClassVar[Fields] = (
        Field("principal_type", "string", 1, 3),
        Field("principal_name", "string", 1, 3),
    )


@dataclass(slots=True, kw_only=True)
class DescribedDelegationToken:
    principal_type: str = ""
    principal_name: str = ""
    token_requester_principal_type: str = ""
    token_requester_principal_name: str = ""
    issue_timestamp: int = 0
    expiry_timestamp: int = 0
    max_timestamp: int = 0
    token_id: str = ""
    hmac: Buffer = b""
    renewers: list[DescribedDelegationTokenRenewer] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("principal_type", "string", 1, 3),
        Field("principal_name", "string", 1, 3),
        Field("token_requester_principal_type", "string", 3, 3),
        Field("token_requester_principal_name", "string", 3, 3),
        Field("issue_timestamp", "int64", 1, 3),
        Field("expiry_timestamp", "int64", 1, 3),
        Field("max_timestamp", "int64", 1, 3),
        Field("token_id", "string", 1, 3),
        Field("hmac", "bytes", 1, 3),
        Field("renewers", "struct", 1, 3, array=True, nested=DescribedDelegationTokenRenewer),
    )


@dataclass(slots=True, kw_only=True)
class DescribeDelegationTokenResponse:
    error_code: int = 0
    tokens: list[DescribedDelegationToken] = field(default_factory=list)
    throttle_time_ms: int = 0

    VERSIONS: ClassVar[Versions] = (1, 3)
    FLEXIBLE: ClassVar[int | None] = 2
    FIELDS: ClassVar[Fields] = (
        Field("error_code", "int16", 1, 3),
        Field("tokens", "struct", 1, 3, array=True, nested=DescribedDelegationToken),
        Field("throttle_time_ms", "int32", 1, 3),
    )
