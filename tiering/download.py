"""Downloads one chunk of a remote segment, verifies it and writes it to a file.

The chunk has the checksum that its segment's chunk table names, which the upload computed from verified
batches. Segments of earlier versions have no such table. For them the CRC of each batch is valid, offsets and
leader epochs ascend and match the manifest entry, and the first batch matches the offset index; offsets may
have gaps. A damaged chunk is never written to a file.
"""

import asyncio
from array import array
from pathlib import Path

from crc32c import crc32c

from tierlog.base.files import Files
from tierlog.base.leader_epochs import LeaderEpochs
from tierlog.records.batch import check_batch, iter_batches
from tierlog.records.errors import RecordsError
from tierlog.tiering.chunk_cache import MARK_BYTES, BatchMarks, ChunkKey
from tierlog.tiering.object_store import CorruptObject, ObjectStore
from tierlog.tiering.segment_index import SegmentIndex

PIECE_BYTES = 16 << 20
"""Maximum size of one request. A chunk is larger only if one batch is, or if an earlier version uploaded it
and the topic's index entries are very far apart."""


async def download_chunk(
    store: ObjectStore, name: str, index: SegmentIndex, key: ChunkKey, files: Files, path: Path
) -> BatchMarks:
    """Download a chunk, verify it and write it to `path`. Raises CorruptObject."""
    starts = range(key.start, key.end, PIECE_BYTES)
    pieces = [await store.get(name, start, min(start + PIECE_BYTES, key.end)) for start in starts]
    content = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return await asyncio.to_thread(_verify_and_write, name, index, key, content, files, path)


def _verify_and_write(
    name: str, index: SegmentIndex, key: ChunkKey, content: bytes, files: Files, path: Path
) -> BatchMarks:
    batches = verify_chunk(name, index, key, content)
    fd = files.open(path, create=True)
    try:
        files.truncate(fd, 0)
        files.writev_at(fd, [content], 0)
    finally:
        files.close(fd)
    return batches


def verify_chunk(name: str, index: SegmentIndex, key: ChunkKey, content: bytes) -> BatchMarks:
    """Where the chunk's batches are. Raises CorruptObject if it contradicts the segment's index or the
    manifest."""
    if len(content) != key.size:
        raise CorruptObject(f"{name}: received {len(content)} bytes, expected {key.size}")
    if index.has_checksums:
        if crc32c(content) != index.row(key).crc32c:
            raise CorruptObject(f"{name}, position {key.start}: the checksum of {key.size} bytes is wrong")
    else:
        _verify_batches(name, index, key, content)
    positions, base_offsets, end_offset = array("I"), array("q"), -1
    try:
        for position, header in iter_batches(content):
            if not positions or position - positions[-1] >= MARK_BYTES:
                positions.append(position)
                base_offsets.append(header.base_offset)
            end_offset = header.next_offset
    except RecordsError as error:
        raise CorruptObject(f"{name}, in the chunk at {key.start}: {error}") from error
    return BatchMarks(positions, base_offsets, end_offset)


def _verify_batches(name: str, index: SegmentIndex, key: ChunkKey, content: bytes) -> None:
    """For segments whose index has no checksums of chunks."""
    entry = index.entry
    lowest, (first_offset, limit) = entry.base_offset, index.offsets_of(key)
    epochs = LeaderEpochs(entry.leader_epochs)
    position = 0
    while position < len(content):
        try:
            header = check_batch(content, position)
        except RecordsError as error:
            raise CorruptObject(f"{name}, position {key.start + position}: {error}") from error
        if header.base_offset < lowest or header.next_offset > limit:
            raise CorruptObject(
                f"{name}: a batch has the offsets {header.base_offset} to {header.last_offset}, expected "
                f"{lowest} to {limit - 1}"
            )
        if position == 0 < key.start and header.last_offset != first_offset:
            what = f"a batch ends with offset {header.last_offset}, expected {first_offset}"
            raise CorruptObject(f"{name}: {what}")
        if not epochs.allows(header.leader_epoch, header.last_offset):
            what = f"unexpected leader epoch {header.leader_epoch} at offset {header.base_offset}"
            raise CorruptObject(f"{name}: {what}")
        lowest = header.next_offset
        position += header.size
