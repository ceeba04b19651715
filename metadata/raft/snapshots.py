"""Incoming snapshot: collects chunks in order until the snapshot is complete and its checksum is right."""

from crc32c import crc32c

from tierlog.metadata.raft.messages import Snapshot, SnapshotChunk

Key = tuple[int, int, int, int, int]


class IncomingSnapshot:
    """Holds one snapshot at a time. A chunk of another snapshot, or of another leader's term, replaces it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._key: Key | None = None
        self._data = bytearray()

    def add(self, chunk: SnapshotChunk) -> Snapshot | None:
        """The snapshot, if this chunk completes it."""
        if chunk.size > self._max_bytes:
            return None
        if _key(chunk) != self._key:
            self._key, self._data = _key(chunk), bytearray()
        if chunk.offset == len(self._data):
            self._data += chunk.data
        if len(self._data) < chunk.size:
            return None
        data, self._key, self._data = bytes(self._data), None, bytearray()
        if len(data) != chunk.size or crc32c(data) != chunk.crc32c:
            return None  # damaged on the way: start again
        return Snapshot(chunk.index, chunk.snapshot_term, data, chunk.configuration)

    def received(self, chunk: SnapshotChunk) -> int:
        """How many bytes of the chunk's snapshot have arrived."""
        return len(self._data) if _key(chunk) == self._key else 0


def _key(chunk: SnapshotChunk) -> Key:
    return chunk.term, chunk.index, chunk.snapshot_term, chunk.size, chunk.crc32c
