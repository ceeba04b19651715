"""Record walk: reads the lengths and deltas of a batch's records without decoding them, because the leader
must check every record of every batch.

A walk goes over a `Window` and yields after every RECORDS_PER_SLICE records (and headers), so that the event
loop can serve others; a batch may hold millions of records. Raises RecordsError (RecordsFault.INVALID) at the
first invalid length or offset delta. Called by batch validation and by lookups by timestamp.
"""

from codecs import getincrementaldecoder
from collections.abc import Generator
from typing import NamedTuple

from tierlog.base.types import NO_TIMESTAMP
from tierlog.records.batch import BatchHeader
from tierlog.records.errors import RecordsError, RecordsFault
from tierlog.records.record import INT, LEAST_RECORD_BYTES, LONG, read_varint
from tierlog.records.window import Step, Window

RECORDS_PER_SLICE = 512
"""Records walked between two yields: a quarter of a millisecond, a seventh of it compiled."""

FIELDS_PER_SLICE = 128
"""The same if every field is validated: records and headers together."""

BAD_RECORDS_REPORTED = 100
"""Maximum number of invalid records that the error lists. Clients report all others as valid records of a
rejected batch."""

HEAD_BYTES = 24
"""Length, attributes, timestamp delta and offset delta of a record take at most 21 bytes; the fast paths
below read no further.
"""

_ONE_BYTE, _TWO_BYTES, _THREE_BYTES, _FOUR_BYTES = 1 << 6, 1 << 13, 1 << 20, 1 << 27
"""The first offset deltas whose zigzag varints take one more byte."""

_NO_DELTA = -(2**63)
_NO_END = 2**63 - 1


def largest_timestamp(header: BatchHeader, largest_delta: int) -> int:
    """-1 if no record has one, as in Kafka."""
    return max(header.base_timestamp + largest_delta, NO_TIMESTAMP)


def walk_structure(window: Window, count: int) -> Generator[Step, None, int]:
    """Validate lengths and offset deltas 0, 1, 2, … of `count` records, which must fill the window. Returns
    the largest timestamp delta.
    """
    position, expected, largest = 0, 0, _NO_DELTA
    turn_at = RECORDS_PER_SLICE
    while expected < count:
        if position + HEAD_BYTES > len(window.data) and not window.ended:
            position -= yield from window.fill(position, HEAD_BYTES)
        end = min(turn_at, count)
        position, expected, largest = _walk(window.data, position, expected, end, largest, window.ended)
        if expected == turn_at:
            turn_at += RECORDS_PER_SLICE
            yield None
    yield from _require_end(window, position, count)
    return largest


class BadField(NamedTuple):
    """A record that violates the topic's rules; `timestamp` is None if its key is missing."""

    number: int
    timestamp: int | None


def walk_fields(
    window: Window,
    count: int,
    base_timestamp: int,
    *,
    needs_key: bool,
    oldest: int,
    newest: int,
    bad: list[BadField],
) -> Generator[Step, None, int]:
    """`walk_structure`, and validate every field of every record. Adds to `bad` the first
    BAD_RECORDS_REPORTED records without a key, or with a timestamp outside [oldest, newest].
    """
    position, fields_in_slice, largest = 0, 0, _NO_DELTA
    for expected in range(count):
        if position + HEAD_BYTES > len(window.data) and not window.ended:
            position -= yield from window.fill(position, HEAD_BYTES)
        data, size = window.data, len(window.data)
        length, start = read_varint(data, position, size)
        stop = start + length
        if length < LEAST_RECORD_BYTES - 1 or (window.ended and stop > size):
            raise _invalid(f"record {expected} has {length} bytes where {size - start} are left")
        timestamp_delta, position = _short_varint(data, start + 1, stop, LONG)
        position = _after_offset_delta(data, position, stop, expected)
        key_length = 0
        for field in range(2):  # key and value
            if position + HEAD_BYTES > len(window.data) and not window.ended:
                forgotten = yield from window.fill(position, HEAD_BYTES)
                position, stop = position - forgotten, stop - forgotten
            field_length, position = _short_varint(window.data, position, stop)
            position = _after_field(field_length, position, stop)
            if field == 0:
                key_length = field_length
        if position + HEAD_BYTES > len(window.data) and not window.ended:
            forgotten = yield from window.fill(position, HEAD_BYTES)
            position, stop = position - forgotten, stop - forgotten
        headers, position = _short_varint(window.data, position, stop)
        if headers:
            position, stop = yield from _walk_headers(window, position, stop, headers)
        if position != stop:
            raise _invalid(f"a record ends {stop - position} bytes before its length says")
        largest = max(largest, timestamp_delta)
        timestamp = base_timestamp + timestamp_delta
        if needs_key and key_length < 0:
            _add(bad, BadField(expected, None))
        elif not oldest <= timestamp <= newest and timestamp != NO_TIMESTAMP:
            _add(bad, BadField(expected, timestamp))
        fields_in_slice += 1 + headers
        if fields_in_slice >= FIELDS_PER_SLICE:
            fields_in_slice = 0
            yield None
    yield from _require_end(window, position, count)
    return largest


