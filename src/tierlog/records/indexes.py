"""Sparse indexes of a segment in Kafka's formats: encodes entries, validates and searches buffers.

Offset index: 8 bytes an entry (offset relative to the segment's base, int32; position in the file, int32).
Time index: 12 bytes (timestamp, int64; relative offset, int32), the largest timestamp so far and the offset
that has it. Transaction index: 34 bytes, version 0 (version int16; producer id, first offset, last offset,
last stable offset, int64 each), one per aborted transaction, in the order of last offsets. Called by the log
(over its files) and by tiering and Spark (over the index bundle in the bucket).
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tierlog.records.errors import RecordsError, RecordsFault

Buffer = bytes | bytearray | memoryview

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")
TXN_ENTRY = struct.Struct(">hqqqq")
TXN_VERSION = 0
_LAST_OFFSET = 3  # field of TXN_ENTRY


class OffsetEntry(NamedTuple):
    """A batch starts at `position`; `offset` is its last offset."""

    offset: int
    position: int


class TimeEntry(NamedTuple):
    """`timestamp` is the largest up to this entry; the batch that contains `offset` is the first to have
    it."""

    timestamp: int
    offset: int


class AbortedTxn(NamedTuple):
    """An aborted transaction; `last_offset` is that of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_offset_entry(base_offset: int, offset: int, position: int) -> bytes:
    """Raises INVALID if the offset is not within 32 bits of the base; the segment must be rolled first."""
    return _pack(OFFSET_ENTRY, offset - base_offset, position)


def encode_time_entry(base_offset: int, timestamp: int, offset: int) -> bytes:
    return _pack(TIME_ENTRY, timestamp, offset - base_offset)


def encode_txn_entry(txn: AbortedTxn) -> bytes:
    return TXN_ENTRY.pack(TXN_VERSION, *txn)


def encode_txn_index(txns: Iterable[AbortedTxn]) -> bytes:
    return b"".join(map(encode_txn_entry, txns))


def decode_offset_index(index: Buffer, base_offset: int) -> Iterator[OffsetEntry]:
    """Raises CORRUPT on a truncated entry, or if offsets or positions do not increase."""
    last = OffsetEntry(base_offset - 1, -1)
    for relative, position in _entries(OFFSET_ENTRY, index):
        entry = OffsetEntry(base_offset + relative, position)
        if entry.offset <= last.offset or entry.position <= last.position:
            raise RecordsError(RecordsFault.CORRUPT, f"offset index: {entry} after {last}")
        yield entry
        last = entry


def decode_time_index(index: Buffer, base_offset: int) -> Iterator[TimeEntry]:
    """Raises CORRUPT on a truncated entry, or if timestamps or offsets decrease."""
    last: TimeEntry | None = None
    for timestamp, relative in _entries(TIME_ENTRY, index):
        entry = TimeEntry(timestamp, base_offset + relative)
        if relative < 0 or (last and (entry.timestamp < last.timestamp or entry.offset < last.offset)):
            raise RecordsError(RecordsFault.CORRUPT, f"time index: {entry} after {last}")
        yield entry
        last = entry


def decode_txn_index(index: Buffer) -> Iterator[AbortedTxn]:
    """Raises CORRUPT on a truncated entry or a version other than 0."""
    for version, *fields in _entries(TXN_ENTRY, index):
        if version != TXN_VERSION:
            raise RecordsError(RecordsFault.CORRUPT, f"transaction index: version {version}")
        yield AbortedTxn._make(fields)


def check_txn_index(index: Buffer) -> None:
    """Raises CORRUPT as `decode_txn_index`."""
    for _ in decode_txn_index(index):
        pass


def find_position(index: Buffer, base_offset: int, offset: int) -> int:
    """The position at which to start reading for an offset: that of the last entry at or below it, else 0."""
    at = _last_at_or_below(OFFSET_ENTRY, index, 0, offset - base_offset)
    return int(OFFSET_ENTRY.unpack_from(index, at)[1]) if at >= 0 else 0


def last_offset_at(index: Buffer, base_offset: int, position: int) -> int:
    """The last offset of the batch at an indexed position."""
    at = _last_at_or_below(OFFSET_ENTRY, index, 1, position)
    return base_offset + int(OFFSET_ENTRY.unpack_from(index, at)[0])


