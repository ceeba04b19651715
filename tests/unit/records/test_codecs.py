"""Compression codecs: limits on decompression bombs, CORRUPT streams, and framings that clients read."""

import random
import struct
import sys
import threading
import tracemalloc

import cramjam
import pytest
import zstandard

from tierlog.records.codecs import Codec, compress
from tierlog.records.errors import RecordsError, RecordsFault
from tierlog.records.unpacking import decompress

TEXT = b'{"carrier":"AA","flight":1545}' * 4_000
COMPRESSING = [codec for codec in Codec if codec is not Codec.NONE]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("data", [b"x", TEXT, bytes(range(256)) * 700])
def test_round_trip(codec: Codec, data: bytes) -> None:
    assert decompress(codec, memoryview(bytearray(compress(codec, data))), len(data)) == data


@pytest.mark.parametrize("codec", list(Codec))
def test_one_byte_over_the_bound_is_too_large(codec: Codec) -> None:
    with pytest.raises(RecordsError) as refused:
        decompress(codec, compress(codec, TEXT), len(TEXT) - 1)
    assert refused.value.fault is RecordsFault.TOO_LARGE


@pytest.mark.parametrize("codec", COMPRESSING)
def test_decompression_bomb_uses_at_most_the_limit_and_a_block(codec: Codec) -> None:
    bound = 1 << 20
    bomb = compress(codec, bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(RecordsError) as refused:
            decompress(codec, bomb, bound)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused.value.fault is RecordsFault.TOO_LARGE
    assert peak < 2 * bound + (1 << 20)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_truncated_empty_and_foreign_streams_are_corrupt(codec: Codec) -> None:
    whole = compress(codec, TEXT)
    cuts = [whole[:length] for length in (1, 5, len(whole) // 2, len(whole) - 5, len(whole) - 1)]
    for broken in [b"", b"\xff" * 50, *cuts]:
        with pytest.raises(RecordsError) as refused:
            decompress(codec, broken, 1 << 24)
        assert refused.value.fault is RecordsFault.CORRUPT


def test_zstd_without_a_content_size_as_streaming_producers_write_it() -> None:
    packer = zstandard.ZstdCompressor().compressobj()
    frame = packer.compress(TEXT) + packer.flush()
    assert zstandard.get_frame_parameters(frame).content_size == zstandard.CONTENTSIZE_UNKNOWN
    assert decompress(Codec.ZSTD, frame, len(TEXT)) == TEXT
    assert decompress(Codec.ZSTD, frame + frame, 2 * len(TEXT)) == TEXT + TEXT
    for length in range(1, len(frame)):
        with pytest.raises(RecordsError):
            decompress(Codec.ZSTD, frame[:length], 1 << 20)


def test_snappy_is_written_framed_and_read_with_or_without_framing() -> None:
    framed = compress(Codec.SNAPPY, TEXT)
    assert framed.startswith(b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1))
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT)), len(TEXT)) == TEXT


def test_snappy_block_lengths_are_checked() -> None:
    for length in (-1, 10_000):
        with pytest.raises(RecordsError) as refused:
            decompress(Codec.SNAPPY, b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, length) + b"abc", 1 << 20)
        assert refused.value.fault is RecordsFault.CORRUPT


def test_lz4_blocks_are_independent_because_the_java_client_requires_it() -> None:
    frame = compress(Codec.LZ4, TEXT)
    assert frame[:4] == bytes.fromhex("04224d18") and frame[4] & 0x20


def test_lz4_linked_blocks_of_other_writers_are_read() -> None:
    assert decompress(Codec.LZ4, bytes(cramjam.lz4.compress(TEXT)), len(TEXT)) == TEXT


def test_gzip_members_may_follow_one_another() -> None:
    member = compress(Codec.GZIP, TEXT)
    assert decompress(Codec.GZIP, member + member, 2 * len(TEXT)) == TEXT + TEXT
    with pytest.raises(RecordsError):
        decompress(Codec.GZIP, member + b"tail", 4 * len(TEXT))


def test_lz4_slices_form_one_frame() -> None:
    for size in (0, 1, 128 * 1024 - 1, 128 * 1024, 128 * 1024 + 1, 1 << 20):
        data = random.Random(1).randbytes(size // 2) + bytes(size - size // 2)
        packer = cramjam.lz4.Compressor(level=1, content_checksum=False, block_linked=False)
        packer.compress(data)
        assert compress(Codec.LZ4, data) == bytes(packer.finish())


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_other_threads_run_during_compression(codec: Codec) -> None:
    data = b"".join(b'{"id":%d,"name":"user-%d"}' % (n, n * 7) for n in range(400_000))
    turns = met = 0

    def work() -> None:
        nonlocal met
        begun = turns
        compress(codec, data)
        met = turns - begun

    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    worker = threading.Thread(target=work)
    try:
        worker.start()
        while worker.is_alive():
            turns += 1
            worker.join(0.0001)
    finally:
        sys.setswitchinterval(before)
        worker.join()
    assert met > 10