class RecordAt(NamedTuple):
    offset: int
    timestamp: int


def find_timestamp(
    window: Window, header: BatchHeader, timestamp: int, start: int
) -> Generator[Step, None, tuple[RecordAt | None, RecordAt | None]]:
    """Returns (found, newest). `found`: the first record at or above offset `start` with at least
    `timestamp`, or None. `newest`: the first record with the largest timestamp among those at or above
    `start` that were read, which are all of them if `found` is None."""
    position = 0
    newest: RecordAt | None = None
    for number in range(header.record_count):
        if position + HEAD_BYTES > len(window.data) and not window.ended:
            position -= yield from window.fill(position, HEAD_BYTES)
        data, size = window.data, len(window.data)
        length, at = read_varint(data, position, size)
        position = at + length
        if length < LEAST_RECORD_BYTES - 1 or (window.ended and position > size):
            raise _invalid(f"record {number} has {length} bytes where {size - at} are left")
        delta, at = _short_varint(data, at + 1, position, LONG)
        offset_delta, at = _short_varint(data, at, position)
        if not 0 <= offset_delta <= header.last_offset_delta:
            raise _invalid(f"offset delta {offset_delta} in a batch that ends at {header.last_offset_delta}")
        found = header.max_timestamp if header.log_append_time else header.base_timestamp + delta
        offset = header.base_offset + offset_delta
        if offset >= start:
            if newest is None or found > newest.timestamp:
                newest = RecordAt(offset, found)
            if found >= timestamp:
                return newest, newest
        if number % RECORDS_PER_SLICE == RECORDS_PER_SLICE - 1:
            yield None
    return None, newest


def _walk(
    data: bytes, position: int, expected: int, end: int, largest: int, ended: bool
) -> tuple[int, int, int]:
    """Walk records up to offset delta `end` while their heads are in the data. Returns the position and
    number of the next one, and the largest timestamp delta.

    Runs for every compressed batch that is produced. The fast path takes the varints that clients write: a
    length of one or two bytes, a timestamp of one or two, and the shortest form of the offset delta.
    Everything else takes the slow path.
    """
    size = len(data)
    last_head, limit = size - HEAD_BYTES, size if ended else _NO_END
    largest_zigzag = largest << 1 if largest >= 0 else -1  # as a varint without its sign
    for number in range(expected, end):
        if position > last_head:
            expected = number
            break
        low, high = data[position], data[position + 1]
        if low < 0x80:
            start = position + 1
            stop = start + (low >> 1)
        else:
            start = position + 2
            stop = start + ((low & 0x7F | high << 7) >> 1)
        at = start + 1
        raw = data[at]
        if raw >= 0x80:
            at += 1
            raw = raw & 0x7F | data[at] << 7
        is_short = not low & 1 and (low < 0x80 or high < 0x80) and data[at] < 0x80
        at += 1
        first = data[at]
        if number < _ONE_BYTE:
            fits = first == number << 1
            at += 1
        elif number < _TWO_BYTES:
            fits = first == (number << 1 & 0x7F | 0x80) and data[at + 1] == number >> 6
            at += 2
        elif number < _THREE_BYTES:
            fits = (
                first == (number << 1 & 0x7F | 0x80)
                and data[at + 1] == (number >> 6 & 0x7F | 0x80)
                and data[at + 2] == number >> 13
            )
            at += 3
        else:
            fits = (
                number < _FOUR_BYTES
                and first == (number << 1 & 0x7F | 0x80)
                and data[at + 1] == (number >> 6 & 0x7F | 0x80)
                and data[at + 2] == (number >> 13 & 0x7F | 0x80)
                and data[at + 3] == number >> 20
            )
            at += 4
        if is_short and fits and at + 3 <= stop and stop <= limit:  # at least three lengths
            if raw > largest_zigzag:
                largest = max(largest, (raw >> 1) ^ -(raw & 1))
                largest_zigzag = largest << 1 if largest >= 0 else -1
            position = stop
        else:
            position, delta = walk_one(data, position, size, number, ended)
            largest = max(largest, delta)
            largest_zigzag = largest << 1 if largest >= 0 else -1
    else:
        expected = end
    while ended and expected < end:
        position, delta = walk_one(data, position, size, expected, ended)
        largest = max(largest, delta)
        expected += 1
    return position, expected, largest


