"""UnregisterBroker (API key 64). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class UnregisterBrokerRequest:
    broker_id: int = 0

    VERSIONS: ClassVar[Versions] = (0, 0)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("broker_id", "int32", 0, 0),
    )


@dataclass(slots=True, kw_only=True)
class UnregisterBrokerResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""

    VERSIONS: ClassVar[Versions] = (0, 0)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 0),
        Field("error_code", "int16", 0, 0),
        Field("error_message", "string", 0, 0, nullable=(0, 0)),
    )
