"""Merged segment: the body of an upload that contains the batches of successive remote segments.

Every chunk is read once, verified as readers verify it, and kept only until it is sent. The indexes of the
new segment are those of the old ones, moved; its leader epochs and producer state are those at its end. Built
by the segment merger, and uploaded like a local segment (`copier`).
"""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

from tierlog.base.leader_epochs import EpochEntry
from tierlog.base.segments import SegmentDescriptor, SegmentExport
from tierlog.base.types import TopicIdPartition
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
from tierlog.tiering.download import verify_chunk
from tierlog.tiering.format.bundle import IndexBundle
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.object_store import ObjectStore
from tierlog.tiering.quarantine import ObjectRange, Quarantine
from tierlog.tiering.segment_index import SegmentIndex, SegmentIndexes


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
    ) -> None:
        """`old`: segments without gaps between them, oldest first."""
        self.size = sum(entry.log_bytes for entry in old)
        self.base_offset, self.end_offset = old[0].base_offset, old[-1].end_offset
        self._store = store
        self._keys = keys
        self._indexes = indexes
        self._quarantine = quarantine
        self._where = where
        self._old = old
        self._chunks = ChunkBuilder()
        self._bundles: list[IndexBundle] = []
        self._unread = list(reversed(old))
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
            self._bundles.append(await self._indexes.bundle(self._where, entry))
            self._index = await self._indexes.index(self._where, entry)
            self._chunks_left = self._index.chunks_from(entry.base_offset)
            chunk = next(self._chunks_left, None)
        content = await self._read(self._index, chunk)
        await asyncio.to_thread(self._add, content)
        return content

    async def _read(self, index: SegmentIndex, chunk: ChunkKey) -> bytes:
        key = self._keys.log(self._where, index.entry)

        async def load() -> bytes:
            content = await self._store.get(key, chunk.start, chunk.end)
            await asyncio.to_thread(verify_chunk, key, index, chunk, content)
            return content

        place = ObjectRange(self._where, key, chunk.start, *index.offsets_of(chunk))
        return await self._quarantine.read(place, load)

    def _add(self, content: bytes) -> None:
        for position, header in iter_batches(content):
            self._chunks.add(header, memoryview(content)[position : position + header.size])

    def finish(self) -> tuple[SegmentExport, ChunkBuilder]:
        """The indexes and chunks of the bytes, which have all been read."""
        old, last = self._old, self._bundles[-1]
        newest = max(entry.max_timestamp for entry in old)
        epochs = self._leader_epochs()
        aborted = self._aborted()
        descriptor = SegmentDescriptor(
            base_offset=self.base_offset,
            end_offset=self.end_offset,
            size_bytes=self.size,
            first_timestamp=old[0].first_timestamp,
            max_timestamp=newest,
            last_modified_ms=newest,
            rolled=True,
            has_transactions=any(entry.has_transactions for entry in old),
            has_aborts=bool(aborted),
            leader_epochs=epochs,
            directory=Path(),
            file_name="",  # there is no file
        )
        export = SegmentExport(
            descriptor=descriptor,
            offset_index=b"".join(self._offset_entries()),
            time_index=b"".join(self._time_entries()),
            txn_index=encode_txn_index(aborted),
            producer_snapshot=last.producer_snapshot,
            leader_epochs=epochs,
        )
        return export, self._chunks

    def _leader_epochs(self) -> tuple[EpochEntry, ...]:
        """All that are known at the end. The last bundle may lack early ones: it was written after the log
        start had moved."""
        starts: dict[int, int] = {}
        lines = [line for entry in self._old for line in entry.leader_epochs]
        for epoch, start in (*lines, *self._bundles[-1].leader_epochs):
            starts[epoch] = min(start, starts.get(epoch, start))
        return tuple(EpochEntry(epoch, starts[epoch]) for epoch in sorted(starts))

    def _aborted(self) -> list[AbortedTxn]:
        """The aborted transactions, in the order of last offsets. One that overlaps several segments is in
        the index of each."""
        found = {txn for bundle in self._bundles for txn in decode_txn_index(bundle.txn_index)}
        return sorted(found, key=lambda txn: (txn.last_offset, txn.producer_id))

    def _offset_entries(self) -> Iterator[bytes]:
        position = 0
        for entry, bundle in zip(self._old, self._bundles, strict=True):
            for line in decode_offset_index(bundle.offset_index, entry.base_offset):
                yield encode_offset_entry(self.base_offset, line.offset, position + line.position)
            position += entry.log_bytes

    def _time_entries(self) -> Iterator[bytes]:
        largest = -1
        for entry, bundle in zip(self._old, self._bundles, strict=True):
            for line in decode_time_index(bundle.time_index, entry.base_offset):
                if line.timestamp > largest:
                    largest = line.timestamp
                    yield encode_time_entry(self.base_offset, line.timestamp, line.offset)
