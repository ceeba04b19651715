"""Durability of indexes of a segment that is rolled after a flush; leader epochs without records."""

import random
from pathlib import Path

import pytest
from power_loss import LOST, PowerLoss

from tierlog.base.files import OsFiles
from tierlog.base.leader_epochs import LeaderEpochs
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.names import EPOCH_CHECKPOINT
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import assign, read_header
from tierlog.records.window import run_all_steps
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_700_000_000_000
TIME_INDEX_NAME = f"{0:020d}.timeindex"


def open_log(
    directory: Path,
    files: OsFiles,
    *,
    clean: bool = False,
    recovery_point: int = 0,
    may_have_lost: bool = False,
) -> PartitionLog:
    return PartitionLog.open(
        directory,
        TopicConfig(index_interval_bytes=0),
        files,
        NOW,
        clean=clean,
        recovery_point=recovery_point,
        may_have_lost=may_have_lost,
        rng=random.Random(1),
    )


def append(log: PartitionLog, timestamp: int, epoch: int = 0) -> None:
    base = log.log_end_offset
    batch = memoryview(bytearray(encode_batch([NewRecord(timestamp, None, b"v")])))
    assign(batch, 0, base, epoch)
    log.append(batch, read_header(batch), base, epoch, NOW)


def rolled_after_its_flush(directory: Path, files: OsFiles) -> PartitionLog:
    log = open_log(directory, files)
    for after in (0, 10, 20, 5):
        append(log, NOW + after)
    assert log.flush() == 4
    log.roll(NOW)
    return log


def test_time_index_truncated_below_the_recovery_point_hides_no_record(tmp_path: Path) -> None:
    """The remaining entries are right, and the last batches do not show that a newer entry is missing."""
    rolled_after_its_flush(tmp_path, OsFiles()).close(clean=False)
    path = tmp_path / TIME_INDEX_NAME
    path.write_bytes(path.read_bytes()[:12])
    log = open_log(tmp_path, OsFiles(), recovery_point=4)
    found = run_all_steps(log.offset_for_timestamp(NOW + 20))
    assert found is not None and found.offset == 2


@pytest.mark.parametrize(("recovery_point", "damaged"), [(4, True), (3, False)])
def test_truncated_synced_data_is_damage_even_after_a_power_failure(
    tmp_path: Path, recovery_point: int, damaged: bool
) -> None:
    rolled_after_its_flush(tmp_path, OsFiles()).close(clean=False)
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    log = open_log(tmp_path, OsFiles(), recovery_point=recovery_point, may_have_lost=True)
    assert (log.was_damaged, log.log_end_offset) == (damaged, 3)


def test_rebuilt_indexes_are_durable_after_a_clean_shutdown(tmp_path: Path) -> None:
    files = PowerLoss(tmp_path, 1000)
    rolled_after_its_flush(tmp_path, files).close(clean=False)
    whole = (tmp_path / TIME_INDEX_NAME).read_bytes()
    files.sync_directory(tmp_path)  # names may be durable when what they name is not
    files.crash(LOST)
    files = PowerLoss(tmp_path, 1000)
    open_log(tmp_path, files, recovery_point=4).close(clean=True)
    files.crash(LOST)
    assert (tmp_path / TIME_INDEX_NAME).read_bytes() == whole


def test_truncation_at_the_log_end_drops_an_empty_epoch(tmp_path: Path) -> None:
    """This broker started the epoch, and another one leads: KIP-101 compares epochs of records."""
    log = open_log(tmp_path, OsFiles())
    append(log, NOW, epoch=1)
    log.assign_epoch(3, 1)
    log.flush()
    assert log.truncate_to(1, NOW) is False
    assert log.epochs.entries == ((1, 0),)
    log.flush()
    assert LeaderEpochs.decode((tmp_path / EPOCH_CHECKPOINT).read_bytes()).entries == ((1, 0),)


def test_rebuilt_segment_loses_no_epoch_of_later_segments(tmp_path: Path) -> None:
    """An operator may delete a damaged index: the next start rebuilds it."""
    log = open_log(tmp_path, OsFiles())
    for epoch in (1, 2, 3):
        append(log, NOW, epoch=epoch)
        log.roll(NOW)
    append(log, NOW, epoch=4)
    log.close(clean=True)
    (tmp_path / f"{1:020d}.index").unlink()
    log = open_log(tmp_path, OsFiles(), clean=True)
    assert log.epochs.entries == ((1, 0), (2, 1), (3, 2), (4, 3))