def find_end_position(index: Buffer, base_offset: int, end_offset: int) -> int | None:
    """A position after all records below end_offset, or None for the end of the file.

    The first entry at or above end_offset may belong to a batch that starts below it; the next one cannot.
    """
    at = _last_at_or_below(OFFSET_ENTRY, index, 0, end_offset - 1 - base_offset) + 2 * OFFSET_ENTRY.size
    return int(OFFSET_ENTRY.unpack_from(index, at)[1]) if at < len(index) else None


def cut_indexes(
    offset_index: Buffer, time_index: Buffer, txn_index: Buffer, base_offset: int, end_offset: int
) -> tuple[Buffer, Buffer, Buffer]:
    """The entries of three indexes for batches that end below an offset."""
    last = end_offset - 1 - base_offset
    offset_end = _last_at_or_below(OFFSET_ENTRY, offset_index, 0, last) + OFFSET_ENTRY.size
    time_end = _last_at_or_below(TIME_ENTRY, time_index, 1, last) + TIME_ENTRY.size
    txn_end = _last_at_or_below(TXN_ENTRY, txn_index, _LAST_OFFSET, end_offset - 1) + TXN_ENTRY.size
    return offset_index[:offset_end], time_index[:time_end], txn_index[:txn_end]


def next_position(index: Buffer, position: int, limit: int) -> int | None:
    """The largest indexed position in (position, limit], else the next one after limit; None at the end.

    Used to split a segment into chunks of complete batches.
    """
    at = _last_at_or_below(OFFSET_ENTRY, index, 1, limit)
    for candidate in (at, at + OFFSET_ENTRY.size):
        if 0 <= candidate < len(index):
            found = int(OFFSET_ENTRY.unpack_from(index, candidate)[1])
            if found > position:
                return found
    return None


def find_offset_for_time(index: Buffer, base_offset: int, timestamp: int) -> int:
    """An offset at or before the first record with this timestamp or a later one, where a scan starts."""
    at = _last_at_or_below(TIME_ENTRY, index, 0, timestamp - 1)
    return base_offset + int(TIME_ENTRY.unpack_from(index, at)[1]) if at >= 0 else base_offset


def find_aborted(index: Buffer, start_offset: int, end_offset: int) -> list[AbortedTxn]:
    """The aborted transactions of `search_aborted`."""
    return search_aborted(index, start_offset, end_offset)[0]


def search_aborted(index: Buffer, start_offset: int, end_offset: int) -> tuple[list[AbortedTxn], bool]:
    """The aborted transactions that overlap [start_offset, end_offset), in the order of last offsets, and
    whether all are found, so that the indexes of later segments need not be searched.

    A binary search finds the first that ends late enough. After one whose last stable offset is at or above
    the end, all begin there or later (as in Kafka). Raises as `decode_txn_index`.
    """
    found = []
    at = _last_at_or_below(TXN_ENTRY, index, _LAST_OFFSET, start_offset - 1) + TXN_ENTRY.size
    for txn in decode_txn_index(memoryview(index)[at:]):
        if txn.first_offset < end_offset:
            found.append(txn)
        if txn.last_stable_offset >= end_offset:
            return found, True
    return found, False


def _last_at_or_below(entry: struct.Struct, index: Buffer, field: int, target: int) -> int:
    """Byte position of the last entry with field <= target, or -size. The field must ascend."""
    low, high = 0, len(index) // entry.size
    while low < high:
        middle = (low + high) // 2
        if entry.unpack_from(index, middle * entry.size)[field] <= target:
            low = middle + 1
        else:
            high = middle
    return (low - 1) * entry.size


def _entries(entry: struct.Struct, index: Buffer) -> Iterator[tuple[int, ...]]:
    if len(index) % entry.size:
        raise RecordsError(RecordsFault.CORRUPT, f"an index of {len(index)} bytes ends inside an entry")
    return entry.iter_unpack(index)


def _pack(entry: struct.Struct, *fields: int) -> bytes:
    try:
        return entry.pack(*fields)
    except struct.error:
        raise RecordsError(RecordsFault.INVALID, f"{fields} do not fit into an index entry") from None
