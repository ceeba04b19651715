"""Streamed decompression: pieces and steps are bounded, whatever a client sends."""

import tracemalloc

import cramjam
import pytest
import zstandard

from tierlog.records.codecs import XERIAL_HEADER, Codec, Packer, compress
from tierlog.records.errors import MemoryLimitExceeded, RecordsError, RecordsFault
from tierlog.records.unpacking import (
    FRAMES_MAX,
    MEMORY_BYTES_MAX,
    NO_BOUND,
    PIECE_BYTES,
    SMALL_PARTS,
    decompress,
    unpack,
)

LARGE = 24 << 20
TEXT = b"".join(b'{"carrier":"AA","flight":%d}' % number for number in range(30_000))


@pytest.mark.parametrize("codec", list(Codec))
def test_pieces_are_small_and_complete(codec: Codec) -> None:
    for data in (TEXT, bytes(LARGE), b"x"):
        pieces = list(unpack(codec, compress(codec, data), len(data)))
        assert max(map(len, pieces)) <= PIECE_BYTES
        assert b"".join(pieces) == data


@pytest.mark.parametrize("codec", list(Codec))
def test_streamed_decompression_needs_little_memory(codec: Codec) -> None:
    packed = compress(codec, bytes(LARGE))
    tracemalloc.start()
    try:
        assert sum(map(len, unpack(codec, packed, LARGE))) == LARGE
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * PIECE_BYTES


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("size", [1000, 70_000, PIECE_BYTES])
def test_packer_equals_compress(codec: Codec, size: int) -> None:
    packer = Packer(codec, NO_BOUND)
    for at in range(0, len(TEXT), size):
        packer.add(TEXT[at : at + size])
    packed = packer.finish()
    assert decompress(codec, packed, len(TEXT)) == TEXT
    if codec is not Codec.ZSTD:  # Zstandard writes the size at the start if it knows it
        assert packed == compress(codec, TEXT)


def test_packer_stops_above_its_limit() -> None:
    packer = Packer(Codec.NONE, 1000)
    packer.add(bytes(1000))
    with pytest.raises(RecordsError) as refused:
        packer.add(b"x")
    assert refused.value.fault is RecordsFault.TOO_LARGE


def zstd_with_window(log: int, data: bytes) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=log)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packer.compress(data) + packer.flush()


def test_formats_without_streaming_have_a_lower_limit_for_clients() -> None:
    for pack, codec in (
        (lambda data: bytes(cramjam.snappy.compress_raw(data)), Codec.SNAPPY),
        (lambda data: bytes(cramjam.lz4.compress(data)), Codec.LZ4),
        (lambda data: zstd_with_window(25, data), Codec.ZSTD),
    ):
        fits, large = bytes(MEMORY_BYTES_MAX - 1), bytes(LARGE)
        assert b"".join(unpack(codec, pack(fits), NO_BOUND, MEMORY_BYTES_MAX)) == fits
        with pytest.raises(MemoryLimitExceeded):
            list(unpack(codec, pack(large), NO_BOUND, MEMORY_BYTES_MAX))
        assert decompress(codec, pack(large), NO_BOUND) == large  # what is on this broker's disk
    assert sum(map(len, unpack(Codec.ZSTD, zstd_with_window(22, large), NO_BOUND, MEMORY_BYTES_MAX))) == LARGE


def test_a_snappy_block_that_claims_more_than_it_can_hold_is_corrupt() -> None:
    with pytest.raises(RecordsError) as refused:
        decompress(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f\0", NO_BOUND)
    assert refused.value.fault is RecordsFault.CORRUPT


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_number_of_frames_is_limited(codec: Codec) -> None:
    empty = compress(codec, b"")
    assert decompress(codec, empty * FRAMES_MAX, NO_BOUND) == b""
    with pytest.raises(RecordsError) as refused:
        decompress(codec, empty * (FRAMES_MAX + 1), NO_BOUND)
    assert refused.value.fault is RecordsFault.CORRUPT


def zstd_blocks(count: int) -> bytes:
    packer = zstandard.ZstdCompressor().compressobj()
    flush = zstandard.COMPRESSOBJ_FLUSH_BLOCK
    return b"".join(packer.compress(b"x") + packer.flush(flush) for _ in range(count)) + packer.flush()


def lz4_blocks(count: int) -> bytes:
    checksum = bytes(4)  # it is passed over
    return compress(Codec.LZ4, b"")[:7] + (b"\x01\x00\x00\x80x" + checksum) * count + bytes(4)


@pytest.mark.parametrize(
    ("codec", "packed"),
    [
        (Codec.SNAPPY, XERIAL_HEADER + b"\0\0\0\3\1\0x" * 5_000),
        (Codec.LZ4, lz4_blocks(5_000)),
        (Codec.GZIP, compress(Codec.GZIP, b"x") * FRAMES_MAX),
    ],
)
def test_tiny_blocks_per_step_are_bounded(codec: Codec, packed: bytes) -> None:
    pieces = list(unpack(codec, packed, NO_BOUND))
    assert max(map(len, pieces)) <= SMALL_PARTS
    assert set(b"".join(pieces)) == {ord("x")}


def test_zstd_blocks_checked_per_step_are_bounded() -> None:
    pieces = list(unpack(Codec.ZSTD, zstd_blocks(5_000), NO_BOUND))
    assert pieces[0] == b"", "a turn before anything is decompressed"
    assert b"".join(pieces) == b"x" * 5_000
