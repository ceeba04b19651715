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
        self._finished: list[ChunkEntry] = []
        self._open = ChunkEntry(0, 0, NO_TIMESTAMP, 0)
        self._open_bytes = 0

    def add(self, header: BatchHeader, content: memoryview) -> None:
        """Add the next batch. `content`: its bytes."""
        self.checksum = crc32c(content, self.checksum)
        if self._open_bytes and self._open_bytes + len(content) > CHUNK_BYTES:
            self._finished.append(self._open)
            self._open = self._open._replace(position=self._open.position + self._open_bytes)
            self._open_bytes = 0
        chunk = self._open
        if not self._open_bytes:
            chunk = ChunkEntry(chunk.position, header.base_offset, NO_TIMESTAMP, 0)
        self._open = chunk._replace(
            max_timestamp=max(chunk.max_timestamp, header.max_timestamp),
            crc32c=crc32c(content, chunk.crc32c),
        )
        self._open_bytes += len(content)

    @property
    def chunks(self) -> tuple[ChunkEntry, ...]:
        return (*self._finished, self._open) if self._open_bytes else tuple(self._finished)
