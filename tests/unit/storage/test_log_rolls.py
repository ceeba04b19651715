"""Segments rolled because an index is full or an offset is too far from the base offset."""

import os
import random
from pathlib import Path

from tierlog.base.files import FileSlice, OsFiles
from tierlog.broker.storage.log import PartitionLog
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import assign, read_header
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_700_000_000_000
FAR = 2**31


def open_log(directory: Path, **config: int) -> PartitionLog:
    settings = TopicConfig(index_interval_bytes=0, **config)  # type: ignore[arg-type]
    return PartitionLog.open(directory, settings, OsFiles(), NOW, clean=False, rng=random.Random(1))


def append(log: PartitionLog, at: int | None = None, *, timestamp: int = NOW) -> None:
    base = log.log_end_offset if at is None else at
    batch = memoryview(encode_batch([NewRecord(timestamp, None, b"v")]))
    assign(batch, 0, base, 0)
    log.append(batch, read_header(batch), base, 0, NOW)


def test_full_offset_index_rolls_the_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_index_bytes=3 * 8)
    for _ in range(20):  # all with one timestamp, so that the time index stays small
        append(log)
    assert [info.base_offset for info in log.segments] == [0, 4, 8, 12, 16]
    assert {path.stat().st_size for path in tmp_path.glob("*.index")} == {3 * 8}
    log.check()


def test_full_time_index_rolls_the_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_index_bytes=3 * 12)
    for n in range(20):
        append(log, timestamp=NOW + n)
    assert [info.base_offset for info in log.segments] == [0, 4, 8, 12, 16]
    log.check()


def test_offset_too_far_for_the_index_rolls_the_segment(tmp_path: Path) -> None:
    """Index offsets are relative to the segment's, in 31 bits; compaction leaves such gaps."""
    log = open_log(tmp_path)
    append(log, 0)
    append(log, FAR - 1)
    assert len(log.segments) == 1
    append(log, FAR)
    append(log, FAR + 1)
    assert [info.base_offset for info in log.segments] == [0, FAR]
    found = log.read(FAR + 1, 1 << 20, FAR + 2, min_one=True)
    assert found.base_offset == FAR + 1
    assert [len(part) for part in found.parts if isinstance(part, FileSlice)] != []


class Truncations(OsFiles):
    """Records which logs are truncated to zero."""

    def __init__(self) -> None:
        super().__init__()
        self.emptied: list[str] = []

    def truncate(self, fd: int, size: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{fd}")).name
        if size == 0 and name.endswith(".log"):
            self.emptied.append(name)
        OsFiles.truncate(fd, size)


def test_new_file_is_not_truncated(tmp_path: Path) -> None:
    """Otherwise ext4 writes all dirty pages when the file is closed, and the event loop waits."""
    files = Truncations()
    settings = TopicConfig(index_interval_bytes=0, segment_index_bytes=3 * 8)
    log = PartitionLog.open(tmp_path, settings, files, NOW, clean=False, rng=random.Random(1))
    left_over = tmp_path / f"{8:020}.log"
    left_over.write_bytes(b"of a roll that failed")
    for _ in range(20):
        append(log)
    log.truncate_fully_and_start_at(50, NOW)
    append(log)
    assert [info.base_offset for info in log.segments] == [50]
    assert files.emptied == [left_over.name]
    log.check()
