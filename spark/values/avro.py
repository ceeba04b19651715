"""Avro values as Arrow arrays, without a Python object per value: the program of a schema, and its results.

A program belongs to the schema that wrote a value. Its arrays are then cast to the schema of the column:
fields by name, and missing ones by their defaults.
"""

from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tierlog.records.columnar import binary_array
from tierlog.records.kernels import Array
from tierlog.spark.values import MalformedValue, kernels
from tierlog.spark.values.avro_schema import MOST_DIGITS, Node, parse_schema, resolve

_OPERATIONS = {
    "boolean": kernels.BOOLEAN,
    "int": kernels.INT,
    "long": kernels.LONG,
    "float": kernels.FLOAT,
    "double": kernels.DOUBLE,
    "bytes": kernels.BYTES,
    "string": kernels.BYTES,
}
_UTC = pa.timestamp("us", "UTC")
_LOGICAL = {
    "timestamp-millis": (pa.timestamp("ms", "UTC"), _UTC),
    "timestamp-micros": (_UTC, _UTC),
    "local-timestamp-millis": (pa.timestamp("ms"), pa.timestamp("us")),
    "local-timestamp-micros": (pa.timestamp("us"), pa.timestamp("us")),
}


def decoder(writer: str, reader: str) -> Any:
    """A Decoder of values that the schema `writer` wrote, in a column of the schema `reader`. Raises
    MalformedValue if they do not fit into it."""
    program, node = Program(writer), parse_schema(reader)
    resolve(program.root, node)

    def decode(data: Array, starts: Array, ends: Array, type: Any) -> tuple[Any, Array]:
        array, is_good = program.decode(data, starts, ends)
        return to_type(array, type, node), is_good

    return decode


class Program:
    """Decodes values that one schema wrote."""

    def __init__(self, schema: str) -> None:
        """Raises InvalidOption."""
        self.root = parse_schema(schema)
        self._code: list[list[int]] = []
        self._targets: list[int] = []
        self._columns = 0
        self._emit(self.root)
        self._add(kernels.END)
        self._table = np.array(self._code, np.int64)
        self._jumps = np.array(self._targets or [0], np.int64)

    def decode(self, data: Array, starts: Array, ends: Array) -> tuple[Any, Array]:
        """The values between these positions that are not malformed, and for each whether it is one of
        them."""
        counts, is_good = np.zeros(self._columns, np.int64), np.zeros(len(starts), np.bool_)
        nothing = np.zeros(0, np.int64)
        good = kernels.run_program(
            data, starts, ends, self._table, self._jumps, counts, is_good, nothing, nothing
        )
        places = np.concatenate([[0], np.cumsum(counts)])
        out = np.empty(int(places[-1]), np.int64)
        again = np.zeros(self._columns + 1, np.int64)  # one more: a program may have no column
        kernels.run_program(data, starts, ends, self._table, self._jumps, again, is_good, places, out)
        return _Arrays(data, out, places).build(self.root, good), is_good

    def _add(self, operation: int, column: int = 0, first: int = 0, second: int = 0) -> int:
        self._code.append([operation, column, first, second])
        return len(self._code) - 1

    def _new_column(self) -> int:
        self._columns += 1
        return self._columns - 1

    def _emit(self, node: Node) -> None:
        if node.kind in ("null", "record"):
            for child in node.children:
                self._emit(child)
            return
        node.column = self._new_column()
        match node.kind:
            case "fixed":
                self._add(kernels.FIXED, node.column, node.size)
            case "enum":
                self._add(kernels.ENUM, node.column, len(node.symbols))
            case "union":
                self._emit_union(node)
            case "array" | "map":
                self._add(kernels.ARRAY, node.column)
                loop = self._add(kernels.LOOP)
                if node.kind == "map":
                    self._add(kernels.BYTES, self._new_column())
                self._emit(node.children[0])
                self._add(kernels.JUMP, 0, loop)
                self._code[loop][2] = len(self._code)
            case kind:
                self._add(_OPERATIONS[kind], node.column)

    def _emit_union(self, node: Node) -> None:
        first = len(self._targets)
        self._targets += [0] * len(node.children)
        self._add(kernels.UNION, node.column, len(node.children), first)
        exits = []
        for number, child in enumerate(node.children):
            self._targets[first + number] = len(self._code)
            self._emit(child)
            exits.append(self._add(kernels.JUMP))
        for exit in exits:
            self._code[exit][2] = len(self._code)


