"""Indexes and manifest pages of remote segments, loaded once and kept in memory under a budget.

Everything is verified against the manifest entry (size, checksum, contents) before it is used. One load at a
time per object, whoever asks; a waiter that gives up does not end it. Called by the remote log.
"""

import asyncio
import uuid
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

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
from tierlog.tiering.object_store import CorruptObject, ObjectStore, ObjectStoreError

INDEX_BUDGET_BYTES = 64 << 20
"""A full 1 GiB segment has about 2.5 MB of indexes; so this holds those of some 25 readers of history."""

INDEX_OVERHEAD_BYTES = 2 << 10
"""In memory beside the indexes: the entry of the manifest, cuts, objects. Of small segments it is most."""

PAGES_KEPT = 64
LARGEST_INDEX_BYTES = 64 << 20
LOADS_AT_ONCE = 8

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """The verified indexes of a remote segment, and where its chunks are cut (positions, end included)."""

    partition: TopicIdPartition
    entry: RemoteSegment
    offset_index: bytes
    time_index: bytes
    txn_index: bytes
    cuts: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.offset_index) + len(self.time_index) + len(self.txn_index)

    def chunk_at(self, position: int) -> ChunkKey:
        """The chunk that holds a position below the segment's end."""
        at = bisect_right(self.cuts, position) - 1
        return ChunkKey(self.partition, self.entry.uuid, self.cuts[at], self.cuts[at + 1])

    def batch_end_at(self, position: int) -> int | None:
        """The end offset of the batch at a position, if the offset index has a line for it."""
        relative, found = self._line_at_or_below(position)
        return self.entry.base_offset + relative + 1 if found == position else None

    def boundary_at_or_below(self, position: int) -> int:
        """The last batch boundary that the offset index knows at or below a position."""
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

    def __init__(self, store: ObjectStore, keys: Keys, tasks: TaskGroup) -> None:
        self._store = store
        self._keys = keys
        self._slots = asyncio.Semaphore(LOADS_AT_ONCE)
        self._indexes: LoadedOnce[uuid.UUID, SegmentIndex] = LoadedOnce(
            tasks, INDEX_BUDGET_BYTES, lambda index: index.size + INDEX_OVERHEAD_BYTES
        )
        self._pages: LoadedOnce[tuple[TopicIdPartition, uuid.UUID], tuple[RemoteSegment, ...]] = LoadedOnce(
            tasks, PAGES_KEPT, lambda _: 1
        )

    async def index(self, partition: TopicIdPartition, entry: RemoteSegment) -> SegmentIndex:
        """Raises ObjectStoreError, ObjectNotFound among them."""
        return await self._indexes.get(entry.uuid, lambda: self._load_index(partition, entry))

    def loaded(self, entry: RemoteSegment) -> SegmentIndex | None:
        return self._indexes.peek(entry.uuid)

    @property
    def index_bytes(self) -> int:
        """What the loaded indexes take in memory."""
        return self._indexes.weight

    def forget(self, partition: TopicIdPartition, below: int) -> None:
        """Drops indexes and pages of a partition that end at or below an offset: no manifest names them."""
        self._indexes.forget(
            lambda _, index: index.partition == partition and index.entry.end_offset <= below
        )
        self._pages.forget(lambda key, entries: key[0] == partition and entries[-1].end_offset <= below)

    async def page(self, partition: TopicIdPartition, ref: PageRef) -> tuple[RemoteSegment, ...]:
        """The entries of a page; raises ObjectStoreError, ObjectNotFound among them."""
        return await self._pages.get((partition, ref.uuid), lambda: self._load_page(partition, ref))

    async def bundle(self, partition: TopicIdPartition, entry: RemoteSegment) -> IndexBundle:
        """All companions of a segment, verified; not kept. Raises ObjectStoreError, ObjectNotFound among
        them.
        """
        data = await self._load_bundle(partition, entry)
        try:
            return decode_bundle(data)
        except BundleError as error:
            raise CorruptObject(f"{self._keys.index(partition, entry)}: {error}") from error

    async def _load_index(self, partition: TopicIdPartition, entry: RemoteSegment) -> SegmentIndex:
        data = await self._load_bundle(partition, entry)
        try:
            return await asyncio.to_thread(_index, partition, entry, data)
        except (BundleError, RecordsError) as error:
            raise CorruptObject(f"{self._keys.index(partition, entry)}: {error}") from error

    async def _load_bundle(self, partition: TopicIdPartition, entry: RemoteSegment) -> bytes:
        key = self._keys.index(partition, entry)
        if entry.index_bytes > LARGEST_INDEX_BYTES:
            raise CorruptObject(f"{key}: {entry.index_bytes} bytes of indexes are over the limit")
        data = await self._fetch(key, entry.index_crc32c)
        if len(data) != entry.index_bytes:
            raise CorruptObject(f"{key}: {len(data)} bytes, the manifest says {entry.index_bytes}")
        return data

    async def _fetch(self, key: str, checksum: int) -> bytes:
        """A whole object; damage may be the connection's, so a wrong checksum is given one more chance."""
        for _ in range(2):
            async with self._slots:
                data = await self._store.get(key)
            if crc32c.crc32c(data) == checksum:
                return data
        raise CorruptObject(f"{key}: not the bytes that the manifest names")

    async def _load_page(self, partition: TopicIdPartition, ref: PageRef) -> tuple[RemoteSegment, ...]:
        key = self._keys.page(partition, ref)
        data = await self._fetch(key, ref.crc32c)
        try:
            page = decode_page(data, ref)
        except ManifestError as error:
            raise CorruptObject(f"{key}: {error}") from error
        if (page.topic_id, page.partition) != partition:
            raise CorruptObject(f"{key}: a page of another partition")
        return page.entries


