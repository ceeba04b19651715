"""Primitives of compiled readers and writers: varints, tag sections, strings, uuids."""

import uuid

from tierlog.protocol.schema import ZERO_UUID

VARINT_BYTES_MAX = 5
STRING_BYTES_MAX = 32_767
"""Maximum bytes of a string: the int16 length of the classic form. Kafka rejects longer compact strings too,
since any string must fit both forms.
"""

UUIDS_KEPT = 4096
"""Number of cached uuids; when it is reached, the cache is cleared."""


class MalformedFrame(Exception):
    """The bytes are not a message of the protocol; their connection is closed."""


class TooManyElements(MalformedFrame):
    """More array elements than a node accepts. The header is valid, so the request can be answered."""


def read_uvarint(view: memoryview, at: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits and the position after it; IndexError past the end."""
    value = shift = 0
    for _ in range(VARINT_BYTES_MAX):
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, at
        shift += 7
    raise MalformedFrame("over-long varint")


def uvarint(value: int) -> bytes:
    """An unsigned varint."""
    if value < 0x80:
        return _SHORT[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_uuid(raw: bytes) -> uuid.UUID:
    """A uuid of 16 bytes. Equal bytes give the same object, since a cluster has few topics and every request
    of a follower contains some of them: looking up the same object needs no comparison.
    """
    found = _uuids.get(raw)
    if found is None:
        if len(_uuids) >= UUIDS_KEPT:
            _uuids.clear()
        found = _uuids[raw] = uuid.UUID(bytes=raw) if raw != _ZERO else ZERO_UUID
    return found


def skip_tags(view: memoryview, at: int, end: int) -> int:
    """Check and skip a tag section without known tags. Returns the position after it."""
    count, at = read_uvarint(view, at)
    if count > (end - at) // 2:
        raise MalformedFrame(f"{count} tagged fields in {end - at} bytes")
    last = -1
    for _ in range(count):
        tag, size, at = read_tag(view, at, end, last)
        last = tag
        at += size
    return at


def read_tag(view: memoryview, at: int, end: int, last: int) -> tuple[int, int, int]:
    """The head of one tagged field: tag, size and position of its value. Tags must ascend (KIP-482)."""
    tag, at = read_uvarint(view, at)
    size, at = read_uvarint(view, at)
    if tag <= last:
        raise MalformedFrame(f"tag {tag} after tag {last}")
    if size > end - at:
        raise MalformedFrame(f"tagged field {tag} of {size} bytes, {end - at} left")
    return tag, size, at


def refuse(fault: str) -> MalformedFrame:
    """The exception that a compiled reader raises for this fault."""
    return MalformedFrame(fault)


_SHORT = [bytes([value]) for value in range(0x80)]
_ZERO = bytes(16)
_uuids: dict[bytes, uuid.UUID] = {}
