"""In-memory cache of remote segments' indexes and of manifest pages.

Everything is verified against the manifest entry (size, checksum, contents) before use. Concurrent readers
share one load per object, and a reader that is cancelled does not cancel the load. Called by the remote log.
"""

import asyncio
import uuid
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import crc32c

from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicIdPartition
from tierlog.metadata.records import PageRef, RemoteSegment
from tierlog.records.errors import RecordsError
from tierlog.records.indexes import (
    OFFSET_ENTRY,
    OffsetEntry,
    decode_offset_index,
    decode_time_index,
    decode_txn_index,
)
from tierlog.tiering.chunk_cache import CHUNK_BYTES, ChunkKey
from tierlog.tiering.format.bundle import BundleError, IndexBundle, decode_bundle
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.format.manifest import ManifestError, decode_page
from tierlog.tiering.object_store import CorruptObject, ObjectStore
from tierlog.tiering.quarantine import ObjectRange, Quarantine
from tierlog.tiering.single_flight import SingleFlightCache

INDEX_BUDGET_BYTES = 64 << 20
"""A full 1 GiB segment has about 2.5 MB of indexes, so this is enough for about 25 readers of old
segments."""

INDEX_OVERHEAD_BYTES = 2 << 10
"""Memory besides the index bytes (manifest entry, chunk boundaries, objects): the larger part for small
segments."""

PAGES_KEPT = 64
LARGEST_INDEX_BYTES = 64 << 20
LOADS_AT_ONCE = 8

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """Verified indexes of a remote segment. `boundaries`: positions between its chunks, including start and
    end."""

    partition: TopicIdPartition
    entry: RemoteSegment
    offset_index: bytes
    time_index: bytes
    txn_index: bytes
    boundaries: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.offset_index) + len(self.time_index) + len(self.txn_index)

    def chunk_at(self, position: int) -> ChunkKey:
        """The chunk that contains a position."""
        at = bisect_right(self.boundaries, position) - 1
        return ChunkKey(self.partition, self.entry.uuid, self.boundaries[at], self.boundaries[at + 1])

    def batch_end_at(self, position: int) -> int | None:
        """The end offset of the batch at a position, if the offset index has an entry for it."""
        relative, found = self._line_at_or_below(position)
        return self.entry.base_offset + relative + 1 if found == position else None

    def offsets_of(self, chunk: ChunkKey) -> tuple[int, int]:
        """An offset of the chunk's first batch, and an offset above which no batch of the chunk ends: the
        segment's end, or the last offset of the next chunk's first batch, which may begin there."""
        first = self.batch_end_at(chunk.start) if chunk.start else None
        following = self.batch_end_at(chunk.end) if chunk.end < self.entry.log_bytes else None
        return (
            self.entry.base_offset if first is None else first - 1,
            self.entry.end_offset if following is None else following - 1,
        )

    def boundary_at_or_below(self, position: int) -> int:
        """The last batch boundary in the offset index at or below a position."""
        return max(0, self._line_at_or_below(position)[1])

    def _line_at_or_below(self, position: int) -> tuple[int, int]:
        """(relative offset, position), or (-1, -1) if there is none."""
        index = self.offset_index
        lines = range(0, len(index), OFFSET_ENTRY.size)
        at = bisect_right(lines, position, key=lambda line: OFFSET_ENTRY.unpack_from(index, line)[1]) - 1
        relative, found = OFFSET_ENTRY.unpack_from(index, lines[at]) if at >= 0 else (-1, -1)
        return relative, found


