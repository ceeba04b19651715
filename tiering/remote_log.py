"""Remote log reader: offset -> manifest entry -> chunk -> position -> verified batches.

A read returns complete batches as views of cached memory or slices of cached files, and never skips offsets.
If an object is missing, the read is retried once with the newest manifest; then it fails with an
ObjectStoreError, which callers turn into a retriable error code. CRCs and offsets of the data are checked
against the manifest; a read of damaged data fails with CorruptObject, and its range is put in quarantine.
Readers may be cancelled at any time: loads that have begun continue without them, and the next reader joins
those. Chunks that follow a reader's are read ahead, across the ends of segments. Called by the Fetch and
ListOffsets handlers, by `tier explain`, and to bootstrap a new replica."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from typing import TypeVar
from uuid import UUID

from tierlog.base.files import Part
from tierlog.base.safeguards import safeguard
from tierlog.base.slices import LogSlice, empty_slice
from tierlog.base.tasks import TaskGroup, WakeQueue
from tierlog.base.types import TopicIdPartition
from tierlog.config.topic import MAX_LONG
from tierlog.metadata.image import ClusterImage, RemotePartition
from tierlog.metadata.records import ManifestNode, PageRef, RemoteSegment
from tierlog.records.batch import HEADER_SIZE, BatchHeader, iter_batches, read_header
from tierlog.records.chunks import CHUNK_BYTES
from tierlog.records.errors import RecordsError
from tierlog.records.indexes import AbortedTxn, find_aborted
from tierlog.records.record import record_pieces
from tierlog.records.unpacking import NO_BOUND
from tierlog.records.walk import find_timestamp
from tierlog.records.window import Window, run_all_steps
from tierlog.tiering.chunk_cache import BatchMarks, Chunk, ChunkCache, ChunkKey, Download
from tierlog.tiering.download import download_chunk
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.object_store import CorruptObject, ObjectNotFound, ObjectStore, ObjectStoreError
from tierlog.tiering.page_tree import index_of
from tierlog.tiering.quarantine import ObjectRange, Quarantine
from tierlog.tiering.segment_index import PAGES_BUDGET_BYTES, SegmentIndex, SegmentIndexes
from tierlog.tiering.sequential_readers import SequentialReader, SequentialReaders
from tierlog.tiering.tier_counts import FetchCounts

Resolve = Callable[[TopicIdPartition], RemotePartition]
"""Returns the remote state of the newest committed image."""

FoundRecord = tuple[int, int, int]
"""Offset, timestamp in milliseconds, leader epoch."""

T = TypeVar("T")

READERS_MAX = 1000
"""Partitions of Fetch and ListOffsets requests that read at a time: each costs about 5 KiB while the store
does not respond, and a store that does serves fewer within remote.fetch.max.wait.ms."""

LOOKS_PER_TURN = 200
EVICTIONS_PER_TURN = 2
EVICTED_AT_ONCE = 20
"""Partitions whose manifests are compared, and from which cached data is evicted, in one turn of the event
loop, and chunks, indexes and pages of each: a millisecond."""

INDEXES_AHEAD_MAX = 4  # the other index loads are reserved for waiting readers


class RemoteReadFailed(ObjectStoreError):
    """Remote data is not available now. No offset was skipped, and a retry may succeed."""


@dataclass(frozen=True, slots=True)
class RemotePlace:
    """Location of an offset in the bucket."""

    key: str
    position: int
    batch_bytes: int
    base_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class RemoteHistory:
    """State before `end_offset` for a replica that starts there: leader epochs (epoch, start offset), of
    which later entries override earlier ones, and a producer snapshot."""

    end_offset: int
    leader_epochs: tuple[tuple[int, int], ...]
    producer_snapshot: bytes


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch in a chunk. `position` is relative to the segment."""

    chunk: Chunk
    index: SegmentIndex
    position: int
    header: BatchHeader


