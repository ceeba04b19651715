"""The records of a client's batch, walked by offsets: nothing is decoded, as a leader looks at all of them.

Each walk is an iterator that yields nothing every A_SLICE records (and headers), so that who runs the event
loop can let others have their turn; a batch may hold a million records. Raises INVALID at the first length or
offset delta that is wrong. Called by the leader's checks (`partition.examination`).
"""

from collections.abc import Generator, Iterator
from typing import NamedTuple

from tierlog.broker.ports.types import NO_TIMESTAMP
from tierlog.broker.records.batch import Buffer, read_header
from tierlog.broker.records.errors import RecordsError, RecordsFault
from tierlog.broker.records.record import (
    INT,
    LEAST_RECORD_BYTES,
    LONG,
    bounded_length,
    read_varint,
    records_section,
)

A_SLICE = 512
"""Records walked before others have their turn: a quarter of a millisecond, a seventh of it compiled."""

FIELDS_A_SLICE = 128
"""The same where every field is looked at: records and headers together."""

BAD_RECORDS_TOLD = 100
"""Bad records of one batch that are told apart; a client takes the others for good ones in bad company."""

_LOOK_AHEAD = 16
"""The short ways below read at most so many bytes from the beginning of a record."""

_LONGEST_TIMESTAMP = 9
_ONE_BYTE, _TWO_BYTES, _THREE_BYTES = 1 << 6, 1 << 13, 1 << 20
"""The first offset deltas whose zigzag varints take a byte more."""


def count_check(buffer: Buffer, at: int = 0, *, max_bytes: int) -> int:
    """Decompresses a client's batch and walks it: the header's record count, offset deltas 0, 1, 2, ….

    Returns the size of the decompressed records. Raises RecordsError: CORRUPT for broken compression,
    TOO_LARGE for a bomb, INVALID for counts, deltas and lengths.
    """
    header = read_header(buffer, at)
    data = bytes(records_section(buffer, at, header, max_bytes))
    for _ in walk_structure(data, header.record_count):
        pass
    return len(data)


def walk_structure(data: bytes, count: int) -> Iterator[None]:
    """Lengths, and offset deltas 0, 1, 2, …, of so many records that fill the data."""
    _require_room(count, len(data))
    position = 0
    for begin in range(0, count, A_SLICE):
        position = _walk(data, position, begin, min(begin + A_SLICE, count))
        yield
    _require_end(data, position, count)


class BadField(NamedTuple):
    """A record that its topic does not want; `timestamp` is None if it is the key that is missing."""

    number: int
    timestamp: int | None


def walk_fields(
    data: bytes, count: int, base_timestamp: int, *, needs_key: bool, oldest: int, bad: list[BadField]
) -> Iterator[None]:
    """`walk_structure`, and every field of every record fits into it. Adds to `bad` the first
    BAD_RECORDS_TOLD records that lack a key, or are older than `oldest` and have a timestamp at all.
    """
    _require_room(count, len(data))
    position, looked_at, size = 0, 0, len(data)
    for expected in range(count):
        position, stop = bounded_length(data, position, size)
        timestamp_delta, position = _short_varint(data, position + 1, stop, LONG)
        position = _after_offset_delta(data, position, stop, expected)
        key_length, position = _short_varint(data, position, stop)
        position = _after_field(key_length, position, stop)
        value_length, position = _short_varint(data, position, stop)
        position = _after_field(value_length, position, stop)
        headers, position = _short_varint(data, position, stop)
        if headers:
            position = yield from _walk_headers(data, position, stop, headers)
        if position != stop:
            raise _invalid(f"a record ends {stop - position} bytes before its length says")
        timestamp = base_timestamp + timestamp_delta
        if needs_key and key_length < 0:
            _add(bad, BadField(expected, None))
        elif timestamp < oldest and timestamp != NO_TIMESTAMP:
            _add(bad, BadField(expected, timestamp))
        looked_at += 1 + headers
        if looked_at >= FIELDS_A_SLICE:
            looked_at = 0
            yield
    _require_end(data, position, count)


