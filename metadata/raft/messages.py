"""What Raft peers say to each other, and what a node keeps: msgpack arrays, each with a lasting number.

Names follow the Raft paper (section numbers are those of Ongaro's thesis). New fields go to the end with
defaults.
"""

import msgspec

from tierlog.metadata.raft.membership import Configuration

NO_NODE = -1
PAYLOAD, CONFIGURATION = 0, 1  # kinds of entries


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A log entry; what a payload means is not Raft's business, unless its kind is CONFIGURATION."""

    term: int
    index: int
    payload: bytes
    kind: int = PAYLOAD


class HardState(msgspec.Struct, frozen=True, array_like=True):
    """What must survive a crash besides the log. `commit` may lag; it only shortens a restart."""

    term: int = 0
    voted_for: int = NO_NODE
    commit: int = 0


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """Everything up to and including entry `index`, as bytes of the state machine's own making, and the
    configuration as of that entry; None: the one that the nodes were started with."""

    index: int = 0
    term: int = 0
    data: bytes = b""
    configuration: Configuration | None = None


class Message(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag_field="type"):
    """Base: `term` is the sender's, save in a pre-vote, where it is the term asked for."""

    term: int
    sender: int
    to: int


class VoteRequest(Message, frozen=True, array_like=True, kw_only=True, tag=1):
    """`transfer`: the leader itself asked for this election (3.10), so refusing for its sake is wrong."""

    last_index: int
    last_term: int
    pre_vote: bool = False
    transfer: bool = False


class VoteReply(Message, frozen=True, array_like=True, kw_only=True, tag=2):
    granted: bool
    pre_vote: bool = False


class Append(Message, frozen=True, array_like=True, kw_only=True, tag=3):
    """Entries that follow (prev_index, prev_term); none: only the commit index moves."""

    prev_index: int
    prev_term: int
    entries: tuple[Entry, ...]
    commit: int


class AppendReply(Message, frozen=True, array_like=True, kw_only=True, tag=4):
    """Accepted: the log matches the leader's up to `match_index`. Refused: `refused_index` is the
    prev_index that did not match, and the hint is where logs may agree: the last entry with a term not
    above the leader's there."""

    accepted: bool
    match_index: int = 0
    refused_index: int = 0
    hint_index: int = 0
    hint_term: int = 0


class Heartbeat(Message, frozen=True, array_like=True, kw_only=True, tag=5):
    """`commit` never exceeds what this peer is known to hold. `read`: the newest question (6.4)."""

    commit: int
    read: int = 0


class HeartbeatReply(Message, frozen=True, array_like=True, kw_only=True, tag=6):
    """`read`: of the heartbeat that is answered."""

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
    """The receiver holds the first `next_offset` bytes of this snapshot."""

    index: int
    next_offset: int


class TimeoutNow(Message, frozen=True, array_like=True, kw_only=True, tag=9):
    """Leadership transfer (3.10): campaign at once."""


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

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[AnyMessage, ...])


def encode_messages(messages: tuple[AnyMessage, ...]) -> bytes:
    return _encoder.encode(messages)


def decode_messages(body: bytes | memoryview) -> tuple[AnyMessage, ...]:
    """Raises msgspec.DecodeError (ValidationError among them)."""
    return _decoder.decode(body)
