"""Files of the audit log: append lines, rotate by size, keep a number of old files.

A line is in a file whole or not at all. If a write fails half-way because the disk is full, the part is
truncated at once or before the next line, and so is one that a crash left. If it cannot be truncated, a new
file is begun. All methods run in the thread of `audit.log`, because a disk may hang.
"""

import os
from collections.abc import Sequence
from io import FileIO
from logging.handlers import RotatingFileHandler
from pathlib import Path

FILE_MODE = 0o640
DIRECTORY_MODE = 0o750
SEARCHED_BYTES = 64 << 10  # read at once from the end of a file whose last line is not whole


class AuditFile(RotatingFileHandler):
    """Rotation is the standard library's, which renames `x.jsonl` to `x.jsonl.1`, and that to `x.jsonl.2`.
    Writes are not: those of a logging handler keep what a full disk refused, in a buffer without a bound."""

    def __init__(self, path: Path, bytes_max: int, files_max: int) -> None:
        super().__init__(path, maxBytes=bytes_max, backupCount=files_max - 1, delay=True)
        self._file: FileIO | None = None
        self._size = 0

    def append(self, lines: Sequence[bytes], *, sync: bool) -> int:
        """Write the lines, and with `sync` also to the disk. Returns the number of lines that were lost."""
        self._check_file()
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
                os.fdatasync(file.fileno())  # lines of this call may be in it
                self._close_file()
                self.doRollover()
                file = self._opened()
            written = file.write(line)
            if written != len(line):
                _truncate(file, self._size)
                return False
        except _PartOfALine:
            self._close_file()  # the part is removed, or a new file is begun, before the next line
            return False
        except OSError:
            return False
        self._size += written
        return True

    def _opened(self) -> FileIO:
        """The current file, which ends with a whole line. It may be missing: an operator may have removed it,
        or its directory."""
        if self._file is not None:
            return self._file
        path = Path(self.baseFilename)
        path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        try:
            file = _open_whole(path)
        except _PartOfALine:
            self.doRollover()
            file = _open_whole(path)
        self._file, self._size = file, os.fstat(file.fileno()).st_size
        return file

    def _check_file(self) -> None:
        """Begin a new file if an operator, or logrotate, has moved or removed the current one, and follow one
        that was truncated."""
        if self._file is None:
            return
        try:
            named, opened = os.stat(self.baseFilename), os.fstat(self._file.fileno())
            is_same = (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)
        except OSError:
            is_same = False
        if not is_same or opened.st_size != self._size:
            self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def close(self) -> None:
        self._close_file()
        super().close()


class _PartOfALine(OSError):
    """The last line of a file is not whole, and cannot be removed."""


def _open_whole(path: Path) -> FileIO:
    """The file without a part of a line at its end. Raises _PartOfALine if it stays."""
    file = FileIO(path, "ab+", opener=lambda name, flags: os.open(name, flags, FILE_MODE))
    try:
        end = _end_of_last_line(file)
        if end != os.fstat(file.fileno()).st_size:
            _truncate(file, end)
    except BaseException:
        file.close()
        raise
    return file


def _truncate(file: FileIO, end: int) -> None:
    try:
        file.truncate(end)
    except OSError as failure:
        raise _PartOfALine(*failure.args) from failure


def _end_of_last_line(file: FileIO) -> int:
    """Size of the file up to its last line that is whole."""
    end = os.fstat(file.fileno()).st_size
    while end > 0:
        start = max(0, end - SEARCHED_BYTES)
        found = os.pread(file.fileno(), end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
