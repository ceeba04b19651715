"""In-memory cache of remote segments' indexes and of manifest pages.

Pages and complete bundles are verified against the manifest (size, checksum), a chunk table by its own
checksum and the segment that it names. Concurrent readers share one load per object, and a reader that is
cancelled does not cancel the load. Called by the remote log.
"""

import asyncio
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TypeVar

import crc32c

from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicIdPartition
from tierlog.metadata.records import ManifestNode, PageRef, RemoteSegment
from tierlog.records.chunks import CHUNK_BYTES, ChunkEntry
from tierlog.records.errors import RecordsError
from tierlog.records.indexes import (
    OffsetEntry,
    TimeEntry,
    check_txn_index,
    decode_offset_index,
    decode_time_index,
)
from tierlog.tiering.chunk_cache import ChunkKey
from tierlog.tiering.format.bundle import (
    HEAD_BYTES,
    BundleError,
    IndexBundle,
    Place,
    Section,
    chunks_of,
    decode_bundle,
    read_places,
    section,
    txn_place,
)
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.format.manifest import ManifestError, decode_page
from tierlog.tiering.object_store import CorruptObject, ObjectStore
from tierlog.tiering.page_tree import NODE_BYTES
from tierlog.tiering.quarantine import ObjectRange, Quarantine
from tierlog.tiering.single_flight import SingleFlightCache

INDEX_BUDGET_BYTES = 64 << 20
"""For the chunks of about 2,400 segments of 1 GiB."""

CHUNK_MEMORY_BYTES = 200
INDEX_OVERHEAD_BYTES = 2 << 10
"""Memory of a chunk's entry, and of an index besides those (manifest entry, objects)."""

TXN_BUDGET_BYTES = 8 << 20

PAGES_BUDGET_BYTES = 64 << 20
PAGE_OVERHEAD_BYTES = 2 << 10
"""Memory of a page besides its entries and references. Default budget of all loaded pages."""

LARGEST_INDEX_BYTES = 64 << 20
LOADS_AT_ONCE = 8

WHOLE_BUNDLE = -1
"""The position under which a complete bundle is in quarantine: readers of chunks need only its head."""

T = TypeVar("T")
_TxnKey = tuple[TopicIdPartition, int, uuid.UUID]  # the segment's end offset and id


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """The chunks of a remote segment, in order, and where its transaction index is.

    Bundles of earlier versions have no chunk table (`has_checksums` is False). Their chunks are taken from
    the other indexes: the first offset is the last one of the first batch, the timestamp an upper bound, and
    each batch is verified.
    """

    partition: TopicIdPartition
    entry: RemoteSegment
    chunks: tuple[ChunkEntry, ...]
    has_checksums: bool
    txn_index: Place

    @property
    def size(self) -> int:
        return len(self.chunks) * CHUNK_MEMORY_BYTES

    def chunks_from(self, offset: int, newer_than: int = -2) -> Iterator[ChunkKey]:
        """The chunks from the one that may have a batch with this offset on, whose records may have a
        timestamp above `newer_than` (in milliseconds; -1 is that of records without one)."""
        first = max(0, bisect_right(self.chunks, offset, key=lambda chunk: chunk.first_offset) - 1)
        for number in range(first, len(self.chunks)):
            if self.chunks[number].max_timestamp > newer_than:
                yield self._key(number)

    def chunk_at(self, position: int) -> ChunkKey:
        """The chunk that contains a position."""
        return self._key(self._number_at(position))

    def row(self, chunk: ChunkKey) -> ChunkEntry:
        """The entry of a chunk in the chunk table."""
        return self.chunks[self._number_at(chunk.start)]

    def offsets_of(self, chunk: ChunkKey) -> tuple[int, int]:
        """The chunk's first offset, and the offset above which no batch of it ends: the next chunk's first
        offset, or the segment's end."""
        number = self._number_at(chunk.start)
        first = self.chunks[number].first_offset if number else self.entry.base_offset
        is_last = number + 1 == len(self.chunks)
        return first, self.entry.end_offset if is_last else self.chunks[number + 1].first_offset

    def _number_at(self, position: int) -> int:
        return bisect_right(self.chunks, position, key=lambda chunk: chunk.position) - 1

    def _key(self, number: int) -> ChunkKey:
        is_last = number + 1 == len(self.chunks)
        end = self.entry.log_bytes if is_last else self.chunks[number + 1].position
        return ChunkKey(self.partition, self.entry.uuid, self.chunks[number].position, end)


