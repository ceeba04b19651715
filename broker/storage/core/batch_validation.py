"""Rules that the leader applies to a produced batch beyond its CRC and header (ADR 0004).

Header rules apply to every batch. All records are walked if the batch is compressed or will be stored
compressed, if the header's timestamps are implausible, or if a topic setting applies to each record. In any
other batch only the first `WALKED_RECORDS` are walked. Where records are walked, their timestamps are
authoritative, as in Kafka, and the header's maximum timestamp is corrected.

Nothing here changes a byte; `record_validation.py` does.
"""

from enum import Enum

from tierlog.broker.storage.core.producer_state import InvalidRecord, Rejection
from tierlog.config.topic import DEFAULT_TIMESTAMP_AFTER_MAX_MS, MAX_LONG, TopicConfig
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import (
    CODEC_MASK,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    BatchHeader,
)
from tierlog.records.codecs import Codec
from tierlog.records.errors import RecordsError, RecordsFault
from tierlog.records.unpacking import MEMORY_BYTES_MAX
from tierlog.records.walk import BAD_RECORDS_REPORTED

WALKED_RECORDS = 8
"""Number of records walked in an uncompressed batch. A client that frames records wrongly does so from the
first record.
"""

PLAUSIBLE_AGE_MS = 60_000
PLAUSIBLE_LEAD_MS = 60_000
"""A header's maximum timestamp is trusted without a walk if it is at most this much older or newer than the
broker's clock. Retention deletes a record with a wrong timestamp early or late by at most this much.
"""

PLAUSIBLE_RETENTION_FRACTION = 10
"""The age of a trusted timestamp is at most one part in this many of the topic's shortest time retention."""

MIN_DECOMPRESSED_LIMIT = 32 * 1024 * 1024
"""Any batch may decompress to this size, however small it is: real records are sometimes very repetitive."""

MAX_COMPRESSION_RATIO = 32
"""Above MIN_DECOMPRESSED_LIMIT, a batch may decompress to this many times its size, or to max.message.bytes.
The limit bounds CPU time against batches that claim gigabytes; the decompressed bytes are never all in
memory.
"""

_BROKER_ATTRIBUTES = LOG_APPEND_TIME | DELETE_HORIZON
"""Attributes that only a broker may set. They are cleared from client batches: with a delete horizon set by a
client, the cleaner would drop tombstones before delete.retention.ms. Unknown bits are kept, as in Kafka.
"""

_CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
"""Values of compression.type, without `producer`."""

_PLAIN_STAYS_PLAIN = ("producer", "uncompressed")

_LEAST_RECORD = 7  # length, attributes, two deltas, key length, value length, header count

FAULT_CODES = {
    RecordsFault.CORRUPT: ErrorCode.CORRUPT_MESSAGE,
    RecordsFault.UNSUPPORTED_MAGIC: ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    RecordsFault.INVALID: ErrorCode.INVALID_RECORD,
    RecordsFault.UNKNOWN_CODEC: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    RecordsFault.TOO_LARGE: ErrorCode.MESSAGE_TOO_LARGE,
}


class RecordChecks(Enum):
    """How many of a batch's records are validated before the append."""

    FIRST_RECORDS = "walk the first records"
    STRUCTURE = "decompress the batch and walk all records"
    EVERY_RECORD = "also validate all fields of each record"


def required_checks(header: BatchHeader, config: TopicConfig, now_ms: int) -> RecordChecks:
    if "compact" in config.cleanup_policy or checks_age(config):
        return RecordChecks.EVERY_RECORD
    if (
        header.attributes & (CODEC_MASK | _BROKER_ATTRIBUTES)
        or config.compression_type not in _PLAIN_STAYS_PLAIN
        or not (config.message_timestamp_type == "LogAppendTime" or _is_plausible(header, config, now_ms))
    ):
        return RecordChecks.STRUCTURE
    return RecordChecks.FIRST_RECORDS


def _is_plausible(header: BatchHeader, config: TopicConfig, now_ms: int) -> bool:
    """Whether the header's timestamps can be trusted without reading the records (ADR 0004)."""
    age = now_ms - header.max_timestamp
    return (
        0 <= header.base_timestamp <= header.max_timestamp
        and -PLAUSIBLE_LEAD_MS <= age <= PLAUSIBLE_AGE_MS
        and not 0 <= config.retention_ms < PLAUSIBLE_RETENTION_FRACTION * age
        and not 0 <= config.local_retention_ms < PLAUSIBLE_RETENTION_FRACTION * age
        and config.message_timestamp_after_max_ms == DEFAULT_TIMESTAMP_AFTER_MAX_MS
    )


def stored_codec(header: BatchHeader, config: TopicConfig) -> Codec:
    """The codec in which the topic stores the batch."""
    wanted = config.compression_type
    return header.codec if wanted == "producer" else _CODECS[wanted]


