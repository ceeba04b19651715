"""Merged segment: the body of an upload that contains the batches of successive remote segments.

Every chunk is read once, verified as readers verify it, and kept only until it is sent. The indexes of the
new segment are those of the old ones, moved; its leader epochs and producer state are those at its end. Built
by the segment merger, and uploaded like a local segment (`copier`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

from tierlog.base.leader_epochs import EpochEntry, earliest_starts
from tierlog.base.segments import SegmentDescriptor, SegmentExport
from tierlog.base.types import NO_TIMESTAMP, TopicIdPartition, require
from tierlog.metadata.records import RemoteSegment
from tierlog.records.batch import iter_batches
from tierlog.records.chunks import ChunkBuilder
from tierlog.records.indexes import (
    AbortedTxn,
    decode_offset_index,
    decode_time_index,
    decode_txn_index,
    encode_offset_entry,
    encode_time_entry,
    encode_txn_index,
)
from tierlog.tiering.chunk_cache import ChunkKey
from tierlog.tiering.download import read_chunk
from tierlog.tiering.format.bundle import IndexBundle
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.object_store import ObjectStore
from tierlog.tiering.quarantine import Quarantine
from tierlog.tiering.segment_index import SegmentIndex, SegmentIndexes

ReadChunk = Callable[[SegmentIndex, ChunkKey], Awaitable[bytes]]
"""Returns a chunk of a segment, verified."""


class MergedSegment:
    """Reads raise ObjectStoreError."""

    def __init__(
        self,
        store: ObjectStore,
        keys: Keys,
        indexes: SegmentIndexes,
        quarantine: Quarantine,
        where: TopicIdPartition,
        old: Sequence[RemoteSegment],
        read: ReadChunk | None = None,
    ) -> None:
        """`old`: segments without gaps between them, oldest first. `read`: instead of a download."""
        self.size = sum(entry.log_bytes for entry in old)
        self.base_offset, self.end_offset = old[0].base_offset, old[-1].end_offset
        self._store = store
        self._keys = keys
        self._indexes = indexes
        self._quarantine = quarantine
        self._where = where
        self._read = read or self._download
        self._old = old
        self._chunks = ChunkBuilder()
        self._offset_index, self._time_index = bytearray(), bytearray()
        self._newest = -1  # the largest timestamp in the time index
        self._aborted: set[AbortedTxn] = set()
        self._epochs: tuple[EpochEntry, ...] = ()
        self._producer_snapshot = b""
        self._unread = list(reversed(old))
        self._position = 0  # where the next segment begins
        self._chunks_left: Iterator[ChunkKey] = iter(())
        self._index: SegmentIndex | None = None  # the current segment's
        self._unsent = memoryview(b"")

    async def read_into(self, buffer: memoryview) -> None:
        at = 0
        while at < len(buffer):
            if not self._unsent:
                self._unsent = memoryview(await self._next_chunk())
            taken = min(len(self._unsent), len(buffer) - at)
            buffer[at : at + taken] = self._unsent[:taken]
            self._unsent = self._unsent[taken:]
            at += taken

    async def _next_chunk(self) -> bytes:
        chunk = next(self._chunks_left, None)
        while chunk is None or self._index is None:
            entry = self._unread.pop()
            bundle = await self._indexes.bundle(self._where, entry)
            await asyncio.to_thread(self._add_indexes, entry, bundle)
            self._index = await self._indexes.index(self._where, entry)
            self._chunks_left = self._index.chunks_from(entry.base_offset)
            chunk = next(self._chunks_left, None)
        content = await self._read(self._index, chunk)
        await asyncio.to_thread(self._add, content)
        return content

    async def _download(self, index: SegmentIndex, chunk: ChunkKey) -> bytes:
        key = self._keys.log(self._where, index.entry)
        return await read_chunk(self._store, key, index, chunk, self._quarantine)

    def _add_indexes(self, entry: RemoteSegment, bundle: IndexBundle) -> None:
        """Keeps no more than what the new bundle needs: a run may have hundreds of segments."""
        base = self.base_offset
        for line in decode_offset_index(bundle.offset_index, entry.base_offset):
            self._offset_index += encode_offset_entry(base, line.offset, self._position + line.position)
        for timestamp, offset in decode_time_index(bundle.time_index, entry.base_offset):
            if timestamp > self._newest:
                self._newest = timestamp
                self._time_index += encode_time_entry(base, timestamp, offset)
        self._aborted.update(decode_txn_index(bundle.txn_index))
        self._position += entry.log_bytes
        self._producer_snapshot = bundle.producer_snapshot
        # a bundle lacks early offsets if the log start had moved before it was written
        self._epochs = earliest_starts(self._epochs, entry.leader_epochs, bundle.leader_epochs)

    def _add(self, content: bytes) -> None:
        for position, header in iter_batches(content):
            self._chunks.add(header, memoryview(content)[position : position + header.size])

    def finish(self) -> tuple[SegmentExport, ChunkBuilder]:
        """The indexes and chunks of the bytes, which have all been read."""
        require(not self._unread, "a merged segment is finished before it is read")
        old = self._old
        newest = max(entry.max_timestamp for entry in old)
        descriptor = SegmentDescriptor(
            base_offset=self.base_offset,
            end_offset=self.end_offset,
            size_bytes=self.size,
            first_timestamp=next((at for entry in old if (at := entry.first_timestamp) > 0), NO_TIMESTAMP),
            max_timestamp=newest,
            last_modified_ms=newest,
            rolled=True,
            has_transactions=any(entry.has_transactions for entry in old),
            has_aborts=bool(self._aborted),
            leader_epochs=self._epochs,
            directory=Path(),
            file_name="",  # there is no file
        )
        export = SegmentExport(
            descriptor=descriptor,
            offset_index=bytes(self._offset_index),
            time_index=bytes(self._time_index),
            txn_index=encode_txn_index(
                sorted(self._aborted, key=lambda txn: (txn.last_offset, txn.producer_id))
            ),
            producer_snapshot=self._producer_snapshot,
            leader_epochs=self._epochs,
        )
        return export, self._chunks
