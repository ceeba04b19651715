"""Codec: reads and writes any message of the protocol from its schema.

The first use of a message at a version compiles a straight-line function from its `FIELDS`; the schema is not
used after that. Compiling takes about a millisecond, so nothing is compiled at startup.

Hostile input: before anything is allocated, every length is compared with the bytes left, and every count
with the bytes left divided by the minimum size of an element. Since an element of three bytes becomes an
object of a hundred, the elements of a whole message are limited too (`ELEMENTS_MAX`). All faults raise
MalformedFrame, too many elements TooManyElements.
"""

import struct
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, TypeVar

from tierlog.base.files import FileSlice, Part
from tierlog.protocol import compile_reader, compile_writer
from tierlog.protocol.primitives import MalformedFrame, TooManyElements, uvarint
from tierlog.protocol.schema import Buffer, Message, Struct

M = TypeVar("M", bound=Message)
Reader = Callable[[memoryview, int, int, list[int]], tuple[Any, int]]
Writer = Callable[[Any, Callable[[Any], None]], None]

ELEMENTS_MAX = 65_536
"""Maximum array elements in one request, nested ones included, which cost up to 1.5 KiB each (ADR 0033).
`NUMBERS_PER_ELEMENT` numbers count as one, and structs of FIELDS_PER_ELEMENT fields as two (compile_reader).
"""

JOIN_BYTES_MAX = 4096
"""Larger pieces of records are sent in place; smaller ones are cheaper to copy than to list."""

_readers: dict[tuple[type, int], Reader] = {}
_writers: dict[tuple[type, int], Writer] = {}


def decode(
    message: type[M],
    version: int,
    buffer: Buffer,
    at: int = 0,
    end: int | None = None,
    *,
    elements_max: int = ELEMENTS_MAX,
) -> M:
    """The message in buffer[at:end]. Raises MalformedFrame, also for bytes left over.

    Bytes and records fields are views into the buffer, valid while the caller keeps it unchanged.
    """
    decoded, next_at = decode_from(message, version, buffer, at, end, elements_max=elements_max)
    if next_at != (len(buffer) if end is None else end):
        raise MalformedFrame(f"{message.__name__} v{version}: bytes left over after byte {next_at}")
    return decoded


def decode_from(
    message: type[M],
    version: int,
    buffer: Buffer,
    at: int = 0,
    end: int | None = None,
    *,
    elements_max: int = ELEMENTS_MAX,
) -> tuple[M, int]:
    """Like `decode`, but more bytes may follow: the message and the position after it."""
    end = len(buffer) if end is None else end
    read = _readers.get((message, version)) or reader(message, version)
    try:
        found: tuple[M, int] = read(memoryview(buffer)[:end], at, end, [elements_max])
    except TooManyElements as too_many:  # not `fault`: mypyc gives a name one type
        raise TooManyElements(f"{message.__name__} v{version}: {too_many}") from None
    except (struct.error, IndexError, UnicodeDecodeError, MalformedFrame) as fault:
        raise MalformedFrame(f"{message.__name__} v{version}: {fault}") from None
    if found[1] > end:
        raise MalformedFrame(f"{message.__name__} v{version}: truncated")
    return found


def encode(message: Message, version: int) -> bytes:
    """The message's bytes, without fields that the version lacks. Raises ValueError if one does not fit."""
    pieces = _pieces(message, version)
    try:
        return b"".join(pieces)
    except TypeError as fault:
        raise ValueError(f"{type(message).__name__} holds slices of files: {fault}") from fault


def encode_parts(message: Message, version: int) -> list[Part]:
    """Like `encode`, for messages with records that may be slices of a log, which are passed through."""
    pieces = _pieces(message, version)
    parts: list[Part] = []
    begin = 0
    for at, piece in enumerate(pieces):
        if isinstance(piece, FileSlice) or len(piece) > JOIN_BYTES_MAX:
            if at > begin:
                parts.append(b"".join(pieces[begin:at]))
            parts.append(piece)
            begin = at + 1
    if begin < len(pieces):
        parts.append(b"".join(pieces[begin:]))
    return parts


class ArrayWriter:
    """Encodes a struct in parts around one of its arrays, for responses with thousands of elements: the bytes
    before the array, some elements at a time, and the bytes after it.
    """

    def __init__(self, kind: type[Struct], version: int, flexible: bool, array: str) -> None:
        self._flexible = flexible
        self._before, self._element, self._after = compile_writer.compile_parts(
            kind, version, flexible, array
        )

    def before(self, whole: Struct, count: int) -> bytes:
        """The bytes before the first of `count` elements."""
        length = uvarint(count + 1) if self._flexible else struct.pack(">i", count)
        return _written(self._before, (whole,)) + length

    def elements(self, elements: Iterable[Struct]) -> bytes:
        return _written(self._element, elements)

    def after(self, whole: Struct) -> bytes:
        return _written(self._after, (whole,))


@cache
def array_writer(message: type[Message], version: int, array: str) -> ArrayWriter:
    """The writer of one of a message's arrays."""
    return ArrayWriter(message, version, _flexible(message, version), array)


@cache
def nested_array_writer(message: type[Message], version: int, kind: type[Struct], array: str) -> ArrayWriter:
    """The writer of an array of a nested struct."""
    return ArrayWriter(kind, version, _flexible(message, version), array)


def _written(write: Writer, values: Iterable[Struct]) -> bytes:
    pieces: list[bytes] = []
    for value in values:
        write(value, pieces.append)
    return b"".join(pieces)


def reader(message: type[Message], version: int) -> Reader:
    """The compiled reader: (view cut at end, at, end, [elements left]) -> (message, next position)."""
    found = _readers[message, version] = compile_reader.compile_reader(
        message, version, _flexible(message, version)
    )
    return found


def writer(message: type[Message], version: int) -> Writer:
    """The compiled writer: (message, append) appends the message's bytes piece by piece."""
    found = _writers[message, version] = compile_writer.compile_writer(
        message, version, _flexible(message, version)
    )
    return found


def _pieces(message: Message, version: int) -> list[Any]:
    kind = type(message)
    write = _writers.get((kind, version)) or writer(kind, version)
    pieces: list[Any] = []
    try:
        write(message, pieces.append)
    except (struct.error, AttributeError, TypeError) as fault:
        raise ValueError(f"{kind.__name__} v{version} cannot be encoded: {fault}") from fault
    return pieces


def _flexible(message: type[Message], version: int) -> bool:
    least, most = message.VERSIONS
    if not least <= version <= most:
        raise ValueError(f"{message.__name__} has no version {version}, only {least} to {most}")
    return message.FLEXIBLE is not None and version >= message.FLEXIBLE
