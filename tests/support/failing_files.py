"""Real files of which one operation fails: no space, no descriptor, or an I/O error."""

import errno
from pathlib import Path

from tierlog.base.files import OsFiles


class FailingFiles(OsFiles):
    """`left`: how many operations succeed before one fails; None: all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.left: int | None = None

    def _spend(self, code: int) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left == -1:
                raise OSError(code, "refused")

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        self._spend(errno.EMFILE)
        return super().open(path, create=create, exclusive=exclusive)

    def read_at(self, fd, count, position):  # type: ignore[no-untyped-def]
        self._spend(errno.EIO)
        return OsFiles.read_at(fd, count, position)

    def read_into(self, fd: int, buffer: memoryview, position: int) -> int:
        self._spend(errno.EIO)
        return super().read_into(fd, buffer, position)

    def read_whole(self, path: Path) -> bytes:
        self._spend(errno.EIO)
        return super().read_whole(path)

    def writev_at(self, fd, buffers, position):  # type: ignore[no-untyped-def]
        self._spend(errno.ENOSPC)
        return OsFiles.writev_at(self, fd, buffers, position)

    def truncate(self, fd, size):  # type: ignore[no-untyped-def]
        self._spend(errno.EIO)
        OsFiles.truncate(fd, size)

    def rename(self, source, target):  # type: ignore[no-untyped-def]
        self._spend(errno.ENOSPC)
        OsFiles.rename(source, target)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        self._spend(errno.EIO)
        super().unlink(path, missing_ok=missing_ok)

    def list_directory(self, path: Path) -> list[str]:
        self._spend(errno.EMFILE)
        return super().list_directory(path)

    def sync_directory(self, path: Path) -> None:
        self._spend(errno.EMFILE)
        super().sync_directory(path)