class SegmentIndexes:
    """Loads the index bundles and pages of one cluster's bucket."""

    def __init__(
        self,
        store: ObjectStore,
        keys: Keys,
        tasks: TaskGroup,
        quarantine: Quarantine,
        pages_budget_bytes: int = PAGES_BUDGET_BYTES,
    ) -> None:
        self._store = store
        self._keys = keys
        self._quarantine = quarantine
        self._slots = asyncio.Semaphore(LOADS_AT_ONCE)
        self._indexes: SingleFlightCache[uuid.UUID, SegmentIndex] = SingleFlightCache(
            tasks,
            INDEX_BUDGET_BYTES,
            lambda index: index.size + INDEX_OVERHEAD_BYTES,
            self._slots,
            lambda _, index: index.partition,
        )
        self._txn_indexes: SingleFlightCache[_TxnKey, bytes] = SingleFlightCache(
            tasks,
            TXN_BUDGET_BYTES,
            lambda data: len(data) + INDEX_OVERHEAD_BYTES,
            self._slots,
            lambda key, _: key[0],
        )
        self._pages: SingleFlightCache[tuple[TopicIdPartition, uuid.UUID], tuple[ManifestNode, ...]] = (
            SingleFlightCache(
                tasks,
                pages_budget_bytes,
                lambda nodes: len(nodes) * NODE_BYTES + PAGE_OVERHEAD_BYTES,
                self._slots,
                lambda key, _: key[0],
            )
        )

    async def index(self, partition: TopicIdPartition, entry: RemoteSegment) -> SegmentIndex:
        """The verified indexes of a segment. Raises ObjectStoreError (ObjectNotFound if missing)."""
        return await self._indexes.get(entry.uuid, lambda: self._load_index(partition, entry))

    def loaded(self, entry: RemoteSegment) -> SegmentIndex | None:
        return self._indexes.find(entry.uuid)

    def loaded_page(self, partition: TopicIdPartition, ref: PageRef) -> tuple[ManifestNode, ...] | None:
        return self._pages.find((partition, ref.uuid))

    @property
    def index_bytes(self) -> int:
        """Memory of the loaded indexes."""
        return self._indexes.weight + self._txn_indexes.weight

    def forget(self, partition: TopicIdPartition, below: int, at_most: int) -> bool:
        """Evict the partition's indexes and pages that end at or below an offset: they left the manifest.
        Returns whether there may be more than `at_most` of a kind."""
        more = [
            self._txn_indexes.forget(partition, lambda key, _: key[1] <= below, at_most),
            self._indexes.forget(partition, lambda _, index: index.entry.end_offset <= below, at_most),
            self._pages.forget(partition, lambda _, nodes: nodes[-1].end_offset <= below, at_most),
        ]
        return any(more)

    @property
    def page_bytes(self) -> int:
        """Memory of the loaded pages."""
        return self._pages.weight

    async def page(self, partition: TopicIdPartition, ref: PageRef) -> tuple[ManifestNode, ...]:
        """The entries or references of a page. Raises ObjectStoreError (ObjectNotFound if missing)."""
        return await self._pages.get((partition, ref.uuid), lambda: self._load_page(partition, ref))

    async def txn_index(self, index: SegmentIndex) -> bytes:
        """The verified transaction index of a segment. Raises ObjectStoreError."""
        key = index.partition, index.entry.end_offset, index.entry.uuid
        return await self._txn_indexes.get(key, lambda: self._load_txn_index(index))

    async def bundle(self, partition: TopicIdPartition, entry: RemoteSegment) -> IndexBundle:
        """The complete index bundle of a segment, verified and not cached. Raises ObjectStoreError."""
        async with self._slots:
            return await self._read(
                partition, entry, WHOLE_BUNDLE, lambda key: self._bundle(key, entry, decode_bundle)
            )

    async def _load_index(self, partition: TopicIdPartition, entry: RemoteSegment) -> SegmentIndex:
        async def load(key: str) -> SegmentIndex:
            head = await self._store.get(key, 0, min(HEAD_BYTES, entry.index_bytes))
            index = index_of_head(partition, entry, head)
            if index is None:
                return await self._bundle(key, entry, partial(index_of_earlier_version, partition, entry))
            return index

        return await self._read(partition, entry, 0, load)

    async def _load_txn_index(self, index: SegmentIndex) -> bytes:
        place = index.txn_index

        async def load(key: str) -> bytes:
            if place.length > LARGEST_INDEX_BYTES:
                raise CorruptObject(f"{key}: {place.length} bytes of transactions exceed the limit")
            data = await self._store.get(key, place.position, place.position + place.length)
            found = section(data, Section.TXN_INDEX, place, begin=place.position)
            await asyncio.to_thread(check_txn_index, found)  # it may have a hundred thousand entries
            return found

        return await self._read(index.partition, index.entry, place.position, load)

    async def _bundle(self, key: str, entry: RemoteSegment, decode: Callable[[bytes], T]) -> T:
        if entry.index_bytes > LARGEST_INDEX_BYTES:
            raise CorruptObject(f"{key}: {entry.index_bytes} bytes of indexes exceed the limit")
        data = await self._fetch(key, entry.index_crc32c)
        if len(data) != entry.index_bytes:
            raise CorruptObject(f"{key}: {len(data)} bytes, expected {entry.index_bytes} by the manifest")
        return await asyncio.to_thread(decode, data)

    async def _read(
        self,
        partition: TopicIdPartition,
        entry: RemoteSegment,
        position: int,
        load: Callable[[str], Awaitable[T]],
    ) -> T:
        """Load a part of a segment's bundle that begins at a position, unless it is in quarantine."""
        key = self._keys.index(partition, entry)

        async def verified() -> T:
            try:
                return await load(key)
            except (BundleError, RecordsError) as error:
                raise CorruptObject(f"{key}: {error}") from error

        place = ObjectRange(partition, key, position, entry.base_offset, entry.end_offset)
        return await self._quarantine.read(place, verified)

    async def _fetch(self, key: str, checksum: int) -> bytes:
        """A complete object."""
        data = await self._store.get(key)
        if crc32c.crc32c(data) != checksum:
            raise CorruptObject(f"{key}: the checksum differs from the manifest")
        return data

    async def _load_page(self, partition: TopicIdPartition, ref: PageRef) -> tuple[ManifestNode, ...]:
        key = self._keys.page(partition, ref)

        async def load() -> tuple[ManifestNode, ...]:
            data = await self._fetch(key, ref.crc32c)
            try:
                page = await asyncio.to_thread(decode_page, data, ref)
            except ManifestError as error:
                raise CorruptObject(f"{key}: {error}") from error
            if (page.topic_id, page.partition) != partition:
                raise CorruptObject(f"{key}: the page belongs to another partition")
            return page.nodes

        place = ObjectRange(partition, key, 0, ref.base_offset, ref.last_offset + 1)
        return await self._quarantine.read(place, load)


