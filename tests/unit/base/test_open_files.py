"""The limit on open files: the order of closing, and that no descriptor in use is closed or reused."""

import errno
import gc
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tierlog.base.files import FileSlice, OsFiles
from tierlog.base.open_files import OpenFiles, SharedFile
from tierlog.base.process_limits import OTHER_DESCRIPTORS, share_of_logs


class Owner:
    """A file that holds its own number, over and over."""

    open_file: SharedFile | None = None

    def __init__(self, files: OsFiles, directory: Path, number: int) -> None:
        self.files, self.path = files, directory / str(number)
        self.content = b"%08d" % number * 16
        self.path.write_bytes(self.content)

    def file(self) -> SharedFile:
        file = self.open_file
        if file is None:
            return self.files.open_files.open(self, self.files, self.path)
        file.used = True
        return file

    def read(self) -> bytes:
        file = self.file()
        return self.files.read_at(file.fd, 1000, 0)


def owners(directory: Path, count: int, most: int) -> tuple[OpenFiles, list[Owner]]:
    bound = OpenFiles(most)
    files = OsFiles(bound)
    return bound, [Owner(files, directory, number) for number in range(count)]


def open_in(directory: Path) -> set[str]:
    """Names of the files below a directory that this process has open."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = link.readlink()
        except FileNotFoundError:
            continue
        if target.is_relative_to(directory):
            found.add(target.name)
    return found


def test_open_files_stay_within_the_limit_and_all_can_be_read(tmp_path: Path) -> None:
    bound, all_ = owners(tmp_path, 50, 8)
    for _ in range(2):
        for owner in all_:
            assert owner.read() == owner.content
            assert len(open_in(tmp_path)) <= 8
    assert (len(bound), bound.opened, bound.evicted) == (8, 100, 92)


def test_frequently_used_file_stays_open(tmp_path: Path) -> None:
    _, (hot, *others) = owners(tmp_path, 30, 5)
    hot.read()
    for owner in others:
        owner.read()
        hot.read()
        assert hot.open_file is not None


def test_unsynced_files_are_closed_last(tmp_path: Path) -> None:
    bound, all_ = owners(tmp_path, 12, 4)
    for owner in all_[:3]:
        owner.file().unsynced = True
    for owner in all_[3:]:
        owner.read()
    assert [owner.open_file is not None for owner in all_[:3]] == [True] * 3
    all_[-1].file().unsynced = True
    all_[5].read()
    assert len(bound) == 4


def test_slice_keeps_its_file_open_and_its_owner_reuses_it(tmp_path: Path) -> None:
    bound, (first, *others) = owners(tmp_path, 20, 2)
    waiting = FileSlice(first.file(), 8, 8)
    for owner in others:
        owner.read()
    assert waiting.read() == b"00000000"
    assert first.open_file is waiting.file
    assert len(open_in(tmp_path)) <= 2 + 1
    del waiting
    for owner in others:
        owner.read()
    assert first.open_file is None
    assert len(open_in(tmp_path)) == len(bound) == 2


def test_limit_holds_again_after_readers_held_many_files(tmp_path: Path) -> None:
    bound, all_ = owners(tmp_path, 40, 4)
    held = [owner.file() for owner in all_[:20]]
    assert len(bound) == 20
    bound.trim()
    assert len(bound) == 20
    held.clear()
    all_[30].read()
    bound.trim()
    assert len(bound) == len(open_in(tmp_path)) == 4


def test_lost_or_released_owner_leaves_no_descriptor(tmp_path: Path) -> None:
    bound, all_ = owners(tmp_path, 6, 3)
    for owner in all_[:3]:
        owner.read()
    bound.release(all_[0])
    assert open_in(tmp_path) == {"1", "2"}
    del all_[1], owner
    gc.collect()
    assert open_in(tmp_path) == {"2"}
    for owner in all_[2:]:
        owner.read()
    assert len(bound) == 3


class Interrupted(OsFiles):
    """Something else happens while a file is being opened."""

    def __init__(self, bound: OpenFiles) -> None:
        super().__init__(bound)
        self.interrupt: Callable[[], object] = lambda: None

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        interrupt, self.interrupt = self.interrupt, lambda: None
        interrupt()
        return super().open(path, create=create, exclusive=exclusive)


def test_concurrent_opens_share_one_file(tmp_path: Path) -> None:
    bound = OpenFiles(8)
    files = Interrupted(bound)
    owner = Owner(files, tmp_path, 0)

    def write() -> None:
        owner.file().unsynced = True

    files.interrupt = write
    file = owner.file()
    assert file is owner.open_file
    assert (file.unsynced, len(bound)) == (True, 1), "the mark of the first is not lost"


def test_file_released_during_its_open_is_not_kept(tmp_path: Path) -> None:
    bound = OpenFiles(8)
    files = Interrupted(bound)
    owner = Owner(files, tmp_path, 0)
    files.interrupt = lambda: bound.release(owner)
    assert owner.read() == owner.content
    assert (owner.open_file, len(bound), open_in(tmp_path)) == (None, 0, set())
    assert owner.read() == owner.content
    assert (owner.open_file is not None, len(bound)) == (True, 1)


class FewDescriptors(OsFiles):
    """A process in which others take descriptors: an open fails while more than `least` files are open."""

    def __init__(self, bound: OpenFiles, directory: Path, least: int) -> None:
        super().__init__(bound)
        self.directory, self.least = directory, least

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        if len(open_in(self.directory)) > self.least:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().open(path, create=create, exclusive=exclusive)


def test_files_are_closed_when_descriptors_run_out(tmp_path: Path) -> None:
    bound = OpenFiles(1000)
    files = FewDescriptors(bound, tmp_path, 50)
    all_ = [Owner(files, tmp_path, number) for number in range(200)]
    assert [owner.read() for owner in all_] == [owner.content for owner in all_]


def test_threads_never_read_another_file(tmp_path: Path) -> None:
    """With two descriptors for many threads, a number is closed and reused at nearly every use."""
    _, all_ = owners(tmp_path, 24, 2)
    wrong: list[bytes] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(1500):
            owner = rng.choice(all_)
            content = owner.read()
            if content != owner.content:
                wrong.append(content)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(open_in(tmp_path)) <= 2 + len(threads)


@pytest.mark.parametrize(
    ("limit", "share"),
    [
        (1 << 20, 8192),
        (8192 + 10_000 + OTHER_DESCRIPTORS, 8192),
        (8192 + 10_000 + OTHER_DESCRIPTORS - 1, 8191),
        (4096, 1024),
        (256, 64),
        (-1, 8192),
    ],
)
def test_share_of_logs_leaves_descriptors_for_clients(limit: int, share: int) -> None:
    assert share_of_logs(8192, 10_000, limit) == share
