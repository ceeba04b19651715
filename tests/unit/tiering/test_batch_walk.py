"""Batch walk: finds the chunks of a segment from its bytes, in whatever pieces they are sent."""

import random
import uuid

import pytest
import remote_segments

from tierlog.base.types import TopicIdPartition
from tierlog.records.batch import assign, read_header
from tierlog.records.chunks import ChunkBuilder, ChunkEntry
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.tiering.download import BatchWalk
from tierlog.tiering.format.bundle import Place
from tierlog.tiering.segment_index import SegmentIndex

WHERE = TopicIdPartition(uuid.UUID(int=1), 0)
SIZES = 10, 3_000_000, 200, 200, 9_000_000, 5, 4_000_000, 4_400_000, 100, 100


def segment(*, step: int = 1) -> tuple[bytes, ChunkBuilder]:
    """Batches of one record; one of them is larger than a chunk. `step`: between their offsets."""
    builder, content = ChunkBuilder(), bytearray()
    for number, size in enumerate(SIZES):
        batch = bytearray(encode_batch([NewRecord(1, b"k", bytes(size), ())]))
        assign(batch, 0, number * step, 0)
        builder.add(read_header(batch), memoryview(batch))
        content += batch
    return bytes(content), builder


def index(content: bytes, chunks: tuple[ChunkEntry, ...], last_offset: int) -> SegmentIndex:
    entry = remote_segments.remote_segment(0, last_offset, log_bytes=len(content))
    return SegmentIndex(WHERE, entry, chunks, True, Place(0, 0, 0))


def walked(content: bytes, rng: random.Random, largest: int) -> BatchWalk:
    walk, at = BatchWalk(), 0
    while at < len(content):
        piece = content[at : at + rng.randint(1, largest)]
        walk.add(memoryview(piece))
        at += len(piece)
    return walk


@pytest.mark.parametrize("step", [1, 7])
@pytest.mark.parametrize("largest", [20_000, 1 << 20, 1 << 30])
def test_walk_finds_the_chunks_that_were_built(step: int, largest: int) -> None:
    content, builder = segment(step=step)
    assert len(builder.chunks) > 3
    last = (len(SIZES) - 1) * step
    walked(content, random.Random(largest), largest).check(index(content, builder.chunks, last))


def test_pieces_of_a_few_bytes_are_walked() -> None:
    small = segment()[0][:200]
    size = read_header(small).size
    walk = walked(small[:size], random.Random(1), 5)
    walk.check(index(small[:size], (ChunkEntry(0, 0, 1, 0),), 0))


def test_wrong_tables_are_refused() -> None:
    content, builder = segment()
    walk, last = walked(content, random.Random(1), 1 << 20), len(SIZES) - 1
    first, second, *others = builder.chunks
    for wrong in (
        (first, second._replace(position=second.position + 1), *others),
        (first, second._replace(first_offset=second.first_offset + 1), *others),
        (first, *others),
        builder.chunks[:-1],
    ):
        with pytest.raises(ValueError, match="other chunks"):
            walk.check(index(content, wrong, last))
    with pytest.raises(ValueError, match="not in the segment"):
        walk.check(index(content, builder.chunks, last - 1))
    with pytest.raises(ValueError, match="ends at"):
        walked(content[:-1], random.Random(1), 1 << 20).check(index(content[:-1], builder.chunks, last))


def test_bytes_that_are_no_batches_are_refused() -> None:
    content, _ = segment()
    with pytest.raises(ValueError, match="batch of length"):
        BatchWalk().add(memoryview(bytes(100)))
    with pytest.raises(ValueError, match="base offset 0"):
        BatchWalk().add(memoryview(content[: read_header(content).size] * 2))
