"""What the leader checks of a produced batch beyond its CRC and header (ADR 0004).

Header rules hold for every batch. Of the records, a batch that is compressed, or will be, is walked whole,
any other for its first `WALKED_RECORDS`. Of topics whose rules need every record (compaction wants keys,
message.timestamp.before.max.ms wants timestamps) every field is looked at. What has to be looked at whole is
left to an `Examination`. Nothing here changes a byte.
"""

from enum import Enum

from tierlog.broker.partition.producers import Refused
from tierlog.broker.records.batch import CODEC_MASK, HEADER_SIZE, BatchHeader
from tierlog.broker.records.codecs import Codec
from tierlog.broker.records.errors import RecordsError, RecordsFault
from tierlog.broker.settings.topic import MAX_LONG, TopicConfig
from tierlog.broker.wire.errors import ErrorCode

WALKED_RECORDS = 8
"""Records of an uncompressed batch that are walked. A client that frames wrongly does so from its first
records on.
"""

LARGEST_RATIO = 8
"""Decompressed, a batch may be this many times max.message.bytes; beyond that it is taken for a bomb."""

LEAST_BOMB_BYTES = 8 * 1024 * 1024

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
    STRUCTURE = "the batch is decompressed and all its records are walked"
    EVERY_RECORD = "and all their fields"


def checks_for(header: BatchHeader, config: TopicConfig) -> RecordChecks:
    if "compact" in config.cleanup_policy or checks_age(config):
        return RecordChecks.EVERY_RECORD
    if header.attributes & CODEC_MASK or config.compression_type not in _PLAIN_STAYS_PLAIN:
        return RecordChecks.STRUCTURE
    return RecordChecks.FIRST_RECORDS


def stored_codec(header: BatchHeader, config: TopicConfig) -> Codec:
    """The codec that the topic wants the batch to have."""
    wanted = config.compression_type
    return header.codec if wanted == "producer" else _CODECS[wanted]


def judge_header(header: BatchHeader, config: TopicConfig, now_ms: int) -> Refused | None:
    """The topic's limits on size and timestamps, as far as the header tells."""
    if header.size > config.max_message_bytes:
        return Refused(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {header.size} bytes, max.message.bytes is {config.max_message_bytes}",
        )
    if config.message_timestamp_type == "CreateTime" and header.log_append_time:
        return Refused(ErrorCode.INVALID_TIMESTAMP, "clients must not send batches with log append time")
    if (
        config.message_timestamp_after_max_ms != MAX_LONG
        and config.message_timestamp_type == "CreateTime"
        and header.max_timestamp - now_ms > config.message_timestamp_after_max_ms
    ):
        return Refused(
            ErrorCode.INVALID_TIMESTAMP, f"timestamp {header.max_timestamp} is too far in the future"
        )
    return None


def judge_first_records(buffer: memoryview, header: BatchHeader) -> Refused | None:
    """`FIRST_RECORDS`, at once. The buffer holds exactly the batch."""
    try:
        walk_first_records(buffer, header)
    except RecordsError as error:
        return refusal(error)
    return None


def refusal(error: RecordsError) -> Refused:
    return Refused(FAULT_CODES[error.fault], str(error))


def decompressed_limit(config: TopicConfig) -> int:
    return max(LEAST_BOMB_BYTES, LARGEST_RATIO * config.max_message_bytes)


def walk_first_records(buffer: memoryview, header: BatchHeader) -> None:
    """Lengths and offset deltas of the first records; of all and the batch's end if there are no more.
    Raises INVALID.

    One flat loop: it runs for every uncompressed batch that is produced.
    """
    at, end = HEADER_SIZE, len(buffer)
    count = header.record_count
    if count * _LEAST_RECORD > end - at:
        raise RecordsError(RecordsFault.INVALID, f"{count} records in {end - at} bytes")
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
            while buffer[at] > 0x7F:  # the timestamp delta
                at += 1
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
    if at != end and count <= WALKED_RECORDS:
        raise RecordsError(RecordsFault.INVALID, f"{end - at} bytes follow the last of {count} records")


def checks_age(config: TopicConfig) -> bool:
    return (
        config.message_timestamp_before_max_ms != MAX_LONG and config.message_timestamp_type == "CreateTime"
    )
