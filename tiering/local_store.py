"""Object store in a directory, for a laptop or a mounted network file system (ADR 0021).

An object is a file of the same name. A put writes and syncs a temporary file, and links or renames it into
place: readers see a complete object or none. The writer locks its temporary file. A store that is opened, and
the storage cleaner from time to time, remove unlocked ones, which crashed processes left. Conditional puts
hold a lock too, so that processes on several machines can share the directory. System calls run in the
store's own threads, not on the event loop. If the file system hangs, a call ends at its deadline, and its
thread stays.
"""

import asyncio
import fcntl
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, TypeVar

import crc32c as crc

from tierlog.base.daemon_threads import DaemonThreads
from tierlog.tiering.object_store import (
    CALL_TIMEOUT_S,
    Absent,
    Body,
    Condition,
    ObjectInfo,
    ObjectNotFound,
    ObjectStoreError,
    PreconditionFailed,
    as_body,
    call_deadline,
    check_range,
    checksum_error,
    range_error,
)

T = TypeVar("T")

_THREADS = 8  # for several readers and writers; more would only queue at the disk
_COPY_BYTES = 1 << 20
_LIST_PAGE = 1000
_TEMPORARY = ".tmp"
_PRIVATE = ".tierlog"  # temporary files and the lock; never listed