class _Arrays:
    """Builds Arrow arrays of the entries in the columns."""

    def __init__(self, data: Array, out: Array, places: Array) -> None:
        self._data, self._out, self._places = data, out, places

    def build(self, node: Node, rows: int) -> Any:
        """The array of a node that occurs `rows` times."""
        match node.kind:
            case "null":
                return pa.nulls(rows)
            case "record":
                children = [self.build(child, rows) for child in node.children]
                return pa.StructArray.from_arrays(children, names=list(node.fields))
            case "union":
                return self._union(node)
            case "array" | "map":
                return self._list(node)
        entries = self._column(node.column)
        match node.kind:
            case "boolean":
                return pa.array(entries.astype(np.bool_))
            case "int":
                found = pa.array(entries.astype(np.int32))
                return found.view(pa.date32()) if node.logical else found
            case "long":
                found = pa.array(entries)
                if node.logical:
                    stored, wanted = _LOGICAL[node.logical]
                    found = found.view(stored).cast(wanted)
                return found
            case "float":
                return pa.array(entries.astype(np.uint32).view(np.float32))
            case "double":
                return pa.array(entries.view(np.float64))
            case "enum":
                return pa.array(list(node.symbols), pa.string()).take(pa.array(entries))
            case "fixed":
                return self._bytes(node, entries, np.full(len(entries), node.size, np.int64))
        return self._bytes(node, entries[::2], entries[1::2])

    def _column(self, column: int) -> Array:
        return self._out[self._places[column] : self._places[column + 1]]

    def _bytes(self, node: Node, starts: Array, sizes: Array) -> Any:
        starts, sizes = np.ascontiguousarray(starts), np.ascontiguousarray(sizes)
        if node.logical == "decimal":
            return self._decimals(node, starts, sizes)
        found = binary_array(self._data, starts, sizes)
        return to_text(found) if node.kind == "string" else found

    def _decimals(self, node: Node, starts: Array, sizes: Array) -> Any:
        numbers = np.empty((len(starts), 16), np.uint8)
        if kernels.to_decimals(self._data, starts, sizes, numbers):
            raise pa.ArrowInvalid("a decimal has more than 16 bytes")
        type = pa.decimal128(node.precision, node.scale)
        found = pa.Array.from_buffers(type, len(starts), [None, pa.py_buffer(numbers)])
        found.validate(full=True)  # ArrowInvalid if one has too many digits, which Spark cannot hold
        return found

    def _list(self, node: Node) -> Any:
        counts = self._column(node.column)
        ends = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=ends[1:])
        items = self.build(node.children[0], int(ends[-1]))
        if node.kind == "array":
            return pa.ListArray.from_arrays(pa.array(ends), items)
        keys = self._column(node.column + 1)
        texts = to_text(
            binary_array(self._data, np.ascontiguousarray(keys[::2]), np.ascontiguousarray(keys[1::2]))
        )
        return pa.MapArray.from_arrays(pa.array(ends), texts, items)

    def _union(self, node: Node) -> Any:
        chosen = self._column(node.column)
        found = []
        for number, child in enumerate(node.children):
            if child.kind == "null":
                continue
            is_here = chosen == number
            dense = self.build(child, int(is_here.sum()))
            places = pa.array(np.cumsum(is_here) - 1, mask=~is_here)
            found.append(dense if is_here.all() else dense.take(places))
        if not found:
            return pa.nulls(len(chosen))
        if len(found) == 1:
            return found[0]
        if not node.spark.startswith("struct"):  # two numbers, as the wider type
            wide = pa.int64() if node.spark == "bigint" else pa.float64()
            return pc.coalesce(*(one.cast(wide) for one in found))
        is_null = np.isin(chosen, [n for n, child in enumerate(node.children) if child.kind == "null"])
        names = [f"member{number}" for number in range(len(found))]
        return pa.StructArray.from_arrays(found, names=names, mask=pa.array(is_null))


