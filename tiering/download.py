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
from tierlog.records import chunks
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


class BatchWalk:
    """Walks the batches of a segment while it is uploaded, as `mark_batches` does with a downloaded chunk,
    and finds where its chunks begin: the index is checked against the bytes, and not against what built
    it."""

    def __init__(self) -> None:
        self.chunks: list[tuple[int, int]] = []
        """Position and first offset of each chunk."""
        self._size = 0  # bytes walked
        self._next = 0  # where the next batch begins
        self._last_offset = -1  # base offset of the last batch
        self._head = b""  # the bytes that were read of the next batch's offset and length

    def add(self, content: memoryview) -> None:
        """Walk the next bytes. Raises ValueError if they are not batches with ascending offsets."""
        end, missing = self._size + len(content), _OFFSET_AND_LENGTH.size - len(self._head)
        if self._head:
            self._head += bytes(content[:missing])
            self._walk(self._head, self._next)
        if not self._head or len(content) >= missing:
            self._walk(content, self._size)
            self._head = bytes(content[self._next - self._size :]) if self._next < end else b""
        self._size = end

    def _walk(self, content: Content, start: int) -> None:
        """Walk the batches whose offset and length are within the bytes from position `start` on."""
        read, end = _OFFSET_AND_LENGTH.unpack_from, start + len(content) - _OFFSET_AND_LENGTH.size
        position, last, chunk = self._next, self._last_offset, self.chunks[-1][0] if self.chunks else 0
        largest = chunks.CHUNK_BYTES
        while position <= end:
            base_offset, length = read(content, position - start)
            if length < HEADER_SIZE - LOG_OVERHEAD or base_offset <= last:
                raise ValueError(f"batch of length {length} and base offset {base_offset} at {position}")
            after = position + length + LOG_OVERHEAD
            if after - chunk > largest or not position:
                self.chunks.append((position, base_offset))
                chunk = position
            last, position = base_offset, after
        self._next, self._last_offset = position, last

    def check(self, index: SegmentIndex) -> None:
        """Raises ValueError if the index does not divide the segment into these chunks, or the last batch
        does not end with the segment."""
        entry = index.entry
        if not self._size == self._next == entry.log_bytes:
            raise ValueError(f"the last batch of {entry.log_bytes} bytes ends at {self._next}")
        if [(chunk.position, chunk.first_offset) for chunk in index.chunks] != self.chunks:
            raise ValueError("the chunk table has other chunks than the segment")
        if not entry.base_offset <= self.chunks[0][1] <= self._last_offset <= entry.last_offset:
            raise ValueError(f"offsets {self.chunks[0][1]} to {self._last_offset} are not in the segment")


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
