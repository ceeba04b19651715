"""AddOffsetsToTxn (API key 25). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class AddOffsetsToTxnRequest:
    transactional_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    group_id: str = ""

    VERSIONS: ClassVar[Versions] = (0, 4)
    FLEXIBLE: ClassVar[int | None] = 3
    FIELDS: ClassVar[Fields] = (
        Field("transactional_id", "string", 0, 4),
        Field("producer_id", "int64", 0, 4),
        Field("producer_epoch", "int16", 0, 4),
        Field("group_id", "string", 0, 4),
    )


@dataclass(slots=True, kw_only=True)
class AddOffsetsToTxnResponse:
    throttle_time_ms: int = 0
    error_code: int = 0

    VERSIONS: ClassVar[Versions] = (0, 4)
    FLEXIBLE: ClassVar[int | None] = 3
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 4),
        Field("error_code", "int16", 0, 4),
    )
