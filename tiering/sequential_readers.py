"""Sequential readers: the consumers that are reading a remote log, recognised by their offsets.

A read that begins where an earlier one ended belongs to the same reader. With each chunk that a reader
enters, its read-ahead doubles, up to WINDOW_MAX chunks; a reader that jumps is a new one. A reader that has
not read for IDLE_S is forgotten. No I/O; called by the remote log."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from tierlog.base.types import TopicIdPartition
from tierlog.tiering.chunk_cache import ChunkKey

WINDOW_MAX = 8
"""Chunks that are read ahead. With a store that responds after 40 ms and transfers 90 MB a second on each
connection, these give one reader 500 MB a second."""

IDLE_S = 60.0
ACTIVE_S = 5.0
"""Readers share the read-ahead with the readers that have read within this time."""

READERS_MAX = 1000


@dataclass(slots=True)
class SequentialReader:
    """`window`: chunks to read ahead, 0 before its first chunk."""

    partition: TopicIdPartition
    offset: int
    """Start of its next read."""
    read_at_s: float
    chunk: ChunkKey | None = None
    """The chunk that it read last."""
    window: int = 0
    is_ahead: bool = False
    """Whether the read-ahead for this chunk has begun in full."""

    def enter(self, chunk: ChunkKey) -> None:
        """Read from a chunk."""
        if chunk != self.chunk:
            self.chunk, self.is_ahead = chunk, False
            self.window = min(2 * self.window, WINDOW_MAX) if self.window else 1


class SequentialReaders:
    """Readers by partition and offset of their next read, the most recent one at the end. Times are
    monotonic, in seconds."""

    def __init__(self) -> None:
        self._readers: OrderedDict[tuple[TopicIdPartition, int], SequentialReader] = OrderedDict()

    def at(self, partition: TopicIdPartition, offset: int, now_s: float) -> SequentialReader:
        """The reader whose next read begins at this offset, or a new one."""
        reader = self._readers.get((partition, offset))
        if reader is None:
            self._forget(now_s)
            reader = self._readers[partition, offset] = SequentialReader(partition, offset, now_s)
        else:
            reader.read_at_s = now_s
            self._readers.move_to_end((partition, offset))
        return reader

    def advance(self, reader: SequentialReader, offset: int, now_s: float) -> None:
        """The reader has read up to an offset. If another is there already, they continue as one."""
        if self._readers.get((reader.partition, reader.offset)) is reader:
            del self._readers[reader.partition, reader.offset]
        there = self._readers.get((reader.partition, offset))
        if there is not None and there.window > reader.window:
            reader = there
        reader.offset, reader.read_at_s = offset, now_s  # the read may have taken long
        self._readers[reader.partition, offset] = reader
        self._readers.move_to_end((reader.partition, offset))

    def is_awaited(self, partition: TopicIdPartition, end_offset: int, now_s: float) -> bool:
        """Whether a reader of the partition will read records below an offset."""
        return any(
            reader.partition == partition and reader.offset < end_offset
            for reader in self._readers.values()
            if now_s - reader.read_at_s < IDLE_S
        )

    def share(self, reader: SequentialReader, chunks: int) -> int:
        """How many chunks the reader may read ahead, at most its window. `chunks`: those of all readers. Each
        active reader has an equal part of them, and those that the others do not want."""
        windows = [other.window for other in self._active(reader.read_at_s) if other is not reader]
        equal = chunks // (len(windows) + 1)
        return max(1, min(reader.window, max(equal, chunks - sum(windows))))

    def _active(self, now_s: float) -> Iterator[SequentialReader]:
        """The readers that have read within ACTIVE_S."""
        return takewhile(lambda one: now_s - one.read_at_s < ACTIVE_S, reversed(self._readers.values()))

    def _forget(self, now_s: float) -> None:
        """Make room for a new reader."""
        while self._readers:
            oldest = next(iter(self._readers))
            if len(self._readers) < READERS_MAX and now_s - self._readers[oldest].read_at_s < IDLE_S:
                return
            del self._readers[oldest]
