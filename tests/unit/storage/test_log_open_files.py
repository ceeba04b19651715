"""Logs under a limit on open files: no data is lost, and no removed file comes back empty."""

import random
from pathlib import Path

import pytest

from tierlog.base.files import FileSlice, OsFiles
from tierlog.base.open_files import OpenFiles
from tierlog.broker.storage.log import PartitionLog
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import assign, read_header
from tierlog.records.record import iter_records
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_700_000_000_000
CONFIG = TopicConfig(segment_bytes=400)


def open_log(directory: Path, files: OsFiles, *, clean: bool = False, point: int = 0) -> PartitionLog:
    rng = random.Random(1)
    return PartitionLog.open(directory, CONFIG, files, NOW, recovery_point=point, clean=clean, rng=rng)


def append(log: PartitionLog, value: bytes) -> None:
    batch = encode_batch([NewRecord(NOW, None, value)])
    offset = log.log_end_offset
    assign(batch, 0, offset, 0)
    log.append(memoryview(batch), read_header(batch), offset, 0, NOW)


def values(log: PartitionLog) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        part = log.read(offset, 300, log.log_end_offset, min_one=True)
        assert all(isinstance(piece, FileSlice) for piece in part.parts)
        data = b"".join(piece.read() for piece in part.parts if isinstance(piece, FileSlice))
        batch_at = 0
        while batch_at < len(data):
            found += [record.value for record in iter_records(data, batch_at, max_bytes=1 << 20)]
            batch_at += read_header(data, batch_at).size
        offset = part.end_offset
    return found


@pytest.mark.parametrize("most", [1, 2, 7])
def test_logs_share_a_bounded_number_of_descriptors(tmp_path: Path, most: int) -> None:
    """Appends, rolls, reads, flushes, kills and clean shutdowns, always on the least recently used log."""
    bound = OpenFiles(most)
    files = OsFiles(bound)
    logs = [open_log(tmp_path / f"t-{number}", files) for number in range(12)]
    expected: list[list[bytes]] = [[] for _ in logs]
    for turn in range(15):
        for number, log in enumerate(logs):
            value = b"%d of %d" % (turn, number)
            append(log, value)
            expected[number].append(value)
            if turn % 4 == 3:
                log.flush()
        if turn == 7:
            for log in logs:
                log.close(clean=True)
            logs = [open_log(tmp_path / f"t-{n}", files, clean=True) for n in range(len(logs))]
        if turn == 11:
            points = [log.recovery_point for log in logs]
            del log, logs
            logs = [open_log(tmp_path / f"t-{n}", files, point=point) for n, point in enumerate(points)]
        assert [values(log) for log in logs] == expected
    assert len(bound) <= most + 2  # the last answer held the files of three segments
    assert bound.evicted > 100


def test_removed_file_does_not_come_back_empty(tmp_path: Path) -> None:
    files = OsFiles(OpenFiles(1))
    log, other = open_log(tmp_path / "t-0", files), open_log(tmp_path / "t-1", files)
    append(log, b"a")
    append(other, b"b")  # closes the file of the first
    log.active.path().unlink()
    with pytest.raises(FileNotFoundError):
        append(log, b"c")
    assert not log.active.path().exists()


def test_empty_log_needs_no_file_and_no_fsync(tmp_path: Path) -> None:
    """The first append creates `.log`; a clean shutdown writes nothing, and any start finds an empty log."""
    for clean in (True, False):
        log = open_log(tmp_path / "t-0", OsFiles())
        log.assign_epoch(3, 0)
        assert list(log.batches(0)) == []
        assert not log.active.path().exists()
        log.close(clean=clean)
        again = open_log(tmp_path / "t-0", OsFiles(), clean=clean)
        assert (again.log_start_offset, again.log_end_offset) == (0, 0)
        again.close(clean=False)
