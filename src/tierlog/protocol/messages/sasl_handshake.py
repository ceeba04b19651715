"""SaslHandshake (API key 17). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class SaslHandshakeRequest:
    mechanism: str = ""

    VERSIONS: ClassVar[Versions] = (0, 1)
    FLEXIBLE: ClassVar[int | None] = None
    FIELDS: ClassVar[Fields] = (
        Field("mechanism", "string", 0, 1),
    )


@dataclass(slots=True, kw_only=True)
class SaslHandshakeResponse:
    error_code: int = 0
    mechanisms: list[str] = field(default_factory=list)

    VERSIONS: ClassVar[Versions] = (0, 1)
    FLEXIBLE: ClassVar[int | None] = None
    FIELDS: ClassVar[Fields] = (
        Field("error_code", "int16", 0, 1),
        Field("mechanisms", "string", 0, 1, array=True),
    )
