"""Schema of messages on the wire: class-level data of the generated messages.

`codec` compiles readers and writers from it. A version range is (minimum, maximum), both inclusive.
"""

import uuid
from collections.abc import Iterator
from itertools import groupby
from typing import ClassVar, NamedTuple, Protocol

from tierlog.base.slices import LogSlice

Buffer = bytes | bytearray | memoryview
Records = Buffer | LogSlice
"""Record batches of a response: slices of the log for a broker, a view for a client."""
Versions = tuple[int, int]
FIXED = {
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "bool": "?",
    "uuid": "16s",
}
"""Types of fixed size and their `struct` codes."""
ZERO_UUID = uuid.UUID(int=0)


class Field(NamedTuple):
    """A field with all its versions. `tagged`: versions in which it is in the tag section (KIP-482)."""

    name: str
    type: str
    least: int
    most: int
    array: bool = False
    nullable: Versions | None = None
    tag: int | None = None
    tagged: Versions | None = None
    nested: "StructType | None" = None

    @property
    def is_fixed(self) -> bool:
        """Whether the field has a fixed size."""
        return self.type in FIXED and not self.array

    def exists_in(self, version: int) -> bool:
        return self.least <= version <= self.most

    def is_nullable_in(self, version: int) -> bool:
        return _within(self.nullable, version)

    def is_tagged_in(self, version: int) -> bool:
        return _within(self.tagged, version)


Fields = tuple[Field, ...]


class Struct(Protocol):
    """A generated dataclass; nested ones have only `FIELDS`."""

    FIELDS: ClassVar[Fields]


class Message(Struct, Protocol):
    """A generated top-level dataclass. FLEXIBLE: the first version with compact lengths and tags, or None."""

    VERSIONS: ClassVar[Versions]
    FLEXIBLE: ClassVar[int | None]


StructType = type[Struct]


def plain_fields(kind: StructType, version: int) -> list[Field]:
    """Fields outside the tag section, in order."""
    return [field for field in kind.FIELDS if field.exists_in(version) and not field.is_tagged_in(version)]


def tagged_fields(kind: StructType, version: int) -> list[Field]:
    return [field for field in kind.FIELDS if field.exists_in(version) and field.is_tagged_in(version)]


def pieces(fields: list[Field]) -> Iterator[list[Field]]:
    """Fields in groups that are read or written at once: adjacent fields of fixed size, or a single other
    one.
    """
    for are_fixed, run in groupby(fields, key=lambda field: field.is_fixed):
        if are_fixed:
            yield list(run)
        else:
            yield from ([field] for field in run)


def _within(versions: Versions | None, version: int) -> bool:
    return versions is not None and versions[0] <= version <= versions[1]
