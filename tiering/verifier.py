"""Remote verifier: compares the objects of one remote segment with its manifest entry.

An object that is missing, or whose size, checksum or content is wrong, goes into quarantine, so that it is
reported and read again until it is right. Callers call `recheck_now` first, so that a check reads objects in
quarantine whatever their back-off. Called by the bucket scrubber and by `tier verify`.
"""

from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from tierlog.base.types import TopicIdPartition
from tierlog.metadata.records import ManifestNode, PageRef, RemoteSegment
from tierlog.tiering.chunk_cache import ChunkKey
from tierlog.tiering.download import read_chunk
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.object_store import (
    CorruptObject,
    ObjectNotFound,
    ObjectStore,
    ObjectStoreError,
)
from tierlog.tiering.quarantine import ObjectRange
from tierlog.tiering.remote_log import RemoteLog, Resolve
from tierlog.tiering.segment_index import SegmentIndex
from tierlog.tiering.store_health import STORE_FAILURES

WHOLE_OBJECT = -2
"""The position under which a complete object is in quarantine; see also `segment_index.WHOLE_BUNDLE`."""

DAMAGE = (CorruptObject, ObjectNotFound)
"""Failures of a page that another attempt does not mend."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class UnreadablePage:
    """A manifest page that cannot be read, in place of the segments that it names. `error` names its key.
    `is_damaged`: it is missing or its content is wrong."""

    base_offset: int
    end_offset: int
    error: str
    is_damaged: bool


class RemoteVerifier:
    def __init__(self, store: ObjectStore, keys: Keys, log: RemoteLog, resolve: Resolve) -> None:
        self._store = store
        self._keys = keys
        self._log = log
        self._resolve = resolve

    async def entries(
        self, where: TopicIdPartition, offset: int = 0
    ) -> AsyncGenerator[RemoteSegment | UnreadablePage]:
        """The segments that end above an offset, oldest first, by the newest manifest. Raises
        STORE_FAILURES."""
        while True:
            pages = self._resolve(where).pages
            try:
                async for entry in self._log.entries(where, offset):
                    offset = entry.end_offset
                    yield entry
                return
            except STORE_FAILURES:
                raise
            except ObjectStoreError:
                unreadable = await self._unreadable_page(where, offset)
                if unreadable is not None:
                    offset = unreadable.end_offset
                    yield unreadable
                elif pages == self._resolve(where).pages:
                    raise
                # else retention or a rewrite has deleted the page: start again at `offset`

    async def _unreadable_page(self, where: TopicIdPartition, offset: int) -> UnreadablePage | None:
        """The page that hides the first segment above an offset, by the newest manifest. Returns None if
        every page on the path to that segment can be read. Raises STORE_FAILURES."""
        remote = self._resolve(where)
        nodes: Sequence[ManifestNode] = remote.nodes
        while True:
            page = next((node for node in nodes if node.last_offset >= offset), None)
            if not isinstance(page, PageRef):
                return None
            try:
                nodes = await self._log.indexes.page(where, page)
            except STORE_FAILURES:
                raise
            except ObjectStoreError as failure:
                if remote.pages != self._resolve(where).pages:
                    return await self._unreadable_page(where, offset)
                first, is_damaged = max(offset, page.base_offset), isinstance(failure, DAMAGE)
                return UnreadablePage(first, page.last_offset + 1, str(failure), is_damaged)

    async def listed(self, where: TopicIdPartition, base_offset: int, uuid: UUID) -> RemoteSegment:
        """A segment, by the newest manifest. Raises ObjectNotFound if that does not list it, or another
        ObjectStoreError if that cannot be read."""
        async with aclosing(self.entries(where, base_offset)) as entries:
            found = await anext(entries, None)
        if isinstance(found, UnreadablePage):
            raise CorruptObject(found.error) if found.is_damaged else ObjectStoreError(found.error)
        if found is None or found.uuid != uuid:
            raise ObjectNotFound("the manifest no longer lists the segment")
        return found

    def recheck_now(self, where: TopicIdPartition, entry: RemoteSegment) -> None:
        """Let the next checks of a segment read what is in quarantine, whatever its back-off."""
        self._log.quarantine.end_backoff({self._keys.log(where, entry), self._keys.index(where, entry)})

    async def check_objects(self, where: TopicIdPartition, entry: RemoteSegment) -> None:
        """Compare the sizes of both objects, and the checksums if the store keeps them: two requests that
        read no content. Raises CorruptObject, also if an object is missing; ObjectNotFound if the manifest no
        longer lists the segment; or another ObjectStoreError."""
        expected = (
            (self._keys.log(where, entry), entry.log_bytes, entry.log_crc32c),
            (self._keys.index(where, entry), entry.index_bytes, entry.index_crc32c),
        )
        for key, size, checksum in expected:
            await self._check_size_and_checksum(where, entry, key, size, checksum)

    async def check_index(self, where: TopicIdPartition, entry: RemoteSegment) -> None:
        """Read and verify all of a segment's indexes. Raises as `check_objects`."""
        key = self._keys.index(where, entry)
        await self._translate_missing(where, entry, key, self._log.indexes.bundle(where, entry))

    async def chunk_at(self, where: TopicIdPartition, entry: RemoteSegment, position: int) -> ChunkKey:
        """The chunk that contains a position of the segment. Raises as `check_objects`."""
        return (await self._index(where, entry)).chunk_at(position)

    async def check_chunk(self, where: TopicIdPartition, entry: RemoteSegment, position: int) -> ChunkKey:
        """Read and verify the chunk that contains a position of the segment. Raises as `check_objects`."""
        index = await self._index(where, entry)
        chunk = index.chunk_at(position)
        key = self._keys.log(where, entry)
        reading = read_chunk(self._store, key, index, chunk, self._log.quarantine)
        await self._translate_missing(where, entry, key, reading)
        return chunk

    async def _index(self, where: TopicIdPartition, entry: RemoteSegment) -> SegmentIndex:
        key = self._keys.index(where, entry)
        return await self._translate_missing(where, entry, key, self._log.indexes.index(where, entry))

    async def _check_size_and_checksum(
        self, where: TopicIdPartition, entry: RemoteSegment, key: str, size: int, checksum: int
    ) -> None:
        async def compare() -> None:
            info = await self._store.head(key)
            if info.size != size:
                raise CorruptObject(f"{key}: {info.size} bytes, expected {size} by the manifest")
            if info.crc32c is not None and info.crc32c != checksum:
                raise CorruptObject(f"{key}: the checksum differs from the manifest")

        place = ObjectRange(where, key, WHOLE_OBJECT, entry.base_offset, entry.end_offset)
        await self._translate_missing(where, entry, key, self._log.quarantine.read(place, compare))

    async def _translate_missing(
        self, where: TopicIdPartition, entry: RemoteSegment, key: str, check: Awaitable[T]
    ) -> T:
        """The result of a check. A missing object is damage (CorruptObject) if the newest manifest lists it;
        otherwise retention has deleted it (ObjectNotFound)."""
        try:
            return await check
        except ObjectNotFound as missing:
            await self.listed(where, entry.base_offset, entry.uuid)
            raise CorruptObject(f"{key}: the object is missing") from missing