class LocalStore:
    """Objects as files below a directory, which is created if missing."""

    def __init__(self, directory: Path, *, call_s: float = CALL_TIMEOUT_S) -> None:
        """`call_s`: total seconds of a call, besides those for its bytes."""
        self._root = directory
        self._call_s = call_s
        self._private = directory / _PRIVATE
        self._pool = DaemonThreads("tierlog-store", _THREADS)
        self._private.mkdir(parents=True, exist_ok=True)
        self._remove_abandoned()

    async def put(
        self, key: str, body: bytes | Path | Body, *, crc32c: int | None = None, condition: Condition = None
    ) -> ObjectInfo:
        """Each file operation has its own deadline: the body may be read slowly, because of a rate limit."""
        source = await as_body(body)
        temporary = await self._run(key, lambda: _Temporary(self._private))
        try:
            buffer = memoryview(bytearray(min(source.size, _COPY_BYTES)))
            for at in range(0, source.size, _COPY_BYTES):
                piece = buffer[: source.size - at]
                await source.read_into(piece)
                await self._run(key, partial(temporary.append, piece), len(piece))
            if crc32c is not None and temporary.checksum != crc32c:
                raise checksum_error(key, temporary.checksum, crc32c)
            return await self._run(key, lambda: self._put(key, temporary, condition), source.size)
        except BaseException:
            with suppress(RuntimeError):  # the store is closed: the next one removes the file
                self._pool.submit(temporary.close)  # waits for a thread that still writes to it
            raise

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        size = 0 if end is None else end - start
        return await self._run(key, lambda: self._get(key, start, end)[0], size)

    async def get_into(self, key: str, start: int, buffer: memoryview) -> None:
        """Read pieces which are copied here: a thread that hangs does not hold the buffer."""
        async with call_deadline(self._call_s, len(buffer), key):
            with await self._in_thread(lambda: open(self._path(key), "rb", buffering=0)) as file:
                for at in range(0, len(buffer), _COPY_BYTES):
                    size = min(_COPY_BYTES, len(buffer) - at)
                    piece = await self._in_thread(partial(os.pread, file.fileno(), size, start + at))
                    if len(piece) < size:
                        raise range_error(key, start, len(buffer), at + len(piece))
                    buffer[at : at + size] = piece

    async def get_with_etag(self, key: str) -> tuple[bytes, str]:
        return await self._run(key, lambda: self._get(key, 0, None))

    async def head(self, key: str) -> ObjectInfo:
        return await self._run(key, lambda: self._info(key, os.stat(self._path(key))))

    async def delete(self, keys: Sequence[str]) -> None:
        await self._run("delete", lambda: self._delete(keys))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        folder, _, _ = prefix.rpartition("/")
        found = (info for info in self._walk_mounted(folder) if info.key.startswith(prefix))
        while page := await self._run(prefix, lambda: list(islice(found, _LIST_PAGE))):
            for info in page:
                yield info

    async def abort_uploads(self, prefix: str, older_than_s: float) -> int:
        """Remove the temporary files of crashed processes, of any key and age: no process writes them."""
        return await self._run("temporary files", self._remove_abandoned)

    async def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _run(self, what: str, work: Callable[[], T], size: int = 0) -> T:
        """Run a call of `size` bytes in a thread, with a deadline, and translate its exceptions."""
        async with call_deadline(self._call_s, size, what):
            return await self._in_thread(work)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, partial(self._in_store, work))
        except FileNotFoundError as error:
            raise ObjectNotFound(str(error.filename)) from error
        except OSError as error:
            raise ObjectStoreError(str(error)) from error

    def _in_store(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except FileNotFoundError:
            self._require_mounted()
            raise

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if any(part in ("", ".", "..") for part in parts) or parts[0] == _PRIVATE:
            raise ObjectStoreError(f"{key!r} is not a valid key of a directory store")
        return self._root / key

    def _put(self, key: str, temporary: "_Temporary", condition: Condition) -> ObjectInfo:
        target = self._path(key)
        temporary.sync()
        self._place(key, temporary.path, target, condition)
        temporary.close()
        _sync_directory(target.parent)
        return replace(self._info(key, os.stat(target)), crc32c=temporary.checksum)

    def _place(self, key: str, temporary: Path, target: Path, condition: Condition) -> None:
        while True:
            _make_directories(target.parent)
            try:
                if condition is None:
                    os.replace(temporary, target)
                elif isinstance(condition, Absent):
                    os.link(temporary, target)
                else:
                    self._swap(key, temporary, target, condition)
                return
            except FileExistsError:
                raise PreconditionFailed(f"{key}: the object already exists") from None
            except FileNotFoundError:
                if target.parent.is_dir() and not temporary.exists():
                    raise
                # a concurrent delete removed the empty directory

    def _swap(self, key: str, temporary: Path, target: Path, etag: str) -> None:
        with self._lock():
            try:
                found = self._info(key, os.stat(target)).etag
            except FileNotFoundError:
                found = None
            if found != etag:
                raise PreconditionFailed(f"{key}: the object's ETag is not {etag}")
            os.replace(temporary, target)

    def _remove_abandoned(self) -> int:
        """Remove temporary files of processes that crashed: no writer holds their lock. Returns their
        number."""
        removed = 0
        for temporary in self._private.glob(f"*{_TEMPORARY}"):
            with suppress(OSError), open(temporary, "r+b") as file:  # NFS locks only files open for writing
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                temporary.unlink()
                removed += 1
        return removed

    @contextmanager
    def _lock(self) -> Iterator[None]:
        fd = os.open(self._private / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _get(self, key: str, start: int, end: int | None) -> tuple[bytes, str]:
        with open(self._path(key), "rb") as file:
            info = self._info(key, os.fstat(file.fileno()))
            end = info.size if end is None else end
            file.seek(start)
            return check_range(key, file.read(max(0, end - start)), start, end), info.etag

    def _delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            path = self._path(key)
            path.unlink(missing_ok=True)
            with suppress(OSError):  # remove folders that became empty, up to the first that is not
                for folder in path.parents:
                    if folder == self._root:
                        break
                    folder.rmdir()
        self._require_mounted()

    def _require_mounted(self) -> None:
        """Call this after objects may have been missing. Below a file system that was unmounted is an empty
        directory, without the store's own folder."""
        if not self._private.is_dir():
            raise ObjectStoreError(f"{self._private} is missing: the store is not mounted, or was removed")

    def _info(self, key: str, stat: os.stat_result) -> ObjectInfo:
        # a replaced object has another inode and time, which is enough to distinguish versions
        return ObjectInfo(key, stat.st_size, f"{stat.st_ino:x}-{stat.st_mtime_ns:x}-{stat.st_size:x}")

    def _walk_mounted(self, folder: str) -> Iterator[ObjectInfo]:
        yield from self._walk(folder)
        self._require_mounted()

    def _walk(self, folder: str) -> Iterator[ObjectInfo]:
        """Depth first in key order: a folder sorts as its name with a slash, like the keys in it."""
        try:
            with os.scandir(self._root / folder) as found:
                entries = sorted(found, key=lambda entry: entry.name + "/" * entry.is_dir())
        except FileNotFoundError:
            return
        for entry in entries:
            key = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir():
                if key != _PRIVATE:
                    yield from self._walk(key)
                continue
            with suppress(FileNotFoundError):  # deleted during the walk
                yield self._info(key, entry.stat())


def put_new_file(root: Path, key: str, source: IO[bytes], checksum: int) -> None:
    """Put an object into a directory store, as LocalStore does, for a caller without an event loop. Raises
    FileExistsError if there is one, ObjectStoreError if the source has another CRC-32C, or OSError."""
    private, target = root / _PRIVATE, root / key
    private.mkdir(parents=True, exist_ok=True)
    temporary = _Temporary(private)
    try:
        while piece := source.read(_COPY_BYTES):
            temporary.append(memoryview(piece))
        if temporary.checksum != checksum:
            raise checksum_error(key, temporary.checksum, checksum)
        temporary.sync()
        _link(temporary.path, target)
        _sync_directory(target.parent)
    finally:
        temporary.close()


def _link(temporary: Path, target: Path) -> None:
    while True:
        _make_directories(target.parent)
        try:
            os.link(temporary, target)
            return
        except FileNotFoundError:
            if target.parent.is_dir():
                raise
            # a concurrent delete removed the empty directory


class _Temporary:
    """A locked temporary file. Its calls run in threads, one after the other, except for `close`."""

    def __init__(self, directory: Path) -> None:
        while True:
            fd, name = tempfile.mkstemp(_TEMPORARY, dir=directory)
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                break
            os.close(fd)  # removed as an abandoned one before it was locked
        os.fchmod(fd, 0o644)
        self.path = Path(name)
        self.checksum = 0
        self._file = open(fd, "wb")  # noqa: SIM115

    def append(self, piece: memoryview) -> None:
        self._file.write(piece)
        self.checksum = crc.crc32c(piece, self.checksum)

    def sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self.path.unlink(missing_ok=True)
        self._file.close()


def _make_directories(directory: Path) -> None:
    """Create missing folders and sync their parents, so that a power loss does not lose an object's path."""
    if directory.is_dir():
        return
    _make_directories(directory.parent)
    with suppress(FileExistsError):
        directory.mkdir()
    _sync_directory(directory.parent)


def _sync_directory(directory: Path) -> None:
    with suppress(FileNotFoundError):
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
