"""Segment reader: all batches of a remote segment, verified, for jobs that write them again.

Queries read parts of segments (`snapshot`). A job needs every batch, control batches too, and the whole index
bundle. The next bytes are read while the caller works on a batch.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from crc32c import crc32c

from tierlog.metadata.records import RemoteSegment
from tierlog.records.batch import BatchHeader, check_batch
from tierlog.records.chunks import CHUNK_BYTES
from tierlog.records.errors import RecordsError
from tierlog.spark.history.bucket import Bucket
from tierlog.spark.history.plan import Source
from tierlog.spark.history.segment_index import OffsetIndex, Piece
from tierlog.spark.history.snapshot import read_range
from tierlog.tiering.format.bundle import BundleError, IndexBundle, chunks_of, decode_bundle, read_places
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.object_store import CorruptObject

PIECES_AHEAD = 1


class SegmentReader:
    """Reads the bundle at once. Raises CorruptObject, ObjectNotFound or another ObjectStoreError."""

    def __init__(self, bucket: Bucket, keys: Keys, source: Source, entry: RemoteSegment) -> None:
        self._bucket = bucket
        self._source = source
        self._entry = entry
        self._key = keys.log(source.id, entry)
        index_key = keys.index(source.id, entry)
        data = bucket.read(index_key, 0, entry.index_bytes)
        if crc32c(data) != entry.index_crc32c:
            raise CorruptObject(f"{source}: {index_key}: the CRC-32C differs from the manifest")
        try:
            self.bundle: IndexBundle = decode_bundle(data)
            self._pieces = _pieces(entry, data, self.bundle)
        except (BundleError, RecordsError) as error:
            raise CorruptObject(f"{source}: {index_key}: {error}") from error

    def batches(self) -> Iterator[tuple[bytes, BatchHeader]]:
        """Each batch with its header, in order. Raises as the constructor does."""
        unread, reads = iter(self._pieces), deque[tuple[Piece, Future[bytes]]]()
        with ThreadPoolExecutor(1) as pool:
            for piece in unread:
                reads.append((piece, pool.submit(self._read, piece)))
                if len(reads) > PIECES_AHEAD:
                    yield from self._divide(*reads.popleft())
            while reads:
                yield from self._divide(*reads.popleft())

    def _read(self, piece: Piece) -> bytes:
        return read_range(self._bucket, self._source, self._key, piece.start, piece.end, piece.crc32c)

    def _divide(self, piece: Piece, read: "Future[bytes]") -> Iterator[tuple[bytes, BatchHeader]]:
        content, at = read.result(), 0
        while at < len(content):
            try:
                header = check_batch(content, at)
            except RecordsError as error:
                place = self._source.place(self._key, piece.start + at, piece.end)
                raise CorruptObject(f"{place}: {error}") from error
            yield content[at : at + header.size], header
            at += header.size


def _pieces(entry: RemoteSegment, data: bytes, bundle: IndexBundle) -> list[Piece]:
    """The whole segment in chunks. Raises BundleError or RecordsError."""
    chunks = chunks_of(entry, data, read_places(data))
    if chunks is None:  # an earlier version wrote it
        index = OffsetIndex(entry, bundle.offset_index, bundle.time_index)
        return index.pieces(entry.base_offset, entry.end_offset, CHUNK_BYTES)
    ends = [*(chunk.position for chunk in chunks[1:]), entry.log_bytes]
    return [
        Piece(chunk.position, end, chunk.first_offset, chunk.crc32c)
        for chunk, end in zip(chunks, ends, strict=True)
    ]
