"""Disk reserve: a file that is deleted when the disk is full, so that the metadata can still be written.

Without it, the first full disk would stop the node. The node could then neither delete a topic nor start
again. The file holds zeros, so on a file system with compression it reserves nothing. Blocking; called by the
metadata storage, in its thread.
"""

from collections.abc import Callable
from pathlib import Path

import structlog

from tierlog.base.files import DISK_FULL, Files

RESERVE = "reserve"
WRITE_BYTES = 1 << 20

_log = structlog.get_logger("tierlog.metadata")


class DiskReserve:
    """`on_release`: called before the space is freed, so that other writers stop before they use it.
    `is_low`: whether less space than the reserve's size was free at the last `ensure`, or the reserve is in
    use."""

    def __init__(
        self, files: Files, directory: Path, size_bytes: int, on_release: Callable[[], None]
    ) -> None:
        self.is_held = self.is_low = False
        self._files = files
        self._directory = directory
        self._path = directory / RESERVE
        self._size = size_bytes
        self._on_release = on_release

    def ensure(self) -> bool:
        """Create the file if it is missing or of another size. False if there is too little space."""
        try:
            if not self.is_held and self._existing_size() != self._size:
                self._files.unlink(self._path, missing_ok=True)
                self.is_low = self._has_less_than_its_size()
                if self.is_low:
                    return False  # otherwise each failed attempt would fill the disk
                self._create()
        except OSError as failure:
            if failure.errno not in DISK_FULL:
                raise
            self._files.unlink(self._temporary, missing_ok=True)
            self.is_low = True  # under a quota the file system may seem to have space
            return False
        self.is_held, self.is_low = True, self._has_less_than_its_size()
        return True

    def release(self) -> bool:
        """Free the space. False if none is reserved."""
        if not self.is_held:
            return False
        self.is_held, self.is_low = False, True
        self._on_release()
        _log.error("metadata.disk.full", bytes=self._size)
        self._files.unlink(self._path, missing_ok=True)
        self._files.sync_directory(self._directory)
        return self._size > 0

    def _has_less_than_its_size(self) -> bool:
        return self._files.space(self._directory).usable < self._size

    @property
    def _temporary(self) -> Path:
        return self._path.with_suffix(".tmp")

    def _existing_size(self) -> int:
        if not self._files.exists(self._path):
            return 0
        fd = self._files.open(self._path)
        try:
            return self._files.size(fd)
        finally:
            self._files.close(fd)

    def _create(self) -> None:
        if self._size == 0:
            return
        fd = self._files.open(self._temporary, create=True)
        try:
            for position in range(0, self._size, WRITE_BYTES):
                self._files.writev_at(fd, [bytes(min(WRITE_BYTES, self._size - position))], position)
            self._files.truncate(fd, self._size)
            self._files.sync(fd)
        finally:
            self._files.close(fd)
        self._files.rename(self._temporary, self._path)
        self._files.sync_directory(self._directory)
