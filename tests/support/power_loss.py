"""Real files that track what was synced. After a chosen operation all others have no effect, and the
directory can be put into a state that a crash could have left.
"""

import itertools
import random
from pathlib import Path

from tierlog.base.files import OsFiles, Space
from tierlog.base.open_files import OpenFiles

KEPT, LOST, TORN, ZEROED = "kept", "lost", "torn", "zeroed"
"""Outcomes of a crash for unsynced bytes and names: all stay, all are lost, or all names and a part of the
bytes stay, with the rest cut off or zeroed.
"""


class Killed(BaseException):
    """Not an Exception, so that no code catches it and cleans up."""


class PowerLoss(OsFiles):
    """The first `left` changing operations in the directory take effect; later ones do not. Space can always
    be reserved.
    """

    def __init__(self, directory: Path, left: int, open_files: OpenFiles | None = None) -> None:
        super().__init__(open_files)
        self.directory, self.left = directory, left
        self._ids = itertools.count()
        self._paths: dict[int, Path] = {}
        self._names: dict[str, int] = {}  # name -> file, as the process sees it
        self._durable_names: dict[str, int] = {}
        self._durable: dict[int, bytes] = {}
        self._reserved: set[int] = set()  # files with reserved space that was not released
        for path in directory.iterdir():
            self._names[path.name] = file = next(self._ids)
            self._durable[file] = path.read_bytes()
        self._durable_names = dict(self._names)

    def _spend(self) -> None:
        if self.left <= 0:
            raise Killed
        self.left -= 1

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        if path.name not in self._names and (create or exclusive):
            self._spend()
            self._names[path.name] = file = next(self._ids)
            self._durable[file] = b""
        fd = super().open(path, create=create, exclusive=exclusive)
        self._paths[fd] = path
        return fd

    def writev_at(self, fd, buffers, position):  # type: ignore[no-untyped-def]
        self._spend()
        return OsFiles.writev_at(self, fd, buffers, position)

    def truncate(self, fd, size):  # type: ignore[no-untyped-def]
        self._spend()
        OsFiles.truncate(fd, size)
        self._reserved.discard(self._file(fd))

    def reserve(self, fd, position, count):  # type: ignore[no-untyped-def]
        self._spend()
        super().reserve(fd, position, count)
        self._reserved.add(self._file(fd))

    def reserved(self) -> set[str]:
        """Names of the logs with reserved space; a deleted file releases its own."""
        return {
            name for name, file in self._names.items() if file in self._reserved and name.endswith(".log")
        }

    def space(self, path):  # type: ignore[no-untyped-def]
        return Space(1 << 40, 1 << 40)

    def rename(self, source, target):  # type: ignore[no-untyped-def]
        self._spend()
        OsFiles.rename(source, target)
        self._names[target.name] = self._names.pop(source.name)

    def unlink(self, path, *, missing_ok=False):  # type: ignore[no-untyped-def]
        if path.name in self._names:
            self._spend()
            del self._names[path.name]
        super().unlink(path, missing_ok=missing_ok)

    def sync(self, fd):  # type: ignore[no-untyped-def]
        self._spend()
        OsFiles.sync(fd)
        size = self.size(fd)
        if (file := self._file(fd)) >= 0:
            self._durable[file] = self.read_at(fd, size, 0)

    def _file(self, fd: int) -> int:
        """-1 if the file was unlinked since."""
        return self._names.get(Path(f"/proc/self/fd/{fd}").readlink().name, -1)

    def unsynced(self) -> set[str]:
        """Names of the files with content that is not on disk."""
        content = {name: (self.directory / name).read_bytes() for name in self._names}
        return {name for name, file in self._names.items() if content[name] != self._durable[file]}

    def sync_directory(self, path):  # type: ignore[no-untyped-def]
        self._spend()
        super().sync_directory(path)
        if path != self.directory:
            return
        self._durable_names = dict(self._names)

    def crash(self, what: str, rng: random.Random | None = None) -> None:
        """Put the directory into the state after a power loss. All logs that use it must be dropped first.
        How many unsynced bytes remain is drawn for each file; without `rng` it is half of them.
        """
        if what == KEPT:
            return
        names = self._durable_names if what == LOST else self._names
        content: dict[str, bytes] = {}
        for name, file in sorted(names.items()):
            durable = self._durable[file]
            content[name] = durable
            if what != LOST and self._names.get(name) == file:
                written = (self.directory / name).read_bytes()
                share = rng.random() if rng is not None else 0.5
                end = len(durable) + int(share * (len(written) - len(durable)))
                if written != durable:
                    content[name] = written[:end]
                    if what == ZEROED:
                        content[name] = content[name].ljust(len(written), b"\0")
        for path in self.directory.iterdir():
            path.unlink()
        for name, data in content.items():
            (self.directory / name).write_bytes(data)
