"""Protobuf descriptors: the tree of fields that is decoded, and the types of Spark for it. Pure.

Reads `FileDescriptorSet` (`protoc --include_imports --descriptor_set_out`) and `FileDescriptorProto` with a
parser of its own, because executors lack Google's library. Types are those of Spark's `from_protobuf` with
`upcast.unsigned.ints`, except that durations and wrappers are structs like any message. A field without
presence (proto3 without `optional`) has its default where it is absent; other absent fields are null.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tierlog.spark.options import InvalidOption

Message: TypeAlias = dict[int, list[Any]]
"""Raw fields of a message by number: ints, and bytes."""

(DOUBLE, FLOAT, INT64, UINT64, INT32, FIXED64, FIXED32, BOOL, STRING, GROUP, MESSAGE, BYTES) = range(1, 13)
(UINT32, ENUM, SFIXED32, SFIXED64, SINT32, SINT64) = range(13, 19)
"""Types of FieldDescriptorProto."""

TYPES = {
    DOUBLE: "double",
    FLOAT: "float",
    INT64: "bigint",
    UINT64: "decimal(20,0)",
    INT32: "int",
    FIXED64: "decimal(20,0)",
    FIXED32: "bigint",
    BOOL: "boolean",
    STRING: "string",
    BYTES: "binary",
    UINT32: "bigint",
    ENUM: "string",
    SFIXED32: "int",
    SFIXED64: "bigint",
    SINT32: "int",
    SINT64: "bigint",
}
TIMESTAMP = ".google.protobuf.Timestamp"
REPEATED = 3
FIELDS_MOST = 10_000
"""Size of a tree. A message has fields at each place where it is used, so that a short file can have many."""

IMPLICIT = 2
"""Field presence of an edition's feature set."""


@dataclass(slots=True)
class Field:
    """A field at one place. `kind`: type of FieldDescriptorProto. `fields`: of a message. `symbols`: of an
    enum, by number. `column`: of its entries, once they are numbered."""

    name: str
    number: int
    kind: int
    is_repeated: bool = False
    has_presence: bool = True
    is_map: bool = False
    is_timestamp: bool = False
    fields: Sequence["Field"] = ()
    symbols: dict[int, str] = field(default_factory=dict)
    column: int = -1

    @property
    def item(self) -> str:
        """The type in Spark of one value."""
        if self.is_timestamp:
            return "timestamp"
        if self.kind == MESSAGE:
            return "struct<" + ",".join(f"`{one.name}`:{one.spark}" for one in self.fields) + ">"
        return TYPES[self.kind]

    @property
    def spark(self) -> str:
        if self.is_map:
            key, value = self.fields
            return f"map<{key.spark},{value.spark}>"
        return f"array<{self.item}>" if self.is_repeated else self.item


