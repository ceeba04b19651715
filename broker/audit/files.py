"""Files of the audit log: append lines, rotate by size, keep a number of old files.

A line is in a file whole or not at all. If a write fails half-way because the disk is full, the part is
truncated; one that a crash left is ended before the next line. All methods run in the thread of `audit.log`,
because a disk may hang.
"""

import os
from collections.abc import Sequence
from io import FileIO
from logging.handlers import RotatingFileHandler
from pathlib import Path

FILE_MODE = 0o640
DIRECTORY_MODE = 0o750


class AuditFile(RotatingFileHandler):
    """Rotation is the standard library's, which renames `x.jsonl` to `x.jsonl.1`, and that to `x.jsonl.2`.
    Writes are not: those of a logging handler keep what a full disk refused, in a buffer without a bound."""

    def __init__(self, path: Path, bytes_max: int, files_max: int) -> None:
        super().__init__(path, maxBytes=bytes_max, backupCount=files_max - 1, delay=True)
        self._file: FileIO | None = None
        self._size = 0

    def append(self, lines: Sequence[bytes], *, sync: bool) -> int:
        """Write the lines, and with `sync` also to the disk. Returns the number of lines that were lost."""
        self._close_moved_file()
        lost = sum(not self._append(line) for line in lines)
        try:
            if sync and self._file is not None:
                os.fdatasync(self._file.fileno())
        except OSError:
            return len(lines)
        return lost

    def _append(self, line: bytes) -> bool:
        try:
            file = self._opened()
            if self._size and self._size + len(line) > self.maxBytes:
                self._close_file()
                self.doRollover()
                file = self._opened()
            written = file.write(line)
            if written != len(line):
                file.truncate(self._size)
                return False
        except OSError:
            return False
        self._size += written
        return True

    def _opened(self) -> FileIO:
        """The current file, which may be missing: an operator may have removed it, or its directory."""
        if self._file is None:
            path = Path(self.baseFilename)
            path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            self._file = FileIO(path, "ab", opener=lambda name, flags: os.open(name, flags, FILE_MODE))
            self._size = os.fstat(self._file.fileno()).st_size
            if self._size and not _ends_with_a_line(path, self._size):
                self._size += self._file.write(b"\n") or 0
        return self._file

    def _close_moved_file(self) -> None:
        """Begin a new file if an operator, or logrotate, has moved or removed the current one."""
        if self._file is None:
            return
        try:
            named, opened = os.stat(self.baseFilename), os.fstat(self._file.fileno())
            is_same = (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)
        except OSError:
            is_same = False
        if not is_same:
            self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def close(self) -> None:
        self._close_file()
        super().close()


def _ends_with_a_line(path: Path, size: int) -> bool:
    with path.open("rb") as file:
        file.seek(size - 1)
        return file.read(1) == b"\n"
