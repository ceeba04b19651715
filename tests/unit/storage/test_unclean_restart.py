"""Detection of data loss since a log directory was last used."""

import errno
import os
import shutil
import uuid
from pathlib import Path

import pytest

from tierlog.base.files import OsFiles
from tierlog.broker.storage.checkpoints import (
    CLEAN_SHUTDOWN,
    META_PROPERTIES,
    mark_clean_shutdown,
    write_meta_properties,
)
from tierlog.broker.storage.unclean_restart import (
    BOOT_FILE,
    UNKNOWN_EPOCH,
    boot_id,
    clear_boot_id,
    data_loss_reason,
    previous_broker_epoch,
    record_boot_id,
    record_broker_epoch,
)

FILES = OsFiles()


def may_have_lost(files: OsFiles, directories: list[Path], boot: str) -> bool:
    return data_loss_reason(files, directories, boot) is not None


@pytest.fixture
def directories(tmp_path: Path) -> list[Path]:
    found = [tmp_path / "a", tmp_path / "b"]
    for directory in found:
        directory.mkdir()
        write_meta_properties(FILES, directory, "c", 1, uuid.uuid4())
    return found


def test_killed_process_loses_nothing_under_the_same_boot(directories: list[Path]) -> None:
    record_boot_id(FILES, directories, "one")
    assert not may_have_lost(FILES, directories, "one")
    assert may_have_lost(FILES, directories, "two")


def test_clean_shutdown_loses_nothing_under_any_boot(directories: list[Path]) -> None:
    record_boot_id(FILES, directories, "one")
    for directory in directories:
        mark_clean_shutdown(FILES, directory)
    assert not may_have_lost(FILES, directories, "two")


def test_new_directory_among_others_may_replace_a_lost_one(directories: list[Path]) -> None:
    record_boot_id(FILES, directories[:1], "one")
    assert may_have_lost(FILES, directories, "one")


def test_unknown_boot_id_counts_as_a_new_boot(directories: list[Path]) -> None:
    record_boot_id(FILES, directories, "")
    assert may_have_lost(FILES, directories, "")


def test_failed_fsync_counts_as_loss_under_the_same_boot(directories: list[Path]) -> None:
    record_boot_id(FILES, directories, "one")
    record_broker_epoch(FILES, directories, 7)
    clear_boot_id(FILES, directories)
    assert may_have_lost(FILES, directories, "one")
    assert previous_broker_epoch(FILES, directories) == 7, "it is no older copy"


class FailingFiles(OsFiles):
    """Every fsync fails."""

    def sync(self, fd: int) -> None:
        raise OSError(errno.EIO, "simulated")


def test_boot_file_is_removed_if_it_cannot_be_cleared(directories: list[Path]) -> None:
    record_boot_id(FILES, directories, "one")
    clear_boot_id(FailingFiles(), directories)
    assert may_have_lost(FILES, directories, "one")


def test_data_loss_reasons(directories: list[Path]) -> None:
    assert "is new" in str(data_loss_reason(FILES, directories, "one"))
    record_boot_id(FILES, directories, "one")
    assert data_loss_reason(FILES, directories, "one") is None
    assert "has rebooted since" in str(data_loss_reason(FILES, directories, "two"))
    changed = directories[1] / META_PROPERTIES
    before = changed.stat().st_ctime_ns
    while (
        changed.stat().st_ctime_ns == before
    ):  # the clock of old kernels' files ticks every few milliseconds
        os.chown(changed, os.getuid(), os.getgid())
    why = str(data_loss_reason(FILES, directories, "one"))
    assert str(directories[1]) in why and "chown" in why


def test_directory_has_the_broker_epoch_of_its_last_use(directories: list[Path]) -> None:
    assert previous_broker_epoch(FILES, directories) == UNKNOWN_EPOCH
    record_boot_id(FILES, directories, "one")
    record_broker_epoch(FILES, directories, 7)
    assert previous_broker_epoch(FILES, directories) == 7
    assert not may_have_lost(FILES, directories, "one")
    for directory in directories:
        mark_clean_shutdown(FILES, directory, 8)
    assert previous_broker_epoch(FILES, directories) == 8
    (directories[0] / CLEAN_SHUTDOWN).write_bytes(
        b'{"version":0,"brokerEpoch":-1}'
    )  # as earlier versions wrote
    assert previous_broker_epoch(FILES, directories) == UNKNOWN_EPOCH


def test_lowest_epoch_of_several_directories_counts(directories: list[Path]) -> None:
    record_broker_epoch(FILES, directories, 7)
    record_broker_epoch(FILES, directories[1:], 9)
    assert previous_broker_epoch(FILES, directories) == 7


def test_broker_epoch_does_not_imply_a_boot_id(directories: list[Path]) -> None:
    record_broker_epoch(FILES, directories, 7)
    assert may_have_lost(FILES, directories, "one")
    record_boot_id(FILES, directories, "one")
    assert previous_broker_epoch(FILES, directories) == 7


@pytest.mark.parametrize("in_place", [False, True])
def test_restored_copy_of_a_running_node_is_detected(tmp_path: Path, in_place: bool) -> None:
    """Same boot and same broker epoch: writes after the copy are lost."""
    directory, backup = tmp_path / "a", tmp_path / "backup"
    directory.mkdir()
    write_meta_properties(FILES, directory, "c", 1, uuid.uuid4())
    record_boot_id(FILES, [directory], "one")
    record_broker_epoch(FILES, [directory], 7)
    shutil.copytree(directory, backup)
    if not in_place:
        shutil.rmtree(directory)
    shutil.copytree(backup, directory, dirs_exist_ok=True)
    assert previous_broker_epoch(FILES, [directory]) == 7
    assert may_have_lost(FILES, [directory], "one")


def test_file_of_an_earlier_version_has_no_epoch(directories: list[Path]) -> None:
    (directories[0] / BOOT_FILE).write_bytes(b"one")
    assert previous_broker_epoch(FILES, directories[:1]) == UNKNOWN_EPOCH


def test_this_machine_has_a_boot_id() -> None:
    assert boot_id() == boot_id() != ""
