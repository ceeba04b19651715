"""Stored records: the records of an internal topic, whose keys and values begin with an int16 version."""

from typing import NamedTuple, TypeVar

from tierlog.protocol.codec import decode_from, encode
from tierlog.protocol.primitives import MalformedFrame
from tierlog.protocol.schema import Message

M = TypeVar("M", bound=Message)


class FormatError(Exception):
    """A record of an internal topic that is malformed, or that no coordinator writes."""


class StoredRecord(NamedTuple):
    """One record to append; a value of None deletes the key."""

    key: bytes
    value: bytes | None


def encode_stored(message: Message, version: int) -> bytes:
    return version.to_bytes(2, "big") + encode(message, version)


def stored_version(data: bytes | memoryview) -> int:
    if len(data) < 2:
        raise FormatError(f"{len(data)} bytes are too few for a version")
    return int.from_bytes(data[:2], "big", signed=True)


def decode_stored(kind: type[M], version: int, data: bytes | memoryview) -> M:
    """Decode what follows the version. Raises FormatError."""
    least, most = kind.VERSIONS
    if not least <= version <= most:
        raise FormatError(f"{kind.__name__}: version {version} is not known")
    try:
        return decode_from(kind, version, data, 2, elements_max=len(data))[0]
    except MalformedFrame as fault:
        raise FormatError(str(fault)) from None
