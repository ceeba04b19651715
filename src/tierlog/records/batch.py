"""Record batch header (format v2, KIP-98): a view over a buffer, validation, and changes in place.

The CRC-32C covers everything from the attributes on, so base offset and leader epoch are assigned without
recomputing it, and a batch is appended as the client sent it. No record is decoded here. Called by the log
for every batch that is produced, fetched or recovered, and by tiering and Spark. The layout is in KIP-98,
"Message Format"; records are in `record.py`.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from tierlog.records.codecs import Codec
from tierlog.records.errors import RecordsError, RecordsFault

Buffer = bytes | bytearray | memoryview

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size  # 61
LOG_OVERHEAD = 12  # base offset and length, which the length does not include
MAGIC = 2
_MAGIC_AT, _CRC_AT, ATTRIBUTES_AT, _MAX_TIMESTAMP_AT = 16, 17, 21, 35
CRC_FROM = ATTRIBUTES_AT
"""The CRC covers a batch from here on."""
_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_LENGTH = struct.Struct(">i")

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
"""The base timestamp is the delete horizon: the time after which compaction may remove tombstones (KIP-534).
"""


LOCKED_BYTES = 512 << 10
"""The CRC of a batch up to this size is computed with the interpreter lock held, which takes 25 µs. To give
the lock away and to get it back takes longer if other threads want it."""

KNOWN_ATTRIBUTES = 0x7F
"""As in Kafka, rewriting a header clears all other attributes."""


class BatchHeader(NamedTuple):
    """The 61 bytes before the records, with Kafka's names; timestamps in milliseconds."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """Raises UNKNOWN_CODEC for the three unused values."""
        number = self.attributes & CODEC_MASK
        if number > Codec.ZSTD:
            raise RecordsError(RecordsFault.UNKNOWN_CODEC, f"compression codec {number} does not exist")
        return Codec(number)

    @property
    def log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When tombstones and obsolete markers may be removed; None: not set by the cleaner yet (KIP-534)."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None

    @property
    def first_timestamp(self) -> int:
        """Timestamp of the first record; -1 if compaction removed all records. If the header does not have it
        (LogAppendTime, or a delete horizon in its place), the maximum timestamp.
        """
        if self.attributes & (LOG_APPEND_TIME | DELETE_HORIZON) and self.record_count:
            return self.max_timestamp
        return min(self.base_timestamp, self.max_timestamp)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)


def read_header(buffer: Buffer, at: int = 0) -> BatchHeader:
    """The header at a position, not validated. Raises CORRUPT if the buffer ends inside it."""
    try:
        return BatchHeader._make(HEADER.unpack_from(buffer, at))
    except struct.error:
        raise RecordsError(
            RecordsFault.CORRUPT, f"{len(buffer) - at} bytes cannot hold a batch header"
        ) from None


def check_batch(buffer: Buffer, at: int = 0, end: int | None = None) -> BatchHeader:
    """The header of the batch at a position, with length, magic, CRC and counts validated.

    Holds for every batch of a log, including compacted ones. Bytes after the batch are ignored. Raises
    CORRUPT, UNSUPPORTED_MAGIC (0 and 1), INVALID.
    """
    limit = len(buffer) if end is None else end
    if limit - at <= _MAGIC_AT:
        raise RecordsError(RecordsFault.CORRUPT, f"{limit - at} bytes cannot hold a record batch")
    magic = buffer[at + _MAGIC_AT]
    if magic != MAGIC:
        fault = RecordsFault.UNSUPPORTED_MAGIC if magic in (0, 1) else RecordsFault.INVALID
        raise RecordsError(fault, f"message format {magic} is not supported, only {MAGIC}")
    if limit - at < HEADER_SIZE:
        raise RecordsError(RecordsFault.CORRUPT, f"{limit - at} bytes cannot hold a record batch")
    header = BatchHeader._make(HEADER.unpack_from(buffer, at))
    stop = at + header.batch_length + LOG_OVERHEAD
    if header.batch_length < HEADER_SIZE - LOG_OVERHEAD or stop > limit:
        raise RecordsError(
            RecordsFault.CORRUPT, f"batch length {header.batch_length} with {limit - at} bytes at hand"
        )
    crc = crc32c(memoryview(buffer)[at + ATTRIBUTES_AT : stop], 0, 0 if stop - at <= LOCKED_BYTES else -1)
    if crc != header.crc:
        raise RecordsError(RecordsFault.CORRUPT, f"CRC-32C is {crc:08x}, the batch says {header.crc:08x}")
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        raise RecordsError(
            RecordsFault.INVALID,
            f"{header.record_count} records cannot have a last offset delta of {header.last_offset_delta}",
        )
    return header