def index_of_head(partition: TopicIdPartition, entry: RemoteSegment, head: bytes) -> SegmentIndex | None:
    """The index of a bundle that begins with these bytes; None if it has no chunk table. Raises
    BundleError."""
    places = read_places(head)
    chunks = chunks_of(entry, head, places)
    return None if chunks is None else SegmentIndex(partition, entry, chunks, True, txn_place(places))


def index_of_earlier_version(partition: TopicIdPartition, entry: RemoteSegment, data: bytes) -> SegmentIndex:
    """The index of a bundle without a chunk table. Raises BundleError or RecordsError."""
    bundle = decode_bundle(data)
    starts = [(0, entry.base_offset)]
    for line in decode_offset_index(bundle.offset_index, entry.base_offset):
        _check_entry(entry, line)
        if line.position - starts[-1][0] >= CHUNK_BYTES:
            starts.append((line.position, line.offset))
    times = [*decode_time_index(bundle.time_index, entry.base_offset)]
    chunks = [
        ChunkEntry(position, offset, _newest_until(end, times, entry), 0)
        for (position, offset), (_, end) in pairwise([*starts, (entry.log_bytes, entry.last_offset)])
    ]
    return SegmentIndex(partition, entry, tuple(chunks), False, txn_place(read_places(data)))


def _newest_until(offset: int, times: list[TimeEntry], entry: RemoteSegment) -> int:
    """No record up to the offset has a larger timestamp."""
    at = bisect_left(times, offset, key=lambda line: line.offset)
    return times[at].timestamp if at < len(times) else entry.max_timestamp


def _check_entry(entry: RemoteSegment, line: OffsetEntry) -> None:
    if line.offset > entry.last_offset or line.position >= entry.log_bytes:
        raise BundleError(f"offset index: {line} is outside the segment")
