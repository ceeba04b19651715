"""Downloads one chunk of a remote segment, and verifies it against the manifest. The copier verifies segments
with the same code before it uploads them.

The CRC of each batch is valid, offsets and leader epochs ascend and match the manifest entry, and the chunk's
first batch matches the offset index. Offsets may have gaps, also at the segment's end, because a topic may
have been compacted before it was tiered. A damaged chunk is never written to a file.
"""

import asyncio
from itertools import pairwise
from pathlib import Path

from tierlog.base.files import Files
from tierlog.base.leader_epochs import LeaderEpochs
from tierlog.records.batch import check_batch
from tierlog.records.errors import RecordsError
from tierlog.tiering.chunk_cache import ChunkKey
from tierlog.tiering.object_store import CorruptObject, ObjectStore
from tierlog.tiering.segment_index import SegmentIndex

PIECE_BYTES = 16 << 20
"""Maximum size of one request. A chunk is larger only if the topic's index entries are very far apart."""


async def download_chunk(
    store: ObjectStore, name: str, index: SegmentIndex, key: ChunkKey, files: Files, path: Path
) -> int:
    """Download a chunk, verify it and write it to `path`. Returns its end offset, exclusive. Raises
    CorruptObject."""
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


def verify_segment(index: SegmentIndex, path: Path, damaged_end: int) -> None:
    """Check that readers will accept all chunks of a local segment. Raises CorruptObject or OSError. Blocks.

    `damaged_end`: end of known damage, which is below the log start, where readers do not go; -1: none.
    """
    with path.open("rb", buffering=0) as file:
        for start, end in pairwise(index.boundaries):
            key = ChunkKey(index.partition, index.entry.uuid, start, end)
            first_ends_at = index.batch_end_at(start) if start else index.entry.base_offset + 1
            if first_ends_at is not None and first_ends_at <= damaged_end:
                continue
            file.seek(start)
            verify_chunk(str(path), index, key, file.read(key.size))


def verify_chunk(name: str, index: SegmentIndex, key: ChunkKey, content: bytes) -> int:
    """Return the end offset of the last batch, exclusive. Raises CorruptObject if the chunk contradicts the
    manifest."""
    if len(content) != key.size:
        raise CorruptObject(f"{name}: received {len(content)} bytes, expected {key.size}")
    entry = index.entry
    least, (_, most) = entry.base_offset, index.offsets_of(key)
    first_batch_end = index.batch_end_at(key.start)
    epochs = LeaderEpochs(entry.leader_epochs)
    position = 0
    while position < len(content):
        try:
            header = check_batch(content, position)
        except RecordsError as error:
            raise CorruptObject(f"{name}, position {key.start + position}: {error}") from error
        if header.base_offset < least or header.next_offset > most:
            raise CorruptObject(
                f"{name}: a batch has the offsets {header.base_offset} to {header.last_offset}, expected "
                f"{least} to {most - 1}"
            )
        if position == 0 and first_batch_end not in (None, header.next_offset):
            raise CorruptObject(
                f"{name}: a batch ends at offset {header.next_offset}, expected {first_batch_end}"
            )
        if not epochs.allows(header.leader_epoch, header.last_offset):
            what = f"unexpected leader epoch {header.leader_epoch} at offset {header.base_offset}"
            raise CorruptObject(f"{name}: {what}")
        least = header.next_offset
        position += header.size
    return least
