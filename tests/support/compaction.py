"""Cleans one log in a single call; the log cleaner does it over several threads and turns of the loop."""

import random
import threading
from pathlib import Path

from tierlog.base.clock import SystemClock
from tierlog.base.files import FileSlice, OsFiles
from tierlog.broker.storage.cleaner import Cleaner, CleanerThrottler, take_job
from tierlog.broker.storage.core.compaction import LogToClean, log_to_clean
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.segment_swap import Swap
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import BatchHeader, assign, iter_batches, read_header
from tierlog.records.offset_map import LOAD_FACTOR
from tierlog.records.record import Record, iter_records
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_700_000_000_000


def open_log(
    directory: Path, config: TopicConfig, files: OsFiles | None = None, **options: object
) -> PartitionLog:
    options = {"clean": False, "rng": random.Random(1), "recovery_point": 0, "cleaned_to": 0, **options}
    return PartitionLog.open(directory, config, files or OsFiles(), NOW, **options)  # type: ignore[arg-type]


def append(log: PartitionLog, records: list[NewRecord], now_ms: int = NOW, **options: object) -> int:
    base = log.log_end_offset
    batch = memoryview(encode_batch(records, **options))  # type: ignore[arg-type]
    assign(batch, 0, base, 0)
    log.append(batch, read_header(batch), base, 0, now_ms)
    return base


def put(log: PartitionLog, key: str, value: str | None, **options: object) -> int:
    encoded = None if value is None else value.encode()
    return append(log, [NewRecord(NOW, key.encode(), encoded)], **options)


def dirty_of(log: PartitionLog, now_ms: int = NOW, stable: int | None = None) -> LogToClean:
    return log_to_clean(
        log.segments,
        log.config,
        cleaned_to=log.cleaned_to or 0,
        log_start_offset=log.log_start_offset,
        last_stable_offset=log.log_end_offset if stable is None else stable,
        now_ms=now_ms,
    )


def begin(
    log: PartitionLog, now_ms: int = NOW, *, load_factor: float = LOAD_FACTOR, stable: int | None = None
) -> Cleaner:
    log.flush()
    pace = CleanerThrottler(SystemClock(), threading.Event(), lambda: 1e12)
    return Cleaner(take_job(log, dirty_of(log, now_ms, stable), now_ms), pace, 0, load_factor)


def swap_in(log: PartitionLog, files: OsFiles, swap: Swap, now_ms: int) -> None:
    assert log.swaps.begin(log, swap)
    for step in log.swaps.after_begin(log, swap, now_ms):
        files.sync_directory(log.directory)
        step()


def clean(
    log: PartitionLog,
    now_ms: int = NOW,
    *,
    files: OsFiles | None = None,
    load_factor: float = LOAD_FACTOR,
    stable: int | None = None,
) -> int:
    """One cleaning pass. Returns the number of segments swapped in. The offset map has one page;
    `load_factor` is the part of it that is used.
    """
    files = files or OsFiles()
    cleaning = begin(log, now_ms, load_factor=load_factor, stable=stable)
    count = 0
    for group in cleaning.build_offset_map():
        swap = cleaning.clean(group)
        if swap is not None:
            swap_in(log, files, swap, now_ms)
            count += 1
    log.cleaned_to = cleaning.cleaned_to
    log.check()
    return count


def batches_of(log: PartitionLog) -> list[tuple[BatchHeader, list[Record]]]:
    found = log.read(log.local_log_start_offset, 1 << 30, log.log_end_offset, min_one=True)
    data = b"".join(part.read() for part in found.parts if isinstance(part, FileSlice))
    assert len(data) == found.size
    return [(header, list(iter_records(data, at, max_bytes=1 << 20))) for at, header in iter_batches(data)]


def records_of(log: PartitionLog) -> list[Record]:
    return [record for _, records in batches_of(log) for record in records]
