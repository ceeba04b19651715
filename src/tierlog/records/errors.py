"""Faults of record bytes. Independent of the protocol; the broker maps a fault to Kafka's error code."""

from enum import Enum


class RecordsFault(Enum):
    CORRUPT = "corrupt"
    UNSUPPORTED_MAGIC = "unsupported magic"
    INVALID = "invalid"
    UNKNOWN_CODEC = "unknown codec"
    TOO_LARGE = "too large"


class RecordsError(Exception):
    """Bytes that violate the format; `fault` decides which error a client gets."""

    def __init__(self, fault: RecordsFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class MemoryLimitExceeded(RecordsError):
    """TOO_LARGE: a format that cannot be decompressed in pieces needs more bytes than allowed."""

    def __init__(self, message: str) -> None:
        super().__init__(RecordsFault.TOO_LARGE, message)
