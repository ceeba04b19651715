"""AlterUserScramCredentials (API key 51). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Buffer, Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class ScramCredentialDeletion:
    name: str = ""
    mechanism: int = 0

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 0, 0),
        Field("mechanism", "int8", 0, 0),
    )


@dataclass(slots=True, kw_only=True)
class ScramCredentialUpsertion:
    name: str = ""
    mechanism: int = 0
    iterations: int = 0
    salt: Buffer = b""
    salted_password: Buffer = b""

    FIELDS: ClassVar[Fields] = (
        Field("name", "string", 0, 0),
        Field("mechanism", "int8", 0, 0),
        Field("iterations", "int32", 0, 0),
        Field("salt", "bytes", 0, 0),
        Field("salted_password", "bytes", 0, 0),
    )


@dataclass(slots=True, kw_only=True)
class AlterUserScramCredentialsRequest:
    deletions: list[ScramCredentialDeletion] = field(default_factory=list)
    upsertions: list[ScramCredentialUpsertion] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 0)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("deletions", "struct", 0, 0, array=True, nested=ScramCredentialDeletion),
        Field("upsertions", "struct", 0, 0, array=True, nested=ScramCredentialUpsertion),
    )


@dataclass(slots=True, kw_only=True)
class AlterUserScramCredentialsResult:
    user: str = ""
    error_code: int = 0
    error_message: str | None = ""

    FIELDS: ClassVar[Fields] = (
        Field("user", "string", 0, 0),
        Field("error_code", "int16", 0, 0),
        Field("error_message", "string", 0, 0, nullable=(0, 0)),
    )


@dataclass(slots=True, kw_only=True)
class AlterUserScramCredentialsResponse:
    throttle_time_ms: int = 0
    results: list[AlterUserScramCredentialsResult] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 0)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 0),
        Field("results", "struct", 0, 0, array=True, nested=AlterUserScramCredentialsResult),
    )
