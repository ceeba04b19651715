"""Compiles a message's schema at one version into a writer: straight-line Python, one function per struct.

Called by `codec`. A writer appends the pieces of the message; adjacent fields of fixed size take one call.
Error messages, which may quote the client's input, are truncated to the maximum length of a string; any other
string that is too long raises ValueError.
"""

import struct
from collections.abc import Callable
from typing import Any

from tierlog.base.files import Part
from tierlog.base.slices import LogSlice
from tierlog.protocol.primitives import STRING_BYTES_MAX, uvarint
from tierlog.protocol.schema import FIXED, Field, Records, Struct, plain_fields, runs_of_fields, tagged_fields


def compile_writer(message: type[Struct], version: int, flexible: bool) -> Callable[..., None]:
    """The writer of one message at one version: (message, append) -> None."""
    source = _Source(version, flexible)
    name = source.struct_writer(message)
    exec("\n".join(source.lines), source.names)
    compiled: Callable[..., None] = source.names[name]
    return compiled


def compile_parts(
    message: type[Struct], version: int, flexible: bool, array: str
) -> tuple[Callable[..., None], Callable[..., None], Callable[..., None]]:
    """The writers of the part before an array of structs, of one element, and of the part after it."""
    source = _Source(version, flexible)
    fields = plain_fields(message, version)
    at = next(number for number, field in enumerate(fields) if field.name == array)
    nested = fields[at].nested
    if nested is None or not fields[at].array:
        raise ValueError(f"{array} is no array of structs")
    source.function("write_before", source.plain(fields[:at]))
    element = source.struct_writer(nested)
    source.function("write_after", source.plain(fields[at + 1 :]) + source.tags(message))
    exec("\n".join(source.lines), source.names)
    return source.names["write_before"], source.names[element], source.names["write_after"]


def _cut(text: str) -> bytes:
    """The text, truncated to a string of the protocol."""
    data = text.encode()
    if len(data) <= STRING_BYTES_MAX:
        return data
    return data[:STRING_BYTES_MAX].decode(errors="ignore").encode()


def _records_of(records: Records) -> tuple[int, tuple[Part, ...]]:
    """Size and pieces; a slice of the log is passed through piece by piece."""
    if isinstance(records, LogSlice):
        return records.size, records.parts
    return len(records), (records,)


def _differs(field: Field, value: str, default: Any) -> str | None:
    """Source of an expression that is true unless the value is the default; None if it needs a comparison of
    objects. A struct of numbers is compared by its fields, since a dataclass would build two tuples.
    """
    if default is None:
        return f"{value} is not None"
    if field.nested is None:
        return f"{value} != {default}" if type(default) is int else None
    if field.array or field.nullable:
        return None
    parts = [_differs(one, f"{value}.{one.name}", getattr(default, one.name)) for one in field.nested.FIELDS]
    return None if None in parts else " or ".join(map(str, parts))


