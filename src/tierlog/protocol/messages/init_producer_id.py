"""InitProducerId (API key 22). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class InitProducerIdRequest:
    transactional_id: str | None = ""
    transaction_timeout_ms: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    enable2_pc: bool = False
    keep_prepared_txn: bool = False

    VERSIONS: ClassVar[Versions] = (0, 6)
    FLEXIBLE: ClassVar[int | None] = 2
    FIELDS: ClassVar[Fields] = (
        Field("transactional_id", "string", 0, 6, nullable=(0, 6)),
        Field("transaction_timeout_ms", "int32", 0, 6),
        Field("producer_id", "int64", 3, 6),
        Field("producer_epoch", "int16", 3, 6),
        Field("enable2_pc", "bool", 6, 6),
        Field("keep_prepared_txn", "bool", 6, 6),
    )


@dataclass(slots=True, kw_only=True)
class InitProducerIdResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    producer_id: int = -1
    producer_epoch: int = 0
    ongoing_txn_producer_id: int = -1
    ongoing_txn_producer_epoch: int = -1

    VERSIONS: ClassVar[Versions] = (0, 6)
    FLEXIBLE: ClassVar[int | None] = 2
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 6),
        Field("error_code", "int16", 0, 6),
        Field("producer_id", "int64", 0, 6),
        Field("producer_epoch", "int16", 0, 6),
        Field("ongoing_txn_producer_id", "int64", 6, 6),
        Field("ongoing_txn_producer_epoch", "int16", 6, 6),
    )
