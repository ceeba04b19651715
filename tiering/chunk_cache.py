"""Chunk cache: verified chunks of remote segments on local disk, with a byte budget and read-ahead.

A chunk is at most 8 MiB of complete record batches, or one larger batch. It is verified once, after the
download and before any read. Chunks are served as file
slices, for sendfile; an evicted file stays until its last reader closes it. Concurrent readers share one
download. The directory is emptied at start-up, because
files from before a crash are not trusted. Called by the remote log, on one event loop.
"""

import asyncio
import uuid
from array import array
from bisect import bisect_right
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from tierlog.base.files import DISK_FULL, Files
from tierlog.base.open_files import SharedFile
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicIdPartition
from tierlog.tiering.single_flight import SingleFlightCache

MARK_BYTES = 16 << 10
"""A read looks at the headers of so many bytes at most. A chunk's marks take up to 6 KiB of memory."""

DOWNLOADS_AT_ONCE = 10  # default of remote.log.reader.threads; times PIECE_BYTES, it limits memory
READ_AHEADS_AT_ONCE = 2  # the other downloads are reserved for waiting readers


@dataclass(frozen=True, slots=True)
class ChunkKey:
    """Bytes [start, end) of a segment's `.log` object: complete batches."""

    partition: TopicIdPartition
    segment: uuid.UUID
    start: int
    end: int

    def __str__(self) -> str:
        return f"chunk {self.segment}:{self.start}"

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class BatchMarks:
    """Where some batches of a chunk begin: the first, and the first after every MARK_BYTES. Positions are in
    the chunk."""

    positions: "array[int]"
    base_offsets: "array[int]"
    end_offset: int
    """The end offset of the chunk's last batch, exclusive."""

    def position_for(self, offset: int) -> int:
        """The last marked batch that begins at or below an offset, or the first batch."""
        return self.positions[max(0, bisect_right(self.base_offsets, offset) - 1)]

    def at_or_below(self, position: int) -> int:
        """The last marked batch at or below a position."""
        return self.positions[bisect_right(self.positions, position) - 1]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A verified chunk on local disk."""

    key: ChunkKey
    file: SharedFile
    batches: BatchMarks


Download = Callable[[Path], Coroutine[Any, Any, BatchMarks]]
"""Downloads and verifies one chunk, and writes it to a path."""


@dataclass(slots=True)
class CacheCounts:
    """Counts for metrics and status."""

    hits: int = 0
    misses: int = 0
    read_aheads: int = 0


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
        self._files = files
        self._chunks: SingleFlightCache[ChunkKey, Chunk] = SingleFlightCache(
            tasks,
            budget_bytes,
            lambda chunk: chunk.key.size,
            asyncio.Semaphore(downloads_at_once),
            lambda chunk: files.unlink(chunk.file.path, missing_ok=True),
        )
        self._downloads_at_once = downloads_at_once
        self._reading_ahead = 0
        self._names = count()
        self.counts = CacheCounts()
        _empty(files, directory)

    def limit_downloads(self, at_once: int) -> None:
        """Limit concurrent downloads. Downloads that have started and readers that wait for a slot keep the
        previous limit."""
        if at_once != self._downloads_at_once:
            self._downloads_at_once, self._chunks.slots = at_once, asyncio.Semaphore(at_once)

    async def get(self, key: ChunkKey, download: Download) -> Chunk:
        """Return the chunk, and download it first if necessary. Raises the download's error."""
        if key in self._chunks:
            self.counts.hits += 1
        else:
            self.counts.misses += 1
        return await self._chunks.get(key, lambda: self._fetch(key, download))

    def read_ahead(self, key: ChunkKey, download: Download) -> None:
        """Start a download that will probably be needed, unless READ_AHEADS_AT_ONCE are running."""
        is_known = key in self._chunks or self._chunks.is_loading(key)
        if is_known or self._reading_ahead >= READ_AHEADS_AT_ONCE:
            return
        self.counts.read_aheads += 1
        self._reading_ahead += 1
        pending = self._chunks.start(key, lambda: self._fetch_ahead(key, download))
        pending.add_done_callback(self._read_ahead_ended)

    @property
    def bytes(self) -> int:
        """Bytes of the cached chunks."""
        return self._chunks.weight

    @property
    def waiting(self) -> int:
        """Readers that wait for a place to download."""
        return self._chunks.waiting

    @property
    def idle_ratio(self) -> float:
        """Fraction of the places to download that are free now."""
        return 1 - min(self._chunks.loading, self._downloads_at_once) / self._downloads_at_once

    async def idle(self) -> None:
        """Wait until no download is running."""
        await self._chunks.idle()

    def forget(self, partition: TopicIdPartition, below: int) -> None:
        """Remove the partition's chunks that end at or below an offset, because their records are deleted."""
        self._chunks.forget(
            lambda key, chunk: key.partition == partition and chunk.batches.end_offset <= below
        )

    def check(self) -> None:
        """Raises InvariantViolation if the byte count is wrong or over the budget."""
        self._chunks.check()

    async def _fetch(self, key: ChunkKey, download: Download) -> Chunk:
        path = self._directory / f"{next(self._names)}.chunk"
        try:
            batches = await self._download(path, download)
            return Chunk(key, SharedFile(self._files, path), batches)
        except BaseException:
            self._files.unlink(path, missing_ok=True)
            raise

    async def _fetch_ahead(self, key: ChunkKey, download: Download) -> Chunk:
        async with self._chunks.slots:
            return await self._fetch(key, download)

    async def _download(self, path: Path, download: Download) -> BatchMarks:
        """If the disk is full, evict all chunks and try once more: remote reads continue, only slower."""
        try:
            return await download(path)
        except OSError as failure:
            if failure.errno not in DISK_FULL or not self.bytes:
                raise
        self._files.unlink(path, missing_ok=True)
        self._chunks.forget(lambda key, chunk: True)
        return await download(path)

    def _read_ahead_ended(self, pending: object) -> None:
        self._reading_ahead -= 1


def _empty(files: Files, directory: Path) -> None:
    files.make_directory(directory)
    for name in files.list_directory(directory):
        if name.endswith(".chunk"):
            files.unlink(directory / name)