class SegmentIndexes:
    """Loads the index bundles and pages of one cluster's bucket."""

    def __init__(self, store: ObjectStore, keys: Keys, tasks: TaskGroup, quarantine: Quarantine) -> None:
        self._store = store
        self._keys = keys
        self._quarantine = quarantine
        self._slots = asyncio.Semaphore(LOADS_AT_ONCE)
        self._indexes: SingleFlightCache[uuid.UUID, SegmentIndex] = SingleFlightCache(
            tasks, INDEX_BUDGET_BYTES, lambda index: index.size + INDEX_OVERHEAD_BYTES, self._slots
        )
        self._pages: SingleFlightCache[tuple[TopicIdPartition, uuid.UUID], tuple[RemoteSegment, ...]] = (
            SingleFlightCache(tasks, PAGES_KEPT, lambda _: 1, self._slots)
        )

    async def index(self, partition: TopicIdPartition, entry: RemoteSegment) -> SegmentIndex:
        """The verified indexes of a segment. Raises ObjectStoreError (ObjectNotFound if missing)."""
        return await self._indexes.get(entry.uuid, lambda: self._load_index(partition, entry))

    def loaded(self, entry: RemoteSegment) -> SegmentIndex | None:
        return self._indexes.peek(entry.uuid)

    @property
    def index_bytes(self) -> int:
        """Memory of the loaded indexes."""
        return self._indexes.weight

    def forget(self, partition: TopicIdPartition, below: int) -> None:
        """Evict the partition's indexes and pages that end at or below an offset: they left the manifest."""
        self._indexes.forget(
            lambda _, index: index.partition == partition and index.entry.end_offset <= below
        )
        self._pages.forget(lambda key, entries: key[0] == partition and entries[-1].end_offset <= below)

    async def page(self, partition: TopicIdPartition, ref: PageRef) -> tuple[RemoteSegment, ...]:
        """The entries of a page. Raises ObjectStoreError (ObjectNotFound if missing)."""
        return await self._pages.get((partition, ref.uuid), lambda: self._load_page(partition, ref))

    async def bundle(self, partition: TopicIdPartition, entry: RemoteSegment) -> IndexBundle:
        """The complete index bundle of a segment, verified and not cached. Raises ObjectStoreError."""
        async with self._slots:
            return await self._read_bundle(partition, entry, decode_bundle)

    async def _load_index(self, partition: TopicIdPartition, entry: RemoteSegment) -> SegmentIndex:
        return await self._read_bundle(partition, entry, partial(decode_index, partition, entry))

    async def _read_bundle(
        self, partition: TopicIdPartition, entry: RemoteSegment, decode: Callable[[bytes], T]
    ) -> T:
        key = self._keys.index(partition, entry)

        async def load() -> T:
            if entry.index_bytes > LARGEST_INDEX_BYTES:
                raise CorruptObject(f"{key}: {entry.index_bytes} bytes of indexes exceed the limit")
            data = await self._fetch(key, entry.index_crc32c)
            if len(data) != entry.index_bytes:
                raise CorruptObject(f"{key}: {len(data)} bytes, expected {entry.index_bytes} by the manifest")
            try:
                return await asyncio.to_thread(decode, data)
            except (BundleError, RecordsError) as error:
                raise CorruptObject(f"{key}: {error}") from error

        place = ObjectRange(partition, key, 0, entry.base_offset, entry.end_offset)
        return await self._quarantine.read(place, load)

    async def _fetch(self, key: str, checksum: int) -> bytes:
        """A complete object."""
        data = await self._store.get(key)
        if crc32c.crc32c(data) != checksum:
            raise CorruptObject(f"{key}: the checksum differs from the manifest")
        return data

    async def _load_page(self, partition: TopicIdPartition, ref: PageRef) -> tuple[RemoteSegment, ...]:
        key = self._keys.page(partition, ref)

        async def load() -> tuple[RemoteSegment, ...]:
            data = await self._fetch(key, ref.crc32c)
            try:
                page = decode_page(data, ref)
            except ManifestError as error:
                raise CorruptObject(f"{key}: {error}") from error
            if (page.topic_id, page.partition) != partition:
                raise CorruptObject(f"{key}: the page belongs to another partition")
            return page.entries

        place = ObjectRange(partition, key, 0, ref.base_offset, ref.last_offset + 1)
        return await self._quarantine.read(place, load)


def decode_index(partition: TopicIdPartition, entry: RemoteSegment, data: bytes) -> SegmentIndex:
    """Decode and validate all indexes of a bundle. Raises BundleError or RecordsError."""
    bundle = decode_bundle(data)
    for _ in decode_time_index(bundle.time_index, entry.base_offset):
        pass
    for _ in decode_txn_index(bundle.txn_index):
        pass
    boundaries = [0]
    for line in decode_offset_index(bundle.offset_index, entry.base_offset):
        _check_entry(entry, line)
        if line.position - boundaries[-1] >= CHUNK_BYTES:
            boundaries.append(line.position)
    return SegmentIndex(
        partition,
        entry,
        bundle.offset_index,
        bundle.time_index,
        bundle.txn_index,
        (*boundaries, entry.log_bytes),
    )


def _check_entry(entry: RemoteSegment, line: OffsetEntry) -> None:
    if line.offset > entry.last_offset or line.position >= entry.log_bytes:
        raise BundleError(f"offset index: {line} is outside the segment")
