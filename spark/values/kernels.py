"""Compiled loops of the decoders of Avro and JSON. Avro's is a small machine that runs the program of a
schema over many values.

The program (`avro.Program`) is a table with one row per instruction: operation, column, and two arguments. A
column is a sequence of 64-bit numbers, the entries: what a node of the schema has, for each occurrence of it.
Two passes run the same program. The first counts the entries of each column and finds malformed values; the
second writes the entries of the others. Every position is checked against the end before it is read.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from tierlog.records.kernels import compiled

if TYPE_CHECKING:
    from tierlog.records.kernels import Array

(END, INT, LONG, BOOLEAN, FLOAT, DOUBLE, BYTES, FIXED, ENUM, UNION, JUMP, ARRAY, LOOP) = range(13)
"""Operations. BYTES has two entries (position, size), ARRAY the number of its items, UNION its branch."""

DEPTH = 64
"""Arrays and maps inside each other."""

LEFT, TOTAL, PLACE = range(3)
"""Fields of an array that is being read: items left in its block, items so far, and where this is written."""


@compiled
def run_program(
    data: "Array",
    starts: "Array",
    ends: "Array",
    code: "Array",
    targets: "Array",
    counts: "Array",
    is_good: "Array",
    places: "Array",
    out: "Array",
) -> int:
    """Run the program for each value. `targets`: first instruction of each branch of the unions. `counts`:
    entries of each column so far. Without `places` (of the columns in `out`) nothing is written, and
    `is_good` is set. Otherwise values that are not good are passed over. Returns the number of good ones."""
    writes = len(places) > 0
    saved = np.zeros(len(counts), np.int64)
    arrays = np.zeros((DEPTH, 3), np.int64)
    good = 0
    for row in range(len(starts)):
        if writes and not is_good[row]:
            continue
        if not writes:
            saved[:] = counts
        is_valid = run_once(data, starts[row], ends[row], code, targets, counts, places, out, arrays)
        if is_valid:
            good += 1
        if not writes:
            is_good[row] = is_valid
            if not is_valid:
                counts[:] = saved
    return good


@compiled
def run_once(
    data: "Array",
    at: int,
    end: int,
    code: "Array",
    targets: "Array",
    counts: "Array",
    places: "Array",
    out: "Array",
    arrays: "Array",
) -> bool:
    """Run the program for one value. False: it is malformed, and its entries are to be dropped."""
    writes = len(places) > 0
    pc = depth = 0
    while True:
        operation, column, argument = code[pc, 0], code[pc, 1], code[pc, 2]
        if operation == END:
            return at == end
        if operation == JUMP:
            pc = argument
            continue
        if operation == LOOP:
            at, has_item = next_item(data, at, end, arrays, depth - 1)
            if at < 0:
                return False
            if not has_item:
                depth -= 1
                if writes:
                    out[arrays[depth, PLACE]] = arrays[depth, TOTAL]
            pc = pc + 1 if has_item else argument
            continue
        value: Any = np.int64(0)
        if operation == ARRAY:
            if depth == DEPTH:
                return False
            arrays[depth, LEFT], arrays[depth, TOTAL] = 0, 0
            if writes:
                arrays[depth, PLACE] = places[column] + counts[column]
            depth += 1
        else:
            value, at = read_value(data, at, end, operation, argument)
            if at < 0:
                return False
        if operation == BYTES:
            if writes:
                out[places[column] + counts[column]] = at
            counts[column] += 1
            at += value
        if writes:
            out[places[column] + counts[column]] = value
        counts[column] += 1
        pc = targets[code[pc, 3] + value] if operation == UNION else pc + 1


@compiled
def read_value(data: "Array", at: int, end: int, operation: int, argument: int) -> tuple[Any, int]:
    """The entry of an operation and the position after what was read, which is -1 if it is malformed. The
    bytes of BYTES are not passed over. `argument`: size of FIXED, number of symbols or branches."""
    if operation == BOOLEAN:
        if at >= end or data[at] > 1:
            return np.int64(0), -1
        return np.int64(data[at]), at + 1
    if operation == FIXED:
        return np.int64(at), at + argument if 0 <= argument <= end - at else -1
    if operation in (FLOAT, DOUBLE):
        return bits_at(data, at, end, 4 if operation == FLOAT else 8)
    value, at = varint_at(data, at, end)
    value = unzigzag(value)
    if operation == INT:
        is_valid = -(2**31) <= value < 2**31
    elif operation == BYTES:
        is_valid = 0 <= value <= end - at
    else:
        is_valid = operation == LONG or 0 <= value < argument
    return value, at if is_valid else -1


@compiled
def next_item(data: "Array", at: int, end: int, arrays: "Array", depth: int) -> tuple[int, bool]:
    """The position of the next item of an array, and whether there is one. Position -1: malformed."""
    if arrays[depth, LEFT] == 0:
        count, at = varint_at(data, at, end)
        count = unzigzag(count)
        if at < 0 or count == 0:
            return at, False
        if count < 0:  # the size of the block in bytes follows
            count = -count
            at = varint_at(data, at, end)[1]
        if at < 0 or count < 0 or count > end - at:
            return -1, False
        arrays[depth, LEFT] = count
    arrays[depth, LEFT] -= 1
    arrays[depth, TOTAL] += 1
    return at, True


@compiled
def varint_at(data: "Array", at: int, end: int) -> tuple[Any, int]:
    """The bits of a varint and the position after it, which is -1 if it is truncated or over-long."""
    raw, shift = np.uint64(0), np.uint64(0)
    while at < end and shift < np.uint64(70):
        byte = np.uint64(data[at])
        at += 1
        raw |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return np.int64(raw), at
        shift += np.uint64(7)
    return np.int64(0), -1


@compiled
def unzigzag(value: int) -> int:
    """The signed number of these bits."""
    raw = np.uint64(value)
    return int(np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)))


@compiled
def bits_at(data: "Array", at: int, end: int, size: int) -> tuple[Any, int]:
    """A little-endian number of `size` bytes and the position after it, or -1."""
    if size > end - at:
        return np.int64(0), -1
    bits = np.uint64(0)
    for number in range(size):
        bits |= np.uint64(data[at + number]) << np.uint64(8 * number)
    return np.int64(bits), at + size


@compiled
def to_decimals(data: "Array", starts: "Array", sizes: "Array", out: "Array") -> int:
    """Big-endian two's complement as Arrow's 128-bit numbers. Returns 1 if one does not fit."""
    for row in range(len(starts)):
        at, size = starts[row], sizes[row]
        fill = 0xFF if size > 0 and data[at] >= 0x80 else 0
        while size > 16 and data[at] == fill and (data[at + 1] ^ fill) < 0x80:  # repeats the sign
            at += 1
            size -= 1
        if size > 16:
            return 1
        for byte_number in range(16):
            is_given = byte_number < size
            out[row, byte_number] = data[at + size - 1 - byte_number] if is_given else fill
    return 0


@compiled
def find_json(data: "Array", starts: "Array", ends: "Array", is_one: "Array") -> None:
    """Set for each text whether it is one JSON value, if it is JSON: brackets are closed, none closes what is
    outside of the text, and no comma is outside of brackets."""
    for row in range(len(starts)):
        depth, is_text, is_escaped, is_closed = 0, False, False, True
        for at in range(starts[row], ends[row]):
            byte = data[at]
            if is_text:
                is_text = is_escaped or byte != 0x22
                is_escaped = not is_escaped and byte == 0x5C
            elif byte == 0x22:
                is_text = True
            elif byte in (0x5B, 0x7B):
                depth += 1
            elif byte in (0x5D, 0x7D):
                depth -= 1
                is_closed = is_closed and depth >= 0
            elif byte == 0x2C and depth == 0:
                is_closed = False
        is_one[row] = is_closed and depth == 0 and not is_text
