"""A log that ends below what its checkpoints prove is damaged: files were lost, truncated or restored."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tierlog.base.files import OsFiles
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.names import DAMAGED
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import assign, read_header
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_700_000_000_000
RECORDS, COPIED = 8, 3


def open_log(
    directory: Path,
    *,
    clean: bool,
    recovery_point: int = 0,
    high_watermark: int = 0,
    may_have_lost: bool = False,
) -> PartitionLog:
    return PartitionLog.open(
        directory,
        TopicConfig(segment_bytes=200, index_interval_bytes=0, file_delete_delay_ms=0),
        OsFiles(),
        NOW,
        clean=clean,
        recovery_point=recovery_point,
        high_watermark=high_watermark,
        may_have_lost=may_have_lost,
        rng=random.Random(1),
    )


def append(log: PartitionLog, epoch: int = 0) -> None:
    batch = memoryview(bytearray(encode_batch([NewRecord(NOW, None, b"v")])))
    assign(batch, 0, log.log_end_offset, epoch)
    log.append(batch, read_header(batch), log.log_end_offset, epoch, NOW)


@pytest.fixture
def log_directory(tmp_path: Path) -> Path:
    """A log of `RECORDS` after a clean shutdown, with an earlier copy beside it."""
    directory = tmp_path / "orders-0"
    for end in (COPIED, RECORDS):
        log = open_log(directory, clean=directory.exists(), recovery_point=COPIED)
        while log.log_end_offset < end:
            append(log)
        log.close(clean=True)
        if end == COPIED:
            shutil.copytree(directory, tmp_path / "copy")
    return directory


def logs_in(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def restore_a_copy(directory: Path) -> None:
    shutil.rmtree(directory)
    shutil.copytree(directory.with_name("copy"), directory)


def truncate_the_last_segment_within_a_batch(directory: Path) -> None:
    content = logs_in(directory)[-1].read_bytes()
    logs_in(directory)[-1].write_bytes(content[: len(content) // 2 + 10])


def remove_the_last_segments(directory: Path) -> None:
    for log in logs_in(directory)[-2:]:
        for file in directory.glob(f"{log.stem}.*"):
            file.unlink()


def remove_all_segments(directory: Path) -> None:
    for log in logs_in(directory):
        log.unlink()


WAYS = [
    restore_a_copy,
    truncate_the_last_segment_within_a_batch,
    remove_the_last_segments,
    remove_all_segments,
]


@pytest.mark.parametrize("shorten", WAYS)
def test_log_below_its_recovery_point_after_a_clean_shutdown_is_damaged(
    log_directory: Path, shorten: Callable[[Path], None]
) -> None:
    shorten(log_directory)
    log = open_log(log_directory, clean=True, recovery_point=RECORDS)
    assert log.log_end_offset < RECORDS
    assert (log.was_damaged, log.missing_end) == (True, RECORDS)
    assert log.flusher.checkpointed_recovery_point == RECORDS, "the checkpoint on disk must be lowered"


@pytest.mark.parametrize("shorten", WAYS)
@pytest.mark.parametrize("may_have_lost", [False, True])
def test_log_below_its_high_watermark_is_damaged_after_any_shutdown(
    log_directory: Path, shorten: Callable[[Path], None], may_have_lost: bool
) -> None:
    shorten(log_directory)
    log = open_log(log_directory, clean=False, high_watermark=RECORDS, may_have_lost=may_have_lost)
    assert (log.was_damaged, log.missing_end) == (True, RECORDS)


def test_a_high_watermark_above_the_log_end_is_checkpointed_again_soon(log_directory: Path) -> None:
    """Otherwise, after an unclean election, the next start would again call the log too short."""
    restore_a_copy(log_directory)
    log = open_log(log_directory, clean=False, recovery_point=COPIED, high_watermark=RECORDS)
    assert (log.log_end_offset, log.flusher.checkpointed_recovery_point) == (COPIED, RECORDS)


def test_damage_is_known_at_the_next_start_too(log_directory: Path) -> None:
    """The controller has not received the report yet, and the checkpoints may have been lowered."""
    restore_a_copy(log_directory)
    open_log(log_directory, clean=True, recovery_point=RECORDS).close(clean=True)
    assert (log_directory / DAMAGED).exists()
    assert open_log(log_directory, clean=True, recovery_point=COPIED).was_damaged


def test_torn_batch_below_the_recovery_point_is_damage_after_a_kill(
    log_directory: Path,
) -> None:
    """A kill does not tear synced data."""
    truncate_the_last_segment_within_a_batch(log_directory)
    log = open_log(log_directory, clean=False, recovery_point=RECORDS)
    assert log.recovered_truncated_bytes > 0
    assert (log.was_damaged, log.missing_end) == (True, RECORDS)


def test_truncation_not_yet_in_the_checkpoint_is_no_damage_after_a_kill(log_directory: Path) -> None:
    """A follower truncates its log first and lowers its recovery point right after that."""
    log = open_log(log_directory, clean=True, recovery_point=RECORDS)
    log.truncate_to(COPIED, NOW)
    log.close(clean=False)
    again = open_log(log_directory, clean=False, recovery_point=RECORDS, high_watermark=COPIED)
    assert (again.log_end_offset, again.was_damaged, again.missing_end) == (COPIED, False, 0)


@pytest.mark.parametrize("clean", [False, True])
def test_log_that_ends_at_its_checkpoints_is_not_damaged(log_directory: Path, clean: bool) -> None:
    log = open_log(log_directory, clean=clean, recovery_point=RECORDS, high_watermark=RECORDS)
    assert (log.log_end_offset, log.was_damaged, log.missing_end) == (RECORDS, False, 0)
