"""Flushes: permanent and temporary errors, and concurrent operations."""

import random
import shutil
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from power_loss import LOST, ZEROED, PowerLoss

from tierlog.base.files import OsFiles
from tierlog.base.leader_epochs import LeaderEpochs
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.log_flusher import LogFlusher, SyncFailed
from tierlog.broker.storage.names import EPOCH_CHECKPOINT
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import assign, read_header
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_700_000_000_000


class Disk(OsFiles):
    """Calls `before_sync` once, before the next fsync; has no space for new small files while `full`."""

    def __init__(self) -> None:
        self.full = False
        self.before_sync: Callable[[], None] | None = None

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        if self.full and exclusive:
            raise OSError(28, "No space left on device")
        return super().open(path, create=create, exclusive=exclusive)

    def sync(self, fd: int) -> None:  # type: ignore[override]
        hook, self.before_sync = self.before_sync, None
        if hook is not None:
            hook()
        OsFiles.sync(fd)


def open_log(directory: Path, files: OsFiles, *, clean: bool = False) -> PartitionLog:
    return PartitionLog.open(directory, TopicConfig(), files, NOW, clean=clean, rng=random.Random(1))


def append(log: PartitionLog, epoch: int = 0, records: int = 1) -> None:
    base = log.log_end_offset
    batch = memoryview(bytearray(encode_batch([NewRecord(NOW, None, b"v")] * records)))
    assign(batch, 0, base, epoch)
    log.append(batch, read_header(batch), base, epoch, NOW)


def fail() -> None:
    raise OSError(5, "Input/output error")


def test_a_failed_fsync_is_final(tmp_path: Path) -> None:
    disk = Disk()
    log = open_log(tmp_path, disk)
    append(log)
    disk.before_sync = fail
    with pytest.raises(SyncFailed):
        log.flush()
    with pytest.raises(SyncFailed):  # fsync succeeds again, but the kernel may have dropped unwritten pages
        log.flush()
    with pytest.raises(SyncFailed):
        log.close(clean=True)
    assert log.recovery_point == 0


def test_full_disk_during_a_flush_is_temporary(tmp_path: Path) -> None:
    disk = Disk()
    log = open_log(tmp_path, disk)
    append(log)
    disk.full = True
    for _ in range(2):
        with pytest.raises(OSError, match="No space") as caught:
            log.flush()
        assert not isinstance(caught.value, SyncFailed)
    assert not (tmp_path / EPOCH_CHECKPOINT).exists()
    disk.full = False
    assert log.flush() == log.recovery_point == 1
    latest = LeaderEpochs.decode((tmp_path / EPOCH_CHECKPOINT).read_bytes()).latest
    assert latest is not None and latest.epoch == 0


def test_lack_of_descriptors_is_temporary(tmp_path: Path) -> None:
    def no_descriptors() -> None:
        raise OSError(24, "Too many open files")

    disk = Disk()
    log = open_log(tmp_path, disk)
    append(log)
    disk.before_sync = no_descriptors
    with pytest.raises(OSError, match="Too many") as caught:
        log.flush()
    assert not isinstance(caught.value, SyncFailed)
    assert log.flush() == 1


def test_flush_that_waited_for_a_failed_one_fails_too(tmp_path: Path) -> None:
    disk = Disk()
    log = open_log(tmp_path, disk)
    append(log)
    entered, go_on = threading.Event(), threading.Event()

    def wait_and_fail() -> None:
        entered.set()
        go_on.wait()
        fail()

    disk.before_sync = wait_and_fail
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(log.flush)
        entered.wait()
        append(log)
        second = pool.submit(log.flush)
        go_on.set()
        assert isinstance(first.exception(), SyncFailed)
        assert isinstance(second.exception(), SyncFailed)
    assert log.recovery_point == 0


def test_concurrent_flushes_cover_earlier_appends(tmp_path: Path) -> None:
    disk = Disk()
    log = open_log(tmp_path, disk)
    append(log)
    entered, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        go_on.wait()

    disk.before_sync = wait
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(log.flush)
        entered.wait()
        append(log)
        second = pool.submit(log.flush)
        go_on.set()
        assert (first.result(), second.result()) == (1, 2)
    assert log.recovery_point == 2
    log.check()


def test_segment_rolled_and_deleted_during_a_flush_does_not_fail_it(tmp_path: Path) -> None:
    disk = Disk()
    log = open_log(tmp_path, disk)
    append(log)

    def roll_and_delete() -> None:
        log.roll(NOW)
        log.delete_local_before(1, NOW)

    disk.before_sync = roll_and_delete
    log.flush()
    append(log)
    assert log.flush() == 2
    log.check()


def test_nothing_is_written_after_the_log_is_closed(tmp_path: Path) -> None:
    log = open_log(tmp_path, OsFiles())
    append(log)
    log.close(clean=False)
    for path in tmp_path.iterdir():
        path.unlink()
    with pytest.raises(SyncFailed):
        log.flush()
    assert list(tmp_path.iterdir()) == []


