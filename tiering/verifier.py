"""Remote verifier: compares the objects of one remote segment with its manifest entry.

An object that is missing, or whose size, checksum or content is wrong, goes into quarantine, so that it is
reported and read again until it is right. Called by the bucket scrubber and by `tier verify`.
"""

import asyncio
from collections.abc import Awaitable, Callable

from tierlog.base.types import TopicIdPartition
from tierlog.metadata.records import RemoteSegment
from tierlog.tiering.chunk_cache import ChunkKey
from tierlog.tiering.download import verify_chunk
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.object_store import CorruptObject, ObjectNotFound, ObjectStore
from tierlog.tiering.quarantine import ObjectRange
from tierlog.tiering.remote_log import RemoteLog

WHOLE_OBJECT = -2
"""The position under which a complete object is in quarantine; see also `segment_index.WHOLE_BUNDLE`."""


class RemoteVerifier:
    def __init__(self, store: ObjectStore, keys: Keys, log: RemoteLog) -> None:
        self._store = store
        self._keys = keys
        self._log = log

    async def check_objects(self, where: TopicIdPartition, entry: RemoteSegment) -> None:
        """Compare the sizes of both objects, and the checksums if the store keeps them: two requests that
        read no content. Raises CorruptObject, also if an object is missing; ObjectNotFound if the manifest no
        longer lists the segment; or another ObjectStoreError."""
        expected = (
            (self._keys.log(where, entry), entry.log_bytes, entry.log_crc32c),
            (self._keys.index(where, entry), entry.index_bytes, entry.index_crc32c),
        )
        for key, size, checksum in expected:
            await self._check(where, entry, key, size, checksum)

    async def chunk_at(self, where: TopicIdPartition, entry: RemoteSegment, position: int) -> ChunkKey:
        """The chunk that contains a position of the segment. Raises as `check_objects`."""
        return (await self._log.indexes.index(where, entry)).chunk_at(position)

    async def check_chunk(self, where: TopicIdPartition, entry: RemoteSegment, position: int) -> ChunkKey:
        """Read and verify the chunk that contains a position of the segment. Raises as `check_objects`."""
        index = await self._log.indexes.index(where, entry)
        chunk = index.chunk_at(position)
        key = self._keys.log(where, entry)
        place = ObjectRange(where, key, chunk.start, *index.offsets_of(chunk))

        async def load() -> None:
            content = await self._store.get(key, chunk.start, chunk.end)
            await asyncio.to_thread(verify_chunk, key, index, chunk, content)

        await self._read(place, entry, load)
        return chunk

    async def _check(
        self, where: TopicIdPartition, entry: RemoteSegment, key: str, size: int, checksum: int
    ) -> None:
        async def load() -> None:
            info = await self._store.head(key)
            if info.size != size:
                raise CorruptObject(f"{key}: {info.size} bytes, expected {size} by the manifest")
            if info.crc32c is not None and info.crc32c != checksum:
                raise CorruptObject(f"{key}: the checksum differs from the manifest")

        await self._read(
            ObjectRange(where, key, WHOLE_OBJECT, entry.base_offset, entry.end_offset), entry, load
        )

    async def _read(
        self, place: ObjectRange, entry: RemoteSegment, load: Callable[[], Awaitable[None]]
    ) -> None:
        """A missing object is damage only while the newest manifest lists it: retention may have deleted it.
        Raises ObjectNotFound if it does not."""

        async def load_listed() -> None:
            try:
                await load()
            except ObjectNotFound as missing:
                if (await self._log.entry(place.partition, entry.base_offset)).uuid != entry.uuid:
                    raise
                raise CorruptObject(f"{place.key}: the object is missing") from missing

        await self._log.quarantine.read(place, load_listed)
