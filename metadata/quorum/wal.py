"""Write-ahead log format: frames in segments. Pure; `storage` does the I/O.

Described in docs/formats/metadata.md. A segment is a header followed by frames. Each frame has a CRC-32C, and
the distance back to the start of its write; everything before that start had been fsynced. A bad frame before
a good frame of a later write is therefore damage to durable data, and not a write that a crash interrupted.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct

import msgspec
from crc32c import crc32c

from tierlog.base.safeguards import safeguard
from tierlog.metadata.raft.messages import CONFIGURATION, Entry, HardState
from tierlog.metadata.versions import newer_file

MAGIC = b"TLWAL\x00\x00\x01"  # the last byte is the version
_FRAME = Struct(
    ">IIIB"
)  # payload length, CRC-32C of all that follows it, bytes back to the write's start, type
FRAME_HEADER = _FRAME.size
MAX_PAYLOAD = 64 << 20


class FrameType(IntEnum):
    """Frame types as stored on disk."""

    ENTRY = 1  # replaces everything at or after its index
    HARD_STATE = 2
    RESET = 3  # a snapshot from the leader replaced everything before this frame
    CONFIGURATION = 4  # an entry whose payload is the quorum's configuration


class Reset(msgspec.Struct, frozen=True, array_like=True):
    index: int
    term: int


WalRecord = Entry | HardState | Reset

_DECODERS: dict[FrameType, msgspec.msgpack.Decoder[WalRecord]] = {
    FrameType.ENTRY: msgspec.msgpack.Decoder(Entry),
    FrameType.CONFIGURATION: msgspec.msgpack.Decoder(Entry),
    FrameType.HARD_STATE: msgspec.msgpack.Decoder(HardState),
    FrameType.RESET: msgspec.msgpack.Decoder(Reset),
}
_encoder = msgspec.msgpack.Encoder()


class DamagedLog(Exception):
    """Durable data is damaged. The node must not vote or respond; its directory has to be replaced."""


@dataclass(frozen=True, slots=True)
class Frame:
    record: WalRecord
    start: int
    end: int
    write_start: int


def encode_frames(records: tuple[WalRecord, ...]) -> bytes:
    """The frames of one write."""
    out = bytearray()
    for record in records:
        number, fields = _frame_of(record)
        payload = _encoder.encode(fields)
        head = _FRAME.pack(len(payload), 0, len(out), number)
        crc = crc32c(payload, crc32c(head[8:]))
        out += head[:4] + crc.to_bytes(4, "big") + head[8:] + payload
    return bytes(out)


def _frame_of(record: WalRecord) -> tuple[FrameType, object]:
    """The frame type encodes the entry's kind, so an older version rejects a kind that it does not know."""
    if isinstance(record, Entry):
        number = FrameType.CONFIGURATION if record.kind == CONFIGURATION else FrameType.ENTRY
        return number, (record.term, record.index, record.payload)
    return (FrameType.HARD_STATE if isinstance(record, HardState) else FrameType.RESET), record


def read_frame(segment: bytes, at: int) -> Frame | None:
    """The frame at this position; None if it is incomplete or damaged."""
    if at + FRAME_HEADER > len(segment):
        return None
    length, crc, back, number = _FRAME.unpack_from(segment, at)
    end = at + FRAME_HEADER + length
    if length > MAX_PAYLOAD or end > len(segment) or not _is_intact(segment[at + 8 : end], crc):
        return None
    try:
        record = _DECODERS[FrameType(number)].decode(segment[at + FRAME_HEADER : end])
        if number == FrameType.CONFIGURATION and isinstance(record, Entry):
            record = Entry(record.term, record.index, record.payload, CONFIGURATION)
    except (ValueError, KeyError) as failure:
        raise DamagedLog(f"frame at {at} has a valid checksum but cannot be decoded: {failure}") from failure
    return Frame(record, at, end, at - back)


@safeguard("write-ahead log frames have checksums")
def _is_intact(content: bytes, crc: int) -> bool:
    return crc32c(content) == crc


def read_segment(segment: bytes) -> Iterator[Frame]:
    """Frames up to the first incomplete or damaged one. Raises DamagedLog if durable data is lost there, or
    for a version that this tierlog does not know."""
    if segment[: len(MAGIC)] != MAGIC:
        if MAGIC.startswith(segment) or not any(segment):
            return  # a crash while the segment was created: nothing in it was acknowledged
        if segment.startswith(MAGIC[:-1]):
            raise DamagedLog(newer_file("a segment of the write-ahead log", segment[len(MAGIC) - 1]))
        raise DamagedLog("a segment of the write-ahead log has an unknown magic")
    at = len(MAGIC)
    while (frame := read_frame(segment, at)) is not None:
        yield frame
        at = frame.end
    for later in range(at + 1, len(segment) - FRAME_HEADER):
        found = read_frame(segment, later)
        if found is not None and found.write_start > at:
            raise DamagedLog(f"durable data at {at} is damaged: a later write at {later} is intact")
