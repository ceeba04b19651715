"""Records of a batch, one by one: for coordinators, the CLI and lookups by timestamp.

Every length is checked against the bytes that are there before it is used, so hostile lengths only raise
INVALID. Not on the hot path: `walk.py` validates produced records, and Spark decodes columns (`columnar.py`).
"""

from collections.abc import Iterator
from typing import NamedTuple

from tierlog.records.batch import HEADER_SIZE, BatchHeader, Buffer, read_header
from tierlog.records.codecs import Codec
from tierlog.records.errors import RecordsError, RecordsFault
from tierlog.records.unpacking import NO_BOUND, decompress, unpack

Header = tuple[str, bytes | None]
INT, LONG = 32, 64  # bits of a varint and of a varlong
LEAST_RECORD_BYTES = 7
"""Length, attributes, two deltas, key length, value length, header count: one byte each."""


class Record(NamedTuple):
    """One record; timestamp in milliseconds, None for a null key or value."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


def records_section(buffer: Buffer, at: int, header: BatchHeader, max_bytes: int) -> bytes | memoryview:
    """The decompressed records of the batch, at most max_bytes long."""
    section = memoryview(buffer)[at + HEADER_SIZE : at + header.size]
    codec = header.codec
    return section if codec is Codec.NONE else decompress(codec, section, max_bytes)


def record_pieces(
    buffer: Buffer, at: int, header: BatchHeader, max_bytes: int, memory_bytes: int = NO_BOUND
) -> Iterator[bytes]:
    """The same in pieces (`unpack`), which bounds memory."""
    section = memoryview(buffer)[at + HEADER_SIZE : at + header.size]
    return unpack(header.codec, section, max_bytes, memory_bytes)


def iter_records(buffer: Buffer, at: int = 0, *, max_bytes: int) -> Iterator[Record]:
    """The records of the batch at a position. Raises RecordsError on the first invalid byte.

    The CRC is not checked. With LogAppendTime every record has the batch's maximum timestamp.
    """
    header = read_header(buffer, at)
    data = bytes(records_section(buffer, at, header, max_bytes))
    _check_count(header.record_count, len(data))
    position, end = 0, len(data)
    for _ in range(header.record_count):
        position, stop = bounded_length(data, position, end)
        position += 1  # attributes, unused
        timestamp_delta, position = read_varint(data, position, stop, LONG)
        offset_delta, position = read_varint(data, position, stop)
        if not 0 <= offset_delta <= header.last_offset_delta:
            raise _invalid(f"offset delta {offset_delta} in a batch that ends at {header.last_offset_delta}")
        key, position = _read_bytes(data, position, stop)
        value, position = _read_bytes(data, position, stop)
        headers, position = _read_headers(data, position, stop)
        if position != stop:
            raise _invalid(f"a record ends {stop - position} bytes before its length says")
        timestamp = (
            header.max_timestamp if header.log_append_time else header.base_timestamp + timestamp_delta
        )
        yield Record(header.base_offset + offset_delta, timestamp, key, value, headers)
    if position != end:
        raise _invalid(f"{end - position} bytes follow the last record")


def read_varint(data: bytes, at: int, end: int, bits: int = INT) -> tuple[int, int]:
    """A zigzag varint within [at, end) and the position after it. Raises INVALID if it is truncated or
    over-long.
    """
    longest = (bits + 6) // 7
    raw = shift = 0
    for position in range(at, min(end, at + longest)):
        byte = data[position]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80 and not raw >> bits:
            return (raw >> 1) ^ -(raw & 1), position + 1
        shift += 7
    raise _invalid("an over-long varint" if end - at >= longest else "a varint is truncated")


def bounded_length(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Start and end of the record whose length is at a position. Raises INVALID if it ends outside."""
    length, start = read_varint(data, at, end)
    if not LEAST_RECORD_BYTES - 1 <= length <= end - start:
        raise _invalid(f"a record of {length} bytes where {end - start} are left")
    return start, start + length


def _read_bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    length, start = read_varint(data, at, end)
    if length == -1:
        return None, start
    if not 0 <= length <= end - start:
        raise _invalid(f"a field of {length} bytes where {end - start} are left")
    return data[start : start + length], start + length


def _read_headers(data: bytes, at: int, end: int) -> tuple[tuple[Header, ...], int]:
    count, at = read_varint(data, at, end)
    if count == 0:
        return (), at
    if not 0 <= count <= (end - at) // 2:  # two lengths each
        raise _invalid(f"{count} headers in {end - at} bytes")
    headers: list[Header] = []
    for _ in range(count):
        name, at = _read_bytes(data, at, end)
        if name is None:
            raise _invalid("a header without a key")
        value, at = _read_bytes(data, at, end)
        try:
            headers.append((name.decode(), value))
        except UnicodeDecodeError:
            raise _invalid("a header key is not UTF-8") from None
    return tuple(headers), at


def _check_count(count: int, size: int) -> None:
    if not 0 <= count <= size // LEAST_RECORD_BYTES:
        raise _invalid(f"{count} records in {size} bytes")


def _invalid(message: str) -> RecordsError:
    return RecordsError(RecordsFault.INVALID, message)
