"""Leader epochs are on disk before the segments are deleted from which they could be rebuilt."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tierlog.base.files import OsFiles
from tierlog.base.leader_epochs import EpochEntry
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.names import EPOCH_CHECKPOINT
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import assign, read_header
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_700_000_000_000
TIERED = TopicConfig(remote_storage_enable=True, file_delete_delay_ms=0)


class Disk(OsFiles):
    """Has no space for checkpoints while `full`. Counts them, and calls `before` once before one."""

    def __init__(self) -> None:
        self.full, self.created = False, 0
        self.before: Callable[[], None] | None = None

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        if exclusive:
            hook, self.before = self.before, None
            if hook is not None:
                hook()
            if self.full:
                raise OSError(28, "No space left on device")
            self.created += 1
        return super().open(path, create=create, exclusive=exclusive)


def open_log(directory: Path, files: OsFiles, config: TopicConfig = TIERED, **options: bool) -> PartitionLog:
    options = {"clean": False, **options}
    return PartitionLog.open(directory, config, files, NOW, rng=random.Random(1), **options)


def append(log: PartitionLog, epoch: int) -> None:
    base = log.log_end_offset
    batch = memoryview(bytearray(encode_batch([NewRecord(NOW, None, b"v")])))
    assign(batch, 0, base, epoch)
    log.append(batch, read_header(batch), base, epoch, NOW)


def fill(log: PartitionLog, epochs: str = "001122") -> None:
    """A segment for each record; the last one is the active segment."""
    for epoch in epochs:
        append(log, int(epoch))
        log.roll(NOW)
    append(log, int(epochs[-1]))


def test_log_knows_its_leader_epochs_after_local_retention_and_a_kill(tmp_path: Path) -> None:
    log = open_log(tmp_path, OsFiles())
    fill(log)
    assert log.epochs.entries == ((0, 0), (1, 2), (2, 4))
    assert log.delete_local_before(6, NOW) == 6
    killed = open_log(tmp_path, OsFiles())
    assert killed.local_log_start_offset == 6
    assert killed.epochs.entries == log.epochs.entries


def test_leader_epochs_of_a_missing_checkpoint_are_saved(tmp_path: Path) -> None:
    """A clean start rebuilds them from the batches, and changes no file."""
    log = open_log(tmp_path, OsFiles())
    fill(log)
    log.close(clean=True)
    (tmp_path / EPOCH_CHECKPOINT).unlink()
    log = open_log(tmp_path, OsFiles(), clean=True)
    assert log.delete_local_before(6, NOW) == 6
    assert open_log(tmp_path, OsFiles()).epochs.entries == ((0, 0), (1, 2), (2, 4))


def test_segments_stay_if_their_leader_epochs_cannot_be_saved(tmp_path: Path) -> None:
    disk = Disk()
    log = open_log(tmp_path, disk)
    fill(log)
    disk.full = True
    with pytest.raises(OSError, match="No space"):
        log.delete_local_before(6, NOW)
    assert (log.local_log_start_offset, len(log.segments)) == (0, 7)
    log.check()
    disk.full = False
    assert log.delete_local_before(6, NOW) == 6


def test_full_disk_deletes_segments_with_saved_leader_epochs(tmp_path: Path) -> None:
    disk = Disk()
    log = open_log(tmp_path, disk)
    fill(log, "0011")
    log.flush()
    fill(log, "22")
    disk.full = True
    assert log.delete_local_before(6, NOW) == 4, "epoch 2 begins within the fifth"
    log.check()
    with pytest.raises(OSError, match="No space"):
        log.delete_local_before(6, NOW)
    assert log.local_log_start_offset == 4
    assert open_log(tmp_path, OsFiles()).epochs.entries == ((0, 0), (1, 2), (2, 5))
    disk.full = False
    assert log.delete_local_before(6, NOW) == 1


def test_deletion_does_not_wait_for_a_flush_that_writes_the_epochs(tmp_path: Path) -> None:
    """The flush may run in a thread while its disk hangs, and the event loop deletes."""
    disk = Disk()
    log = open_log(tmp_path, disk)
    fill(log)
    failures = []

    def delete() -> None:
        with pytest.raises(BlockingIOError) as failure:
            log.delete_local_before(6, NOW)
        failures.append(failure)

    disk.before = delete
    log.flush()
    assert len(failures) == 1
    assert log.delete_local_before(6, NOW) == 6


@pytest.mark.parametrize("config", [TIERED, TopicConfig(file_delete_delay_ms=0)])
def test_saved_leader_epochs_are_not_written_again(tmp_path: Path, config: TopicConfig) -> None:
    """A new epoch without records, as after an election, needs no space on a full disk either."""
    disk = Disk()
    log = open_log(tmp_path, disk, config)
    fill(log)
    log.flush()
    before = disk.created
    log.assign_epoch(3, log.log_end_offset)
    assert log.delete_local_before(3, NOW) == 3
    assert log.delete_local_before(6, NOW) == 3
    assert disk.created == before


def test_log_that_starts_from_the_tier_has_its_epochs_on_disk_before_records(tmp_path: Path) -> None:
    """The flush after the start may have failed on a full disk."""
    log = open_log(tmp_path, OsFiles())
    remote = (EpochEntry(0, 0), EpochEntry(1, 20))
    log.truncate_fully_and_start_at(50, NOW, remote)
    append(log, 2)
    assert open_log(tmp_path, OsFiles()).epochs.entries == (*remote, (2, 50))
