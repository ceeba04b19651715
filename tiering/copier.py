"""Segment copier: one attempt to upload a rolled segment and its index bundle, and to verify both objects.

The body verifies every batch while it is read, and builds the chunk table by which readers find and verify
their part. The index is decoded as readers do, and its chunks are compared with the batches that were sent.
The manifest entry is returned only after the sizes and checksums of both objects are verified: the checksum
of the segment is that of the chunks, not of what was sent. The caller commits the entry. The manager retries
and limits the time.
"""

import asyncio
import uuid
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import crc32c

from tierlog.base.safeguards import safeguard
from tierlog.base.segments import SegmentExport
from tierlog.base.types import TopicIdPartition
from tierlog.metadata.records import RemoteSegment
from tierlog.records.chunks import ChunkBuilder
from tierlog.tiering.download import BatchWalk
from tierlog.tiering.format.bundle import (
    HEAD_BYTES,
    BundleError,
    ChunkTable,
    IndexBundle,
    decode_bundle,
    encode_bundle,
)
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.object_store import Body, CorruptObject, FileBody, ObjectStore
from tierlog.tiering.segment_index import index_of_head

_READ_BYTES = 4 << 20
_CHECKED_AT_ONCE = 16 << 10  # bytes of an index that the event loop checks itself: a tenth of a millisecond


@dataclass(frozen=True, slots=True)
class Attempt:
    """Identity of one upload attempt; part of its object keys."""

    partition: TopicIdPartition
    uuid: uuid.UUID
    leader_epoch: int


class NotUploadable(Exception):
    """The segment is damaged, or has changed during its upload: there is no copy to commit."""


class SegmentBody(Body, Protocol):
    """Verified bytes of offsets [base_offset, end_offset) of a rolled segment."""

    @property
    def base_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    def finish(self) -> tuple[SegmentExport, ChunkBuilder]:
        """The indexes and chunks of the bytes, which have all been read. Raises NotUploadable."""


class SegmentFile(FileBody):
    """A file whose chunks are known, as of a part of a segment."""

    def __init__(self, exported: SegmentExport, chunks: ChunkBuilder) -> None:
        segment = exported.descriptor
        super().__init__(segment.path_log, segment.size_bytes)
        self.base_offset, self.end_offset = segment.base_offset, segment.end_offset
        self._finished = exported, chunks

    def finish(self) -> tuple[SegmentExport, ChunkBuilder]:
        return self._finished


async def copy_segment(store: ObjectStore, keys: Keys, body: SegmentBody, attempt: Attempt) -> RemoteSegment:
    """Put `.log`, then `.idx`, and return the entry to commit. Raises ObjectStoreError, NotUploadable, or
    OSError of the file."""
    log_key, index_key = keys.attempt(
        attempt.partition, body.base_offset, body.end_offset - 1, attempt.leader_epoch, attempt.uuid
    )
    walked = _WalkedBody(body)
    await store.put(log_key, walked)
    exported, chunks = body.finish()
    index = encode_bundle(
        IndexBundle(
            offset_index=exported.offset_index,
            time_index=exported.time_index,
            txn_index=exported.txn_index,
            producer_snapshot=exported.producer_snapshot,
            leader_epochs=exported.leader_epochs,
            chunk_table=ChunkTable(attempt.uuid, body.size, chunks.checksum, chunks.chunks),
        )
    )
    entry = _entry(exported, chunks, attempt, index)
    check = partial(_check_index, index_key, index, entry, attempt.partition, walked.walk)
    if len(index) > _CHECKED_AT_ONCE:
        await asyncio.to_thread(check)
    else:
        check()
    await store.put(index_key, index, crc32c=entry.index_crc32c)
    await verify_object(store, index_key, entry.index_bytes, entry.index_crc32c)
    await verify_object(store, log_key, entry.log_bytes, entry.log_crc32c)
    return entry


class _WalkedBody:
    """Walks the batches of a body while it is sent."""

    def __init__(self, body: Body) -> None:
        self.size = body.size
        self.walk = BatchWalk()
        self._body = body

    async def read_into(self, buffer: memoryview) -> None:
        await self._body.read_into(buffer)
        try:
            await asyncio.to_thread(self.walk.add, buffer)
        except ValueError as error:
            raise CorruptObject(f"the segment cannot be uploaded: {error}") from error


def _check_index(
    key: str, bundle: bytes, entry: RemoteSegment, partition: TopicIdPartition, walk: BatchWalk
) -> None:
    """Decode an index bundle as readers do, and compare it with the segment's batches. Raises CorruptObject:
    the fault would show only when the local segment is gone."""
    try:
        decode_bundle(bundle)
        index = index_of_head(partition, entry, bundle[:HEAD_BYTES])
        if index is None:
            raise BundleError("index bundle: no chunk table")
        walk.check(index)
    except ValueError as error:
        raise CorruptObject(f"{key}: the index contradicts its segment: {error}") from error


@safeguard("an upload is verified before it is committed")
async def verify_object(store: ObjectStore, key: str, size: int, checksum: int) -> None:
    """Check a stored object's size and checksum; reads it back if the store has no checksum of it. Raises
    CorruptObject or another ObjectStoreError."""
    found = await store.head(key)
    if found.size != size:
        raise CorruptObject(f"{key}: the stored object has {found.size} bytes, expected {size}")
    stored = found.crc32c
    if stored is None:
        stored = 0
        for start in range(0, size, _READ_BYTES):
            piece = await store.get(key, start, min(start + _READ_BYTES, size))
            stored = await asyncio.to_thread(crc32c.crc32c, piece, stored)
    if stored != checksum:
        raise CorruptObject(f"{key}: the stored object has checksum {stored:08x}, expected {checksum:08x}")


def _entry(exported: SegmentExport, chunks: ChunkBuilder, attempt: Attempt, index: bytes) -> RemoteSegment:
    segment = exported.descriptor
    return RemoteSegment(
        uuid=attempt.uuid,
        base_offset=segment.base_offset,
        last_offset=segment.end_offset - 1,
        leader_epochs=_epochs_within(exported),
        log_bytes=segment.size_bytes,
        index_bytes=len(index),
        records=chunks.records,
        first_timestamp=segment.first_timestamp,
        max_timestamp=segment.newest_ms,
        has_transactions=bool(segment.has_transactions),
        has_aborts=bool(exported.txn_index),
        log_crc32c=chunks.checksum,
        index_crc32c=crc32c.crc32c(index),
        leader_epoch=attempt.leader_epoch,
        control_records=chunks.control_records,
        min_timestamp=chunks.min_timestamp,
    )


def _epochs_within(exported: SegmentExport) -> tuple[tuple[int, int], ...]:
    """Epochs of the segment's own offsets only, so that entries stay small."""
    epochs, segment = exported.leader_epochs, exported.descriptor
    first = max((at for at, (_, start) in enumerate(epochs) if start <= segment.base_offset), default=0)
    return tuple(line for line in epochs[first:] if line[1] < segment.end_offset)
