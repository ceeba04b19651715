"""Truncation of a log when any one disk operation fails."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from failing_files import FailingFiles

from tierlog.base.files import FileSlice, OsFiles
from tierlog.broker.storage.log import PartitionLog
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import assign, iter_batches, read_header
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_700_000_000_000
CONFIG = TopicConfig(segment_bytes=400, index_interval_bytes=0, file_delete_delay_ms=0)
PRODUCER, OLD, NEW = 3, 0, 1
BATCHES = 9


def open_log(directory: Path, files: OsFiles) -> PartitionLog:
    return PartitionLog.open(
        directory, CONFIG, files, NOW, recovery_point=0, clean=False, rng=random.Random(1)
    )


def append(log: PartitionLog, epoch: int) -> None:
    base = log.log_end_offset
    records = [NewRecord(NOW + base + n, None, b"%d" % (base + n)) for n in range(2)]
    batch = memoryview(encode_batch(records, producer_id=PRODUCER, producer_epoch=0, base_sequence=base))
    assign(batch, 0, base, epoch)
    log.append(batch, read_header(batch), base, epoch, NOW)


def stored(log: PartitionLog) -> list[tuple[int, int]]:
    """Offset and epoch of each batch."""
    found = log.read(0, 1 << 30, log.log_end_offset, min_one=True)
    data = b"".join(part.read() for part in found.parts if isinstance(part, FileSlice))
    return [(header.base_offset, header.leader_epoch) for _, header in iter_batches(data)]


def check(log: PartitionLog) -> None:
    """Also check that the producer state matches the log and that each segment can be read."""
    log.check()
    assert [offset for offset, _ in stored(log)] == list(range(0, log.log_end_offset, 2))
    known = log.producers.get(PRODUCER)
    assert known is not None and known.batches[-1].last_offset == log.log_end_offset - 1


@pytest.mark.parametrize("rolls", ["many", "none"])
@pytest.mark.parametrize("offset", [10, 12])
def test_log_continues_after_a_failed_truncation(tmp_path: Path, offset: int, rolls: str) -> None:
    """A segment ends at 10; 12 is within one."""
    for left in range(1000):
        directory, files = tmp_path / str(left), FailingFiles()
        log = open_log(directory, files)
        if rolls == "none":
            log.update_config(replace(CONFIG, segment_bytes=1 << 20))
        for _ in range(BATCHES):
            append(log, OLD)
        log.flush()
        files.left, refused = left, False
        try:
            log.truncate_to(offset, NOW)
        except OSError:
            refused = True
        files.left = None
        check(log)
        if not refused:
            assert left >= 3
            return
        append(log, OLD)  # as a leader elected before the next attempt
        check(log)
        log.truncate_to(offset, NOW)
        assert stored(log) == [(base, OLD) for base in range(0, offset, 2)]
        for _ in range(BATCHES):
            append(log, NEW)
        check(log)
        log.close(clean=False)
        again = open_log(directory, OsFiles())
        assert stored(again) == stored(log)
        check(again)
        again.close(clean=False)
    pytest.fail("it never ended")
