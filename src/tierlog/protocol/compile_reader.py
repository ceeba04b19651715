"""Compiles a message's schema at one version into a reader: straight-line Python, one function per struct.

Called by `codec`. Adjacent fields of fixed size are read by one `struct` call. A reader has the view cut at
`end`, so that a read past the end raises (struct.error, IndexError) instead of seeing another frame; only
slices, which Python cuts silently, compare their end.
"""

import struct
from collections.abc import Callable
from typing import Any

from tierlog.protocol.primitives import (
    STRING_BYTES_MAX,
    TooManyElements,
    read_tag,
    read_uuid,
    read_uvarint,
    refuse,
    skip_tags,
)
from tierlog.protocol.schema import FIXED, Field, Struct, plain_fields, runs_of_fields, tagged_fields

FIELDS_PER_ELEMENT = 5
"""Each five fields of a struct count as one more element: it is larger, and handling it takes longer."""

NUMBERS_PER_ELEMENT = 4
"""A number in a list takes at most 40 bytes, a struct or a string more than a hundred. So a reassignment of
10,000 partitions, the maximum of one request, can have sixteen replicas each.
"""


def compile_reader(message: type[Struct], version: int, flexible: bool) -> Callable[..., Any]:
    """The reader of one message at one version: (view, at, end, [elements left]) -> (message, position)."""
    source = _Source(version, flexible)
    name = source.struct_reader(message)
    exec("\n".join(source.lines), source.names)
    compiled: Callable[..., Any] = source.names[name]
    return compiled


def least_size(kind: type[Struct], version: int, flexible: bool) -> int:
    """The minimum bytes of a struct at a version."""
    sizes = (_least_field_size(field, version, flexible) for field in plain_fields(kind, version))
    return sum(sizes, 1 if flexible else 0)


def _least_field_size(field: Field, version: int, flexible: bool) -> int:
    if field.array:
        return 1 if flexible else 4
    if field.type == "struct":
        nested = field.nested
        return 1 if nested is None or field.is_nullable_in(version) else least_size(nested, version, flexible)
    if field.type in FIXED:
        return struct.calcsize(">" + FIXED[field.type])
    return 1 if flexible else (2 if field.type == "string" else 4)


def _weight(array: Field) -> str:
    """The number of elements that `n` elements of an array count as. A struct has all of its fields in every
    version."""
    if array.nested is not None:
        return f"n * {1 + len(array.nested.FIELDS) // FIELDS_PER_ELEMENT}"
    is_of_numbers = array.type in FIXED and array.type != "uuid"
    return f"-(-n // {NUMBERS_PER_ELEMENT})" if is_of_numbers else "n"