def validate_header(header: BatchHeader, config: TopicConfig) -> Rejection | None:
    """Apply the topic's limits that can be checked from the header alone."""
    if header.size > config.max_message_bytes:
        return Rejection(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {header.size} bytes, max.message.bytes is {config.max_message_bytes}",
        )
    if config.message_timestamp_type == "LogAppendTime" and header.log_append_time:
        invalid = tuple(
            InvalidRecord(number, "the batch has log append time, which only brokers set")
            for number in range(min(header.record_count, BAD_RECORDS_REPORTED))
        )
        return Rejection(ErrorCode.INVALID_TIMESTAMP, "clients must not send log append time", invalid)
    return None


def newest_allowed(config: TopicConfig, now_ms: int) -> int:
    """The largest timestamp a record may have (message.timestamp.after.max.ms)."""
    if config.message_timestamp_type == "LogAppendTime":
        return MAX_LONG
    return min(now_ms + config.message_timestamp_after_max_ms, MAX_LONG)


def oldest_allowed(config: TopicConfig, now_ms: int) -> int:
    return now_ms - config.message_timestamp_before_max_ms if checks_age(config) else -MAX_LONG


def kept_attributes(header: BatchHeader) -> int:
    """The attributes of a client's batch as stored."""
    return header.attributes & ~_BROKER_ATTRIBUTES


def refusal(error: RecordsError) -> Rejection:
    return Rejection(FAULT_CODES[error.fault], str(error))


def decompressed_limit(header: BatchHeader, config: TopicConfig) -> int:
    """Maximum decompressed size of a batch's records, for all codecs."""
    return MIN_DECOMPRESSED_LIMIT + max(MAX_COMPRESSION_RATIO * header.size, config.max_message_bytes)


def memory_limit(header: BatchHeader, config: TopicConfig) -> int:
    """Maximum decompressed bytes in memory at once, for a codec that cannot work in pieces, while no other
    batch does the same.
    """
    return MIN_DECOMPRESSED_LIMIT + max(header.size, config.max_message_bytes)


def require_plausible_count(header: BatchHeader, config: TopicConfig) -> None:
    """Raise TOO_LARGE if the record count is higher than the size limit allows for the smallest possible
    records. Walking a record costs more than decompressing its bytes.
    """
    most = MEMORY_BYTES_MAX + decompressed_limit(header, config) - MIN_DECOMPRESSED_LIMIT
    if header.record_count * _LEAST_RECORD > most:
        message = f"{header.record_count} records in a batch of {header.size} bytes"
        raise RecordsError(RecordsFault.TOO_LARGE, message)


def first_records_are_consistent(buffer: memoryview, header: BatchHeader) -> bool:
    """Check lengths and offset deltas of the first records (`FIRST_RECORDS`). If these are all records, also
    check the end of the batch.

    Returns False if a timestamp is above the header's maximum, or if all records were read and none has it:
    then the whole batch must be walked. Raises INVALID. The buffer holds exactly the batch.

    One flat loop, since it runs for every uncompressed batch that is produced.
    """
    at, end = HEADER_SIZE, len(buffer)
    count = header.record_count
    if count * _LEAST_RECORD > end - at:
        raise RecordsError(RecordsFault.INVALID, f"{count} records in {end - at} bytes")
    most = header.max_timestamp - header.base_timestamp << 1
    largest = -1
    try:
        for expected in range(min(count, WALKED_RECORDS)):
            length = byte = buffer[at]
            at += 1
            if byte > 0x7F:
                length &= 0x7F
                shift = 7
                while byte > 0x7F:
                    byte = buffer[at]
                    at += 1
                    length |= (byte & 0x7F) << shift
                    shift += 7
                    if shift > 35:
                        raise RecordsError(RecordsFault.INVALID, "an over-long varint")
            stop = at + (length >> 1)
            if length & 1 or stop > end:
                raise RecordsError(RecordsFault.INVALID, f"record {expected} ends outside the batch")
            at += 1  # attributes, unused
            newer = byte = buffer[at]
            if byte > 0x7F:
                newer, shift = byte & 0x7F, 7
                while byte > 0x7F:
                    at += 1
                    byte = buffer[at]
                    newer |= (byte & 0x7F) << shift
                    shift += 7
                    if shift > 70:
                        raise RecordsError(RecordsFault.INVALID, "an over-long varint")
            if not newer & 1 and newer > largest:
                largest = newer
            delta = buffer[at + 1]
            if delta > 0x7F:
                delta = delta & 0x7F | (buffer[at + 2] & 0x7F) << 7
            if delta != expected << 1 or at + 1 >= stop:
                raise RecordsError(
                    RecordsFault.INVALID, f"record {expected} of the batch has another offset delta"
                )
            at = stop
    except IndexError:
        raise RecordsError(RecordsFault.INVALID, "a record ends outside the batch") from None
    if count > WALKED_RECORDS:
        return largest <= most
    if at != end:
        raise RecordsError(RecordsFault.INVALID, f"{end - at} bytes follow the last of {count} records")
    return largest == most


def checks_age(config: TopicConfig) -> bool:
    return (
        config.message_timestamp_before_max_ms != MAX_LONG and config.message_timestamp_type == "CreateTime"
    )
