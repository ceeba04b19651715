"""Record formats of `__consumer_offsets`: Kafka's own, so that Kafka's tools can read the topic.

A key begins with an int16 type: 0 and 1 for a committed offset, 2 for the metadata of a classic group. A
value begins with an int16 version. The written versions are those of Kafka 4.3: offsets in version 4, which
has the topic id, or in version 1 if the offset has its own expiry; groups in version 3. Versions 0 to 4 are
read. A value of None is a tombstone. Records with other key types (among them those of KIP-848 groups) decode
to None and are skipped, as Kafka does after a downgrade (KIP-915).

Schemas: group-coordinator/src/main/resources/common/message/{OffsetCommit,GroupMetadata}{Key,Value}.json of
Kafka.
"""

import struct
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from tierlog.base.safeguards import safeguard
from tierlog.protocol.primitives import STRING_BYTES_MAX, uvarint
from tierlog.protocol.schema import ZERO_UUID

NO_EXPIRY = -1
OFFSET_KEY_VERSION, GROUP_KEY_VERSION = 1, 2
_KEY_VERSIONS_OF_OFFSETS = (0, 1)  # version 0 was never changed in layout
_FIRST_FLEXIBLE = 4
_TOPIC_ID_TAG = 0  # of OffsetCommitValue version 4
_NEWEST = 4


class FormatError(Exception):
    """A record of `__consumer_offsets` that is malformed, or that no coordinator writes."""


class StoredRecord(NamedTuple):
    """One record to append; a value of None deletes the key."""

    key: bytes
    value: bytes | None


