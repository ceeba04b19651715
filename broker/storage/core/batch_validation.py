"""What the leader checks of a produced batch beyond its CRC and header (ADR 0004).

Header rules hold for every batch. The records of a batch are walked whole if it is compressed or will be, if
its header's timestamps are not plausible, or if a setting of the topic speaks of each record; any other batch
is walked for its first `WALKED_RECORDS`. Wherever records are walked their timestamps are what counts, as in
Kafka, and the header's maximum is corrected. Nothing here changes a byte; `examination.py` does.
"""

from enum import Enum

from tierlog.broker.storage.core.producer_state import BadRecord, Refused
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
from tierlog.records.unpacking import WHOLE_BYTES
from tierlog.records.walk import BAD_RECORDS_TOLD

WALKED_RECORDS = 8
"""Records of an uncompressed batch that are walked. A client that frames wrongly does so from its first
records on.
"""

PLAUSIBLE_AGE_MS = 60_000
PLAUSIBLE_LEAD_MS = 60_000
"""A header's maximum timestamp is believed without a walk if it is at most so much older or newer than the
broker's clock. Retention deletes a record that it belies early, or keeps it longer, by that much at the most.
"""

PLAUSIBLE_SHARE = 10
"""Nor may it be older than one part in so many of the shortest time retention of the topic."""

FREE_BYTES = 32 * 1024 * 1024
"""What any batch may decompress to, however small it is: real records are sometimes very repetitive."""

LARGEST_RATIO = 32
"""Beyond that a batch may be so many times as large as it was sent, or as large as an uncompressed one may be
(max.message.bytes). Nothing holds all of it at once: the bound is one on CPU time, against batches that claim
gigabytes.
"""

_BROKERS_BITS = LOG_APPEND_TIME | DELETE_HORIZON
"""Attributes that say what a broker did. A client's batch loses them: with a delete horizon of its own the
cleaner would drop tombstones before delete.retention.ms. Bits that nobody knows are kept, as in Kafka.
"""

_CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
"""compression.type, but for `producer`."""

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
    """How much of a batch's records is looked at before it is written."""

    FIRST_RECORDS = "the first records are walked"
    STRUCTURE = "the batch is decompressed, and all its records are walked"
    EVERY_RECORD = "and all their fields"


def checks_for(header: BatchHeader, config: TopicConfig, now_ms: int) -> RecordChecks:
    if "compact" in config.cleanup_policy or checks_age(config):
        return RecordChecks.EVERY_RECORD
    if (
        header.attributes & (CODEC_MASK | _BROKERS_BITS)
        or config.compression_type not in _PLAIN_STAYS_PLAIN
        or not (config.message_timestamp_type == "LogAppendTime" or _is_plausible(header, config, now_ms))
    ):
        return RecordChecks.STRUCTURE
    return RecordChecks.FIRST_RECORDS


def _is_plausible(header: BatchHeader, config: TopicConfig, now_ms: int) -> bool:
    """Whether the header's timestamps may be believed without a look at the records (ADR 0004)."""
    age = now_ms - header.max_timestamp
    return (
        0 <= header.base_timestamp <= header.max_timestamp
        and -PLAUSIBLE_LEAD_MS <= age <= PLAUSIBLE_AGE_MS
        and not 0 <= config.retention_ms < PLAUSIBLE_SHARE * age
        and not 0 <= config.local_retention_ms < PLAUSIBLE_SHARE * age
        and config.message_timestamp_after_max_ms == DEFAULT_TIMESTAMP_AFTER_MAX_MS
    )


def stored_codec(header: BatchHeader, config: TopicConfig) -> Codec:
    """The codec that the topic wants the batch to have."""
    wanted = config.compression_type
    return header.codec if wanted == "producer" else _CODECS[wanted]


def judge_header(header: BatchHeader, config: TopicConfig) -> Refused | None:
    """The topic's limits, as far as the header tells."""
    if header.size > config.max_message_bytes:
        return Refused(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {header.size} bytes, max.message.bytes is {config.max_message_bytes}",
        )
    if config.message_timestamp_type == "LogAppendTime" and header.log_append_time:
        told = tuple(
            BadRecord(number, "the batch has log append time, which only brokers give")
            for number in range(min(header.record_count, BAD_RECORDS_TOLD))
        )
        return Refused(ErrorCode.INVALID_TIMESTAMP, "clients must not send log append time", told)
    return None


def newest_allowed(config: TopicConfig, now_ms: int) -> int:
    """The largest timestamp that a record may have (message.timestamp.after.max.ms)."""
    if config.message_timestamp_type == "LogAppendTime":
        return MAX_LONG
    return min(now_ms + config.message_timestamp_after_max_ms, MAX_LONG)


def oldest_allowed(config: TopicConfig, now_ms: int) -> int:
    return now_ms - config.message_timestamp_before_max_ms if checks_age(config) else -MAX_LONG


def kept_attributes(header: BatchHeader) -> int:
    """The attributes of a client's batch as they are stored."""
    return header.attributes & ~_BROKERS_BITS


def refusal(error: RecordsError) -> Refused:
    return Refused(FAULT_CODES[error.fault], str(error))


def decompressed_limit(header: BatchHeader, config: TopicConfig) -> int:
    """How many bytes the records of a batch may have; one bound for all codecs."""
    return FREE_BYTES + max(LARGEST_RATIO * header.size, config.max_message_bytes)


def whole_limit(header: BatchHeader, config: TopicConfig) -> int:
    """How many of them may be in memory at once, if the codec leaves no choice and no other batch does so."""
    return FREE_BYTES + max(header.size, config.max_message_bytes)


def require_plausible_count(header: BatchHeader, config: TopicConfig) -> None:
    """Raises TOO_LARGE for more records than the smallest ones of WHOLE_BYTES, or of the limit beyond
    FREE_BYTES, are: the walk costs more for each record than the codec does for its bytes.
    """
    most = WHOLE_BYTES + decompressed_limit(header, config) - FREE_BYTES
    if header.record_count * _LEAST_RECORD > most:
        message = f"{header.record_count} records in a batch of {header.size} bytes"
        raise RecordsError(RecordsFault.TOO_LARGE, message)


def first_records_agree(buffer: memoryview, header: BatchHeader) -> bool:
    """`FIRST_RECORDS`: lengths and offset deltas of the first records; of all and the batch's end if there
    are no more. Raises INVALID. False if a timestamp is above the header's maximum, or they are all and none
    has it: then the records are walked whole. The buffer holds exactly the batch.

    One flat loop: it runs for every uncompressed batch that is produced.
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
