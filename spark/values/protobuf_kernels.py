"""Compiled loops of the Protobuf decoder: read the fields of many messages into columns.

A column has the entries of one field, in the order of the bytes: the instance of the message that contains
it, and its value. For BYTES this is position and size, and for MESSAGE nothing: its instance is the number of
the entry. As for Avro, the first pass counts entries and finds malformed messages, and the second writes.
Every position is checked against the end before it is read.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from tierlog.records.kernels import compiled
from tierlog.spark.values.kernels import bits_at, unzigzag, varint_at

if TYPE_CHECKING:
    from tierlog.records.kernels import Array

VARINT, ZIGZAG, FIXED64, FIXED32, BYTES, MESSAGE = range(6)
WIRES = (0, 0, 1, 5, 2, 2)
"""Wire type of each kind of entry."""

WIDTHS = (2, 2, 2, 2, 3, 1)
"""Numbers of an entry of each kind."""

NUMBER, KIND, COLUMN, INNER, REPEATED = range(5)
"""Columns of the table of fields: number, kind of entries, column, message, and whether it is repeated."""

STOP, INSIDE, INSTANCE, HINT = range(4)
"""Fields of a message that is being read: its end, number and instance, and the field that is expected."""

DEPTH = 100
"""Messages inside each other, as in Google's libraries."""


@compiled
def read_messages(
    data: "Array",
    starts: "Array",
    ends: "Array",
    fields: "Array",
    messages: "Array",
    counts: "Array",
    is_good: "Array",
    places: "Array",
    out: "Array",
) -> int:
    """Read the message between each start and end. `messages`: first field and number of fields. `counts`,
    `is_good`, `places`, `out`: as of the Avro decoder. Returns the number of good messages."""
    writes = len(places) > 0
    saved = np.zeros(len(counts), np.int64)
    stack = np.zeros((DEPTH, 4), np.int64)
    good = 0
    for row in range(len(starts)):
        if writes and not is_good[row]:
            continue
        if not writes:
            saved[:] = counts
        stack[0, STOP], stack[0, INSIDE], stack[0, INSTANCE], stack[0, HINT] = ends[row], 0, good, 0
        is_valid = read_once(data, starts[row], fields, messages, counts, places, out, stack)
        if is_valid:
            good += 1
        if not writes:
            is_good[row] = is_valid
            if not is_valid:
                counts[:] = saved
    return good


@compiled
def read_once(
    data: "Array",
    at: int,
    fields: "Array",
    messages: "Array",
    counts: "Array",
    places: "Array",
    out: "Array",
    stack: "Array",
) -> bool:
    """Read one message, whose end is in the stack. False: it is malformed, and its entries are to be
    dropped."""
    depth = groups = 0
    while depth >= 0:
        end = stack[depth, STOP]
        if at == end:
            if groups:
                return False
            depth -= 1
            continue
        tag, at = varint_at(data, at, end)
        if at < 0 or tag >> 3 <= 0 or tag >> 3 >= 1 << 29:
            return False
        wire = tag & 7
        if wire in (3, 4):  # groups are passed over
            groups += 1 if wire == 3 else -1
            if groups < 0:
                return False
            continue
        found = -1 if groups else find_field(fields, messages, stack, depth, tag >> 3)
        kind = fields[found, KIND]
        is_packed = found >= 0 and kind <= FIXED32 and wire == 2 and fields[found, REPEATED] == 1
        if found < 0 or (WIRES[kind] != wire and not is_packed):
            at = skip_field(data, at, end, wire)
        elif kind == MESSAGE:
            size, at = varint_at(data, at, end)
            if at < 0 or size < 0 or size > end - at or depth + 1 == DEPTH:
                return False
            column = fields[found, COLUMN]
            if len(places):
                out[places[column] + counts[column]] = stack[depth, INSTANCE]
            depth += 1
            stack[depth, STOP], stack[depth, INSIDE] = at + size, fields[found, INNER]
            stack[depth, INSTANCE], stack[depth, HINT] = counts[column], 0
            counts[column] += 1
        else:
            owner, column = stack[depth, INSTANCE], fields[found, COLUMN]
            at = read_entries(data, at, end, kind, is_packed, owner, column, counts, places, out)
        if at < 0:
            return False
    return True


@compiled
def find_field(fields: "Array", messages: "Array", stack: "Array", depth: int, number: int) -> int:
    """The row of a field of the message on top of the stack, or -1. Fields usually follow in their order."""
    first, count = messages[stack[depth, INSIDE], 0], messages[stack[depth, INSIDE], 1]
    hint = stack[depth, HINT]
    for step in range(count):
        candidate = first + (hint + step) % count
        if fields[candidate, NUMBER] == number:
            stack[depth, HINT] = candidate - first
            return int(candidate)
    return -1


@compiled
def read_entries(
    data: "Array",
    at: int,
    end: int,
    kind: int,
    is_packed: bool,
    owner: int,
    column: int,
    counts: "Array",
    places: "Array",
    out: "Array",
) -> int:
    """Read the value of a field, or several packed ones. Returns the position after it, or -1."""
    writes = len(places) > 0
    stop = end
    if is_packed or kind == BYTES:
        size, at = varint_at(data, at, end)
        if at < 0 or size < 0 or size > end - at:
            return -1
        stop = at + size
    if kind == BYTES:
        if writes:
            place = places[column] + counts[column]
            out[place], out[place + 1], out[place + 2] = owner, at, stop - at
        counts[column] += 3
        return stop
    while at < stop or not is_packed:
        value, at = read_scalar(data, at, stop, kind)
        if at < 0:
            return -1
        if writes:
            place = places[column] + counts[column]
            out[place], out[place + 1] = owner, value
        counts[column] += 2
        if not is_packed:
            break
    return at


@compiled
def read_scalar(data: "Array", at: int, end: int, kind: int) -> tuple[Any, int]:
    """The bits of a number and the position after it, or -1."""
    if kind == FIXED64:
        return bits_at(data, at, end, 8)
    if kind == FIXED32:
        return bits_at(data, at, end, 4)
    value, after = varint_at(data, at, end)
    return unzigzag(value) if kind == ZIGZAG else value, after


@compiled
def skip_field(data: "Array", at: int, end: int, wire: int) -> int:
    """The position after a field, or -1."""
    if wire == 0:
        return varint_at(data, at, end)[1]
    if wire == 2:
        size, at = varint_at(data, at, end)
        return -1 if at < 0 or size < 0 or size > end - at else at + size
    size = 8 if wire == 1 else 4
    return -1 if wire not in (1, 5) or size > end - at else at + size


@compiled
def skip_indexes(data: "Array", starts: "Array", ends: "Array") -> None:
    """Advance each start behind the list of message indexes that follows the schema's id in a frame. A start
    beyond its end stands for a truncated list."""
    for row in range(len(starts)):
        end = ends[row]
        count, at = varint_at(data, starts[row], end)
        count >>= 1
        while at >= 0 and count > 0:
            at = varint_at(data, at, end)[1]
            count -= 1
        starts[row] = at if at >= 0 else end + 1