class OffsetKey(NamedTuple):
    group_id: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    group_id: str


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """`expire_timestamp_ms` is set only if the client sent a retention (OffsetCommit 2 to 4).

    `topic_id` is ZERO_UUID for a record without a topic id: one with an expiry, or of a version before 4.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_EXPIRY
    topic_id: UUID = ZERO_UUID


@dataclass(frozen=True, slots=True)
class StoredMember:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class StoredGroup:
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[StoredMember, ...]


# ---- keys -----------------------------------------------------------------------------------------


def encode_key(key: OffsetKey | GroupKey) -> bytes:
    if isinstance(key, GroupKey):
        return _int16(GROUP_KEY_VERSION) + _string(key.group_id)
    return _int16(OFFSET_KEY_VERSION) + _string(key.group_id) + _string(key.topic) + _int32(key.partition)


def decode_key(data: bytes | memoryview) -> OffsetKey | GroupKey | None:
    """None for an unknown key type. Raises FormatError for an incomplete or malformed key."""
    reader = _Reader(data)
    kind = reader.int16()
    if kind in _KEY_VERSIONS_OF_OFFSETS:
        return OffsetKey(reader.string(), reader.string(), reader.int32())
    return GroupKey(reader.string()) if kind == GROUP_KEY_VERSION else None


# ---- values ---------------------------------------------------------------------------------------


def encode_offset(committed: CommittedOffset) -> bytes:
    """Encode in version 4, or, if the commit has its own expiry, in version 1, without leader epoch and topic
    id."""
    if committed.expire_timestamp_ms != NO_EXPIRY:
        times = struct.pack(">qq", committed.commit_timestamp_ms, committed.expire_timestamp_ms)
        return struct.pack(">hq", 1, committed.offset) + _string(committed.metadata) + times
    head = struct.pack(">hqi", 4, committed.offset, committed.leader_epoch)
    metadata, time = committed.metadata.encode(), struct.pack(">q", committed.commit_timestamp_ms)
    tags = b"\x00"
    if committed.topic_id != ZERO_UUID:
        tags = bytes((1, _TOPIC_ID_TAG, 16)) + committed.topic_id.bytes
    return head + uvarint(len(metadata) + 1) + metadata + time + tags


@safeguard("committed offsets are stored with the topic id")
def decode_offset(data: bytes | memoryview) -> CommittedOffset:
    reader = _Reader(data)
    version = reader.version("an offset commit")
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata = reader.string()
    commit_timestamp_ms = reader.int64()
    expire_timestamp_ms = reader.int64() if version == 1 else NO_EXPIRY
    topic_id = reader.tags().get(_TOPIC_ID_TAG, ZERO_UUID.bytes)
    if len(topic_id) != 16:
        raise FormatError(f"a topic id of {len(topic_id)} bytes")
    times = commit_timestamp_ms, expire_timestamp_ms
    return CommittedOffset(offset, leader_epoch, metadata, *times, UUID(bytes=bytes(topic_id)))


def encode_group(group: StoredGroup) -> bytes:
    parts = [_int16(3), _string(group.protocol_type), _int32(group.generation), _nullable(group.protocol)]
    parts += [
        _nullable(group.leader),
        struct.pack(">q", group.state_timestamp_ms),
        _int32(len(group.members)),
    ]
    for member in group.members:
        parts += [_string(member.member_id), _nullable(member.group_instance_id), _string(member.client_id)]
        parts += [
            _string(member.client_host),
            _int32(member.rebalance_timeout_ms),
            _int32(member.session_timeout_ms),
        ]
        parts += [_bytes(member.subscription), _bytes(member.assignment)]
    return b"".join(parts)


def decode_group(data: bytes | memoryview) -> StoredGroup:
    reader = _Reader(data)
    version = reader.version("a group's metadata")
    protocol_type, generation = reader.string(), reader.int32()
    protocol, leader = reader.nullable(), reader.nullable()
    state_timestamp_ms = reader.int64() if version >= 2 else -1
    members = tuple(_decode_member(reader, version) for _ in range(reader.count()))
    return StoredGroup(protocol_type, generation, protocol, leader, state_timestamp_ms, members)


def _decode_member(reader: "_Reader", version: int) -> StoredMember:
    member_id = reader.string()
    group_instance_id = reader.nullable() if version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    rebalance_timeout_ms = reader.int32() if version >= 1 else -1
    session_timeout_ms = reader.int32()
    if rebalance_timeout_ms < 0:
        rebalance_timeout_ms = session_timeout_ms
    subscription, assignment = reader.bytes(), reader.bytes()
    reader.tags()
    return StoredMember(
        member_id,
        group_instance_id,
        client_id,
        client_host,
        rebalance_timeout_ms,
        session_timeout_ms,
        subscription,
        assignment,
    )


# ---- primitives -----------------------------------------------------------------------------------


def _int16(value: int) -> bytes:
    return value.to_bytes(2, "big", signed=True)


def _int32(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)


def _string(value: str) -> bytes:
    data = value.encode()
    return _int16(len(data)) + data


def _nullable(value: str | None) -> bytes:
    return _int16(-1) if value is None else _string(value)


def _bytes(value: bytes) -> bytes:
    return _int32(len(value)) + value


class _Reader:
    """Reads Kafka's primitives, fixed or (from version 4) compact. Every length is checked against the
    rest."""

    __slots__ = ("_at", "_data", "_flexible")

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self._at = 0
        self._flexible = False

    def version(self, what: str) -> int:
        version = self.int16()
        if not 0 <= version <= _NEWEST:
            raise FormatError(f"version {version} of {what} is not known")
        self._flexible = version >= _FIRST_FLEXIBLE
        return version

    def int16(self) -> int:
        return int.from_bytes(self._take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self._take(8), "big", signed=True)

    def string(self) -> str:
        value = self.nullable()
        if value is None:
            raise FormatError("null instead of a string")
        return value

    def nullable(self) -> str | None:
        length = self._varint() - 1 if self._flexible else self.int16()
        if length == -1:
            return None
        if length > STRING_BYTES_MAX:
            raise FormatError(f"a string of {length} bytes")
        try:
            return str(self._take(length), "utf-8")
        except UnicodeDecodeError as failure:
            raise FormatError(f"not UTF-8: {failure}") from None

    def bytes(self) -> bytes:
        length = self._varint() - 1 if self._flexible else self.int32()
        return bytes(self._take(0 if length == -1 else length))

    def count(self) -> int:
        count = self._varint() - 1 if self._flexible else self.int32()
        if not 0 <= count <= len(self._data) - self._at:
            raise FormatError(f"a count of {count} with {len(self._data) - self._at} bytes left")
        return count

    def tags(self) -> dict[int, memoryview]:
        """The tagged fields at the end of a struct; none before the flexible versions."""
        found = {}
        for _ in range(self._varint() if self._flexible else 0):
            tag = self._varint()
            found[tag] = self._take(self._varint())
        return found

    def _varint(self) -> int:
        value = shift = 0
        while shift < 35:
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise FormatError("a varint of more than five bytes")

    def _take(self, count: int) -> memoryview:
        end = self._at + count
        if count < 0 or end > len(self._data):
            raise FormatError(f"{count} bytes expected, {len(self._data) - self._at} left")
        taken = self._data[self._at : end]
        self._at = end
        return taken