class _Source:
    """The generated source and the names that it uses."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "read_uvarint": read_uvarint,
            "read_uuid": read_uuid,
            "read_tag": read_tag,
            "skip_tags": skip_tags,
            "refuse": refuse,
            "TooManyElements": TooManyElements,
            "i16": struct.Struct(">h").unpack_from,
            "i32": struct.Struct(">i").unpack_from,
        }

    def struct_reader(self, kind: type[Struct]) -> str:
        """Generate the reader of a struct, after those of its nested ones. Returns its name."""
        name = f"read_{kind.__name__}"
        if name in self.names:
            return name
        self.names[name] = None
        self.names[kind.__name__] = kind
        plain = plain_fields(kind, self.version)
        body: list[str] = []
        for piece in runs_of_fields(plain):
            first = piece[0]
            body += self._fixed(piece) if first.is_fixed else self._value(first, f"v_{first.name}")
        arguments = ", ".join(f"{field.name}=v_{field.name}" for field in plain)
        body.append(f"m = {kind.__name__}({arguments})")
        if self.flexible:
            body += self._tags(tagged_fields(kind, self.version))
        body.append("return m, at")
        self.lines.append(f"def {name}(view, at, end, left):")
        self.lines += [f"    {line}" for line in body]
        return name

    def _fixed(self, fields: list[Field]) -> list[str]:
        layout = struct.Struct(">" + "".join(FIXED[field.type] for field in fields))
        name = "fixed_" + layout.format[1:].replace("?", "t")
        self.names[name] = layout.unpack_from
        targets = "".join(f"v_{field.name}, " for field in fields).strip()
        lines = [f"{targets} = {name}(view, at)", f"at += {layout.size}"]
        return lines + [f"v_{f.name} = read_uuid(v_{f.name})" for f in fields if f.type == "uuid"]

    def _value(self, field: Field, target: str) -> list[str]:
        nullable = field.is_nullable_in(self.version)
        if field.array:
            return self._array(field, target, nullable)
        if field.type == "struct":
            return self._struct(field, target, nullable)
        if field.type in FIXED:
            return [line.replace(f"v_{field.name}", target) for line in self._fixed([field])]
        content = "str(view[at : at + n], 'utf-8')" if field.type == "string" else "view[at : at + n]"
        return [
            *self._length(field.type == "string"),
            *self._null(field, target, nullable),
            *self._bound(field),
            "    if n > end - at: raise refuse('a length past the end')",
            f"    {target} = {content}",
            "    at += n",
        ]

    def _length(self, short: bool) -> list[str]:
        """Generate code that sets n to the length or count; -1 for null."""
        if self.flexible:
            return ["n = view[at]", "at += 1", "if n > 127: n, at = read_uvarint(view, at - 1)", "n -= 1"]
        return ["n, = i16(view, at)", "at += 2"] if short else ["n, = i32(view, at)", "at += 4"]

    def _null(self, field: Field, target: str, nullable: bool) -> list[str]:
        if nullable:
            return [
                "if n == -1:",
                f"    {target} = None",
                "elif n < 0: raise refuse('a length below -1')",
                "else:",
            ]
        return [f"if n < 0: raise refuse('{field.name} is null')", "else:"]

    def _bound(self, field: Field) -> list[str]:
        if field.type != "string" or not self.flexible:
            return []
        return [f"    if n > {STRING_BYTES_MAX}: raise refuse('{field.name} has an invalid length')"]

    def _array(self, field: Field, target: str, nullable: bool) -> list[str]:
        element = field._replace(array=False, nullable=None)
        least = max(_least_field_size(element, self.version, self.flexible), 1)
        lines = self._length(short=False) + self._null(field, target, nullable)
        lines += [
            f"    if n * {least} > end - at: raise refuse('a count past the end')",
            f"    left[0] -= {_weight(field)}",
            "    if left[0] < 0: raise TooManyElements('too many array elements')",
        ]
        if field.type in FIXED and field.type != "uuid":
            self.names["Struct"] = struct.Struct
            code, size = FIXED[field.type], struct.calcsize(">" + FIXED[field.type])
            return [
                *lines,
                f"    {target} = list(Struct(f'>{{n}}{code}').unpack_from(view, at))",
                f"    at += n * {size}",
            ]
        many = f"a_{field.name}"
        lines += [f"    {many} = []", "    for _ in range(n):"]
        lines += [f"        {line}" for line in self._value(element, "e")]
        return [*lines, f"        {many}.append(e)", f"    {target} = {many}"]

    def _struct(self, field: Field, target: str, nullable: bool) -> list[str]:
        if field.nested is None:
            raise ValueError(f"{field.name} names no struct")
        call = f"{target}, at = {self.struct_reader(field.nested)}(view, at, end, left)"
        if not nullable:
            return [call]
        # KIP-893: one byte, negative for null; in a tagged field, 0 for null
        null = "n == 0" if field.is_tagged_in(self.version) else "n > 127"
        return ["n, at = view[at], at + 1", f"if {null}:", f"    {target} = None", "else:", f"    {call}"]

    def _tags(self, fields: list[Field]) -> list[str]:
        if not fields:
            return ["at = at + 1 if view[at] == 0 else skip_tags(view, at, end)"]
        lines = [
            "count, last = view[at], -1",
            "at += 1",
            "if count:",  # rare
            "    count, at = read_uvarint(view, at - 1)",
            "    if count > (end - at) // 2: raise refuse('a count of tags past the end')",
            "for _ in range(count):",
            "    last, size, at = read_tag(view, at, end, last)",
            "    stop = at + size",
        ]
        for order, field in enumerate(fields):
            lines.append(f"    {'elif' if order else 'if'} last == {field.tag}:")
            lines += [f"        {line}" for line in self._value(field, "t")]
            lines += [
                f"        m.{field.name} = t",
                "        if at != stop: raise refuse('a tagged field of another size')",
            ]
        return [*lines, "    else: at = stop"]
