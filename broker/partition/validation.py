"""What the leader checks of a produced batch beyond its CRC and header (ADR 0004).

Header rules hold for every batch. Of the records, a compressed batch is decompressed and walked whole, an
uncompressed one is walked for its first `WALKED_RECORDS`. Topics whose rules need every record (compaction
wants keys, message.timestamp.before.max.ms wants timestamps) have every record decoded. Nothing here
changes a byte.
"""

from enum import Enum

from tierlog.broker.partition.producers import BadRecord, Refused
from tierlog.broker.ports.types import NO_TIMESTAMP
from tierlog.broker.records.batch import CODEC_MASK, HEADER_SIZE, BatchHeader
from tierlog.broker.records.errors import RecordsError, RecordsFault
from tierlog.broker.records.record import count_check, iter_records
from tierlog.broker.settings.topic import MAX_LONG, TopicConfig
from tierlog.broker.wire.errors import ErrorCode

WALKED_RECORDS = 8
"""Records of an uncompressed batch that are walked. A client that frames wrongly does so from its first
records on.
"""

LARGEST_RATIO = 8
"""Decompressed, a batch may be this many times max.message.bytes; beyond that it is taken for a bomb."""

LEAST_BOMB_BYTES = 8 * 1024 * 1024

BAD_RECORDS_TOLD = 100
"""Bad records of one batch that are told apart; a client takes the others for good ones in bad company."""

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
    EVERY_RECORD = "every record is decoded"


def checks_for(header: BatchHeader, config: TopicConfig) -> RecordChecks:
    if "compact" in config.cleanup_policy or _checks_age(config):
        return RecordChecks.EVERY_RECORD
    return RecordChecks.STRUCTURE if header.attributes & CODEC_MASK else RecordChecks.FIRST_RECORDS


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


def judge_records(
    buffer: memoryview, header: BatchHeader, config: TopicConfig, now_ms: int
) -> Refused | None:
    """Looks at the records as far as `checks_for` says. The buffer holds exactly the batch."""
    try:
        match checks_for(header, config):
            case RecordChecks.FIRST_RECORDS:
                walk_first_records(buffer, header)
            case RecordChecks.STRUCTURE:
                count_check(buffer, max_bytes=decompressed_limit(config))
            case RecordChecks.EVERY_RECORD:
                count_check(buffer, max_bytes=decompressed_limit(config))
                return _judge_every_record(buffer, config, now_ms)
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


def _judge_every_record(buffer: memoryview, config: TopicConfig, now_ms: int) -> Refused | None:
    needs_key = "compact" in config.cleanup_policy
    oldest = now_ms - config.message_timestamp_before_max_ms if _checks_age(config) else None
    error, bad = ErrorCode.NONE, list[BadRecord]()
    for number, record in enumerate(iter_records(buffer, max_bytes=decompressed_limit(config))):
        if needs_key and record.key is None:
            code, message = ErrorCode.INVALID_RECORD, "a compacted topic needs a key in every record"
        elif oldest is not None and record.timestamp != NO_TIMESTAMP and record.timestamp < oldest:
            code, message = (
                ErrorCode.INVALID_TIMESTAMP,
                f"timestamp {record.timestamp} is too far in the past",
            )
        else:
            continue
        error = error or code
        bad.append(BadRecord(number, message))
        if len(bad) == BAD_RECORDS_TOLD:
            break
    return Refused(error, bad[0].message, tuple(bad)) if bad else None


def _checks_age(config: TopicConfig) -> bool:
    return (
        config.message_timestamp_before_max_ms != MAX_LONG and config.message_timestamp_type == "CreateTime"
    )
