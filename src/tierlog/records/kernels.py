"""Compiled loops of the columnar decoder. They check every position against the end before they read.

Positions are indexes into one uint8 array with the decompressed records sections of several batches. A kernel
returns a negative number instead of raising: `BAD_…` below, which columnar.py turns into RecordsError.
Imports numba, so only columnar.py imports this module, and only Spark imports columnar.py.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

from tierlog.records.kernel_cache import with_code_ahead

Array = np.ndarray[Any, Any]
Function = TypeVar("Function", bound=Callable[..., Any])

# rows of the table that `scan_records` fills: it has a column for each record; sizes in bytes, -1 for null
(
    OFFSET,
    TIMESTAMP_US,
    TIMESTAMP_TYPE,
    KEY_AT,
    KEY_SIZE,
    VALUE_AT,
    VALUE_SIZE,
    HEADERS_AT,
    HEADERS_END,
    HEADERS,
) = range(10)
ROWS = 10

# how deep `scan_records` reads each record; the rest is skipped
TO_OFFSET, TO_KEY, TO_VALUE, TO_HEADERS = range(4)

BAD_LENGTH, BAD_VARINT, BAD_FIELD, BAD_HEADERS, BAD_END, BAD_OFFSET = -1, -2, -3, -4, -5, -6
FAULTS = {
    BAD_LENGTH: "a record's length does not fit into its batch",
    BAD_VARINT: "a varint is truncated or over-long",
    BAD_FIELD: "a key or value does not fit into its record",
    BAD_HEADERS: "headers do not fit into their record",
    BAD_END: "bytes follow the last record",
    BAD_OFFSET: "a record's offset is outside its batch",
}

NOT_PLAIN = -1  # `find_batches` returns it

LEAST_RECORD_BYTES = 7
BATCH_HEADER_BYTES = 61
LONGEST_MS = (2**63 - 1) // 1000  # later (or earlier) timestamps saturate: microseconds have 64 bits as well


def compiled(function: Function) -> Function:
    """njit, cached on disk in a writable directory (the package's own may be read-only), or ahead."""
    try:
        dispatcher = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:
        dispatcher = numba.njit(nogil=True)(function)
    return cast(Function, with_code_ahead(dispatcher))


@compiled
def read_varint(data: Array, at: int, end: int, bits: int) -> tuple[Any, int]:
    """A zigzag varint of up to `bits` bits and the position after it; BAD_VARINT as position if malformed."""
    if at < end and data[at] < 0x80:  # the usual cases: one byte, or two
        return (np.int64(data[at]) >> 1) ^ -(np.int64(data[at]) & 1), at + 1
    if at + 1 < end and data[at + 1] < 0x80:
        both = (np.int64(data[at]) & 0x7F) | np.int64(data[at + 1]) << 7
        return (both >> 1) ^ -(both & 1), at + 2
    raw = np.uint64(0)
    shift = 0
    while at < end and shift < bits:
        byte = np.uint64(data[at])
        if bits - shift < 7 and byte >> np.uint64(bits - shift):
            break
        raw |= (byte & np.uint64(0x7F)) << np.uint64(shift)
        at += 1
        if byte < np.uint64(0x80):
            return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), at
        shift += 7
    return 0, BAD_VARINT


@compiled
def to_microseconds(timestamp_ms: int) -> int:
    return min(max(timestamp_ms, -LONGEST_MS), LONGEST_MS) * 1000


@compiled
def read_number(data: Array, at: int, size: int) -> Any:
    """A big-endian number of 4 or 8 bytes, with its sign."""
    raw = np.uint64(0)
    for i in range(size):
        raw = (raw << np.uint64(8)) | np.uint64(data[at + i])
    return np.int64(raw) if size == 8 else np.int64(np.int32(np.uint32(raw)))


@compiled
def find_batches(data: Array, first: int, end: int, batches: Array) -> int:
    """Fill the input of `scan_records` for the batches with offsets in [first, end), but for control batches.

    Returns their number; NOT_PLAIN if a batch is compressed or invalid. Checks what `check_batch` does, but
    for the CRC.
    """
    found = 0
    at = next_offset = 0
    while at < data.shape[0]:
        if data.shape[0] - at < BATCH_HEADER_BYTES or data[at + 16] != 2:
            return NOT_PLAIN
        stop = at + read_number(data, at + 8, 4) + 12
        attributes, base_offset = data[at + 22], read_number(data, at, 8)
        last_delta, count = read_number(data, at + 23, 4), read_number(data, at + 57, 4)
        start = at + BATCH_HEADER_BYTES
        if stop < start or stop > data.shape[0] or attributes & 0x07 or base_offset < next_offset:
            return NOT_PLAIN
        if count < 0 or count > last_delta + 1 or count > (stop - start) // LEAST_RECORD_BYTES:
            return NOT_PLAIN
        next_offset = base_offset + last_delta + 1
        if base_offset < end and next_offset > first and not attributes & 0x20:
            batch = batches[found]
            batch[0], batch[1], batch[2], batch[3], batch[4] = start, stop, count, base_offset, last_delta
            batch[5], batch[6] = read_number(data, at + 27, 8), read_number(data, at + 35, 8)
            batch[7] = (attributes & 0x08) >> 3
            found += 1
        at = stop
    return found


