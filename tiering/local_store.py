"""An object store in a directory: what one laptop needs, and what a mounted network file system can serve.

An object is a file of the same name. A put writes a temporary file, syncs it and links or renames it into
place, so readers see all of it or nothing and a crash leaves at most a temporary file. Conditional puts hold
a lock of the file system, so that several processes may share the directory. All system calls run in threads
of the store's own: a slow disk here never slows the loop.
"""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count, islice
from pathlib import Path
from typing import BinaryIO, TypeVar

import crc32c as crc

from tierlog.tiering.object_store import (
    Absent,
    Condition,
    CorruptObject,
    ObjectInfo,
    ObjectNotFound,
    ObjectStoreError,
    PreconditionFailed,
    exact_range,
)

T = TypeVar("T")

_THREADS = 8  # enough for several readers and writers; more would only queue at the disk
_COPY_BYTES = 1 << 20
_LIST_PAGE = 1000
_PRIVATE = ".tierlog"  # temporary files and the lock; never listed


class LocalStore:
    """Objects as files below a directory, which is made when missing."""

    def __init__(self, directory: Path) -> None:
        self._root = directory
        self._private = directory / _PRIVATE
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tierlog-store")
        self._numbers = count()
        self._private.mkdir(parents=True, exist_ok=True)

    async def put(
        self, key: str, body: bytes | Path, *, crc32c: int | None = None, condition: Condition = None
    ) -> ObjectInfo:
        return await self._run(lambda: self._put(key, body, crc32c, condition))

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return await self._run(lambda: self._get(key, start, end)[0])

    async def get_with_etag(self, key: str) -> tuple[bytes, str]:
        return await self._run(lambda: self._get(key, 0, None))

    async def head(self, key: str) -> ObjectInfo:
        return await self._run(lambda: self._info(key, os.stat(self._path(key))))

    async def delete(self, keys: Sequence[str]) -> None:
        await self._run(lambda: self._delete(keys))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        folder, _, _ = prefix.rpartition("/")
        found = (info for info in self._walk(folder) if info.key.startswith(prefix))
        while page := await self._run(lambda: list(islice(found, _LIST_PAGE))):
            for info in page:
                yield info

    async def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        except FileNotFoundError as error:
            raise ObjectNotFound(str(error.filename)) from error
        except OSError as error:
            raise ObjectStoreError(str(error)) from error

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if any(part in ("", ".", "..") for part in parts) or parts[0] == _PRIVATE:
            raise ObjectStoreError(f"{key!r} cannot be a key of a directory store")
        return self._root / key

    def _put(self, key: str, body: bytes | Path, checksum: int | None, condition: Condition) -> ObjectInfo:
        target = self._path(key)
        temporary = self._private / f"{os.getpid()}-{next(self._numbers)}.tmp"
        try:
            with open(temporary, "xb") as out:
                written = _write(out, body)
                os.fsync(out.fileno())
            if checksum is not None and written != checksum:
                raise CorruptObject(f"{key}: the body has checksum {written:08x}, not {checksum:08x}")
            self._place(key, temporary, target, condition)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_directory(target.parent)
        return self._info(key, os.stat(target))

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
                raise PreconditionFailed(f"{key}: an object is already there") from None
            except FileNotFoundError:  # a delete took the empty directory away meanwhile
                continue

    def _swap(self, key: str, temporary: Path, target: Path, etag: str) -> None:
        with self._lock():
            try:
                found = self._info(key, os.stat(target)).etag
            except FileNotFoundError:
                found = None
            if found != etag:
                raise PreconditionFailed(f"{key}: the object is not the one with ETag {etag}")
            os.replace(temporary, target)

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
            return exact_range(key, file.read(max(0, end - start)), start, end), info.etag

    def _delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            path = self._path(key)
            path.unlink(missing_ok=True)
            with suppress(OSError):  # folders that became empty go too; the first that did not ends it
                for folder in path.parents:
                    if folder == self._root:
                        break
                    folder.rmdir()

    def _info(self, key: str, stat: os.stat_result) -> ObjectInfo:
        # a replaced object is another inode with another time: good enough to tell versions apart
        return ObjectInfo(key, stat.st_size, f"{stat.st_ino:x}-{stat.st_mtime_ns:x}-{stat.st_size:x}")

    def _walk(self, folder: str) -> Iterator[ObjectInfo]:
        """Depth first in key order: a folder sorts as its name with the slash, as its keys do."""
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
            with suppress(FileNotFoundError):  # deleted while we walk
                yield self._info(key, entry.stat())


def _write(out: BinaryIO, body: bytes | Path) -> int:
    """Writes the whole body; returns its CRC-32C."""
    if not isinstance(body, Path):
        out.write(body)
        return crc.crc32c(body)
    checksum = 0
    with open(body, "rb") as source:
        while piece := source.read(_COPY_BYTES):
            out.write(piece)
            checksum = crc.crc32c(piece, checksum)
    return checksum


def _make_directories(directory: Path) -> None:
    """Makes missing folders and syncs their parents: a power loss must not lose the path to an object."""
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
