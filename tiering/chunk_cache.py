"""Chunk cache: verified chunks of remote segments on local disk, with a byte budget and read-ahead.

A chunk is about 8 MiB of complete record batches, between two entries of the segment's offset index. Each
batch is verified (CRC, offsets) once, after the download and before any read. Chunks are served as file
slices, for sendfile; an evicted file stays until its last reader closes it. Concurrent readers share one
download, and a reader that is cancelled does not cancel it. The directory is emptied at start-up, because
files from before a crash are not trusted. Called by the remote log, on one event loop.
"""

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from tierlog.base.files import DISK_FULL, Files
from tierlog.base.open_files import SharedFile
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicIdPartition, require
from tierlog.tiering.object_store import ObjectStoreError

CHUNK_BYTES = 8 << 20
DOWNLOADS_AT_ONCE = 10  # default of remote.log.reader.threads; times PIECE_BYTES, it limits memory
READ_AHEADS_AT_ONCE = 2  # the other downloads are reserved for waiting readers


@dataclass(frozen=True, slots=True)
class ChunkKey:
    """Bytes [start, end) of a segment's `.log` object: complete batches."""

    partition: TopicIdPartition
    segment: uuid.UUID
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Chunk:
    """A verified chunk on local disk. `end_offset` is exclusive."""

    key: ChunkKey
    file: SharedFile
    end_offset: int


Download = Callable[[Path], Coroutine[Any, Any, int]]
"""Downloads and verifies one chunk, and writes it to a path. Returns its end offset, exclusive."""

PendingDownload = asyncio.Task[Chunk | ObjectStoreError | OSError]
"""A failure is returned as a value, so that only the waiting readers see it, not the log of failed tasks."""


@dataclass(slots=True)
class CacheCounts:
    """For metrics and status."""

    misses: int = 0
    read_aheads: int = 0
    bytes: int = 0


class ChunkCache:
    """LRU cache of chunks."""

    def __init__(
        self,
        directory: Path,
        budget_bytes: int,
        files: Files,
        tasks: TaskGroup,
        *,
        downloads_at_once: int = DOWNLOADS_AT_ONCE,
    ) -> None:
        self._directory = directory
        self._budget = budget_bytes
        self._files = files
        self._tasks = tasks
        self._chunks: OrderedDict[ChunkKey, Chunk] = OrderedDict()
        self._pending: dict[ChunkKey, PendingDownload] = {}
        self._downloads_at_once = downloads_at_once
        self._slots = asyncio.Semaphore(downloads_at_once)
        self._reading_ahead = 0
        self._names = count()
        self.counts = CacheCounts()
        _empty(files, directory)

    def limit_downloads(self, at_once: int) -> None:
        """Limit concurrent downloads. Downloads that have started or wait for a slot keep the previous
        limit."""
        if at_once != self._downloads_at_once:
            self._downloads_at_once, self._slots = at_once, asyncio.Semaphore(at_once)

    async def get(self, key: ChunkKey, download: Download) -> Chunk:
        """Return the chunk, and download it first if necessary. Raises the download's error."""
        chunk = self._chunks.get(key)
        if chunk is not None:
            self._chunks.move_to_end(key)
            return chunk
        self.counts.misses += 1
        # shielded: a reader's timeout must not cancel the shared download
        result = await asyncio.shield(self._start(key, download))
        if not isinstance(result, Chunk):
            raise result
        return result

    def read_ahead(self, key: ChunkKey, download: Download) -> None:
        """Start a download that will probably be needed, unless READ_AHEADS_AT_ONCE are running."""
        if key in self._chunks or key in self._pending or self._reading_ahead >= READ_AHEADS_AT_ONCE:
            return
        self.counts.read_aheads += 1
        self._reading_ahead += 1
        self._start(key, download).add_done_callback(self._read_ahead_ended)

    async def idle(self) -> None:
        """Wait until no download is running."""
        while self._pending:
            await asyncio.wait(list(self._pending.values()))

    def forget(self, partition: TopicIdPartition, below: int) -> None:
        """Remove the partition's chunks that end at or below an offset, because their records are deleted."""
        expired = [
            key
            for key, chunk in self._chunks.items()
            if key.partition == partition and chunk.end_offset <= below
        ]
        for key in expired:
            self._evict(key)

    def check(self) -> None:
        """Raises InvariantViolation if the byte count is wrong or over the budget."""
        require(self.counts.bytes == sum(key.size for key in self._chunks), "cached bytes are miscounted")
        require(self.counts.bytes <= self._budget or len(self._chunks) <= 1, "the cache is over its budget")

    def _start(self, key: ChunkKey, download: Download) -> PendingDownload:
        """The pending download of the chunk, started if there is none."""
        pending = self._pending.get(key)
        if pending is None:
            pending = self._tasks.spawn(f"chunk {key.segment}:{key.start}", self._fetch(key, download))
            self._pending[key] = pending
            pending.add_done_callback(lambda done: self._download_ended(key, done))
        return pending

    async def _fetch(self, key: ChunkKey, download: Download) -> Chunk | ObjectStoreError | OSError:
        path = self._directory / f"{next(self._names)}.chunk"
        async with self._slots:
            try:
                end_offset = await self._download(path, download)
                return Chunk(key, SharedFile(self._files, path), end_offset)
            except BaseException as failure:
                self._files.unlink(path, missing_ok=True)
                if isinstance(failure, (ObjectStoreError, OSError)):
                    return failure
                raise

    async def _download(self, path: Path, download: Download) -> int:
        """If the disk is full, evict all chunks and try once more: remote reads continue, only slower."""
        try:
            return await download(path)
        except OSError as failure:
            if failure.errno not in DISK_FULL or not self._chunks:
                raise
        self._files.unlink(path, missing_ok=True)
        for key in list(self._chunks):
            self._evict(key)
        return await download(path)

    def _download_ended(self, key: ChunkKey, pending: PendingDownload) -> None:
        del self._pending[key]
        if pending.cancelled() or pending.exception() is not None:
            return
        result = pending.result()
        if not isinstance(result, Chunk):
            return
        self._chunks[key] = result
        self.counts.bytes += key.size
        while self.counts.bytes > self._budget and len(self._chunks) > 1:
            self._evict(next(iter(self._chunks)))

    def _read_ahead_ended(self, pending: PendingDownload) -> None:
        self._reading_ahead -= 1

    def _evict(self, key: ChunkKey) -> None:
        chunk = self._chunks.pop(key)
        self.counts.bytes -= key.size
        self._files.unlink(chunk.file.path, missing_ok=True)


def _empty(files: Files, directory: Path) -> None:
    files.make_directory(directory)
    for name in files.list_directory(directory):
        if name.endswith(".chunk"):
            files.unlink(directory / name)