@compiled
def scan_records(data: Array, batches: Array, first: int, end: int, depth: int, table: Array) -> int:
    """Fill the table for the records with offsets in [first, end). Returns their number, or a BAD_… fault.

    `batches`: for each batch its start, end, record count, base offset, last offset delta, base timestamp,
    and the timestamp of all its records with a flag (LogAppendTime).
    """
    kept = 0
    for batch in range(batches.shape[0]):
        at, stop, count, base_offset, last_delta, base_timestamp, append_timestamp, appended = batches[batch]
        for _ in range(count):
            length, at = read_varint(data, at, stop, 32)
            if at < 0:
                return BAD_VARINT
            if length < LEAST_RECORD_BYTES - 1 or length > stop - at:
                return BAD_LENGTH
            after = at + length
            delta_ms, at = read_varint(data, at + 1, after, 64)  # one byte of attributes before it
            if at < 0:
                return BAD_VARINT
            delta, at = read_varint(data, at, after, 32)
            if at < 0:
                return BAD_VARINT
            if delta < 0 or delta > last_delta:
                return BAD_OFFSET
            offset = base_offset + delta
            if first <= offset < end:
                table[OFFSET, kept] = offset
                table[TIMESTAMP_US, kept] = to_microseconds(
                    append_timestamp if appended else base_timestamp + delta_ms
                )
                table[TIMESTAMP_TYPE, kept] = appended
                if depth > TO_OFFSET:
                    fault = scan_fields(data, at, after, depth, table, kept)
                    if fault < 0:
                        return fault
                kept += 1
            at = after
        if at != stop:
            return BAD_END
    return kept


@compiled
def scan_fields(data: Array, at: int, end: int, depth: int, table: Array, column: int) -> int:
    """Record where key, value and headers of one record are. Returns 0 or a fault."""
    size, at = read_varint(data, at, end, 32)
    if at < 0:
        return BAD_VARINT
    if size < -1 or size > end - at:
        return BAD_FIELD
    table[KEY_AT, column], table[KEY_SIZE, column] = at, size
    if depth < TO_VALUE:
        return 0
    at += max(size, 0)
    size, at = read_varint(data, at, end, 32)
    if at < 0:
        return BAD_VARINT
    if size < -1 or size > end - at:
        return BAD_FIELD
    table[VALUE_AT, column], table[VALUE_SIZE, column] = at, size
    if depth < TO_HEADERS:
        return 0
    at += max(size, 0)
    count, at = read_varint(data, at, end, 32)
    if at < 0:
        return BAD_VARINT
    if count < 0 or count > (end - at) // 2 or (count == 0 and at != end):
        return BAD_HEADERS
    table[HEADERS_AT, column], table[HEADERS_END, column], table[HEADERS, column] = at, end, count
    return 0


@compiled
def scan_headers(data: Array, table: Array, records: int, places: Array) -> int:
    """Record key and value start and size of every header of the records in the table, in order."""
    header = 0
    for record in range(records):
        at, end = table[HEADERS_AT, record], table[HEADERS_END, record]
        for _ in range(table[HEADERS, record]):
            for row in (0, 2):
                size, at = read_varint(data, at, end, 32)
                if at < 0:
                    return BAD_VARINT
                if size < (0 if row == 0 else -1) or size > end - at:
                    return BAD_HEADERS
                places[row, header], places[row + 1, header] = at, size
                at += max(size, 0)
            header += 1
        if at != end:
            return BAD_HEADERS
    return header


@compiled
def measure(sizes: Array, ends: Array, validity: Array) -> int:
    """Arrow's offsets and validity bits for values of these sizes. Returns the number of nulls."""
    total = 0
    nulls = 0
    ends[0] = 0
    for i in range(sizes.shape[0]):
        if sizes[i] < 0:
            nulls += 1
        else:
            total += sizes[i]
            validity[i >> 3] |= 1 << (i & 7)
        ends[i + 1] = total
    return nulls


@compiled
def gather(data: Array, starts: Array, ends: Array, out: Array) -> None:
    """Copy value i from its start to [ends[i], ends[i + 1]) of out. The scan has checked all positions."""
    for i in range(starts.shape[0]):
        to = np.int64(ends[i])
        size = np.int64(ends[i + 1]) - to
        source, target = data[starts[i] : starts[i] + size], out[to : to + size]
        for at in range(size):  # this form becomes a vectorised copy, ten times faster than with one index
            target[at] = source[at]
