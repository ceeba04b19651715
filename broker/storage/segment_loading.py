"""Segment loading: sets a segment's fields from its index files and the batches after the last entry.

Called by recovery, for segments whose index files can be trusted, in whole or up to an offset.
"""

import struct

from tierlog.base.leader_epochs import LeaderEpochs
from tierlog.broker.storage.core.continuity import HeaderRules
from tierlog.broker.storage.names import OFFSET_INDEX, TIME_INDEX, TXN_INDEX
from tierlog.broker.storage.segment import BatchAt, CorruptLog, Segment
from tierlog.records.errors import RecordsError
from tierlog.records.indexes import OFFSET_ENTRY, TIME_ENTRY, TXN_ENTRY, cut_indexes

_ENTRIES = OFFSET_ENTRY, TIME_ENTRY, TXN_ENTRY


def load_segment(segment: Segment, end: int | None, rules: HeaderRules) -> bool:
    """Load the index files. Returns False if they are invalid and must be rebuilt, or if a batch that was
    read does not belong to this log.
    """
    if segment.size == 0:
        return end is None
    if (indexes := _read_indexes(segment)) is None:
        return False
    segment.set_indexes(*indexes, are_saved=True)
    try:
        _resume(segment, end, rules)
    except (CorruptLog, RecordsError):
        return False
    return True


def load_prefix(segment: Segment, end: int, rules: HeaderRules, epochs: LeaderEpochs) -> BatchAt | None:
    """Load the index files of an active segment up to an offset, and the totals of the batches before the
    last entry. Returns the batch of that entry; None if there is none, or if the files are not of this log.

    `epochs`: the leader epochs below the offset. A batch with the epoch that they have at its offset is the
    one that was there when they were saved (KIP-101), and so are those before it.
    """
    if segment.size == 0 or (indexes := _read_indexes(segment)) is None:
        return None
    if any(len(index) % entry.size for index, entry in zip(indexes, _ENTRIES, strict=True)):
        return None  # a write has failed, so entries below the offset may be missing too
    cut = cut_indexes(*indexes, segment.base_offset, end)
    segment.set_indexes(*cut, are_saved=[*map(len, cut)] == [*map(len, indexes)])
    try:
        return _resume_prefix(segment, rules, epochs)
    except (CorruptLog, RecordsError):
        return None


def _resume_prefix(segment: Segment, rules: HeaderRules, epochs: LeaderEpochs) -> BatchAt | None:
    first = next(segment.scan(0)).header
    offset_entry = _last_entry(OFFSET_ENTRY, segment.offset_index)
    time_entry = _last_entry(TIME_ENTRY, segment.time_index)
    if offset_entry is None or rules.fault(first, segment.base_offset):
        return None
    relative_offset, position = offset_entry
    if not 0 < position < segment.size:
        return None
    batch = next(segment.scan(position))
    header = batch.header
    if header.last_offset != segment.base_offset + relative_offset or rules.epoch_fault(header):
        return None
    if epochs.epoch_of(header.last_offset) != header.leader_epoch:
        return None
    maximum_offset = segment.base_offset
    if time_entry is not None:
        segment.max_timestamp, maximum_offset = time_entry[0], segment.base_offset + time_entry[1]
    if segment.max_timestamp < first.first_timestamp:
        return None
    segment.first_timestamp = first.first_timestamp
    segment.resume_index(segment.size, maximum_offset)
    return batch


def _read_indexes(segment: Segment) -> tuple[bytes, bytes, bytes] | None:
    """The offset, time and transaction index; None if one of the first two has no file."""
    files = segment.files
    if not (files.exists(segment.path(OFFSET_INDEX)) and files.exists(segment.path(TIME_INDEX))):
        return None
    txn_index = files.read_whole(segment.path(TXN_INDEX)) if files.exists(segment.path(TXN_INDEX)) else b""
    return files.read_whole(segment.path(OFFSET_INDEX)), files.read_whole(segment.path(TIME_INDEX)), txn_index


def _resume(segment: Segment, end: int | None, rules: HeaderRules) -> None:
    """Set a segment's fields from its first batch, the last index entries, and the batches after them.

    The checks detect only torn or lost files: a start must not read every index entry. Raises CorruptLog.
    """
    first = next(segment.scan(0)).header
    if fault := rules.fault(first, segment.base_offset):
        raise CorruptLog(f"{segment.path()}: {fault}")
    segment.first_timestamp = first.first_timestamp
    relative_offset, position = _last_entry(OFFSET_ENTRY, segment.offset_index) or (0, 0)
    time_entry = _last_entry(TIME_ENTRY, segment.time_index)
    _last_entry(TXN_ENTRY, segment.txn_index)
    if not 0 <= position < segment.size or relative_offset < 0:
        raise CorruptLog(f"{segment.path(OFFSET_INDEX)} points outside the log")
    maximum_offset = segment.base_offset
    if time_entry is not None:
        segment.max_timestamp, maximum_offset = time_entry[0], segment.base_offset + time_entry[1]
        if segment.max_timestamp < segment.first_timestamp:
            raise CorruptLog(f"{segment.path(TIME_INDEX)} ends before its first record")
    elif segment.first_timestamp >= 0 and (end is not None or segment.offset_index):
        raise CorruptLog(f"{segment.path(TIME_INDEX)} is empty")
    expected = None if position else segment.base_offset
    for batch in segment.scan(position):
        indexed = segment.base_offset + relative_offset
        if batch.position == position and segment.offset_index and batch.header.last_offset != indexed:
            raise CorruptLog(
                f"{segment.path(OFFSET_INDEX)} has {indexed}, the log {batch.header.last_offset}"
            )
        before = batch.header.base_offset if expected is None else expected
        if fault := rules.fault(batch.header, before):
            raise CorruptLog(f"{segment.path()}: {fault}")
        expected = batch.header.next_offset
        segment.end_offset = batch.header.next_offset
        if batch.header.max_timestamp > segment.max_timestamp and batch.header.record_count:
            segment.max_timestamp, maximum_offset = batch.header.max_timestamp, batch.header.last_offset
    segment.resume_index(position, maximum_offset)
    if end is not None:
        if segment.end_offset < end and not rules.gaps:
            raise CorruptLog(f"{segment.path()} ends before the next segment")
        segment.end_offset = end
        segment.rolled = True
        segment.unload()


def _last_entry(entry: struct.Struct, index: bytearray) -> tuple[int, ...] | None:
    """None if the index is empty. Raises CorruptLog if it is truncated."""
    if len(index) % entry.size:
        raise CorruptLog("an index is truncated")
    return entry.unpack_from(index, len(index) - entry.size) if index else None
