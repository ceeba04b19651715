"""What can be wrong with record bytes. Wire-independent; the runtime maps a fault to Kafka's error code."""

from enum import Enum


class RecordsFault(Enum):
    CORRUPT = "corrupt"
    UNSUPPORTED_MAGIC = "unsupported magic"
    INVALID = "invalid"
    UNKNOWN_CODEC = "unknown codec"
    TOO_LARGE = "too large"


class RecordsError(Exception):
    """Bytes that are not what the format says; `fault` decides what a client is told."""

    def __init__(self, fault: RecordsFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class HeldWhole(RecordsError):
    """TOO_LARGE: more bytes than were allowed, of a format that cannot be decompressed in pieces."""

    def __init__(self, message: str) -> None:
        super().__init__(RecordsFault.TOO_LARGE, message)
