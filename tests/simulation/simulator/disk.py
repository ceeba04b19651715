"""Simulated disk of one node: real files that remember which writes were not synced.

`lose_power` reverts none, all, or some of the unsynced changes, with the write at the edge torn. Names
(creations, renames, removals) are as volatile as bytes until their directory is synced. Faults of a run are
an error at the next sync or write, and a full disk. Descriptors of a killed process fail.
"""

import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from simulator.loop import SimLock
from tierlog.base.files import Buffer, OsFiles, Space
from tierlog.base.open_files import OpenFiles

OPEN_FILES = 64
"""Small, so that descriptors of logs are often closed and opened again."""

UNLIMITED_BYTES = 1 << 40
SECTOR = 512
"""Bytes that a disk writes atomically."""


@dataclass(slots=True)
class _Unsynced:
    """Undo log of a file's writes since its last fsync, oldest first."""

    undo: list[tuple[int, bytes, int]] = field(default_factory=list)
    """(position, previous bytes, previous file size)."""


@dataclass(slots=True)
class _NameChange:
    """A name that was created, renamed or removed since its directory was synced. `directory`: its path now,
    also after the directory was renamed itself. `undo` gets that path."""

    directory: Path
    undo: Callable[[Path], None]


class Disk:
    """The files of a node, which outlive its processes, and their unsynced changes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.unsynced: dict[int, _Unsynced] = {}  # by inode
        self.names: list[_NameChange] = []  # oldest first
        self.free_bytes = UNLIMITED_BYTES
        self.fails_at: dict[str, int] = {}
        """Operation -> errno of its next call."""
        self._removed_files = root / ".unlinked"
        self._removed_files.mkdir(parents=True)
        self._removed_count = 0

    def attach(self) -> "DiskFiles":
        """The file port of a new process."""
        return DiskFiles(self)

    def keep_removed(self, path: Path) -> Path:
        """Keep a removed file until its removal is durable."""
        kept = self._new_kept_path()
        os.rename(path, kept)
        return kept

    def _new_kept_path(self) -> Path:
        self._removed_count += 1
        return self._removed_files / str(self._removed_count)

    def clear_full(self) -> None:
        self.free_bytes = UNLIMITED_BYTES

    def lose_power(self, rng: random.Random, *, keep: float | None = None) -> None:
        """Lose unsynced changes, except the share `keep` (by default random). All processes must be dead."""
        share = rng.choice((0.0, rng.random(), rng.random(), 1.0)) if keep is None else keep
        kept = int(len(self.names) * share)
        for change in reversed(self.names[kept:]):
            change.undo(change.directory)
        self.names.clear()
        for path in sorted(self.root.rglob("*")):
            if path.is_file() and (unsynced := self.unsynced.get(path.stat().st_ino)):
                _undo_writes(path, unsynced.undo, share, rng)
        self.unsynced.clear()

    def move_names(self, source: Path, target: Path) -> None:
        """A directory was renamed: the changes of names in it go with it."""
        for change in self.names:
            if change.directory.is_relative_to(source):
                change.directory = target / change.directory.relative_to(source)

    def forget_names(self, path: Path) -> None:
        """The changes of names in this directory and below are durable, or void."""
        self.names = [change for change in self.names if not change.directory.is_relative_to(path)]

    def wipe_directory(self, path: Path) -> None:
        """Replace the directory, which has a disk of its own, by an empty one. All processes must be dead."""
        for below in path.rglob("*"):
            self.unsynced.pop(below.stat().st_ino, None)
        shutil.rmtree(path, ignore_errors=True)
        self.forget_names(path)

    def copy(self) -> Path:
        """Copy all files, with synced and unsynced bytes. Returns the directory of the copy."""
        copy = self._new_kept_path()
        shutil.copytree(self.root, copy, ignore=shutil.ignore_patterns(self._removed_files.name))
        return copy

    def restore(self, copy: Path, directory: str, except_name: str) -> None:
        """Restore a directory from a copy, except files of this name. All processes must be dead."""
        path = self.root / directory
        for found in _content(path):
            if found.name != except_name:
                self.wipe_directory(found) if found.is_dir() else found.unlink()
        self.forget_names(path)
        path.mkdir(exist_ok=True)
        for found in _content(copy / directory):
            if found.is_dir():
                shutil.copytree(found, path / found.name)
            elif found.name != except_name:
                shutil.copy2(found, path / found.name)

    def fail_if_due(self, operation: str) -> None:
        """Raises the OSError that was set for the next call of this operation, if any."""
        code = self.fails_at.pop(operation, 0)
        if code:
            raise OSError(code, os.strerror(code))


def _content(directory: Path) -> list[Path]:
    """Sorted entries. An empty disk may have no directory yet."""
    return sorted(directory.iterdir()) if directory.exists() else []


def _undo_writes(path: Path, undo: list[tuple[int, bytes, int]], share: float, rng: random.Random) -> None:
    kept = int(len(undo) * share)
    fd = os.open(path, os.O_RDWR)
    try:
        for number, (position, before, size) in reversed(list(enumerate(undo))[kept:]):
            end = os.fstat(fd).st_size
            torn = number == kept and share > 0 and end > max(size, position)
            cut = rng.randrange(position, end) // SECTOR * SECTOR if torn else 0
            os.ftruncate(fd, max(size, cut))
            if torn and rng.random() < 0.5:
                os.ftruncate(fd, end)  # the length was written before the bytes
            if before and not torn:
                os.pwrite(fd, before, position)
    finally:
        os.close(fd)


@contextmanager
def unsynced() -> Iterator[None]:
    """Inside the block, syncs of files do nothing, although they return normally."""
    DiskFiles.skips_sync = True
    try:
        yield
    finally:
        DiskFiles.skips_sync = False


class DiskFiles(OsFiles):
    """The file port of one process on a disk."""

    skips_sync = False
    """While it is set, no sync of a file does anything."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(OpenFiles(OPEN_FILES))
        self._disk = disk
        self._fds: dict[int, Path] = {}
        self.dead = False

    lock = staticmethod(SimLock)

    def die(self) -> None:
        """Close all descriptors, as the kernel does for a dead process."""
        self.dead = True
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()

    def _begin(self, operation: str) -> None:
        if self.dead:
            raise OSError(errno.EBADF, "the process is dead")
        self._disk.fail_if_due(operation)

    # --- descriptors

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        self._begin("open")
        is_new = (create or exclusive) and not path.exists()
        fd = super().open(path, create=create, exclusive=exclusive)
        self._fds[fd] = path
        if is_new:
            self._name_changed(path, lambda directory: (directory / path.name).unlink(missing_ok=True))
        return fd

    def close(self, fd: int) -> None:  # type: ignore[override]
        if self._fds.pop(fd, None) is not None:
            os.close(fd)

    def writev_at(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        self._begin("write")
        total = sum(map(len, buffers))
        stat = os.fstat(fd)
        size = stat.st_size
        grows = max(position + total - size, 0)
        if grows > self._disk.free_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._disk.free_bytes -= grows
        before = os.pread(fd, total, position) if position < size else b""
        self._remember(stat.st_ino, position, before, size)
        return super().writev_at(fd, buffers, position)

    def truncate(self, fd: int, size: int) -> None:  # type: ignore[override]
        self._begin("truncate")
        stat = os.fstat(fd)
        if size != stat.st_size:
            cut_off = os.pread(fd, max(stat.st_size - size, 0), size)
            self._remember(stat.st_ino, size, cut_off, stat.st_size)
        self._disk.free_bytes += max(stat.st_size - size, 0)
        os.ftruncate(fd, size)

    def reserve(self, fd: int, position: int, count: int) -> None:
        self._begin("reserve")
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    def read_at(self, fd: int, count: int, position: int) -> bytes:  # type: ignore[override]
        self._begin("read")
        return os.pread(fd, count, position)

    def read_into(self, fd: int, buffer: memoryview, position: int) -> int:
        self._begin("read")
        return super().read_into(fd, buffer, position)

    def sync(self, fd: int) -> None:  # type: ignore[override]
        if self.skips_sync:
            return
        self._begin("sync")
        self._disk.unsynced.pop(os.fstat(fd).st_ino, None)

    def _remember(self, inode: int, position: int, before: bytes, size: int) -> None:
        unsynced = self._disk.unsynced.get(inode)
        if unsynced is None:
            self._disk.unsynced[inode] = unsynced = _Unsynced()
        unsynced.undo.append((position, before, size))

    # --- names

    def _name_changed(self, path: Path, undo: Callable[[Path], None]) -> None:
        self._disk.names.append(_NameChange(path.parent, undo))

    def rename(self, source: Path, target: Path) -> None:  # type: ignore[override]
        self._begin("rename")
        replaced = self._disk.keep_removed(target) if target.is_file() else None
        os.replace(source, target)
        self._disk.move_names(source, target)
        is_within = source.parent == target.parent

        def undo(directory: Path) -> None:
            new, old = directory / target.name, directory / source.name if is_within else source
            if new.exists():
                os.replace(new, old)
                self._disk.move_names(new, old)
            if replaced is not None:
                os.replace(replaced, new)

        self._name_changed(target, undo)
        if not is_within:
            self._name_changed(source, lambda _: None)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        self._begin("unlink")
        if not path.exists():
            if missing_ok:
                return
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self._disk.free_bytes += path.stat().st_size
        kept = self._disk.keep_removed(path)

        self._name_changed(path, lambda directory: os.replace(kept, directory / path.name))

    def make_directory(self, path: Path) -> None:
        self._begin("mkdir")
        super().make_directory(path)

    def remove_directory(self, path: Path) -> None:
        self._begin("rmdir")
        super().remove_directory(path)
        self._disk.forget_names(path)  # the removal of the directory and all files in it is durable

    def sync_directory(self, path: Path) -> None:
        self._begin("sync")
        self._disk.names = [change for change in self._disk.names if change.directory != path]

    def space(self, path: Path) -> Space:
        return Space(UNLIMITED_BYTES, max(self._disk.free_bytes, 0))