class RemoteLog:
    """Reads the remote segments of all partitions, through one chunk cache."""

    def __init__(
        self,
        store: ObjectStore,
        keys: Keys,
        cache: ChunkCache,
        tasks: TaskGroup,
        resolve: Resolve,
        quarantine: Quarantine,
        pages_budget_bytes: int = PAGES_BUDGET_BYTES,
    ) -> None:
        self._store = store
        self._keys = keys
        self.cache = cache
        self._tasks = tasks
        self._resolve = resolve
        self.quarantine = quarantine
        quarantine.is_listed = self._is_listed
        self._indexes = SegmentIndexes(store, keys, tasks, quarantine, pages_budget_bytes)
        self._indexes_ahead: set[UUID] = set()
        """Segments and pages whose load has begun."""
        self._sequential = SequentialReaders()
        cache.is_needed = self._is_needed
        self._read_of: dict[TopicIdPartition, int] = {}
        """Partitions with possibly cached data, and their log starts at the last look."""
        self._looks = WakeQueue("changed manifests", tasks, self._look, LOOKS_PER_TURN)
        self._evictions = WakeQueue("evictions of remote data", tasks, self._evict, EVICTIONS_PER_TURN)
        self._rechecks: asyncio.Task[None] | None = None
        self.readers = self.readers_refused = 0
        self.fetches = FetchCounts()
        """Counted by the Fetch handler."""

    @contextmanager
    def admit(self, wanted: int) -> Iterator[int]:
        """Take places for up to `wanted` concurrent readers, as many as READERS_MAX leaves."""
        admitted = min(wanted, READERS_MAX - self.readers)
        self.readers += admitted
        self.readers_refused += wanted - admitted
        try:
            yield admitted
        finally:
            self.readers -= admitted

    async def read(self, where: TopicIdPartition, offset: int, max_bytes: int, *, min_one: bool) -> LogSlice:
        """Complete batches from the first one that ends above the offset, from at most one chunk. Raises
        ObjectStoreError.

        With `min_one`, returns the first batch even if it is larger than max_bytes; else the slice may be
        empty. If compaction has removed all remote records from the offset on, an empty slice begins at the
        end of the remote log: the local log has the next ones.
        """
        return await self._retrying(where, lambda state: self._read(where, state, offset, max_bytes, min_one))

    async def read_committed(
        self, where: TopicIdPartition, offset: int, max_bytes: int, *, min_one: bool
    ) -> tuple[LogSlice, list[tuple[int, int]]]:
        """`read`, and the (producer id, first offset) of the aborted transactions that overlap the result.

        Both are from one version of the manifest. Compaction removes aborted records together with their
        entries in the transaction index: with records of the older version and the index of the newer one, a
        consumer would take aborted records for committed ones.
        """
        return await self._retrying(
            where, lambda state: self._read_committed(where, state, offset, max_bytes, min_one)
        )

    async def offset_for_timestamp(self, where: TopicIdPartition, timestamp: int) -> FoundRecord | None:
        """The first remote record at or after a timestamp, or None."""
        return await self._retrying(where, lambda state: self._find_time(where, state, timestamp))

    async def largest_timestamp(self, where: TopicIdPartition, above: int) -> FoundRecord | None:
        """The first remote record with the largest timestamp; None if none is larger than `above`."""
        return await self._retrying(where, lambda state: self._find_largest(where, state, above))

    async def locate(self, where: TopicIdPartition, offset: int) -> RemotePlace:
        """Object, position and batch of an offset; for `tier explain`."""
        batch = await self._retrying(where, lambda state: self._find(where, state, offset))
        if batch is None:
            raise ObjectNotFound(f"{where}: compaction has removed offset {offset} and all remote ones above")
        header = batch.header
        key = self._keys.log(where, batch.index.entry)
        return RemotePlace(key, batch.position, header.size, header.base_offset, header.last_offset)

    async def history(self, where: TopicIdPartition, offset: int) -> RemoteHistory:
        """State at the end of the segment that contains an offset (KIP-405). Raises ObjectStoreError, also if
        the manifest does not contain the offset yet."""
        return await self._retrying(where, lambda state: self._history(where, state, offset))

    async def pages_to(
        self, where: TopicIdPartition, nodes: Sequence[ManifestNode], offset: int
    ) -> dict[UUID, tuple[ManifestNode, ...]]:
        """The pages that lead from these nodes of the quorum to an offset. Raises ObjectStoreError."""
        self._note_read(where)
        pages: dict[UUID, tuple[ManifestNode, ...]] = {}
        at = index_of(nodes, offset)
        while at is not None and isinstance(page := nodes[at], PageRef):
            nodes = pages[page.uuid] = await self._indexes.page(where, page)
            at = index_of(nodes, offset)
        return pages

    async def entry(self, where: TopicIdPartition, offset: int) -> RemoteSegment:
        """The newest manifest's entry of an offset. Raises ObjectNotFound, or another ObjectStoreError."""
        return await self._entry(where, self._resolve(where), offset)

    async def entries(self, where: TopicIdPartition, offset: int = 0) -> AsyncIterator[RemoteSegment]:
        """Entries that end above an offset, oldest first. If pages are replaced and deleted before the caller
        reaches them, the newest manifest continues. Raises ObjectStoreError."""
        while True:
            remote = self._resolve(where)
            try:
                async for entry in self._entries_from(where, remote, offset):
                    yield entry
                    offset = entry.end_offset
                return
            except ObjectNotFound:
                if self._resolve(where) is remote:
                    raise

    @property
    def indexes(self) -> SegmentIndexes:
        return self._indexes

    @property
    def index_bytes(self) -> int:
        """Memory of the loaded indexes."""
        return self._indexes.index_bytes

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        """Evict cached data of segments that left their manifest, in later turns of the event loop. Called
        for each new image; looks only at partitions that were read."""
        if old.topics is not new.topics:
            self.fetches.retain(new.topics)
        if old.remote is new.remote:
            return
        self._looks.add(self._read_of)

    def _look(self, where: TopicIdPartition) -> None:
        remote, seen = self._resolve(where), self._read_of.get(where)
        if remote.first_offset is None:
            self._read_of.pop(where, None)
            self._evictions.add([(where, sys.maxsize)])
        elif seen is not None and remote.log_start_offset != seen:
            self._read_of[where] = remote.log_start_offset
            self._evictions.add([(where, remote.log_start_offset)])

    def _evict(self, eviction: tuple[TopicIdPartition, int]) -> None:
        where, below = eviction
        has_more = self.cache.forget(where, below, EVICTED_AT_ONCE)
        has_more |= self._indexes.forget(where, below, EVICTED_AT_ONCE)
        self.quarantine.forget(where, below)
        if has_more:
            self._evictions.add([eviction])

    def _note_read(self, where: TopicIdPartition) -> None:
        if where not in self._read_of:
            self._read_of[where] = self._resolve(where).log_start_offset

    def recheck(self) -> None:
        """Read the ranges in quarantine that are due again, so that one which reads well leaves although no
        consumer asks for it. Called by the tiering timer."""
        if self.quarantine.due() and (self._rechecks is None or self._rechecks.done()):
            self._rechecks = self._tasks.spawn("re-check of damaged objects", self._recheck())

    async def _recheck(self) -> None:
        for recheck in self.quarantine.due():
            with suppress(ObjectStoreError, OSError):
                await recheck()

    async def _retrying(self, where: TopicIdPartition, work: Callable[[RemotePartition], Awaitable[T]]) -> T:
        """Run the work; if an object is missing, once more with the newest manifest."""
        self._note_read(where)
        try:
            try:
                return await work(self._resolve(where))
            except ObjectNotFound:
                return await work(self._resolve(where))
        except (RemoteReadFailed, CorruptObject):
            raise
        except (ObjectStoreError, OSError) as error:
            raise RemoteReadFailed(f"{where}: {error}") from error

    async def _read(
        self, where: TopicIdPartition, remote: RemotePartition, offset: int, max_bytes: int, min_one: bool
    ) -> LogSlice:
        now_s = asyncio.get_running_loop().time()
        reader = self._sequential.at(where, offset, now_s)
        batch = await self._find(where, remote, offset, is_urgent=not reader.window)
        if batch is None:
            return empty_slice(remote.end_offset or offset)
        self._follow_reader(where, remote, reader, batch)
        if batch.header.size > max_bytes and not min_one:
            return empty_slice(offset)
        end, end_offset = _complete_batches(batch, max_bytes)
        chunk, base = batch.chunk, batch.chunk.key.start
        part = await self.cache.part(chunk, batch.position - base, end - base)
        return self._served(reader, batch, part, end, end_offset)

    async def _read_committed(
        self, where: TopicIdPartition, remote: RemotePartition, offset: int, max_bytes: int, min_one: bool
    ) -> tuple[LogSlice, list[tuple[int, int]]]:
        found = await self._read(where, remote, offset, max_bytes, min_one)
        if not found.size:
            return found, []
        return found, await self._aborted(where, remote, offset, found.end_offset)

    def read_cached(
        self, where: TopicIdPartition, offset: int, max_bytes: int, *, min_one: bool, committed: bool = False
    ) -> LogSlice | None:
        """`read`, if that needs no wait; else None. `committed`: only if the segment has no aborted ones."""
        remote = self._resolve(where)
        entry = self._entry_ahead(where, remote, offset)
        if entry is None or (committed and entry.has_aborts):
            return None
        if (index := self._indexes.loaded(entry)) is None:
            return None
        batch = None
        for key in index.chunks_from(offset):
            if (chunk := self.cache.in_memory(key)) is None:
                return None
            if (batch := _find_in(chunk, index, offset)) is not None:
                break
        if batch is None:
            return None
        reader = self._sequential.at(where, offset, asyncio.get_running_loop().time())
        self._follow_reader(where, remote, reader, batch)
        if batch.header.size > max_bytes and not min_one:
            return empty_slice(offset)
        end, end_offset = _complete_batches(batch, max_bytes)
        chunk, base = batch.chunk, batch.chunk.key.start
        part = self.cache.lend(chunk, batch.position - base, end - base)
        self.cache.counts.hits += part is not None  # otherwise `read` counts it
        return None if part is None else self._served(reader, batch, part, end, end_offset)

    def _follow_reader(
        self, where: TopicIdPartition, remote: RemotePartition, reader: SequentialReader, batch: _Batch
    ) -> None:
        """Read ahead of a reader that has reached a batch."""
        reader.enter(batch.chunk.key)
        if not reader.is_ahead:
            share = self._sequential.share(reader, self.cache.read_aheads_max)
            reader.is_ahead = self._read_ahead(where, remote, batch, share)

    def _served(
        self, reader: SequentialReader, batch: _Batch, part: Part, end: int, end_offset: int
    ) -> LogSlice:
        """The slice from a batch to a position in its segment."""
        self._sequential.advance(reader, end_offset, asyncio.get_running_loop().time())
        if end == batch.chunk.key.end:
            self.cache.passed(batch.chunk)
        return LogSlice((part,), end - batch.position, batch.header.base_offset, end_offset)

    def _is_needed(self, chunk: Chunk) -> bool:
        now_s = asyncio.get_running_loop().time()
        return self._sequential.is_awaited(chunk.key.partition, chunk.batches.end_offset, now_s)

    async def _find(
        self, where: TopicIdPartition, remote: RemotePartition, offset: int, *, is_urgent: bool = False
    ) -> _Batch | None:
        """The first batch with records that ends above an offset of the remote log; None if compaction has
        removed them all. librdkafka gives up after a few responses without records, and each segment that
        compaction has emptied would be one. `is_urgent`: whether nothing was read ahead for it."""
        while True:
            entry = await self._entry(where, remote, offset)
            if entry.records:
                index = await self._indexes.index(where, entry)
                for key in index.chunks_from(offset):
                    batch = await self._find_in(where, index, key, offset, is_urgent)
                    if batch is not None:
                        return batch
            offset = entry.end_offset
            if offset == remote.end_offset:
                return None

    async def _find_in(
        self, where: TopicIdPartition, index: SegmentIndex, key: ChunkKey, offset: int, is_urgent: bool
    ) -> _Batch | None:
        """The first batch of a chunk that ends above an offset and has records."""
        return _find_in(
            await self.cache.get(key, self._download(where, index, key, is_urgent)), index, offset
        )

    async def _entry(self, where: TopicIdPartition, remote: RemotePartition, offset: int) -> RemoteSegment:
        nodes = _nodes_at(remote, offset)
        while (at := index_of(nodes, offset)) is not None:
            node = nodes[at]
            if isinstance(node, RemoteSegment):
                return node
            nodes = await self._indexes.page(where, node)
        raise ObjectNotFound(f"{where}: no manifest entry contains offset {offset}")

    def _is_listed(self, place: ObjectRange) -> bool | None:
        """Whether the newest manifest lists the object. None if a page that may do so is not in memory."""
        where, remote = place.partition, self._resolve(place.partition)
        if place.end_offset <= remote.log_start_offset:
            return False
        nodes = _nodes_at(remote, place.first_offset)
        while (at := index_of(nodes, place.first_offset)) is not None:
            node = nodes[at]
            if isinstance(node, RemoteSegment):
                return place.key in (self._keys.log(where, node), self._keys.index(where, node))
            if place.key == self._keys.page(where, node):
                return True
            below = self._indexes.loaded_page(where, node)
            if below is None:
                return None
            nodes = below
        return False

    async def _history(self, where: TopicIdPartition, remote: RemotePartition, offset: int) -> RemoteHistory:
        """Bundles of older versions contain only their own segment's epochs, so the epochs of earlier
        manifest entries are added."""
        entry = await self._entry(where, remote, offset)
        bundle = await self._indexes.bundle(where, entry)
        before = [
            line for other in remote.entries if other.end_offset <= offset for line in other.leader_epochs
        ]
        return RemoteHistory(entry.end_offset, (*before, *bundle.leader_epochs), bundle.producer_snapshot)

    async def _entries_from(
        self, where: TopicIdPartition, remote: RemotePartition, offset: int, least_timestamp: int = -1
    ) -> AsyncIterator[RemoteSegment]:
        """Entries that end above an offset, oldest first. Pages whose timestamps are all lower are not
        loaded."""
        left = list(reversed(remote.nodes))
        while left:
            node = left.pop()
            if node.last_offset < offset:
                continue
            if isinstance(node, RemoteSegment):
                yield node
            elif node.max_timestamp >= least_timestamp:
                left += reversed(await self._indexes.page(where, node))

    async def _find_time(
        self, where: TopicIdPartition, remote: RemotePartition, timestamp: int
    ) -> FoundRecord | None:
        least = remote.log_start_offset
        async for entry in self._entries_from(where, remote, least, timestamp):
            if entry.max_timestamp >= timestamp:
                found = await self._first_at_time(where, entry, timestamp, least)
                if found is not None:
                    return found
        return None

    async def _first_at_time(
        self, where: TopicIdPartition, entry: RemoteSegment, timestamp: int, least: int
    ) -> FoundRecord | None:
        index = await self._indexes.index(where, entry)
        for key in index.chunks_from(least, newer_than=timestamp - 1):
            found = await self._search(where, index, key, partial(_first_at_time, timestamp, least))
            if found is not None:
                return found
        return None

    async def _largest_in(
        self, where: TopicIdPartition, entry: RemoteSegment, above: int, least: int
    ) -> FoundRecord | None:
        index, best = await self._indexes.index(where, entry), None
        for key in index.chunks_from(least, newer_than=above):
            if index.row(key).max_timestamp <= above:
                continue  # an earlier chunk has a newer record
            found = await self._search(where, index, key, partial(_largest_timestamp, above, least))
            if found is not None:
                best, above = found, found[1]
        return best

    async def _find_largest(
        self, where: TopicIdPartition, remote: RemotePartition, above: int
    ) -> FoundRecord | None:
        """Segments with the largest timestamps first. A segment's maximum may lie below the log start, or be
        its time of writing: then its batches are searched."""
        best, start = None, remote.log_start_offset
        nodes = [node for node in remote.nodes if node.last_offset >= start]
        heap = [(-node.max_timestamp, node.base_offset, node) for node in nodes]
        heapify(heap)
        while heap and -heap[0][0] > above:
            newest, _, one = heappop(heap)
            if isinstance(one, PageRef):
                for below in await self._indexes.page(where, one):
                    if below.last_offset >= start:
                        heappush(heap, (-below.max_timestamp, below.base_offset, below))
                continue
            found = await self._first_at_time(where, one, -newest, start)
            if found is None:
                found = await self._largest_in(where, one, above, start)
            if found is not None and found[1] > above:
                best, above = found, found[1]
        return best

    @safeguard("a remote read lists aborted transactions")
    async def _aborted(
        self, where: TopicIdPartition, remote: RemotePartition, start: int, end: int
    ) -> list[tuple[int, int]]:
        """Each segment's index lists all aborted transactions that overlap the segment."""
        found: set[AbortedTxn] = set()  # a transaction may span several segments
        async for entry in self._entries_from(where, remote, start):
            if entry.base_offset >= end:
                break
            if entry.has_aborts:
                index = await self._indexes.index(where, entry)
                found.update(find_aborted(await self._indexes.txn_index(index), start, end))
        lines = sorted(found, key=lambda line: line.first_offset)
        return [(line.producer_id, line.first_offset) for line in lines]

    async def _search(
        self,
        where: TopicIdPartition,
        index: SegmentIndex,
        key: ChunkKey,
        search: Callable[[Chunk], FoundRecord | None],
    ) -> FoundRecord | None:
        """Search one chunk. As in `_find_in`, it is released when this returns: no reader holds memory while
        it waits for some."""
        chunk = await self.cache.get(key, self._download(where, index, key))
        return await asyncio.to_thread(search, chunk)

    def _download(
        self, where: TopicIdPartition, index: SegmentIndex, key: ChunkKey, is_urgent: bool = False
    ) -> Download:
        async def download(buffer: memoryview) -> BatchMarks:
            name = self._keys.log(where, index.entry)
            place = ObjectRange(where, name, key.start, *index.offsets_of(key))
            return await self.quarantine.read(
                place,
                lambda: download_chunk(
                    self._store, name, index, key, buffer, self.cache.run, is_urgent=is_urgent
                ),
                recheck=lambda: self.locate(where, place.first_offset),  # the buffer belongs to the cache
            )

        return download

    def _read_ahead(
        self, where: TopicIdPartition, remote: RemotePartition, batch: _Batch, window: int
    ) -> bool:
        """Start to download the next `window` chunks, also those of the next segments. A segment whose index
        is not in memory is passed over while that is loaded. Returns whether all have begun."""
        is_complete = True
        entry, index, position = batch.index.entry, batch.index, batch.chunk.key.end
        while window > 0:
            if position < entry.log_bytes:
                key = index.chunk_at(position)
                if not self.cache.read_ahead(key, self._download(where, index, key)):
                    return False
                window, position = window - 1, key.end
                continue
            following = self._entry_ahead(where, remote, entry.end_offset)
            if following is None:
                return False
            entry, position, loaded = following, 0, self._indexes.loaded(following)
            if loaded is None:
                self._load_ahead(where, entry.uuid, partial(self._first_chunk_ahead, where, entry))
                window, position = window - -(-entry.log_bytes // CHUNK_BYTES), entry.log_bytes
                is_complete = False
            else:
                index = loaded
        return is_complete

    def _entry_ahead(
        self, where: TopicIdPartition, remote: RemotePartition, offset: int
    ) -> RemoteSegment | None:
        """The segment that contains an offset. If the page that names it is not in memory, its load
        begins."""
        nodes = _nodes_at(remote, offset)
        while (at := index_of(nodes, offset)) is not None:
            node = nodes[at]
            if isinstance(node, RemoteSegment):
                return node
            below = self._indexes.loaded_page(where, node)
            if below is None:
                self._load_ahead(where, node.uuid, partial(self._indexes.page, where, node))
                return None
            nodes = below
        return None

    async def _first_chunk_ahead(self, where: TopicIdPartition, entry: RemoteSegment) -> None:
        index = await self._indexes.index(where, entry)
        key = index.chunk_at(0)
        self.cache.read_ahead(key, self._download(where, index, key))

    def _load_ahead(self, where: TopicIdPartition, what: UUID, load: Callable[[], Awaitable[object]]) -> None:
        if what in self._indexes_ahead or len(self._indexes_ahead) >= INDEXES_AHEAD_MAX:
            return

        async def work() -> None:
            with suppress(ObjectStoreError, OSError):  # a later read gets the error
                await load()

        self._indexes_ahead.add(what)
        task = self._tasks.spawn(f"read ahead of {where}", work())
        task.add_done_callback(lambda _: self._indexes_ahead.discard(what))


def _nodes_at(remote: RemotePartition, offset: int) -> Sequence[ManifestNode]:
    """The entries or the pages of the quorum, whichever may contain an offset."""
    in_entries = bool(remote.entries) and offset >= remote.entries[0].base_offset
    return remote.entries if in_entries else remote.pages


def _find_in(chunk: Chunk, index: SegmentIndex, offset: int) -> _Batch | None:
    """The first batch of a chunk that ends above an offset and has records."""
    position = chunk.key.start + chunk.batches.position_for(offset)
    while position < chunk.key.end:
        header = _header_at(chunk, position)
        if header.last_offset >= offset and header.record_count:
            return _Batch(chunk, index, position, header)
        position += header.size
    return None


def _header_at(chunk: Chunk, position: int) -> BatchHeader:
    """Batch header in a cached chunk, which was verified after its download."""
    try:
        start = position - chunk.key.start
        return read_header(chunk.content(start, start + HEADER_SIZE))
    except RecordsError as error:
        raise CorruptObject(f"cached chunk {chunk.key}: {error}") from error


def _complete_batches(batch: _Batch, max_bytes: int) -> tuple[int, int]:
    """End position and end offset of the complete batches within max_bytes, at least of the first batch."""
    chunk, limit = batch.chunk, batch.position + max_bytes
    if chunk.key.end <= limit:
        return chunk.key.end, chunk.batches.end_offset
    position, header = batch.position, batch.header
    known = chunk.key.start + chunk.batches.at_or_below(limit - chunk.key.start)
    if known > position:  # skip most headers
        position, header = known, _header_at(chunk, known)
        if position + header.size > limit:
            return position, header.base_offset
    while position + header.size < chunk.key.end:
        following = _header_at(chunk, position + header.size)
        if position + header.size + following.size > limit:
            break
        position, header = position + header.size, following
    return position + header.size, header.next_offset


def _first_at_time(timestamp: int, least_offset: int, chunk: Chunk) -> FoundRecord | None:
    """The first record with at least this timestamp and offset."""
    for header, window in _windows(chunk, timestamp, least_offset):
        found, _ = run_all_steps(find_timestamp(window, header, timestamp, least_offset))
        if found is not None:
            return found.offset, found.timestamp, header.leader_epoch
    return None


def _largest_timestamp(above: int, least_offset: int, chunk: Chunk) -> FoundRecord | None:
    """The first record with the largest timestamp above `above`, at or after an offset."""
    best = None
    for header, window in _windows(chunk, above + 1, least_offset):
        _, newest = run_all_steps(find_timestamp(window, header, MAX_LONG, least_offset))
        if newest is not None and newest.timestamp > above:
            best, above = (newest.offset, newest.timestamp, header.leader_epoch), newest.timestamp
    return best


def _windows(chunk: Chunk, timestamp: int, least_offset: int) -> Iterator[tuple[BatchHeader, Window]]:
    """The batches that may have a record with at least this timestamp and offset."""
    position = chunk.batches.position_for(least_offset)
    part = chunk.content(position, chunk.key.size)
    try:
        for at, header in iter_batches(part):
            if header.max_timestamp >= timestamp and header.last_offset >= least_offset:
                yield header, Window(record_pieces(part, at, header, NO_BOUND))
    except RecordsError as error:
        raise CorruptObject(f"cached chunk {chunk.key}: {error}") from error
