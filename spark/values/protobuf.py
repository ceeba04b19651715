"""Protobuf values as Arrow arrays, without a Python object per value.

A field that occurs twice has its last value, as the specification demands. It would merge two messages, which
this decoder does not.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tierlog.records.columnar import binary_array
from tierlog.records.kernels import Array
from tierlog.spark.values import protobuf_kernels as kernels
from tierlog.spark.values import protobuf_schema as schema
from tierlog.spark.values.avro import to_text, to_type
from tierlog.spark.values.avro_schema import Node
from tierlog.spark.values.protobuf_schema import Field, parse_descriptors

_KINDS = {
    schema.DOUBLE: kernels.FIXED64,
    schema.FIXED64: kernels.FIXED64,
    schema.SFIXED64: kernels.FIXED64,
    schema.FLOAT: kernels.FIXED32,
    schema.FIXED32: kernels.FIXED32,
    schema.SFIXED32: kernels.FIXED32,
    schema.STRING: kernels.BYTES,
    schema.BYTES: kernels.BYTES,
    schema.MESSAGE: kernels.MESSAGE,
    schema.SINT64: kernels.ZIGZAG,
}
NO_DEFAULTS = Node("message", "")
SECONDS_MOST = 2**63 // 1_000_000 - 10_000
"""A column has microseconds in 64 bits. This leaves some for the nanoseconds."""

_DEFAULTS: dict[int, Any] = {schema.STRING: "", schema.BYTES: b"", schema.BOOL: False}


def decoder(descriptors: bytes, message: str, is_framed: bool) -> Any:
    """A Decoder of a message's values. `is_framed`: they begin with the list of message indexes."""
    root = parse_descriptors(descriptors, message)
    reader = MessageReader(root)

    def decode(data: Array, starts: Array, ends: Array, type: Any) -> tuple[Any, Array]:
        starts = starts.copy()
        if is_framed:
            kernels.skip_indexes(data, starts, ends)
        array, is_good = reader.decode(data, starts, ends)
        return to_type(array, type, NO_DEFAULTS), is_good

    return decode


class MessageReader:
    """Decodes values of one message."""

    def __init__(self, root: Field) -> None:
        self._root = root
        self._fields: list[list[int]] = []
        self._messages: list[list[int]] = []
        self._columns = 0
        self._number(root)
        self._table = np.array(self._fields, np.int64)
        self._ranges = np.array(self._messages, np.int64)

    def decode(self, data: Array, starts: Array, ends: Array) -> tuple[Any, Array]:
        """The values between these positions that are not malformed, and for each whether it is one of
        them."""
        counts, is_good = np.zeros(self._columns, np.int64), np.zeros(len(starts), np.bool_)
        nothing = np.zeros(0, np.int64)
        tables = self._table, self._ranges
        good = kernels.read_messages(data, starts, ends, *tables, counts, is_good, nothing, nothing)
        places = np.concatenate([[0], np.cumsum(counts)])
        out = np.empty(int(places[-1]), np.int64)
        kernels.read_messages(data, starts, ends, *tables, np.zeros_like(counts), is_good, places, out)
        return _Arrays(data, out, places).message(self._root, good), is_good

    def _number(self, message: Field) -> int:
        """Enter the fields of a message into the tables. Returns the message's number."""
        number, first = len(self._messages), len(self._fields)
        self._messages.append([first, len(message.fields)])
        self._fields += [[0] * 5 for _ in message.fields]
        for at, one in enumerate(message.fields, first):
            one.column = self._columns
            self._columns += 1
            inner = self._number(one) if one.kind == schema.MESSAGE else 0
            kind = _KINDS.get(one.kind, kernels.VARINT)
            self._fields[at] = [one.number, kind, one.column, inner, int(one.is_repeated)]
        return number