def _walk(data: bytes, position: int, begin: int, end: int) -> int:
    """Walks records whose offset deltas go from `begin` to `end`; returns where the last of them ends.

    It runs for every compressed batch that is produced, hence the short way for the varints that clients
    write: a length of one or two bytes, and the shortest form of the delta. All else takes the careful way.
    """
    size = len(data)
    for expected in range(begin, end):
        if expected < _THREE_BYTES and position + _LOOK_AHEAD <= size:
            low, high = data[position], data[position + 1]
            if low < 0x80:
                start = position + 1
                stop = start + (low >> 1)
            else:
                start = position + 2
                stop = start + ((low & 0x7F | high << 7) >> 1)
            at = start + 1
            while data[at] >= 0x80 and at < start + _LONGEST_TIMESTAMP:
                at += 1
            is_short = not low & 1 and (low < 0x80 or high < 0x80) and data[at] < 0x80
            at += 1
            first = data[at]
            if expected < _ONE_BYTE:
                fits = first == expected << 1
                at += 1
            elif expected < _TWO_BYTES:
                fits = first == (expected << 1 & 0x7F | 0x80) and data[at + 1] == expected >> 6
                at += 2
            else:
                fits = (
                    first == (expected << 1 & 0x7F | 0x80)
                    and data[at + 1] == (expected >> 6 & 0x7F | 0x80)
                    and data[at + 2] == expected >> 13
                )
                at += 3
            if is_short and fits and at + 3 <= stop <= size:  # room for two lengths and a count
                position = stop
                continue
        position = walk_one(data, position, size, expected)
    return position


def walk_one(data: bytes, position: int, end: int, expected: int) -> int:
    """The careful way over one record; returns where it ends."""
    position, stop = bounded_length(data, position, end)
    _, after_timestamp = read_varint(data, position + 1, stop, LONG)
    _after_offset_delta(data, after_timestamp, stop, expected)
    return stop


def _after_offset_delta(data: bytes, position: int, stop: int, expected: int) -> int:
    delta, position = _short_varint(data, position, stop)
    if delta != expected:
        raise _invalid(f"record {expected} of the batch has offset delta {delta}")
    return position


def _add(bad: list[BadField], one: BadField) -> None:
    if len(bad) < BAD_RECORDS_TOLD:
        bad.append(one)


def _short_varint(data: bytes, at: int, end: int, bits: int = INT) -> tuple[int, int]:
    """`read_varint`, with a short way for one byte, as nearly all are."""
    if at < end:
        byte = data[at]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), at + 1
    return read_varint(data, at, end, bits)


def _after_field(length: int, at: int, stop: int) -> int:
    """Behind a key or value of a length; -1 is null."""
    if length == -1:
        return at
    if not 0 <= length <= stop - at:
        raise _invalid(f"a field of {length} bytes where {stop - at} are left")
    return at + length


def _walk_headers(data: bytes, at: int, stop: int, count: int) -> Generator[None, None, int]:
    """Returns where the last of them ends."""
    if not 0 <= count <= (stop - at) // 2:  # two lengths each
        raise _invalid(f"{count} headers in {stop - at} bytes")
    for number in range(1, count + 1):
        length, at = _short_varint(data, at, stop)
        if length < 0:
            raise _invalid("a header without a key")
        after = _after_field(length, at, stop)
        try:
            str(data[at:after], "utf-8")
        except UnicodeDecodeError:
            raise _invalid("a header key is not UTF-8") from None
        length, at = _short_varint(data, after, stop)
        at = _after_field(length, at, stop)
        if number % FIELDS_A_SLICE == 0:
            yield
    return at


def _require_room(count: int, size: int) -> None:
    if not 0 <= count <= size // LEAST_RECORD_BYTES:
        raise _invalid(f"{count} records in {size} bytes")


def _require_end(data: bytes, position: int, count: int) -> None:
    if position != len(data):
        raise _invalid(f"{len(data) - position} bytes follow the last of {count} records")


def _invalid(message: str) -> RecordsError:
    return RecordsError(RecordsFault.INVALID, message)