class LoadedOnce(Generic[K, V]):
    """Values by key under a budget, least recently used first to go; one load at a time per key."""

    def __init__(self, tasks: TaskGroup, budget: int, weigh: Callable[[V], int]) -> None:
        self._tasks = tasks
        self._budget = budget
        self._weigh = weigh
        self._weight = 0
        self._values: OrderedDict[K, V] = OrderedDict()
        self._loads: dict[K, asyncio.Task[V | ObjectStoreError]] = {}

    def peek(self, key: K) -> V | None:
        return self._values.get(key)

    def forget(self, is_useless: Callable[[K, V], bool]) -> None:
        """One that is being loaded is kept when it comes, until the budget takes it."""
        for key in [key for key, value in self._values.items() if is_useless(key, value)]:
            self._weight -= self._weigh(self._values.pop(key))

    @property
    def weight(self) -> int:
        return self._weight

    async def get(self, key: K, load: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """The value; raises the ObjectStoreError of its load."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]
        under_way = self._loads.get(key)
        if under_way is None:
            under_way = self._tasks.spawn(f"load {key}", self._load(load))
            self._loads[key] = under_way
            under_way.add_done_callback(lambda done: self._loaded(key, done))
        loaded = await asyncio.shield(under_way)
        if isinstance(loaded, ObjectStoreError):
            raise loaded
        return loaded

    async def _load(self, load: Callable[[], Coroutine[Any, Any, V]]) -> V | ObjectStoreError:
        try:
            return await load()
        except ObjectStoreError as error:
            return error

    def _loaded(self, key: K, done: "asyncio.Task[V | ObjectStoreError]") -> None:
        del self._loads[key]
        if done.cancelled() or done.exception() is not None:
            return
        value = done.result()
        if isinstance(value, ObjectStoreError):
            return
        self._values[key] = value
        self._weight += self._weigh(value)
        while self._weight > self._budget and len(self._values) > 1:
            self._weight -= self._weigh(self._values.popitem(last=False)[1])


def _index(partition: TopicIdPartition, entry: RemoteSegment, data: bytes) -> SegmentIndex:
    """Decodes and checks all indexes of a bundle; raises BundleError or RecordsError."""
    bundle = decode_bundle(data)
    for _ in decode_time_index(bundle.time_index, entry.base_offset):
        pass
    for _ in decode_txn_index(bundle.txn_index):
        pass
    cuts = [0]
    for line in decode_offset_index(bundle.offset_index, entry.base_offset):
        _check_line(entry, line)
        if line.position - cuts[-1] >= CHUNK_BYTES:
            cuts.append(line.position)
    return SegmentIndex(
        partition, entry, bundle.offset_index, bundle.time_index, bundle.txn_index, (*cuts, entry.log_bytes)
    )


def _check_line(entry: RemoteSegment, line: OffsetEntry) -> None:
    if line.offset > entry.last_offset or line.position >= entry.log_bytes:
        raise BundleError(f"offset index: {line} lies outside of the segment")
