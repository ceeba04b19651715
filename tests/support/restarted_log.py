"""A log with transactions that is killed, and its state after a start, for tests of restart points."""

import random
import struct
from pathlib import Path
from typing import Any

from tierlog.base.files import Files
from tierlog.broker.storage.core.producer_state import ProducerStateManager
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.names import offsets_of
from tierlog.broker.storage.segment import Segment
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import assign, read_header
from tierlog.records.indexes import TimeEntry, decode_offset_index, decode_time_index
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_700_000_000_000
VALUE = bytes(9_000)
"""Enough for a restart point after each batch, with a few producers."""


def open_log(
    directory: Path, config: TopicConfig, files: Files, recovery_point: int, *, same_boot: bool
) -> PartitionLog:
    return PartitionLog.open(
        directory,
        config,
        files,
        NOW,
        recovery_point=recovery_point,
        clean=False,
        same_boot=same_boot,
        rng=random.Random(1),
    )


def append(
    log: PartitionLog, epoch: int = 0, *, after_ms: int = 0, value: bytes = VALUE, **options: Any
) -> None:
    write(log, [NewRecord(NOW + after_ms, None, value)], epoch, **options)


def end_transaction(log: PartitionLog, epoch: int, producer_id: int, *, commit: bool) -> None:
    marker = [NewRecord(NOW, struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 0))]
    options = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": -1}
    write(log, marker, epoch, transactional=True, control=True, **options)


def write(log: PartitionLog, records: list[NewRecord], epoch: int, **options: Any) -> None:
    base = log.log_end_offset
    batch = memoryview(encode_batch(records, **options))
    assign(batch, 0, base, epoch)
    log.append(batch, read_header(batch), base, epoch, NOW)


def checkpoint(log: PartitionLog) -> int:
    """A checkpoint of log maintenance; returns the recovery point."""
    log.flusher.restart_points.prepare(log.active, log.producers, log.config.index_interval_bytes)
    return log.flush()


def restart_point(directory: Path) -> int | None:
    """The offset of the producer snapshot inside the active segment."""
    names = [path.name for path in directory.iterdir()]
    active = max(offsets_of(names, ".log"), default=0)
    return max((at for at in offsets_of(names, ".snapshot") if at > active), default=None)


def state_of(log: PartitionLog) -> dict[str, Any]:
    """All that recovery restores, once the high watermark is known."""
    log.producers.on_high_watermark_updated(log.log_end_offset)
    return {
        "segments": [_segment_state(segment) for segment in log.segment_files],
        "epochs": log.epochs.entries,
        "producers": _producers_state(log.producers),
        "last stable": log.producers.first_unstable_offset(),
        "start": log.log_start_offset,
        "end": log.log_end_offset,
    }


def _segment_state(segment: Segment) -> dict[str, Any]:
    segment.detect_transactions()
    return {
        "offsets": (segment.base_offset, segment.end_offset),
        "size": segment.size,
        "rolled": segment.rolled,
        "timestamps": (segment.first_timestamp, segment.max_timestamp),
        "transactions": (segment.has_transactions, segment.has_aborts),
        "indexes": (bytes(segment.offset_index), bytes(segment.txn_index)),
        "times": _time_entries(segment),
        "next entry": None if segment.rolled else (segment._bytes_since_entry, segment._maximum_offset),
    }


def _time_entries(segment: Segment) -> list[TimeEntry]:
    """The entries at the entries of the offset index. A roll adds one more, which stays if the process is
    killed before the roll ends."""
    indexed = {entry.offset for entry in decode_offset_index(segment.offset_index, segment.base_offset)}
    largest, true, needed = TimeEntry(-1, -1), set(), []
    for _, header in segment.scan(0):
        if header.max_timestamp > largest.timestamp:
            largest = TimeEntry(header.max_timestamp, header.last_offset)
            true.add(largest)
        if header.last_offset in indexed and largest not in needed:
            needed.append(largest)
    found = list(decode_time_index(segment.time_index, segment.base_offset))
    assert found == sorted(found) and set(needed) <= set(found) <= true
    return needed


def _producers_state(producers: ProducerStateManager) -> dict[int, Any]:
    return {
        one.producer_id: (one.epoch, list(one.batches), one.coordinator_epoch, one.transaction_first_offset)
        for one in producers
    }
