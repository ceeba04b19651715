"""Raft messages, incoming snapshots and the state that a node persists, all encoded as msgpack arrays.

Names follow the Raft paper (section numbers are those of Ongaro's thesis). A message's number never changes,
and new fields go to the end with defaults.
"""

import msgspec
from crc32c import crc32c

from tierlog.metadata.raft.membership import Configuration

NO_NODE = -1
PAYLOAD, CONFIGURATION = 0, 1  # kinds of entries


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A log entry. The payload is opaque to Raft, unless the kind is CONFIGURATION."""

    term: int
    index: int
    payload: bytes
    kind: int = PAYLOAD


class HardState(msgspec.Struct, frozen=True, array_like=True):
    """State besides the log that must survive a crash. `commit` may lag; it only shortens a restart."""

    term: int = 0
    voted_for: int = NO_NODE
    commit: int = 0


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """The state machine after entry `index`, as opaque bytes, and the configuration as of that entry.

    A configuration of None is the one that the nodes were started with.
    """

    index: int = 0
    term: int = 0
    data: bytes = b""
    configuration: Configuration | None = None


class Message(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag_field="type"):
    """Base of all messages. `term` is the sender's; in a pre-vote, the term that it would campaign in."""

    term: int
    sender: int
    to: int


class VoteRequest(Message, frozen=True, array_like=True, kw_only=True, tag=1):
    """`transfer`: the leader requested this election (thesis 3.10), so a voter grants it although it has
    recently heard from the leader. `known_term`, `known_vote`: what the sender knows of the receiver
    (peer_terms.py).
    """

    last_index: int
    last_term: int
    pre_vote: bool = False
    transfer: bool = False
    known_term: int = 0
    known_vote: int = 0


class VoteReply(Message, frozen=True, array_like=True, kw_only=True, tag=2):
    granted: bool
    pre_vote: bool = False


class Append(Message, frozen=True, array_like=True, kw_only=True, tag=3):
    """Entries that follow (prev_index, prev_term). Without entries, only the commit index advances."""

    prev_index: int
    prev_term: int
    entries: tuple[Entry, ...]
    commit: int


class AppendReply(Message, frozen=True, array_like=True, kw_only=True, tag=4):
    """Accepted: the log matches the leader's up to `match_index`. Refused: `refused_index` is the prev_index
    that did not match. The hint is the latest entry up to `refused_index` that may match: its term is at most
    the prev_term of the request."""

    accepted: bool
    match_index: int = 0
    refused_index: int = 0
    hint_index: int = 0
    hint_term: int = 0


class Heartbeat(Message, frozen=True, array_like=True, kw_only=True, tag=5):
    """`commit` never exceeds what the peer is known to hold. `read`: the newest read request (thesis 6.4).
    `known_term`, `known_vote`: as in a vote request."""

    commit: int
    read: int = 0
    known_term: int = 0
    known_vote: int = 0


class HeartbeatReply(Message, frozen=True, array_like=True, kw_only=True, tag=6):
    """`read`: as in the heartbeat."""

    read: int = 0


class SnapshotChunk(Message, frozen=True, array_like=True, kw_only=True, tag=7):
    """Bytes [offset, offset + len(data)) of a snapshot of `size` bytes with checksum `crc32c`."""

    index: int
    snapshot_term: int
    size: int
    crc32c: int
    offset: int
    data: bytes
    configuration: Configuration | None = None


class SnapshotReply(Message, frozen=True, array_like=True, kw_only=True, tag=8):
    """The receiver has the first `next_offset` bytes of this snapshot."""

    index: int
    next_offset: int


class TimeoutNow(Message, frozen=True, array_like=True, kw_only=True, tag=9):
    """Tells the target of a leadership transfer to campaign at once (thesis 3.10)."""


AnyMessage = (
    VoteRequest
    | VoteReply
    | Append
    | AppendReply
    | Heartbeat
    | HeartbeatReply
    | SnapshotChunk
    | SnapshotReply
    | TimeoutNow
)

_SnapshotKey = tuple[int, int, int, int, int]
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[AnyMessage, ...])


def encode_messages(messages: tuple[AnyMessage, ...]) -> bytes:
    return _encoder.encode(messages)


def decode_messages(body: bytes | memoryview) -> tuple[AnyMessage, ...]:
    """Raises msgspec.DecodeError (ValidationError among them)."""
    return _decoder.decode(body)


class IncomingSnapshot:
    """Collects chunks in order until the snapshot is complete and its checksum is right.

    Holds one snapshot at a time. A chunk of another snapshot, or of another leader's term, replaces it.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._key: _SnapshotKey | None = None
        self._data = bytearray()

    def add(self, chunk: SnapshotChunk) -> Snapshot | None:
        """The snapshot, if this chunk completes it."""
        if chunk.size > self._max_bytes:
            return None
        if _snapshot_of(chunk) != self._key:
            self._key, self._data = _snapshot_of(chunk), bytearray()
        if chunk.offset == len(self._data):
            self._data += chunk.data
        if len(self._data) < chunk.size:
            return None
        data, self._key, self._data = bytes(self._data), None, bytearray()
        if len(data) != chunk.size or crc32c(data) != chunk.crc32c:
            return None  # damaged in transit: start again
        return Snapshot(chunk.index, chunk.snapshot_term, data, chunk.configuration)

    def received(self, chunk: SnapshotChunk) -> int:
        """How many bytes of the chunk's snapshot have arrived."""
        return len(self._data) if _snapshot_of(chunk) == self._key else 0


def _snapshot_of(chunk: SnapshotChunk) -> _SnapshotKey:
    return chunk.term, chunk.index, chunk.snapshot_term, chunk.size, chunk.crc32c
