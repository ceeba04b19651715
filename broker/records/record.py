"""The records inside a batch, one by one: for coordinators, the CLI, time look-ups and checks.

Everything a record says is checked against the bytes that are there before it is used, so hostile lengths
raise INVALID and nothing else. The hot path never comes here; Spark decodes columns instead (`columnar.py`).
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from tierlog.broker.records.batch import HEADER_SIZE, BatchHeader, Buffer, read_header
from tierlog.broker.records.codecs import Codec, decompress
from tierlog.broker.records.errors import RecordsError, RecordsFault

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
    """The plain bytes of the batch's records; decompressed ones are at most max_bytes long."""
    section = memoryview(buffer)[at + HEADER_SIZE : at + header.size]
    codec = header.codec
    return section if codec is Codec.NONE else decompress(codec, section, max_bytes)


def iter_records(buffer: Buffer, at: int = 0, *, max_bytes: int) -> Iterator[Record]:
    """The records of the batch at a position. Raises RecordsError on the first byte that is wrong.

    The CRC is not checked here. With LogAppendTime every record has the batch's max timestamp.
    """
    header = read_header(buffer, at)
    data = bytes(records_section(buffer, at, header, max_bytes))
    _require_room(header.record_count, len(data))
    position, end = 0, len(data)
    for _ in range(header.record_count):
        position, stop = _bounded_length(data, position, end)
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


def count_check(buffer: Buffer, at: int = 0, *, max_bytes: int) -> int:
    """Decompresses a client's batch and walks it: the header's record count, offset deltas 0, 1, 2, ….

    Returns the size of the decompressed records. Raises RecordsError: CORRUPT for broken compression,
    TOO_LARGE for a bomb, INVALID for counts, deltas and lengths.
    """
    header = read_header(buffer, at)
    data = bytes(records_section(buffer, at, header, max_bytes))
    _require_room(header.record_count, len(data))
    position = _walk(data, header.record_count)
    if position != len(data):
        raise _invalid(f"{len(data) - position} bytes follow the last of {header.record_count} records")
    return position


def _walk(data: bytes, count: int) -> int:
    """Walks records whose offset deltas are 0, 1, 2, …; returns where the last of them ends.

    It runs for every compressed batch that is produced, hence the short way for the varints that clients
    write: a length of one or two bytes, and the shortest form of the delta. All else takes the careful way.
    """
    end = len(data)
    deltas = _shortest_deltas()[:count]
    position = 0
    for expected in range(count):
        if expected < len(deltas) and position + 16 <= end:  # room for every look ahead below
            low, high = data[position], data[position + 1]
            if low < 0x80:
                start, stop = position + 1, position + 1 + (low >> 1)
            else:
                start, stop = position + 2, position + 2 + ((low & 0x7F | high << 7) >> 1)
            at = start + 1
            while data[at] >= 0x80 and at < start + 9:
                at += 1
            delta = deltas[expected]
            if (
                not low & 1
                and (low < 0x80 or high < 0x80)
                and data[at] < 0x80
                and data.startswith(delta, at + 1)
                and at + len(delta) + 3 < stop <= end
            ):
                position = stop
                continue
        position = _walk_one(data, position, end, expected)
    return position


def _walk_one(data: bytes, position: int, end: int, expected: int) -> int:
    position, stop = _bounded_length(data, position, end)
    _, after_timestamp = read_varint(data, position + 1, stop, LONG)
    delta, _ = read_varint(data, after_timestamp, stop)
    if delta != expected:
        raise _invalid(f"record {expected} of the batch has offset delta {delta}")
    return stop


@cache
def _shortest_deltas() -> tuple[bytes, ...]:
    """The zigzag varints of 0, 1, 2, …, as far as two bytes go."""
    one = (bytes((2 * delta,)) for delta in range(64))
    two = (bytes((2 * delta & 0x7F | 0x80, delta >> 6)) for delta in range(64, 8192))
    return (*one, *two)


def read_varint(data: bytes, at: int, end: int, bits: int = INT) -> tuple[int, int]:
    """A zigzag varint within [at, end) and the position after it; INVALID if it is cut or over-long."""
    longest = (bits + 6) // 7
    raw = shift = 0
    for position in range(at, min(end, at + longest)):
        byte = data[position]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80 and not raw >> bits:
            return (raw >> 1) ^ -(raw & 1), position + 1
        shift += 7
    raise _invalid("an over-long varint" if end - at >= longest else "a varint is cut")


def _bounded_length(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Start and end of the record whose length stands at a position."""
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


def _require_room(count: int, size: int) -> None:
    if not 0 <= count <= size // LEAST_RECORD_BYTES:
        raise _invalid(f"{count} records in {size} bytes")


def _invalid(message: str) -> RecordsError:
    return RecordsError(RecordsFault.INVALID, message)