def walk_one(data: bytes, position: int, end: int, expected: int, ended: bool) -> tuple[int, int]:
    """The slow path for one record, whose head is in the data. Returns its end and its timestamp delta.
    `ended`: no data follows.
    """
    length, start = read_varint(data, position, end)
    stop = start + length
    if length < LEAST_RECORD_BYTES - 1 or (ended and stop > end):
        raise _invalid(f"a record of {length} bytes where {end - start} are left")
    delta, after_timestamp = read_varint(data, start + 1, min(stop, end), LONG)
    _after_offset_delta(data, after_timestamp, min(stop, end), expected)
    return stop, delta


def _after_offset_delta(data: bytes, position: int, stop: int, expected: int) -> int:
    delta, position = _short_varint(data, position, stop)
    if delta != expected:
        raise _invalid(f"record {expected} of the batch has offset delta {delta}")
    return position


def _add(bad: list[BadField], one: BadField) -> None:
    if len(bad) < BAD_RECORDS_REPORTED:
        bad.append(one)


def _short_varint(data: bytes, at: int, end: int, bits: int = INT) -> tuple[int, int]:
    """`read_varint` with a fast path for one byte, the usual case."""
    end = min(end, len(data))
    if at < end:
        byte = data[at]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), at + 1
    return read_varint(data, at, end, bits)


def _after_field(length: int, at: int, stop: int) -> int:
    """Position after a key or value of this length; -1 is null."""
    if length == -1:
        return at
    if not 0 <= length <= stop - at:
        raise _invalid(f"a field of {length} bytes where {stop - at} are left")
    return at + length


def _walk_headers(window: Window, at: int, stop: int, count: int) -> Generator[Step, None, tuple[int, int]]:
    """Returns the end of the last header and the end of the record."""
    if not 0 <= count <= (stop - at) // 2:  # two lengths each
        raise _invalid(f"{count} headers in {stop - at} bytes")
    for number in range(1, count + 1):
        if at + HEAD_BYTES > len(window.data) and not window.ended:
            forgotten = yield from window.fill(at, HEAD_BYTES)
            at, stop = at - forgotten, stop - forgotten
        length, at = _short_varint(window.data, at, stop)
        if length < 0:
            raise _invalid("a header without a key")
        after = _after_field(length, at, stop)
        forgotten = yield from _check_text(window, at, after)
        at, stop = after - forgotten, stop - forgotten
        if at + HEAD_BYTES > len(window.data) and not window.ended:
            forgotten = yield from window.fill(at, HEAD_BYTES)
            at, stop = at - forgotten, stop - forgotten
        length, at = _short_varint(window.data, at, stop)
        at = _after_field(length, at, stop)
        if number % FIELDS_PER_SLICE == 0:
            yield None
    return at, stop


def _check_text(window: Window, at: int, end: int) -> Generator[Step, None, int]:
    """Validate that the key of a header is UTF-8. Returns by how much positions have decreased."""
    total = 0
    try:
        if end <= len(window.data):
            str(window.data[at:end], "utf-8")
            return 0
        decoder = getincrementaldecoder("utf-8")()
        while at < end:
            part = window.data[at:end]
            decoder.decode(part)
            at += len(part)
            if at < end:
                if window.ended:
                    raise _invalid("a header ends outside the batch")
                forgotten = yield from window.read_next(at)
                at, end, total = at - forgotten, end - forgotten, total + forgotten
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise _invalid("a header key is not UTF-8") from None
    return total


def _require_end(window: Window, position: int, count: int) -> Generator[Step, None, None]:
    while not window.ended and position >= len(window.data):
        position -= yield from window.read_next(position)
    if not window.ended or position != len(window.data):
        raise _invalid(f"{len(window.data) - position} bytes follow the last of {count} records")


def _invalid(message: str) -> RecordsError:
    return RecordsError(RecordsFault.INVALID, message)
