"""Room set aside for a full disk: a file that is given up so that the metadata can still be written.

Without it the first full disk would stop the node, which then could neither be told to delete a topic nor be
started. The file holds zeros: on a file system that compresses them it sets nothing aside. Blocking; called
by the metadata storage, in its thread.
"""

from collections.abc import Callable
from pathlib import Path

import structlog

from tierlog.base.files import NO_ROOM, Files

RESERVE = "reserve"
WRITE_BYTES = 1 << 20

_log = structlog.get_logger("tierlog.metadata")


class Reserve:
    """`given_up` is called before the room is given back, so that nobody else takes it."""

    def __init__(self, files: Files, directory: Path, size_bytes: int, given_up: Callable[[], None]) -> None:
        self.stands = False
        self._files = files
        self._directory = directory
        self._path = directory / RESERVE
        self._size = size_bytes
        self._given_up = given_up

    def keep(self) -> bool:
        """Makes the file if it is not there, or not of its size; False if there is no room for it."""
        if self.stands:
            return True
        try:
            if self._found_size() != self._size:
                self._files.unlink(self._path, missing_ok=True)
                if self._files.space(self._directory).usable < self._size:
                    return False  # to write it to no end, again and again, would take what room there is
                self._make()
        except OSError as failure:
            if failure.errno not in NO_ROOM:
                raise
            self._files.unlink(self._temporary, missing_ok=True)
            return False
        self.stands = True
        return True

    def give_up(self) -> bool:
        """Frees the room; False if there is none to free."""
        if not self.stands:
            return False
        self.stands = False
        self._given_up()
        _log.error("the disk of the metadata is full: its reserve is given up", bytes=self._size)
        self._files.unlink(self._path, missing_ok=True)
        self._files.sync_directory(self._directory)
        return self._size > 0

    @property
    def _temporary(self) -> Path:
        return self._path.with_suffix(".tmp")

    def _found_size(self) -> int:
        if not self._files.exists(self._path):
            return 0
        fd = self._files.open(self._path)
        try:
            return self._files.size(fd)
        finally:
            self._files.close(fd)

    def _make(self) -> None:
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
