"""What a message looks like on the wire: the class-level data that the generated messages carry.

`codec` compiles a reader and a writer from it; nobody else reads it. A version range is (least, most), both
inclusive.
"""

import uuid
from collections.abc import Iterator
from itertools import groupby
from typing import ClassVar, NamedTuple, Protocol

from tierlog.base.slices import LogSlice

Buffer = bytes | bytearray | memoryview
Records = Buffer | LogSlice
"""Record batches of a response: a broker puts in what the log gave, a client gets a view."""
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
"""Types of fixed size, and what `struct` calls them."""
ZERO_UUID = uuid.UUID(int=0)


class Field(NamedTuple):
    """One field over all versions. `tagged`: the versions where it is in the tag section (KIP-482)."""

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
        """Of fixed size."""
        return self.type in FIXED and not self.array

    def exists_in(self, version: int) -> bool:
        return self.least <= version <= self.most

    def is_nullable_in(self, version: int) -> bool:
        return _within(self.nullable, version)

    def is_tagged_in(self, version: int) -> bool:
        return _within(self.tagged, version)


Fields = tuple[Field, ...]


class Struct(Protocol):
    """A generated dataclass; nested ones have only this."""

    FIELDS: ClassVar[Fields]


class Message(Struct, Protocol):
    """A generated top-level dataclass. FLEXIBLE: the first version with compact lengths and tags, or None."""

    VERSIONS: ClassVar[Versions]
    FLEXIBLE: ClassVar[int | None]


StructType = type[Struct]


def plain_fields(kind: StructType, version: int) -> list[Field]:
    """Those that are not tagged, in their order."""
    return [field for field in kind.FIELDS if field.exists_in(version) and not field.is_tagged_in(version)]


def tagged_fields(kind: StructType, version: int) -> list[Field]:
    return [field for field in kind.FIELDS if field.exists_in(version) and field.is_tagged_in(version)]


def pieces(fields: list[Field]) -> Iterator[list[Field]]:
    """What is read or written at once: adjacent fields of fixed size, or another one alone."""
    for are_fixed, run in groupby(fields, key=lambda field: field.is_fixed):
        if are_fixed:
            yield list(run)
        else:
            yield from ([field] for field in run)


def _within(versions: Versions | None, version: int) -> bool:
    return versions is not None and versions[0] <= version <= versions[1]
