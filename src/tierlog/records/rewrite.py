"""Rewritten batches: removes records from batches for log compaction, or compresses them with another codec.

Offsets, sequences, producer and leader epoch do not change, nor do the bytes of the records that stay. One
exception: a delete horizon replaces the base timestamp (KIP-534, attribute bit 6), so the timestamp delta of
each record changes. Called by the log cleaner, and by Spark's jobs that rewrite history.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tierlog.records.batch import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    seal,
)
from tierlog.records.codecs import Codec, Packer, compress
from tierlog.records.errors import RecordsError, RecordsFault
from tierlog.records.record import LONG, read_varint, records_section
from tierlog.records.unpacking import NO_BOUND, PIECE_BYTES, decompress
from tierlog.records.writer import append_varint

NO_TIMESTAMP = -1


class Span(NamedTuple):
    """Position of a record in the decompressed bytes of its batch, and the fields that decide whether it
    stays.

    [start, stop) includes its length; its timestamp delta is in [delta_at, delta_end).
    """

    start: int
    stop: int
    delta_at: int
    delta_end: int
    timestamp_delta: int
    offset: int
    key: bytes | None
    is_tombstone: bool


def spans(plain: bytes, header: BatchHeader) -> Iterator[Span]:
    """The records of a batch, in order. Raises INVALID on the first invalid length."""
    try:
        yield from _spans(plain, header)
    except IndexError:
        raise RecordsError(RecordsFault.INVALID, "a record ends outside its batch") from None


def _spans(plain: bytes, header: BatchHeader) -> Iterator[Span]:
    """One flat loop with short varints inlined: compaction walks every record of a log."""
    at, size = 0, len(plain)
    base_offset, most = header.base_offset, header.last_offset_delta
    for _ in range(header.record_count):
        start = at
        if (byte := plain[at]) < 0x80:
            length, at = (byte >> 1) ^ -(byte & 1), at + 1
        elif (high := plain[at + 1]) < 0x80:
            length, at = ((byte & 0x7F | high << 7) >> 1) ^ -(byte & 1), at + 2
        else:
            length, at = read_varint(plain, at, size)
        stop = at + length
        delta_at = at + 1  # after the attributes, unused
        if (byte := plain[delta_at]) < 0x80:
            timestamp_delta, delta_end = (byte >> 1) ^ -(byte & 1), delta_at + 1
        else:
            timestamp_delta, delta_end = read_varint(plain, delta_at, stop, LONG)
        if (byte := plain[delta_end]) < 0x80:
            offset_delta, at = (byte >> 1) ^ -(byte & 1), delta_end + 1
        elif (high := plain[delta_end + 1]) < 0x80:
            offset_delta, at = ((byte & 0x7F | high << 7) >> 1) ^ -(byte & 1), delta_end + 2
        else:
            offset_delta, at = read_varint(plain, delta_end, stop)
        if (byte := plain[at]) < 0x80:
            key_length, at = (byte >> 1) ^ -(byte & 1), at + 1
        else:
            key_length, at = read_varint(plain, at, stop)
        key = None
        if key_length >= 0:
            key = plain[at : at + key_length]
            at += key_length
        if (byte := plain[at]) < 0x80:
            value_length, at = (byte >> 1) ^ -(byte & 1), at + 1
        elif (high := plain[at + 1]) < 0x80:
            value_length, at = ((byte & 0x7F | high << 7) >> 1) ^ -(byte & 1), at + 2
        else:
            value_length, at = read_varint(plain, at, stop)
        if not at + max(value_length, 0) <= stop <= size or not 0 <= offset_delta <= most:
            raise RecordsError(RecordsFault.INVALID, f"a record at {start} does not fit into its batch")
        yield Span(
            start, stop, delta_at, delta_end, timestamp_delta, base_offset + offset_delta, key,
            value_length < 0,
        )  # fmt: skip
        at = stop


def rewritten(
    header: BatchHeader, plain: bytes, kept: Iterable[Span], delete_horizon_ms: int | None
) -> bytes:
    """The batch with only the kept records, in the same codec. An existing delete horizon stays; no other may
    be given then.
    """
    base_timestamp = header.base_timestamp if delete_horizon_ms is None else delete_horizon_ms
    shift = header.base_timestamp - base_timestamp
    packer = Packer(header.codec, NO_BOUND)
    count, largest, piece = 0, -NO_BOUND, bytearray()
    for span in kept:
        piece += plain[span.start : span.stop] if not shift else _shifted(plain, span, shift)
        if len(piece) >= PIECE_BYTES:
            packer.add(bytes(piece))
            piece.clear()
        count, largest = count + 1, max(largest, span.timestamp_delta)
    packer.add(bytes(piece))
    newest = header.max_timestamp if header.log_append_time else header.base_timestamp + largest
    attributes = header.attributes | (0 if delete_horizon_ms is None else DELETE_HORIZON)
    return _sealed(header, attributes, base_timestamp, newest, count, packer.finish())


def emptied(header: BatchHeader) -> bytes:
    """The batch without records: keeps the last sequence of its producer, or the end of the log."""
    attributes = header.attributes & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL) & ~CODEC_MASK
    return _sealed(header, attributes, NO_TIMESTAMP, header.max_timestamp, 0, b"")


def recompressed(batch: Buffer, header: BatchHeader, codec: Codec) -> Buffer:
    """The batch with its records in another codec; the same batch if it has this codec already, or nothing to
    compress. Raises CORRUPT if its records cannot be decompressed."""
    if header.is_control or not header.record_count or header.codec is codec:
        return batch
    plain = records_section(batch, 0, header, NO_BOUND)
    packed = compress(codec, plain)
    if decompress(codec, packed, len(plain)) != plain:
        raise RecordsError(
            RecordsFault.CORRUPT, f"{codec.name.lower()} does not restore what it has compressed"
        )
    attributes = header.attributes & ~CODEC_MASK | codec
    return _sealed(
        header, attributes, header.base_timestamp, header.max_timestamp, header.record_count, packed
    )


def _shifted(plain: bytes, span: Span, shift: int) -> bytes:
    """A record with its timestamp relative to another base; its other bytes are copied."""
    body = bytearray(plain[span.delta_at - 1 : span.delta_at])
    append_varint(body, span.timestamp_delta + shift)
    body += plain[span.delta_end : span.stop]
    record = bytearray()
    append_varint(record, len(body))
    return bytes(record + body)


def _sealed(
    header: BatchHeader, attributes: int, base_timestamp: int, newest: int, count: int, section: Buffer
) -> bytes:
    batch = bytearray(HEADER_SIZE + len(section))
    changed = header._replace(
        batch_length=len(batch) - LOG_OVERHEAD,
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=newest,
        record_count=count,
    )
    HEADER.pack_into(batch, 0, *changed)
    batch[HEADER_SIZE:] = section
    seal(batch, 0, len(batch))
    return bytes(batch)
