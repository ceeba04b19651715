"""Downloads one chunk of a remote segment, and verifies it against the manifest.

The CRC of each batch is valid, offsets have no gaps, leader epochs match the manifest entry, the chunk's
first batch matches the offset index, and the segment's first and last offsets match the entry. A chunk that
fails is downloaded once more, because the connection may have damaged it. A damaged chunk is never written to
a file.
"""

import asyncio
from pathlib import Path

from tierlog.base.files import Files
from tierlog.base.leader_epochs import LeaderEpochs
from tierlog.records.batch import check_batch
from tierlog.records.errors import RecordsError
from tierlog.tiering.chunk_cache import ChunkKey
from tierlog.tiering.object_store import CorruptObject, ObjectStore
from tierlog.tiering.segment_index import SegmentIndex

PIECE_BYTES = 16 << 20
"""Largest single request. A chunk is larger only if the topic's index entries are very far apart."""


async def download_chunk(
    store: ObjectStore, name: str, index: SegmentIndex, key: ChunkKey, files: Files, path: Path
) -> int:
    """Write the verified chunk to a path. Returns its end offset, exclusive."""
    try:
        return await _attempt(store, name, index, key, files, path)
    except CorruptObject:
        return await _attempt(store, name, index, key, files, path)


async def _attempt(
    store: ObjectStore, name: str, index: SegmentIndex, key: ChunkKey, files: Files, path: Path
) -> int:
    starts = range(key.start, key.end, PIECE_BYTES)
    pieces = [await store.get(name, start, min(start + PIECE_BYTES, key.end)) for start in starts]
    content = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return await asyncio.to_thread(_verify_and_write, name, index, key, content, files, path)


def _verify_and_write(
    name: str, index: SegmentIndex, key: ChunkKey, content: bytes, files: Files, path: Path
) -> int:
    end_offset = verify_chunk(name, index, key, content)
    fd = files.open(path, create=True)
    try:
        files.truncate(fd, 0)
        files.writev_at(fd, [content], 0)
    finally:
        files.close(fd)
    return end_offset


def verify_chunk(name: str, index: SegmentIndex, key: ChunkKey, content: bytes) -> int:
    """Return the end offset, exclusive. Raises CorruptObject if the chunk contradicts the manifest."""
    if len(content) != key.size:
        raise CorruptObject(f"{name}: received {len(content)} bytes, expected {key.size}")
    entry = index.entry
    following = entry.base_offset if key.start == 0 else None
    first_ends_at = index.batch_end_at(key.start)
    epochs = LeaderEpochs(entry.leader_epochs)
    at = 0
    while at < len(content):
        try:
            header = check_batch(content, at)
        except RecordsError as error:
            raise CorruptObject(f"{name}, position {key.start + at}: {error}") from error
        if following is not None and header.base_offset != following:
            raise CorruptObject(
                f"{name}: a batch starts at offset {header.base_offset}, expected {following}"
            )
        if at == 0 and first_ends_at not in (None, header.next_offset):
            raise CorruptObject(
                f"{name}: a batch ends at offset {header.next_offset}, expected {first_ends_at}"
            )
        if not epochs.allows(header.leader_epoch, header.last_offset):
            what = f"unexpected leader epoch {header.leader_epoch} at offset {header.base_offset}"
            raise CorruptObject(f"{name}: {what}")
        following = header.next_offset
        at += header.size
    if following is None or not entry.base_offset < following <= entry.end_offset:
        raise CorruptObject(f"{name}: batches end at offset {following}, outside the segment")
    if key.end == entry.log_bytes and following != entry.end_offset:
        raise CorruptObject(f"{name}: the segment ends at offset {following}, expected {entry.end_offset}")
    return following
