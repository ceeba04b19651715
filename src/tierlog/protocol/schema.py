"""Schema of protocol messages, and the decorator with which generated classes declare it.

A message is a class made by `struct`. The annotation of a field is its type, and `versions` names the
versions that have the field:

    @struct
    class HeartbeatResponse(Message):
        VERSIONS = (0, 4)
        FLEXIBLE = 4

        throttle_time_ms: Int32 = versions(1, 4)
        error_code: Int16 = versions(0, 4)

`codec` compiles readers and writers from it. A version range is (minimum, maximum), both inclusive.
"""

import typing
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from types import NoneType
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

from tierlog.base.slices import LogSlice

Buffer = bytes | bytearray | memoryview
Int8 = Annotated[int, "int8"]
Int16 = Annotated[int, "int16"]
UInt16 = Annotated[int, "uint16"]
Int32 = Annotated[int, "int32"]
Int64 = Annotated[int, "int64"]
Float64 = Annotated[float, "float64"]
Bool = Annotated[bool, "bool"]
Uuid = Annotated[uuid.UUID, "uuid"]
String = Annotated[str, "string"]
Bytes = Annotated[Buffer, "bytes"]
RequestRecords = Annotated[Buffer, "records"]
Records = Annotated[Buffer | LogSlice, "records"]
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
ZERO: dict[str, Any] = {
    "string": "",
    "bytes": b"",
    "records": b"",
    "uuid": ZERO_UUID,
    "bool": False,
    "float64": 0.0,
}
"""Default value of each type; 0 for types that are not listed."""


class Field(NamedTuple):
    """A field with all its versions. `tagged`: versions in which it is in the tag section (KIP-482)."""

    name: str
    type: str
    min_version: int
    max_version: int
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
        return self.min_version <= version <= self.max_version

    def is_nullable_in(self, version: int) -> bool:
        return _within(self.nullable, version)

    def is_tagged_in(self, version: int) -> bool:
        return _within(self.tagged, version)


Fields = tuple[Field, ...]


class Struct:
    """Base of generated classes."""

    __slots__ = ()
    FIELDS: ClassVar[Fields] = ()


class Message(Struct):
    """Base of top-level messages. FLEXIBLE: the first version with compact lengths and tags, or None."""

    __slots__ = ()
    VERSIONS: ClassVar[Versions]
    FLEXIBLE: ClassVar[int | None] = None


StructType = type[Struct]
S = TypeVar("S", bound=Struct)


class _FieldSpec(NamedTuple):
    versions: Versions
    default: Any
    nullable: Versions | None
    tag: int | None
    tagged: Versions | None


def versions(
    min_version: int,
    max_version: int,
    *,
    default: Any = ...,
    nullable: Versions | None = None,
    tag: int | None = None,
    tagged: Versions | None = None,
) -> Any:
    """Declare a field of versions `min_version` to `max_version`.

    `default`: value in versions without the field; by default the zero value of its type.
    `nullable`: versions in which a field with `| None` may be null, by default all of its versions.
    `tagged`: versions in which a field with a tag is in the tag section, by default all.
    """
    return _FieldSpec((min_version, max_version), default, nullable, tag, tagged)


@typing.dataclass_transform(kw_only_default=True)
def struct(kind: type[S]) -> type[S]:
    """Class decorator of generated classes: makes a dataclass, whose schema is in FIELDS."""
    fields = []
    for name, annotation in kind.__annotations__.items():
        spec: _FieldSpec = getattr(kind, name)
        found = _field(name, annotation, spec)
        fields.append(found)
        setattr(kind, name, _default(found, spec.default))
    made = dataclass(slots=True, kw_only=True)(kind)
    made.FIELDS = tuple(fields)
    return made


def _field(name: str, annotation: Any, spec: _FieldSpec) -> Field:
    parts = typing.get_args(annotation)
    nullable = NoneType in parts
    if nullable:
        annotation = parts[0]
    array = typing.get_origin(annotation) is list
    if array:
        [annotation] = typing.get_args(annotation)
    nested = None if typing.get_origin(annotation) is Annotated else annotation
    return Field(
        name,
        annotation.__metadata__[0] if nested is None else "struct",
        *spec.versions,
        array,
        (spec.nullable or spec.versions) if nullable else None,
        spec.tag,
        (spec.tagged or spec.versions) if spec.tag is not None else None,
        nested,
    )


def _default(found: Field, default: Any) -> Any:
    if default is not ...:
        return field(default=default)
    if found.array:
        return field(default_factory=list)
    return (
        field(default=ZERO.get(found.type, 0))
        if found.nested is None
        else field(default_factory=found.nested)
    )


def plain_fields(kind: StructType, version: int) -> list[Field]:
    """Fields outside the tag section, in order."""
    return [field for field in kind.FIELDS if field.exists_in(version) and not field.is_tagged_in(version)]


def tagged_fields(kind: StructType, version: int) -> list[Field]:
    return [field for field in kind.FIELDS if field.exists_in(version) and field.is_tagged_in(version)]


def runs_of_fields(fields: list[Field]) -> Iterator[list[Field]]:
    """Split the fields into groups that are coded together: a run of adjacent fields of fixed size, or one
    field of variable size.
    """
    for are_fixed, run in groupby(fields, key=lambda field: field.is_fixed):
        if are_fixed:
            yield list(run)
        else:
            yield from ([field] for field in run)


def _within(versions: Versions | None, version: int) -> bool:
    return versions is not None and versions[0] <= version <= versions[1]
