"""Chunks: runs of complete batches into which a segment is divided for uploads, so that readers can fetch and
verify a part of it. Built while a segment's batches are verified; see docs/formats/remote.md.
"""

from typing import NamedTuple

from crc32c import crc32c

from tierlog.base.checksums import crc32c_combine
from tierlog.base.types import NO_TIMESTAMP
from tierlog.records.batch import LOCKED_BYTES, BatchHeader

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
        self.records = self.control_records = 0
        self.min_timestamp = NO_TIMESTAMP
        """Smallest first timestamp of a batch, in milliseconds. Only its records would show smaller ones."""
        self._size = 0
        self._ended: list[ChunkEntry] = []
        self._checksum_of_ended = 0
        self._position = self._first_offset = self._checksum = 0  # the last chunk's
        self._max_timestamp = NO_TIMESTAMP

    def add(self, header: BatchHeader, content: memoryview) -> None:
        """Add the next batch. `content`: its bytes."""
        end = self._size + len(content)
        if not self._size:
            self._first_offset = header.base_offset
        elif end - self._position > CHUNK_BYTES:
            self._checksum_of_ended = self.checksum
            self._ended.append(self._last())
            self._position, self._first_offset, self._checksum = self._size, header.base_offset, 0
            self._max_timestamp = NO_TIMESTAMP
        if header.max_timestamp > self._max_timestamp:
            self._max_timestamp = header.max_timestamp
        self._checksum = crc32c(content, self._checksum, 0 if len(content) <= LOCKED_BYTES else -1)
        self._size = end
        self.records += header.record_count
        if header.is_control:
            self.control_records += header.record_count
        first = header.first_timestamp
        if first >= 0 and (self.min_timestamp == NO_TIMESTAMP or first < self.min_timestamp):
            self.min_timestamp = first

    @property
    def checksum(self) -> int:
        """CRC-32C of all batches so far, combined from those of the chunks."""
        return crc32c_combine(self._checksum_of_ended, self._checksum, self._size - self._position)

    @property
    def chunks(self) -> tuple[ChunkEntry, ...]:
        return (*self._ended, self._last()) if self._size else ()

    def _last(self) -> ChunkEntry:
        return ChunkEntry(self._position, self._first_offset, self._max_timestamp, self._checksum)