def to_text(binary: Any) -> Any:
    """A string array. Bytes that are not UTF-8 are replaced, as Spark does when it shows them."""
    try:
        return binary.cast(pa.string())
    except pa.ArrowInvalid:
        values = (None if value is None else value.decode("utf-8", "replace") for value in binary.to_pylist())
        return pa.array(values, pa.string())


def to_type(array: Any, type: Any, reader: Node) -> Any:
    """An array as a column of the type that Spark wants. `reader`: schema of the column, for the defaults of
    fields that the writer's schema lacks."""
    if pa.types.is_struct(type) and pa.types.is_struct(array.type):
        record = reader.branches[0] if reader.kind == "union" and len(reader.branches) == 1 else reader
        fields = record.fields or [f"member{number}" for number in range(len(record.branches))]
        children = dict(
            zip(fields, record.branches if record.kind == "union" else record.children, strict=False)
        )
        names = {field.name for field in array.type}
        found = []
        for field in type:
            node = children.get(field.name, record)
            if field.name in names:
                found.append(to_type(pc.struct_field(array, field.name), field.type, node))
            else:
                found.append(pa.repeat(_default(record, field, node), len(array)))
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(found, fields=list(type), mask=mask)
    item = reader.branches[0] if reader.kind == "union" and len(reader.branches) == 1 else reader
    inner = item.children[0] if item.kind in ("array", "map") else item
    if pa.types.is_list(type) and pa.types.is_list(array.type):
        values = to_type(array.values, type.value_type, inner)
        return pa.Array.from_buffers(
            type, len(array), array.buffers()[:2], array.null_count, array.offset, [values]
        )
    if pa.types.is_map(type) and pa.types.is_map(array.type):
        pairs = pa.StructArray.from_arrays(
            [array.keys.cast(type.key_type), to_type(array.items, type.item_type, inner)],
            fields=[type.key_field, type.item_field],
        )
        return pa.Array.from_buffers(
            type, len(array), array.buffers()[:2], array.null_count, array.offset, [pairs]
        )
    if array.type == type:
        return array
    return array.cast(type, safe=not pa.types.is_floating(type))  # a long may have more digits than a double


def _default(record: Node, field: Any, node: Node) -> Any:
    """The default of a field as a scalar, which is null without one. Raises MalformedValue."""
    try:
        value = default_of(record.defaults[field.name], node) if field.name in record.defaults else None
        return pa.scalar(value, field.type)
    except (pa.ArrowException, TypeError, ValueError, AttributeError, KeyError) as error:
        shown = record.defaults[field.name]
        raise MalformedValue(f"the default {shown!r} of the Avro field {field.name}: {error}") from None


def default_of(value: Any, node: Node) -> Any:
    """A default of the schema, which is JSON, as Arrow takes it."""
    if value is None:
        return None
    match node.kind:
        case "union":  # the default is of the first type
            found = default_of(value, node.branches[0])
            is_struct = len(node.branches) > 1 and node.spark.startswith("struct<")
            return {"member0": found} if is_struct else found
        case "record":
            given = {**node.defaults, **value}
            return {
                name: default_of(given[name], child)
                for name, child in zip(node.fields, node.children, strict=True)
            }
        case "array":
            return [default_of(one, node.children[0]) for one in value]
        case "map":
            return [(key, default_of(one, node.children[0])) for key, one in value.items()]
        case "bytes" | "fixed":
            raw = value.encode("iso-8859-1")
            if node.logical != "decimal":
                return raw
            number = Decimal(int.from_bytes(raw, "big", signed=True))
            return number.scaleb(-node.scale, Context(prec=MOST_DIGITS))
    return value * 1_000 if node.logical.endswith("-millis") else value
