"""Whether bytes that were not synced may be gone since a log directory was last used."""

from pathlib import Path

import pytest

from tierlog.broker.log.checkpoints import mark_clean_shutdown
from tierlog.broker.ports.files import OsFiles
from tierlog.broker.runtime.boots import boot_id, forget_boot, may_have_lost, note_boot

FILES = OsFiles()


@pytest.fixture
def directories(tmp_path: Path) -> list[Path]:
    found = [tmp_path / "a", tmp_path / "b"]
    for directory in found:
        directory.mkdir()
    return found


def test_a_killed_process_has_lost_nothing_while_the_machine_runs_on(directories: list[Path]) -> None:
    note_boot(FILES, directories, "one")
    assert not may_have_lost(FILES, directories, "one")
    assert may_have_lost(FILES, directories, "two")


def test_after_a_clean_stop_nothing_is_lost_under_any_boot(directories: list[Path]) -> None:
    note_boot(FILES, directories, "one")
    for directory in directories:
        mark_clean_shutdown(FILES, directory)
    assert not may_have_lost(FILES, directories, "two")


def test_one_new_directory_among_others_may_be_in_the_place_of_a_lost_one(directories: list[Path]) -> None:
    note_boot(FILES, directories[:1], "one")
    assert may_have_lost(FILES, directories, "one")


def test_where_the_boot_cannot_be_told_each_is_another(directories: list[Path]) -> None:
    note_boot(FILES, directories, "")
    assert may_have_lost(FILES, directories, "")


def test_after_a_failed_fsync_the_same_boot_vouches_for_nothing(directories: list[Path]) -> None:
    note_boot(FILES, directories, "one")
    forget_boot(FILES, directories)
    assert may_have_lost(FILES, directories, "one")


def test_this_machine_tells_its_boot() -> None:
    assert boot_id() == boot_id() != ""
