"""A disk cache of verified stretches of remote segments: byte budget, single flight, read-ahead.

A chunk is a whole number of record batches, about 8 MiB, cut at entries of the segment's offset index, so
every batch is checked (CRC, offsets) once, after its download and before anybody sees it. Chunks are served
as slices of their files, for sendfile; an evicted file lives on until its last reader lets go. A waiter that
gives up never ends the download: it lands in the cache. The directory is emptied at the start, for nothing
vouches for files that a crash left. Called by the remote log; single owner, one event loop.
"""

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from tierlog.base.files import NO_ROOM, Files
from tierlog.base.open_files import SharedFile
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicIdPartition, require
from tierlog.tiering.object_store import ObjectStoreError

CHUNK_BYTES = 8 << 20
DOWNLOADS_AT_ONCE = 10  # default of remote.log.reader.threads; times the largest piece it bounds memory
READ_AHEADS_AT_ONCE = 2  # the rest of the downloads is kept for readers that wait


@dataclass(frozen=True, slots=True)
class ChunkKey:
    """Bytes [start, end) of a segment's `.log` object; whole batches."""

    partition: TopicIdPartition
    segment: uuid.UUID
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Chunk:
    """A verified chunk on local disk; `end_offset` is one past its last batch."""

    key: ChunkKey
    file: SharedFile
    end_offset: int


Download = Callable[[Path], Coroutine[Any, Any, int]]
"""Fetches, verifies and writes one chunk to a path; returns the offset after its last batch."""

Flight = asyncio.Task[Chunk | ObjectStoreError | OSError]
"""A failed download is a value: it belongs to those who wait for it, not to the log of lost tasks."""


@dataclass(slots=True)
class CacheCounts:
    """For metrics and status."""

    hits: int = 0
    misses: int = 0
    read_aheads: int = 0
    bytes: int = 0


class ChunkCache:
    """Chunks by key, least recently used first to go."""

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
        self._flights: dict[ChunkKey, Flight] = {}
        self._downloads_at_once = downloads_at_once
        self._slots = asyncio.Semaphore(downloads_at_once)
        self._reading_ahead = 0
        self._names = count()
        self.counts = CacheCounts()
        _empty(files, directory)

    def limit_downloads(self, at_once: int) -> None:
        """Of downloads that begin from now on; those that are under way, or wait, end by the limit before."""
        if at_once != self._downloads_at_once:
            self._downloads_at_once, self._slots = at_once, asyncio.Semaphore(at_once)

    async def get(self, key: ChunkKey, download: Download) -> Chunk:
        """The chunk, downloaded if it is not here; raises what the download raises."""
        chunk = self._chunks.get(key)
        if chunk is not None:
            self._chunks.move_to_end(key)
            self.counts.hits += 1
            return chunk
        self.counts.misses += 1
        # shielded: the reader's deadline is not the download's
        landed = await asyncio.shield(self._flight(key, download))
        if not isinstance(landed, Chunk):
            raise landed
        return landed

    def read_ahead(self, key: ChunkKey, download: Download) -> None:
        """Begins a download that somebody will probably ask for; does nothing when enough are under way."""
        if key in self._chunks or key in self._flights or self._reading_ahead >= READ_AHEADS_AT_ONCE:
            return
        self.counts.read_aheads += 1
        self._reading_ahead += 1
        self._flight(key, download).add_done_callback(self._read_ahead_ended)

    async def idle(self) -> None:
        """Returns once no download is under way."""
        while self._flights:
            await asyncio.wait(list(self._flights.values()))

    def forget(self, partition: TopicIdPartition, below: int) -> None:
        """Drops the chunks of a partition that end at or below an offset: nobody may read them any more."""
        gone = [
            key
            for key, chunk in self._chunks.items()
            if key.partition == partition and chunk.end_offset <= below
        ]
        for key in gone:
            self._drop(key)

    def check(self) -> None:
        """Raises InvariantViolation unless the books agree with the chunks."""
        require(self.counts.bytes == sum(key.size for key in self._chunks), "cached bytes are miscounted")
        require(self.counts.bytes <= self._budget or len(self._chunks) <= 1, "the cache is over its budget")

    def _flight(self, key: ChunkKey, download: Download) -> Flight:
        flight = self._flights.get(key)
        if flight is None:
            flight = self._tasks.spawn(f"chunk {key.segment}:{key.start}", self._fetch(key, download))
            self._flights[key] = flight
            flight.add_done_callback(lambda done: self._landed(key, done))
        return flight

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
        """On a full disk the cache gives up what it holds: reads of the remote tier go on, only slower."""
        try:
            return await download(path)
        except OSError as failure:
            if failure.errno not in NO_ROOM or not self._chunks:
                raise
        self._files.unlink(path, missing_ok=True)
        for key in list(self._chunks):
            self._drop(key)
        return await download(path)

    def _landed(self, key: ChunkKey, flight: Flight) -> None:
        del self._flights[key]
        if flight.cancelled() or flight.exception() is not None:
            return
        landed = flight.result()
        if not isinstance(landed, Chunk):
            return
        self._chunks[key] = landed
        self.counts.bytes += key.size
        while self.counts.bytes > self._budget and len(self._chunks) > 1:
            self._drop(next(iter(self._chunks)))

    def _read_ahead_ended(self, flight: Flight) -> None:
        self._reading_ahead -= 1

    def _drop(self, key: ChunkKey) -> None:
        chunk = self._chunks.pop(key)
        self.counts.bytes -= key.size
        self._files.unlink(chunk.file.path, missing_ok=True)


def _empty(files: Files, directory: Path) -> None:
    files.make_directory(directory)
    for name in files.list_directory(directory):
        if name.endswith(".chunk"):
            files.unlink(directory / name)
