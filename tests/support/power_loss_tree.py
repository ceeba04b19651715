"""Real directories that track what was synced. After a chosen operation all others have no effect, and the
tree can be put into the only state that is sure to survive a power loss: no unsynced byte and no unsynced
name. Like `power_loss`, but for several nested directories, which may be renamed.
"""

import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

from power_loss import Killed

from tierlog.base.files import OsFiles, Space
from tierlog.base.open_files import OpenFiles

Entries = dict[str, int]


class PowerLossTree(OsFiles):
    """The current content of `roots` is durable. Below them the first `left` changing operations take effect
    and later ones do not; until `left` is set, all do.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        super().__init__(OpenFiles(100))
        self.roots = roots
        self.left: int | None = None
        self.spent = 0
        self._lock = threading.Lock()
        self._held: list[int] = []  # open descriptors, so that no inode is reused
        self._content: dict[int, bytes] = {}
        self._names: dict[int, Entries] = {}
        for root in roots:
            for path in (root, *root.rglob("*")):
                if path.is_dir():
                    self._note_names(path)
                else:
                    self._content[self._hold(path)] = path.read_bytes()

    def close_held(self) -> None:
        for fd in self._held:
            os.close(fd)
        self._held.clear()

    def _hold(self, path: Path) -> int:
        self._held.append(fd := os.open(path, os.O_RDONLY))
        return os.fstat(fd).st_ino

    def _note_names(self, path: Path) -> None:
        self._names[self._hold(path)] = {name: os.stat(path / name).st_ino for name in os.listdir(path)}

    def _spend(self) -> None:
        with self._lock:
            if self.left is not None:
                if self.left <= 0:
                    raise Killed
                self.left -= 1
            self.spent += 1

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        if (is_new := not path.exists()) and (create or exclusive):
            self._spend()
        fd = super().open(path, create=create, exclusive=exclusive)
        if is_new:
            self._content[self._hold(path)] = b""
        return fd

    def writev_at(self, fd, buffers, position):  # type: ignore[no-untyped-def]
        self._spend()
        return OsFiles.writev_at(self, fd, buffers, position)

    def truncate(self, fd, size):  # type: ignore[no-untyped-def]
        self._spend()
        OsFiles.truncate(fd, size)

    def reserve(self, fd, position, count):  # type: ignore[no-untyped-def]
        raise OSError(95, "not supported")

    def space(self, path):  # type: ignore[no-untyped-def]
        return Space(1 << 40, 1 << 40)

    def rename(self, source, target):  # type: ignore[no-untyped-def]
        self._spend()
        OsFiles.rename(source, target)

    def unlink(self, path, *, missing_ok=False):  # type: ignore[no-untyped-def]
        if path.exists():
            self._spend()
        super().unlink(path, missing_ok=missing_ok)

    def make_directory(self, path):  # type: ignore[no-untyped-def]
        if not path.exists():
            self._spend()
        super().make_directory(path)

    def remove_directory(self, path):  # type: ignore[no-untyped-def]
        self._spend()
        super().remove_directory(path)

    def sync(self, fd):  # type: ignore[no-untyped-def]
        self._spend()
        self._content[os.fstat(fd).st_ino] = os.pread(fd, os.fstat(fd).st_size, 0)

    def sync_directory(self, path):  # type: ignore[no-untyped-def]
        self._spend()
        self._note_names(path)

    def lose_power(self) -> None:
        """All users of the directories must be gone."""
        for root in self.roots:
            at = root.stat().st_ino
            copy = root.with_name(root.name + ".after")
            self._restore(at, copy)
            shutil.rmtree(root)
            copy.rename(root)

    def _restore(self, inode: int, path: Path) -> None:
        path.mkdir()
        for name, found in self._names.get(inode, {}).items():
            if found in self._content:
                (path / name).write_bytes(self._content[found])
            elif found in self._names:  # except the lock, which is not data
                self._restore(found, path / name)