def parse_descriptors(content: bytes, message: str) -> Field:
    """The message of this full name; without a name, the first one of the last file. Raises InvalidOption."""
    try:
        return _Descriptors(content).root(message)
    except (IndexError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise InvalidOption(f"`value.schema` is not a set of Protobuf descriptors: {error}") from None


class _Descriptors:
    """Messages and enums by their full names, which begin with a dot."""

    def __init__(self, content: bytes) -> None:
        found = read_message(content)
        is_file = bool({2, 4, 5} & found.keys())  # package, messages and enums; a set has field 1 alone
        self._messages: dict[str, tuple[Message, Message]] = {}
        self._enums: dict[str, Message] = {}
        self._first = ""
        for file in [content] if is_file else found[1]:
            document = read_message(file)
            package = _text(document, 2)
            scope = f".{package}" if package else ""
            for number, one in enumerate(document.get(4, [])):
                name = self._add(scope, one, document)
                self._first = name if number == 0 else self._first
            for one in document.get(5, []):
                self._add_enum(scope, one)
        self._open: list[str] = []
        self._count = 0

    def root(self, message: str) -> Field:
        name = f".{message.lstrip('.')}" if message else self._first
        if name not in self._messages:
            known = ", ".join(sorted(one[1:] for one in self._messages)[:20])
            raise InvalidOption(f"`value.schema` has no message {name[1:]!r}; it has {known}")
        return Field("", 0, MESSAGE, fields=self._fields(name))

    def _add(self, scope: str, content: bytes, file: Message) -> str:
        document = read_message(content)
        name = f"{scope}.{_text(document, 1)}"
        self._messages[name] = document, file
        for one in document.get(3, []):
            self._add(name, one, file)
        for one in document.get(4, []):
            self._add_enum(name, one)
        return name

    def _add_enum(self, scope: str, content: bytes) -> None:
        document = read_message(content)
        self._enums[f"{scope}.{_text(document, 1)}"] = document

    def _fields(self, name: str) -> list[Field]:
        if name in self._open:
            raise InvalidOption(
                f"the Protobuf message {name[1:]} contains itself, for which Spark has no type"
            )
        self._open.append(name)
        document, file = self._messages[name]
        self._count += len(document.get(2, []))
        if self._count > FIELDS_MOST:
            raise InvalidOption(f"the Protobuf message has more than {FIELDS_MOST} fields")
        found = [self._field(read_message(one), file) for one in document.get(2, [])]
        self._open.pop()
        if not found:
            raise InvalidOption(f"the Protobuf message {name[1:]} has no fields, for which Spark has no type")
        return sorted(found, key=lambda one: one.number)

    def _field(self, document: Message, file: Message) -> Field:
        name, kind, type_name = _text(document, 1), document[5][-1], _text(document, 6)
        found = Field(name, document[3][-1], kind, is_repeated=document.get(4, [1])[-1] == REPEATED)
        if kind == GROUP:
            raise InvalidOption(f"the Protobuf field {name} is a group, which is not supported")
        if kind == ENUM:
            values = [read_message(one) for one in self._enums[type_name][2]]
            found.symbols = {_signed(one.get(2, [0])[-1]): _text(one, 1) for one in reversed(values)}
        elif type_name == TIMESTAMP:
            found.fields = (
                Field("seconds", 1, INT64, has_presence=False),
                Field("nanos", 2, INT32, has_presence=False),
            )
            found.is_timestamp = True
        elif kind == MESSAGE:
            if type_name not in self._messages:
                raise InvalidOption(
                    f"`value.schema` lacks the Protobuf message {type_name[1:]}: make the descriptor set "
                    "with protoc --include_imports"
                )
            found.fields = self._fields(type_name)
            options = self._messages[type_name][0].get(7, [])
            found.is_map = any(read_message(one).get(7, [0])[-1] for one in options)
        if kind != MESSAGE and not found.is_repeated:
            found.has_presence = _has_presence(document, file)
        return found


def _has_presence(document: Message, file: Message) -> bool:
    if 9 in document:  # in a oneof, as is each proto3 field with `optional`
        return True
    syntax = _text(file, 12)
    if syntax == "proto3":
        return False
    for options, features in ((document.get(8, []), 21), (file.get(8, []), 50)):
        for one in options:
            for feature in read_message(one).get(features, []):
                presence = read_message(feature).get(1)
                if presence:
                    return bool(presence[-1] != IMPLICIT)
    return True


def read_message(content: bytes) -> Message:
    """All fields by number. Raises IndexError if it is truncated."""
    found: Message = {}
    value: Any
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        match tag & 7:
            case 0:
                value, at = _varint(content, at)
            case 1 | 5:
                size = 8 if tag & 7 == 1 else 4
                value, at = content[at : at + size], at + size
            case 2:
                size, at = _varint(content, at)
                value, at = content[at : at + size], at + size
                if len(value) < size:
                    raise IndexError("truncated")
            case _:
                raise IndexError("a group")
        found.setdefault(tag >> 3, []).append(value)
    return found


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _text(document: Message, number: int) -> str:
    return str(document.get(number, [b""])[-1].decode())
