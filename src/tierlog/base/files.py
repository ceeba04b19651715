"""File port: every file operation of the logs and of the metadata log goes through `Files`.

Tests replace it to enumerate crashes. Descriptors are plain integers, so that a call costs only one attribute
lookup more than `os` itself. A file that stays open is a `SharedFile` of `open_files`.
"""

import ctypes
import errno
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tierlog.base.open_files import OpenFiles, SharedFile

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a full disk, which pass when files are deleted."""

_SMALL_FILE = 4096
"""Most files that are read as a whole are smaller: checkpoints, ids, snapshots, indexes of small segments."""

Buffer = bytes | bytearray | memoryview

_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE; os.posix_fallocate has no flags
_fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)  # Linux only
if _fallocate is not None:
    _fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class Space(NamedTuple):
    """Bytes of a file system: total, and usable by this process."""

    total: int
    usable: int


class Lock(Protocol):
    """As `threading.Lock`."""

    def acquire(self, blocking: bool = True) -> bool: ...
    def release(self) -> None: ...
    def __enter__(self) -> bool: ...
    def __exit__(self, kind: Any, failure: Any, trace: Any, /) -> None: ...


class Files(Protocol):
    """File system operations, for work in threads. Errors are OSError, as raised by `os`."""

    open_files: OpenFiles
    """Files that stay open."""

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        """Open for reading and writing. Returns a descriptor."""

    def lock(self) -> Lock:
        """A lock that one thread may hold while others wait for it, from one piece of work to a later one."""

    def close(self, fd: int) -> None: ...
    def size(self, fd: int) -> int: ...
    def writev_at(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write all buffers at the position, retrying short writes. Returns the bytes written."""

    def read_at(self, fd: int, count: int, position: int) -> bytes: ...
    def read_into(self, fd: int, buffer: memoryview, position: int) -> int:
        """Read into the buffer, which may have room for more. Returns the bytes read; 0 at the file's end."""

    def truncate(self, fd: int, size: int) -> None: ...
    def reserve(self, fd: int, position: int, count: int) -> None:
        """Reserve disk space for later writes. The file's size does not change; `truncate`, even to the same
        size, releases unused space. Not every file system supports it.
        """

    def sync(self, fd: int) -> None:
        """fdatasync: data and size are durable when it returns."""

    def sync_directory(self, path: Path) -> None:
        """Make creations, renames and unlinks in the directory durable."""

    def rename(self, source: Path, target: Path) -> None: ...
    def unlink(self, path: Path, *, missing_ok: bool = False) -> None: ...
    def make_directory(self, path: Path) -> None: ...
    def remove_directory(self, path: Path) -> None: ...
    def list_directory(self, path: Path) -> list[str]: ...
    def read_whole(self, path: Path) -> bytes: ...
    def exists(self, path: Path) -> bool: ...
    def size_of(self, path: Path) -> int: ...
    def space(self, path: Path) -> Space:
        """Space of the file system of an existing path."""


OPEN_FILES = 512
"""Default number of files that stay open, for tools and tests."""


class OsFiles:
    """The real file system."""

    open_files = OpenFiles(OPEN_FILES)  # shared by the process, unless one is given

    def __init__(self, open_files: OpenFiles | None = None) -> None:
        if open_files is not None:
            self.open_files = open_files

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC
        flags |= os.O_CREAT if create or exclusive else 0
        flags |= os.O_EXCL if exclusive else 0
        return os.open(path, flags, 0o644)

    lock = staticmethod(threading.Lock)
    close = staticmethod(os.close)
    truncate = staticmethod(os.ftruncate)
    sync = staticmethod(os.fdatasync)
    read_at = staticmethod(os.pread)
    rename = staticmethod(os.replace)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def writev_at(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        total = sum(map(len, buffers))
        written = os.pwritev(fd, buffers, position)
        if written < total:
            rest = memoryview(b"".join(buffers))
            while written < total:  # a short write: nearly full disk, or a signal
                written += os.pwrite(fd, rest[written:], position + written)
        return total

    def read_into(self, fd: int, buffer: memoryview, position: int) -> int:
        return os.preadv(fd, [buffer], position)

    def reserve(self, fd: int, position: int, count: int) -> None:
        if _fallocate is None:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        if _fallocate(fd, _KEEP_SIZE, position, count):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        path.unlink(missing_ok=missing_ok)

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def remove_directory(self, path: Path) -> None:
        path.rmdir()

    def list_directory(self, path: Path) -> list[str]:
        return sorted(os.listdir(path))

    def read_whole(self, path: Path) -> bytes:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            content = os.read(fd, _SMALL_FILE)
            if len(content) < _SMALL_FILE:  # a short read means the end of a regular file
                return content
            pieces = [content]
            while more := os.read(fd, 1 << 20):
                pieces.append(more)
            return b"".join(pieces)
        finally:
            os.close(fd)

    def exists(self, path: Path) -> bool:
        return path.exists()

    def size_of(self, path: Path) -> int:
        return os.stat(path).st_size

    def space(self, path: Path) -> Space:
        disk = os.statvfs(path)
        return Space(disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize)


def write_atomically(files: Files, path: Path, content: bytes) -> None:
    """Replace a small file (temporary file, fsync, rename, fsync directory). A crash leaves the old or the
    new."""
    temporary = path.with_name(path.name + ".tmp")
    files.unlink(temporary, missing_ok=True)
    fd = files.open(temporary, exclusive=True)
    try:
        files.writev_at(fd, [content], 0)
        files.sync(fd)
    finally:
        files.close(fd)
    files.rename(temporary, path)
    files.sync_directory(path.parent)


@dataclass(frozen=True, slots=True)
class FileSlice:
    """`count` bytes of a file from `position`, which net sends with sendfile."""

    file: SharedFile
    position: int
    count: int

    def __len__(self) -> int:
        return self.count

    def read(self) -> bytes:
        """The bytes, if sendfile cannot be used."""
        return os.pread(self.file.fd, self.count, self.position)

    def read_into(self, buffer: memoryview) -> int:
        """Read into the buffer. Returns the number of bytes read."""
        return os.preadv(self.file.fd, [buffer], self.position)


Part = bytes | bytearray | memoryview | FileSlice
"""Part of a response: bytes, or an opaque slice of a file."""
