"""Chunk cache: verified chunks of remote segments in memory, and on local disk the ones that are needed
again.

A chunk is at most 8 MiB of complete record batches, or one larger batch. It is downloaded into a buffer of
the pool, verified there once, and served from there. When memory is needed, the chunk used longest ago leaves
it: a chunk that a reader still needs, or that was downloaded before, is written to a file; any other is
dropped. A sequential reader of a long history therefore writes nothing, and several readers far apart share
one download. Chunks on disk are served as file slices. Concurrent readers share one download.

Invariants: memory is bounded by the pool, files by `disk_bytes`. A buffer or file that leaves the cache stays
until its last reader is done. All file operations run in the cache's own threads. The directory is emptied at
start-up, because files from before a crash are not trusted. Called by the remote log, on one event loop.
"""

import asyncio
import errno
import uuid
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any, TypeVar

import structlog

from tierlog.base.daemon_threads import DaemonThreads
from tierlog.base.failures import raise_again, without_frames
from tierlog.base.files import DISK_FULL, Files, FileSlice, Part
from tierlog.base.open_files import SharedFile
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import InvariantViolation, TopicIdPartition, require
from tierlog.tiering.buffers import Buffer, BufferPool
from tierlog.tiering.single_flight import SingleFlight

_log = structlog.get_logger("tierlog.tiering")

T = TypeVar("T")

MARK_BYTES = 16 << 10
"""A read looks at the headers of so many bytes at most. A chunk's marks take up to 6 KiB of memory."""

DOWNLOADS_AT_ONCE = 10  # default of remote.log.reader.threads
RESERVED_DOWNLOADS = 2  # for waiting readers: read-ahead leaves these
MEMORY_BYTES = 128 << 20  # default of remote.cache.memory.bytes

DROPPED_MAX = 10_000  # keys, which take 2 MB

ROOM_AHEAD = 8
"""A memory of so many chunks keeps room for one more."""

THREADS = 2
"""For verification, which takes 1 ms a chunk; and so many for files, since a disk may hang."""

SPILL_S = 8.0
"""Time to write a chunk to disk. After that it is dropped, and none is written until the disk responds."""

