"""Chunks of a segment: where they are cut, and what their entries say."""

import random

from crc32c import crc32c

from tierlog.records.batch import read_header
from tierlog.records.chunks import CHUNK_BYTES, ChunkBuilder
from tierlog.records.writer import NewRecord, encode_batch


def batch(offset: int, timestamp: int, size: int) -> bytes:
    return bytes(encode_batch([NewRecord(timestamp, None, bytes(size))], base_offset=offset))


def test_a_chunk_is_the_longest_run_of_batches_within_the_limit() -> None:
    rng, builder, log, starts = random.Random(1), ChunkBuilder(), bytearray(), list[tuple[int, int, int]]()
    for number in range(200):
        one = batch(3 * number, rng.randrange(10_000), rng.choice([100, 300_000, 1_000_000, 9_000_000]))
        starts.append((len(log), 3 * number, read_header(one).max_timestamp))
        builder.add(read_header(one), memoryview(one))
        log += one
    ends = [chunk.position for chunk in builder.chunks[1:]] + [len(log)]
    assert builder.checksum == crc32c(log)
    for chunk, end in zip(builder.chunks, ends, strict=True):
        inside = [start for start in starts if chunk.position <= start[0] < end]
        assert inside[0][:2] == (chunk.position, chunk.first_offset)
        assert max(timestamp for _, _, timestamp in inside) == chunk.max_timestamp
        assert crc32c(log[chunk.position : end]) == chunk.crc32c
        assert len(inside) == 1 or end - chunk.position <= CHUNK_BYTES
        following = [start[0] for start in starts if start[0] > end][:1] or [len(log)]
        assert end == len(log) or following[0] - chunk.position > CHUNK_BYTES


def test_nothing_added_is_no_chunk() -> None:
    assert ChunkBuilder().chunks == ()