class _Arrays:
    """Builds Arrow arrays of the entries in the columns."""

    def __init__(self, data: Array, out: Array, places: Array) -> None:
        self._data, self._out, self._places = data, out, places

    def message(self, message: Field, rows: int) -> Any:
        """The array of a message with so many instances."""
        arrays = [self._field(one, rows) for one in message.fields]
        if message.is_timestamp:
            seconds, nanos = (array.to_numpy(zero_copy_only=False) for array in arrays)
            if ((seconds > SECONDS_MOST) | (seconds < -SECONDS_MOST)).any():
                raise pa.ArrowInvalid("a timestamp that no column can hold")
            return pa.array(seconds * 1_000_000 + nanos // 1_000).view(pa.timestamp("us", "UTC"))
        return pa.StructArray.from_arrays(arrays, names=[one.name for one in message.fields])

    def _field(self, one: Field, rows: int) -> Any:
        """An array with a value for each instance of the message."""
        width = kernels.WIDTHS[_KINDS.get(one.kind, kernels.VARINT)]
        entries = self._out[self._places[one.column] : self._places[one.column + 1]].reshape(-1, width)
        owners = np.ascontiguousarray(entries[:, 0])
        if one.is_repeated:
            ends = np.zeros(rows + 1, np.int32)
            np.cumsum(np.bincount(owners, minlength=rows), out=ends[1:])
            if one.is_map:
                return self._map(one, owners, ends, len(entries))
            return pa.ListArray.from_arrays(pa.array(ends), self._values(one, entries))
        found = self._values(one, entries)
        if len(owners) == rows and (owners == np.arange(rows)).all():
            return found
        last = np.full(rows, -1, np.int64)
        last[owners] = np.arange(len(owners))
        found = found.take(pa.array(last, mask=last < 0))
        if one.has_presence or one.kind == schema.MESSAGE:
            return found
        default = one.symbols.get(0) if one.kind == schema.ENUM else _DEFAULTS.get(one.kind, 0)
        if default is None:
            return found
        missing = pa.scalar(default) if one.kind in _DEFAULTS else pa.scalar(default).cast(found.type)
        return pc.if_else(pa.array(last < 0), missing.cast(found.type), found)

    def _map(self, one: Field, owners: Array, ends: Array, count: int) -> Any:
        """The last one of several entries with the same key counts."""
        key, value = (self._field(each, count) for each in one.fields)
        codes = key.dictionary_encode("encode").indices.to_numpy(zero_copy_only=False)
        _, places = np.unique((owners * (count + 1) + codes)[::-1], return_index=True)
        if len(places) < count:
            kept = np.sort(count - 1 - places)
            ends = np.concatenate([[0], np.cumsum(np.bincount(owners[kept], minlength=len(ends) - 1))])
            key, value = key.take(pa.array(kept)), value.take(pa.array(kept))
        return pa.MapArray.from_arrays(pa.array(ends.astype(np.int32)), key, value)

    def _values(self, one: Field, entries: Array) -> Any:
        """The values of all entries."""
        if one.kind == schema.MESSAGE:
            return self.message(one, len(entries))
        bits = np.ascontiguousarray(entries[:, 1])
        match one.kind:
            case schema.STRING | schema.BYTES:
                found = binary_array(self._data, bits, np.ascontiguousarray(entries[:, 2]))
                return to_text(found) if one.kind == schema.STRING else found
            case schema.DOUBLE:
                return pa.array(bits.view(np.float64))
            case schema.FLOAT:
                return pa.array(bits.astype(np.uint32).view(np.float32))
            case schema.INT32 | schema.SFIXED32:
                return pa.array(bits.astype(np.int32))
            case schema.SINT32:  # the lower ones of more bits count
                low = bits.astype(np.uint32)
                return pa.array((low >> 1).astype(np.int32) ^ -(low & 1).astype(np.int32))
            case schema.UINT32 | schema.FIXED32:
                return pa.array(bits & 0xFFFF_FFFF)
            case schema.UINT64 | schema.FIXED64:
                return pa.array(bits.view(np.uint64)).cast(pa.decimal128(20, 0))
            case schema.BOOL:
                return pa.array(bits != 0)
            case schema.ENUM:
                return self._enum(one, bits.astype(np.int32))
        return pa.array(bits)

    def _enum(self, one: Field, numbers: Array) -> Any:
        """Names. A number that the schema does not have is null."""
        known = np.array(sorted(one.symbols), np.int64)
        places = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
        names = pa.array([one.symbols[int(number)] for number in known], pa.string())
        return names.take(pa.array(places, mask=known[places] != numbers))
