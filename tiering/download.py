"""Downloads one chunk of a remote segment into a buffer, and verifies it there.

The chunk must have the checksum in its segment's chunk table, which the upload computed from verified
batches. Segments of earlier versions have no chunk table: each batch must have a valid CRC, offsets and
leader epochs must ascend and match the manifest entry, and the first batch must match the offset index.
Offsets may have gaps. The checksum is computed outside of the interpreter lock. Called by the remote log.
"""

import asyncio
import struct
from array import array
from collections.abc import Awaitable, Callable
from typing import TypeVar

from crc32c import crc32c

from tierlog.base.failures import raise_again, without_frames
from tierlog.base.leader_epochs import LeaderEpochs
from tierlog.base.safeguards import safeguard
from tierlog.records.batch import HEADER_SIZE, LOG_OVERHEAD, check_batch, read_header
from tierlog.records.errors import RecordsError
from tierlog.tiering.chunk_cache import MARK_BYTES, BatchMarks, ChunkKey
from tierlog.tiering.object_store import CorruptObject, ObjectStore
from tierlog.tiering.quarantine import ObjectRange, Quarantine
from tierlog.tiering.segment_index import SegmentIndex

T = TypeVar("T")

URGENT_PIECE_BYTES = 1 << 20
"""A chunk that a reader waits for is requested as concurrent pieces of this size, because one connection
transfers only about 90 MB a second. Read-ahead requests each chunk as a whole."""

Content = bytes | bytearray | memoryview

_OFFSET_AND_LENGTH = struct.Struct(">qi")


async def download_chunk(
    store: ObjectStore,
    name: str,
    index: SegmentIndex,
    key: ChunkKey,
    buffer: memoryview,
    run: Callable[[Callable[[], BatchMarks]], Awaitable[BatchMarks]],
    *,
    is_urgent: bool = False,
) -> BatchMarks:
    """Fill the buffer with a chunk and verify it. `run`: runs work in a thread. Raises CorruptObject."""
    piece = URGENT_PIECE_BYTES if is_urgent else key.size
    results = await asyncio.gather(
        *(
            store.get_into(name, key.start + start, buffer[start : start + piece])
            for start in range(0, key.size, piece)
        ),
        return_exceptions=True,  # wait for all, so that none writes to the buffer during the next attempt
    )
    failures = [without_frames(failure) for failure in results if failure is not None]
    if failures:
        first = failures[0]
        del results, failures
        try:
            raise_again(first)
        finally:
            del first
    return await run(lambda: verify_chunk(name, index, key, buffer))


async def read_chunk(
    store: ObjectStore, name: str, index: SegmentIndex, key: ChunkKey, quarantine: Quarantine
) -> bytes:
    """A verified chunk, for a caller that needs it once. Raises CorruptObject, ObjectNotFound or another
    ObjectStoreError."""

    async def load() -> bytes:
        content = await store.get(name, key.start, key.end)
        await asyncio.to_thread(verify_chunk, name, index, key, content)
        return content

    place = ObjectRange(index.partition, name, key.start, *index.offsets_of(key))
    return await quarantine.read(place, load)


@safeguard("a remote chunk is verified before it is served")
@safeguard("a remote chunk may have gaps between its offsets")
def verify_chunk(name: str, index: SegmentIndex, key: ChunkKey, content: Content) -> BatchMarks:
    """Verify the chunk and return the positions of its batches. Raises CorruptObject if it contradicts the
    segment's index or the manifest."""
    if len(content) != key.size:
        raise CorruptObject(f"{name}: received {len(content)} bytes, expected {key.size}")
    if index.has_checksums:
        if crc32c(content) != index.row(key).crc32c:
            raise CorruptObject(f"{name}, position {key.start}: the checksum of {key.size} bytes is wrong")
    else:
        _verify_batches(name, index, key, content)
    try:
        return mark_batches(content)
    except RecordsError as error:
        raise CorruptObject(f"{name}, in the chunk at {key.start}: {error}") from error
    except (struct.error, ValueError) as error:
        raise CorruptObject(f"{name}: the chunk at {key.start} does not end with a batch: {error}") from error


def mark_batches(content: Content) -> BatchMarks:
    """Reads only the offset and length of each batch, since a chunk may have 100,000 batches. Raises
    ValueError, struct.error or RecordsError."""
    positions, base_offsets = array("I"), array("q")
    read, position, next_mark, last, end = _OFFSET_AND_LENGTH.unpack_from, 0, 0, 0, len(content)
    while position < end:
        base_offset, length = read(content, position)
        if length < HEADER_SIZE - LOG_OVERHEAD:
            raise ValueError(f"batch length {length} at {position}")
        if position >= next_mark:
            positions.append(position)
            base_offsets.append(base_offset)
            next_mark = position + MARK_BYTES
        last, position = position, position + length + LOG_OVERHEAD
    if position != end:
        raise ValueError(f"the last batch ends {position - end} bytes after the end of the chunk")
    return BatchMarks(positions, base_offsets, read_header(content, last).next_offset)


def _verify_batches(name: str, index: SegmentIndex, key: ChunkKey, content: Content) -> None:
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
