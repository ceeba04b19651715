"""DescribeUserScramCredentials (API key 50). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class UserName:
    name: str = ""

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 0, 0),
    )


@dataclass(slots=True, kw_only=True)
class DescribeUserScramCredentialsRequest:
    users: list[UserName] | None = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 0)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("users", "struct", 0, 0, array=True, nullable=(0, 0), nested=UserName),
    )


@dataclass(slots=True, kw_only=True)
class CredentialInfo:
    mechanism: int = 0
    iterations: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("mechanism", "int8", 0, 0),
        Field("iterations", "int32", 0, 0),
    )


@dataclass(slots=True, kw_only=True)
class DescribeUserScramCredentialsResult:
    user: str = ""
    error_code: int = 0
    error_message: str | None = ""
    credential_infos: list[CredentialInfo] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        Field("user", "string", 0, 0),
        Field("error_code", "int16", 0, 0),
        Field("error_message", "string", 0, 0, nullable=(0, 0)),
        Field("credential_infos", "struct", 0, 0, array=True, nested=CredentialInfo),
    )


@dataclass(slots=True, kw_only=True)
class DescribeUserScramCredentialsResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    results: list[DescribeUserScramCredentialsResult] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 0)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 0),
        Field("error_code", "int16", 0, 0),
        Field("error_message", "string", 0, 0, nullable=(0, 0)),
        Field("results", "struct", 0, 0, array=True, nested=DescribeUserScramCredentialsResult),
    )