MEMORY_WAIT_S = 10.0
"""Time without any memory released after which a load takes a buffer above the budget: a last resort, so that
no mistake in the accounts can stop all remote reads. At most one for each concurrent download."""


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
    """Positions of some batches of a chunk: the first, and the first after every MARK_BYTES. Positions are in
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


@dataclass(slots=True, eq=False)
class Chunk:
    """A verified chunk, in a buffer, a file or both. Positions are in the chunk."""

    key: ChunkKey
    batches: BatchMarks
    buffer: Buffer | None
    was_dropped: bool
    """Whether it was downloaded before."""
    file: SharedFile | None = None

    def content(self, start: int, end: int) -> bytes | memoryview:
        """The bytes [start, end), for a use that ends soon. Blocks if they are on disk."""
        buffer = self.buffer  # another thread may take it
        if buffer is not None:
            return buffer.view(start, end)
        return self.file_slice(start, end).read()

    def file_slice(self, start: int, end: int) -> FileSlice:
        if self.file is None:
            raise InvariantViolation(f"{self.key} is neither in memory nor on disk")
        return FileSlice(self.file, start, end - start)


Download = Callable[[memoryview], Coroutine[Any, Any, BatchMarks]]
"""Downloads one chunk into a buffer of its size, and verifies it."""


@dataclass(slots=True)
class CacheCounts:
    """Counts for metrics and status."""

    hits: int = 0
    misses: int = 0
    read_aheads: int = 0
    spills: int = 0
    """Chunks written to disk."""
    above_budget: int = 0
    """Buffers taken above the memory budget, after a wait of MEMORY_WAIT_S."""


class ChunkCache:
    """`is_needed`: whether a reader is known that will read this chunk. Set by the remote log."""

    def __init__(
        self,
        directory: Path,
        disk_bytes: int,
        files: Files,
        tasks: TaskGroup,
        *,
        memory_bytes: int = MEMORY_BYTES,
        downloads_at_once: int = DOWNLOADS_AT_ONCE,
    ) -> None:
        self.is_needed: Callable[[Chunk], bool] = lambda chunk: False
        self.counts = CacheCounts()
        self.pool = BufferPool(memory_bytes, self._buffer_released)
        self._directory = directory
        self._disk_budget = disk_bytes
        self._files = files
        self._tasks = tasks
        self._threads = DaemonThreads("remote-read", THREADS)
        self._disk_threads = DaemonThreads("remote-cache", THREADS)
        self._hanging: set[asyncio.Future[SharedFile]] = set()  # writes that are over their time
        self._memory: OrderedDict[ChunkKey, Chunk] = OrderedDict()  # in the order in which they leave
        self._disk: OrderedDict[ChunkKey, Chunk] = OrderedDict()
        self._disk_bytes = 0
        self._of_partition: dict[TopicIdPartition, dict[ChunkKey, None]] = {}
        self._dropped: OrderedDict[ChunkKey, None] = OrderedDict()
        """Chunks that left memory without a copy on disk, the latest last, as many as the disk could hold."""
        self._dropped_bytes = 0
        self._spills: dict[Chunk, asyncio.Task[OSError | None]] = {}
        self._unlinks: set[asyncio.Task[None]] = set()
        self._unread: set[ChunkKey] = set()
        """Chunks of read-ahead that no reader has asked for yet."""
        self._flights: SingleFlight[ChunkKey, Chunk] = SingleFlight(
            tasks, asyncio.Semaphore(downloads_at_once), self._find, self._keep
        )
        self._downloads_at_once = downloads_at_once
        self._reading_ahead = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        """While a load takes memory. Otherwise no release is reported: there is one for each response."""
        self._released = asyncio.Event()
        self._room = asyncio.Lock()
        self._names = count()
        _empty(files, directory)

    def limit_downloads(self, at_once: int) -> None:
        """Limit concurrent downloads. Downloads that have started and readers that wait for a slot keep the
        previous limit."""
        if at_once != self._downloads_at_once:
            self._downloads_at_once, self._flights.slots = at_once, asyncio.Semaphore(at_once)

    @property
    def read_aheads_max(self) -> int:
        return max(1, self._downloads_at_once - RESERVED_DOWNLOADS)

    async def get(self, key: ChunkKey, download: Download) -> Chunk:
        """Return the chunk, and download it first if necessary. Raises the download's error."""
        self._unread.discard(key)
        chunk = self._find(key)
        if chunk is not None:
            self.counts.hits += 1
            return chunk
        self.counts.misses += 1
        return await self._flights.get(key, lambda: self._fetch(key, download))

    def read_ahead(self, key: ChunkKey, download: Download) -> bool:
        """Start a download that will probably be needed, if it is not there already. Returns False if there
        are too many: their bytes are at most half of the memory, until readers ask for them."""
        if key in self._memory or key in self._disk or self._flights.is_loading(key):
            return True
        if self._reading_ahead >= self.read_aheads_max:
            return False
        unread = sum(other.size for other in self._unread)
        if unread and unread + key.size > self.pool.budget_bytes // 2:
            return False
        self.counts.read_aheads += 1
        self._reading_ahead += 1
        self._unread.add(key)
        pending = self._flights.start(key, lambda: self._fetch_ahead(key, download))
        pending.add_done_callback(lambda _: self._read_ahead_ended(key))
        return True

    def in_memory(self, key: ChunkKey) -> Chunk | None:
        """The chunk, if it is in memory. Not counted as a hit."""
        if key not in self._memory:
            return None
        self._unread.discard(key)
        return self._find(key)

    def lend(self, chunk: Chunk, start: int, end: int) -> memoryview | None:
        """Bytes [start, end) for a response, from memory; None if responses hold too much of it."""
        return None if chunk.buffer is None else self.pool.lend(chunk.buffer, start, end)

    async def part(self, chunk: Chunk, start: int, end: int) -> Part:
        """Bytes [start, end) of a chunk for a response: from memory, unless responses hold too much of it
        already. Then the chunk is written to disk first. Raises OSError."""
        if chunk.buffer is not None:
            if (lent := self.lend(chunk, start, end)) is not None:
                return lent
            raise_again(await asyncio.shield(self._spill(chunk)))
        return chunk.file_slice(start, end)

    def passed(self, chunk: Chunk) -> None:
        """A reader has read the chunk's end: if no other needs it, it leaves memory first."""
        if chunk.key in self._memory and not chunk.was_dropped and not self.is_needed(chunk):
            self._memory.move_to_end(chunk.key, last=False)

    @property
    def bytes(self) -> int:
        """Bytes of the cached chunks."""
        return self._disk_bytes + self.memory_bytes

    @property
    def memory_bytes(self) -> int:
        """Bytes of the chunks in memory."""
        return sum(key.size for key in self._memory)

    async def run(self, work: Callable[[], T]) -> T:
        """Run work that uses no disk in the cache's threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    @property
    def waiting(self) -> int:
        """Readers that wait for a place to download."""
        return self._flights.waiting

    @property
    def idle_ratio(self) -> float:
        """Fraction of the places to download that are free now."""
        return 1 - min(self._flights.loading, self._downloads_at_once) / self._downloads_at_once

    async def idle(self) -> None:
        """Wait until no download runs and no file is being written or removed."""
        await self._flights.idle()
        while work := [*self._spills.values(), *self._unlinks]:
            await asyncio.wait(work)
            await self._flights.idle()

    def forget(self, partition: TopicIdPartition, below: int, at_most: int) -> bool:
        """Remove the partition's chunks that end at or below an offset, because their records are deleted.
        Returns whether there may be more than `at_most`."""
        chunks = (self._memory.get(key) or self._disk[key] for key in self._of_partition.get(partition, ()))
        obsolete = list(islice((one for one in chunks if one.batches.end_offset <= below), at_most))
        for chunk in obsolete:
            self._remove(chunk)
        return len(obsolete) == at_most

    def check(self) -> None:
        """Raises InvariantViolation if the byte count is wrong or over the budget."""
        require(self._disk_bytes == sum(key.size for key in self._disk), "cached files are miscounted")
        require(
            self._disk_bytes <= self._disk_budget or len(self._disk) <= 1, "cached files exceed the budget"
        )
        require(not self._memory.keys() & self._disk.keys(), "a chunk is counted twice")
        listed = {key for keys in self._of_partition.values() for key in keys}
        require(listed == self._memory.keys() | self._disk.keys(), "chunks are not listed by partition")

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._disk_threads.shutdown(cancel_futures=True)

    def _find(self, key: ChunkKey) -> Chunk | None:
        for chunks in (self._memory, self._disk):
            if (chunk := chunks.get(key)) is not None:
                chunks.move_to_end(key)
                return chunk
        return None

    def _keep(self, key: ChunkKey, chunk: Chunk) -> None:
        self._memory[key] = chunk
        self._of_partition.setdefault(key.partition, {})[key] = None
        self._released.set()  # it may leave again

    async def _fetch(self, key: ChunkKey, download: Download) -> Chunk:
        buffer = await self._take(key.size)
        batches = await download(buffer.view(0, key.size))
        was_dropped = key in self._dropped
        if was_dropped:
            del self._dropped[key]
            self._dropped_bytes -= key.size
        return Chunk(key, batches, buffer, was_dropped)

    async def _fetch_ahead(self, key: ChunkKey, download: Download) -> Chunk:
        async with self._flights.slots:
            return await self._fetch(key, download)

    def _read_ahead_ended(self, key: ChunkKey) -> None:
        self._reading_ahead -= 1
        if key not in self._memory:
            self._unread.discard(key)  # it has failed

    # -- memory --

    async def _take(self, size: int) -> Buffer:
        """A buffer, after other chunks have left memory if necessary. Loads take turns, so that none
        starves."""
        async with self._room:
            self._loop = asyncio.get_running_loop()  # before the first attempt: a release after it is noticed
            try:
                while True:
                    self._released.clear()
                    if (buffer := self.pool.take(size)) is not None:
                        self._make_room_ahead(size)
                        return buffer
                    if not self._free_one():
                        async with asyncio.timeout(MEMORY_WAIT_S):
                            await self._released.wait()
            except TimeoutError:
                pass
            finally:
                self._loop = None
        self._on_starved(size)
        buffer = self.pool.take(size, above_budget=True)
        if buffer is None:
            raise InvariantViolation("the pool has refused a buffer above its budget")
        return buffer

    def _on_starved(self, size: int) -> None:
        if not self.counts.above_budget:
            _log.warning(
                "remote_cache.above_budget",
                reason=f"nothing was released for {MEMORY_WAIT_S:g} s",
                used_bytes=self.pool.used_bytes,
                wanted_bytes=size,
            )
        self.counts.above_budget += 1

    def _make_room_ahead(self, size: int) -> None:
        """Let a chunk leave memory already now, so that the next load does not wait for its write to disk. A
        small memory is rather used to the full."""
        if self.pool.budget_bytes - self.pool.used_bytes < size <= self.pool.budget_bytes // ROOM_AHEAD:
            self._free_one()

    def _free_one(self) -> bool:
        """Let the first chunk leave memory that no response holds. Returns False if there is none, or if it
        is being written to disk first."""
        for chunk in self._memory.values():
            if chunk.buffer is None or chunk.buffer.loans or chunk in self._spills:
                continue
            if not self._hanging and (chunk.was_dropped or self.is_needed(chunk)):
                self._spill(chunk)
                return False
            self._remember_dropped(chunk.key)
            self._remove(chunk)
            return True
        return False

    def _remember_dropped(self, key: ChunkKey) -> None:
        self._dropped[key] = None
        self._dropped_bytes += key.size
        while self._dropped_bytes > self._disk_budget or len(self._dropped) > DROPPED_MAX:
            self._dropped_bytes -= self._dropped.popitem(last=False)[0].size

    def _buffer_released(self) -> None:
        if (loop := self._loop) is not None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._released.set)

    # -- disk --

    def _spill(self, chunk: Chunk) -> "asyncio.Task[OSError | None]":
        """Move a chunk from memory to disk."""
        pending = self._spills.get(chunk)
        if pending is None:
            pending = self._spills[chunk] = self._tasks.spawn(f"write {chunk.key}", self._write(chunk))
            pending.add_done_callback(partial(self._spill_ended, chunk))
        return pending

    def _spill_ended(self, chunk: Chunk, _: object) -> None:
        del self._spills[chunk]
        self._released.set()

    async def _write(self, chunk: Chunk) -> OSError | None:
        """If the disk is full, remove all other chunks and try once more: remote reads continue, only
        slower."""
        path = self._directory / f"{next(self._names)}.chunk"
        try:
            try:
                file = await self._on_disk(path, lambda: self._write_file(path, chunk))
            except OSError as failure:
                if failure.errno not in DISK_FULL or not self._disk:
                    raise
                removed = [self._leave(other) for other in list(self._disk.values())]
                file = await self._on_disk(path, lambda: self._write_file(path, chunk, removed))
        except OSError as failure:
            self._leave(chunk)
            return without_frames(failure)
        self.counts.spills += 1
        chunk.file, chunk.buffer = file, None
        if self._memory.get(chunk.key) is chunk:
            del self._memory[chunk.key]
            self._unread.discard(chunk.key)
            self._disk[chunk.key] = chunk
            self._disk_bytes += chunk.key.size
            while self._disk_bytes > self._disk_budget and len(self._disk) > 1:
                self._remove(next(iter(self._disk.values())))
        else:
            self._unlink_later(path)  # it was forgotten meanwhile
        return None

    async def _on_disk(self, path: Path, write: Callable[[], SharedFile]) -> SharedFile:
        """Write a file in a disk thread. Raises OSError, also if the disk hangs: what a thread writes later
        is removed."""
        if self._hanging:
            raise OSError(errno.ETIMEDOUT, "the disk hangs", str(path))
        writing = self._in_disk_thread(write)
        await asyncio.wait([writing], timeout=SPILL_S)
        if writing.done():
            try:
                return writing.result()
            finally:
                del writing  # its failure has a frame with the chunk's buffer
        self._hanging.add(writing)
        writing.add_done_callback(partial(self._hang_ended, path))
        raise OSError(errno.ETIMEDOUT, f"no response for {SPILL_S:g} s", str(path))

    def _hang_ended(self, path: Path, writing: "asyncio.Future[SharedFile]") -> None:
        self._hanging.discard(writing)
        if not writing.cancelled() and writing.exception() is None:
            self._unlink_later(path)

    def _in_disk_thread(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        return asyncio.get_running_loop().run_in_executor(self._disk_threads, work)

    def _write_file(self, path: Path, chunk: Chunk, removed: Iterable[Path | None] = ()) -> SharedFile:
        """Write a chunk after other files have been removed."""
        self._unlink(removed)
        content = chunk.content(0, chunk.key.size)
        try:
            file = SharedFile(self._files, path, create=True)
            self._files.writev_at(file.fd, [content], 0)
        except OSError:
            self._unlink([path])
            raise
        return file

    def _remove(self, chunk: Chunk) -> None:
        if (path := self._leave(chunk)) is not None:
            self._unlink_later(path)

    def _leave(self, chunk: Chunk) -> Path | None:
        """Remove a chunk from the cache, unless it has left. Returns the path of its file, if it has one, to
        be unlinked."""
        if self._memory.get(chunk.key) is chunk:
            del self._memory[chunk.key]
            self._unread.discard(chunk.key)
        path = None
        if self._disk.get(chunk.key) is chunk and chunk.file is not None:
            del self._disk[chunk.key]
            self._disk_bytes -= chunk.key.size
            path = chunk.file.path
        keys = self._of_partition.get(chunk.key.partition)
        if keys is not None and chunk.key not in self._memory and chunk.key not in self._disk:
            keys.pop(chunk.key, None)
            if not keys:
                del self._of_partition[chunk.key.partition]
        return path

    def _unlink_later(self, path: Path) -> None:
        work = self._tasks.spawn(f"remove {path.name}", self._unlink_one(path))
        self._unlinks.add(work)
        work.add_done_callback(self._unlinks.discard)

    async def _unlink_one(self, path: Path) -> None:
        await self._in_disk_thread(lambda: self._unlink([path]))

    def _unlink(self, paths: Iterable[Path | None]) -> None:
        for path in paths:
            if path is not None:
                with suppress(OSError):  # a file that stays is removed at the next start
                    self._files.unlink(path, missing_ok=True)


def _empty(files: Files, directory: Path) -> None:
    files.make_directory(directory)
    for name in files.list_directory(directory):
        if name.endswith(".chunk"):
            files.unlink(directory / name)