def check_produced(buffer: Buffer, at: int = 0, end: int | None = None) -> BatchHeader:
    """`check_batch`, and the rules for a batch from a client, which must be the only one in [at, end).

    As Kafka's LogValidator: base offset 0, gapless offsets, at least one record, no control batch, a sequence
    if there is a producer id. Also raises UNKNOWN_CODEC and INVALID.
    """
    limit = len(buffer) if end is None else end
    if limit - at <= _MAGIC_AT:
        raise RecordsError(
            RecordsFault.INVALID, f"{limit - at} bytes are no batch; one per partition is needed"
        )
    header = check_batch(buffer, at, limit)
    if header.base_offset != 0:
        raise RecordsError(RecordsFault.INVALID, f"base offset {header.base_offset}: a client's must be 0")
    if header.record_count == 0 or header.record_count != header.last_offset_delta + 1:
        raise RecordsError(
            RecordsFault.INVALID,
            f"{header.record_count} records with a last offset delta of {header.last_offset_delta}",
        )
    if header.is_control:
        raise RecordsError(RecordsFault.INVALID, "clients must not write control batches")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise RecordsError(RecordsFault.INVALID, "a producer id needs an epoch and a sequence")
    if header.is_transactional and header.producer_id < 0:
        raise RecordsError(RecordsFault.INVALID, "a transactional batch needs a producer id")
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        raise RecordsError(
            RecordsFault.UNKNOWN_CODEC, f"codec {header.attributes & CODEC_MASK} does not exist"
        )
    if at + header.size < limit:
        _refuse_rest(buffer, at + header.size, limit)
    return header


def assign(buffer: bytearray | memoryview, at: int, base_offset: int, leader_epoch: int) -> None:
    """Write base offset and leader epoch in place; the CRC does not cover them."""
    _OFFSET.pack_into(buffer, at, base_offset)
    _EPOCH.pack_into(buffer, at + LOG_OVERHEAD, leader_epoch)


def set_log_append_time(buffer: bytearray | memoryview, at: int, now_ms: int) -> None:
    """Give every record of the batch the broker's time (message.timestamp.type=LogAppendTime).

    The CRC covers attributes and maximum timestamp, so it is recomputed over the whole batch.
    """
    header = read_header(buffer, at)
    _ATTRIBUTES.pack_into(buffer, at + ATTRIBUTES_AT, header.attributes & KNOWN_ATTRIBUTES | LOG_APPEND_TIME)
    _OFFSET.pack_into(buffer, at + _MAX_TIMESTAMP_AT, now_ms)
    seal(buffer, at, at + header.size)


def correct_header(buffer: bytearray | memoryview, at: int, wanted: BatchHeader) -> None:
    """Write attributes and maximum timestamp in place, and the CRC."""
    _ATTRIBUTES.pack_into(buffer, at + ATTRIBUTES_AT, wanted.attributes & KNOWN_ATTRIBUTES)
    _OFFSET.pack_into(buffer, at + _MAX_TIMESTAMP_AT, wanted.max_timestamp)
    seal(buffer, at, at + wanted.size)


def seal(buffer: bytearray | memoryview, at: int, end: int) -> None:
    """Compute the CRC of the batch in [at, end) and write it into the header."""
    _CRC.pack_into(buffer, at + _CRC_AT, crc32c(memoryview(buffer)[at + ATTRIBUTES_AT : end]))


def iter_batches(buffer: Buffer, at: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """Position and unvalidated header of each complete batch; stops at an incomplete one. A bad length raises
    CORRUPT.
    """
    limit = len(buffer) if end is None else end
    while limit - at >= HEADER_SIZE:
        header = BatchHeader._make(HEADER.unpack_from(buffer, at))
        if header.batch_length < HEADER_SIZE - LOG_OVERHEAD:
            raise RecordsError(RecordsFault.CORRUPT, f"batch length {header.batch_length} at position {at}")
        if at + header.size > limit:
            return
        yield at, header
        at += header.size


def _refuse_rest(buffer: Buffer, at: int, limit: int) -> None:
    """Bytes after the first batch are a second batch (INVALID) or no batch (CORRUPT)."""
    if limit - at >= LOG_OVERHEAD and _LENGTH.unpack_from(buffer, at + 8)[0] == limit - at - LOG_OVERHEAD:
        raise RecordsError(RecordsFault.INVALID, "a produce request carries one batch per partition")
    if limit - at >= HEADER_SIZE and buffer[at + _MAGIC_AT] == MAGIC:
        raise RecordsError(RecordsFault.INVALID, "a produce request carries one batch per partition")
    raise RecordsError(RecordsFault.CORRUPT, f"{limit - at} bytes follow the batch")