def test_close_does_not_wait_for_a_hanging_disk(tmp_path: Path) -> None:
    """Its topic was deleted and created again during the fsync: the old log must not touch the new files."""
    disk = Disk()
    directory, renamed = tmp_path / "t-0", tmp_path / "t-0-delete"
    log = open_log(directory, disk)
    append(log)
    entered, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        go_on.wait()

    disk.before_sync = wait
    with ThreadPoolExecutor(1) as pool:
        flushing = pool.submit(log.flush)
        entered.wait()
        log.close(clean=False)
        directory.rename(renamed)
        again = open_log(directory, disk)
        before = {path.name: path.read_bytes() for path in directory.iterdir()}
        go_on.set()
        assert isinstance(flushing.exception(), SyncFailed)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    append(again)
    assert again.flush() == 1


def test_name_of_the_file_created_by_the_first_append_is_durable(tmp_path: Path) -> None:
    """A new leader epoch is flushed before the append, and that sync of the directory does not cover the
    file.
    """
    files = PowerLoss(tmp_path, 1000)
    log = open_log(tmp_path, files)
    log.assign_epoch(0, 0)
    assert log.flush() == 0
    append(log)
    assert log.flush() == 1
    log.close(clean=False)
    files.crash(LOST)
    assert open_log(tmp_path, OsFiles()).log_end_offset == 1


def test_log_that_recovery_truncated_to_zero_is_empty_after_a_clean_shutdown(tmp_path: Path) -> None:
    files = PowerLoss(tmp_path, 1000)
    log = open_log(tmp_path, files)
    append(log)
    log.truncate_to(0, NOW)
    log.close(clean=True)  # leaves empty indexes
    log = open_log(tmp_path, files, clean=True)
    append(log)
    log.close(clean=False)
    files.crash(ZEROED)
    files = PowerLoss(tmp_path, 1000)
    log = open_log(tmp_path, files)
    assert (log.log_end_offset, log.recovered_truncated_bytes > 0) == (0, True)
    log.close(clean=True)
    files.crash(LOST)
    assert open_log(tmp_path, OsFiles(), clean=True).log_end_offset == 0


def test_log_truncated_to_zero_before_a_kill_is_empty_after_the_next_clean_shutdown(tmp_path: Path) -> None:
    """The truncation is only in the page cache, and the next process finds an empty file."""
    files = PowerLoss(tmp_path, 1 << 60)
    log = open_log(tmp_path, files, clean=True)
    append(log, records=2)
    log.flush()
    log.truncate_to(1, NOW)  # inside the batch: the file stays, and is empty
    log.close(clean=False)

    log = open_log(tmp_path, files)
    log.close(clean=True)
    files.crash(LOST)
    assert open_log(tmp_path, OsFiles(), clean=True).log_end_offset == 0


def test_leader_epoch_checkpoint_is_replaced_and_never_overwritten(tmp_path: Path) -> None:
    """After a crash an overwritten file may have some old and some new pages, which may look valid."""
    log = open_log(tmp_path / "t-0", OsFiles())
    for epoch in range(4):
        append(log, epoch)
        log.roll(NOW)
    log.flush()
    path = tmp_path / "t-0" / EPOCH_CHECKPOINT
    before, inode = path.read_bytes(), path.stat().st_ino
    log.delete_local_before(2, NOW)
    log.truncate_to(3, NOW)
    assert path.read_bytes() == before
    shutil.copytree(tmp_path / "t-0", tmp_path / "killed")
    log.flush()
    assert path.stat().st_ino != inode
    assert LeaderEpochs.decode(path.read_bytes()).entries == log.epochs.entries
    again = open_log(tmp_path / "killed", OsFiles())
    assert (again.log_end_offset, again.epochs.entries[-1]) == (3, (2, 2))
    append(again, 5)
    again.close(clean=True)
    assert open_log(tmp_path / "killed", OsFiles(), clean=True).epochs.entries[-2:] == ((2, 2), (5, 3))


def test_thread_that_sees_a_truncation_sees_its_recovery_point(tmp_path: Path) -> None:
    """A checkpoint thread reads the number of truncations first, and then the recovery point."""
    log = open_log(tmp_path, OsFiles())
    append(log, records=3)
    append(log, records=3)
    assert log.flush() == 6
    seen: list[tuple[int, int]] = []

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code is not LogFlusher.on_truncated.__code__:
            return None
        seen.append((log.flusher.truncations, log.recovery_point))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        log.truncate_to(3, NOW)
    finally:
        sys.settrace(before)
    assert len(seen) > 4 and seen[-1] == (1, 3)
    assert all(point == 3 for cuts, point in seen if cuts == 1)
    assert log.flusher.checkpointed_recovery_point == 6
    log.close(clean=False)