class _Source:
    """The generated source and the names that it uses."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "uvarint": uvarint,
            "records_of": _records_of,
            "cut": _cut,
            "i16": struct.Struct(">h").pack,
            "i32": struct.Struct(">i").pack,
            "Struct": struct.Struct,
        }

    def struct_writer(self, kind: type[Struct]) -> str:
        """Generate the writer of a struct, after those of its nested ones. Returns its name."""
        name = f"write_{kind.__name__}"
        if name in self.names:
            return name
        self.names[name] = None
        self.function(name, self.plain(plain_fields(kind, self.version)) + self.tags(kind))
        return name

    def function(self, name: str, body: list[str]) -> None:
        self.lines.append(f"def {name}(m, put):")
        self.lines += [f"    {line}" for line in body or ["pass"]]

    def plain(self, fields: list[Field]) -> list[str]:
        """Generate the writers of fields outside the tag section."""
        body: list[str] = []
        for piece in runs_of_fields(fields):
            first = piece[0]
            body += self._fixed(piece) if first.is_fixed else self._value(first, f"m.{first.name}")
        return body

    def tags(self, kind: type[Struct]) -> list[str]:
        return self._tags(kind, tagged_fields(kind, self.version)) if self.flexible else []

    def _fixed(self, fields: list[Field]) -> list[str]:
        return [self._pack([(field.type, f"m.{field.name}") for field in fields])]

    def _pack(self, values: list[tuple[str, str]]) -> str:
        layout = struct.Struct(">" + "".join(FIXED[kind] for kind, _ in values))
        name = "pack_" + layout.format[1:].replace("?", "t")
        self.names[name] = layout.pack
        arguments = ", ".join(f"{value}.bytes" if kind == "uuid" else value for kind, value in values)
        return f"put({name}({arguments}))"

    def _value(self, field: Field, value: str) -> list[str]:
        nullable = field.is_nullable_in(self.version)
        if field.type == "struct" and not field.array:
            return self._struct(field, value, nullable)
        if field.is_fixed:
            return [self._pack([(field.type, value)])]
        if field.array:
            lines = [
                "    " + self._length(f"len({value})", short=False),
                *(f"    {line}" for line in self._elements(field, value)),
            ]
        elif field.type == "records":
            lines = [
                f"    n, pieces = records_of({value})",
                "    " + self._length("n", short=False),
                "    for piece in pieces: put(piece)",
            ]
        elif field.type == "string":
            lines = [*self._string(field, value), "    " + self._length("len(s)", short=True), "    put(s)"]
        else:
            lines = ["    " + self._length(f"len({value})", short=False), f"    put({value})"]
        if nullable:
            null = self._length("-1", short=field.type == "string" and not field.array)
            return [f"if {value} is None:", f"    {null}", "else:", *lines]
        return [line[4:] for line in lines]

    def _string(self, field: Field, value: str) -> list[str]:
        if field.name.endswith("error_message"):
            return [f"    s = cut({value})"]
        too_long = f"    if len(s) > {STRING_BYTES_MAX}: raise ValueError('{field.name} is too long')"
        return [f"    s = {value}.encode()", *([too_long] if self.flexible else [])]

    def _length(self, length: str, short: bool) -> str:
        if self.flexible:
            return "put(b'\\0')" if length == "-1" else f"put(uvarint({length} + 1))"
        return f"put({'i16' if short else 'i32'}({length}))"

    def _elements(self, field: Field, value: str) -> list[str]:
        if field.type in FIXED and field.type != "uuid":
            return [f"put(Struct(f'>{{len({value})}}{FIXED[field.type]}').pack(*{value}))"]
        element = field._replace(array=False, nullable=None)
        return [f"for e in {value}:", *(f"    {line}" for line in self._value(element, "e"))]

    def _struct(self, field: Field, value: str, nullable: bool) -> list[str]:
        if field.nested is None:
            raise ValueError(f"{field.name} names no struct")
        call = f"{self.struct_writer(field.nested)}({value}, put)"
        if not nullable:
            return [call]
        # KIP-893: one byte, negative for null; in a tagged field, 0 for null
        null = 0 if field.is_tagged_in(self.version) else 0xFF
        return [
            f"if {value} is None:",
            f"    put({bytes([null])!r})",
            "else:",
            "    put(b'\\x01')",
            f"    {call}",
        ]

    def _tags(self, kind: type[Struct], fields: list[Field]) -> list[str]:
        """Generate the writer of tagged fields without the default value: in ascending order, each with its
        size.
        """
        if not fields:
            return ["put(b'\\0')"]
        default = self.names[f"default_{kind.__name__}"] = kind()
        lines = ["tags = []"]
        for field in sorted(fields, key=lambda field: field.tag or 0):
            value = f"m.{field.name}"
            differs = _differs(field, value, getattr(default, field.name))
            lines += [
                f"if {differs or f'{value} != default_{kind.__name__}.{field.name}'}:",
                "    outer, pieces = put, []",
                "    put = pieces.append",
            ]
            lines += [f"    {line}" for line in self._value(field, value)]
            lines += ["    put = outer", f"    tags.append(({field.tag}, b''.join(pieces)))"]
        return [
            *lines,
            "put(uvarint(len(tags)))",
            "for tag, content in tags:",
            "    put(uvarint(tag) + uvarint(len(content)) + content)",
        ]
