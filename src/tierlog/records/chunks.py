"""Chunks: runs of complete batches into which a segment is divided for uploads, so that readers can fetch and
verify a part of it. Built while a segment's batches are verified; see docs/formats/remote.md.
"""

from typing import NamedTuple

from crc32c import crc32c

from tierlog.base.types import NO_TIMESTAMP
from tierlog.records.batch import BatchHeader

CHUNK_BYTES = 8 << 20
"""Largest size of a chunk, unless one batch is larger."""


class ChunkEntry(NamedTuple):
    """`position`: in the segment, in bytes. `max_timestamp`: the largest of its batches, in milliseconds; -1
    if none has one."""

    position: int
    first_offset: int
    max_timestamp: int
    crc32c: int


class ChunkBuilder:
    """Divides a segment into chunks. Takes its batches in order."""

    def __init__(self) -> None:
        self.checksum = 0
        """CRC-32C of all batches so far."""
        self._chunks: list[ChunkEntry] = []
        self._size = 0

    def add(self, header: BatchHeader, content: memoryview) -> None:
        """Add the next batch. `content`: its bytes."""
        end = self._size + len(content)
        if not self._chunks or end - self._chunks[-1].position > CHUNK_BYTES:
            self._chunks.append(ChunkEntry(self._size, header.base_offset, NO_TIMESTAMP, 0))
        chunk = self._chunks[-1]
        self._chunks[-1] = chunk._replace(
            max_timestamp=max(chunk.max_timestamp, header.max_timestamp),
            crc32c=crc32c(content, chunk.crc32c),
        )
        self.checksum = crc32c(content, self.checksum)
        self._size = end

    @property
    def chunks(self) -> tuple[ChunkEntry, ...]:
        return tuple(self._chunks)
