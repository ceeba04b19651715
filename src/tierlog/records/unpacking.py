"""Streamed decompression of a batch's records, in pieces of bounded size.

A few bytes can claim gigabytes, so no length is trusted: `unpack` yields pieces of at most PIECE_BYTES and
raises TOO_LARGE as soon as they exceed `max_bytes` together. Formats that cannot be decompressed in pieces (a
raw snappy block, a large zstd window, linked lz4 blocks) are held in memory; MemoryLimitExceeded is raised if
that takes more than `memory_bytes`. That limit is for clients' batches; accepted batches are read without it.
Tiny blocks are gathered, so that each step does a bounded amount of work: after SMALL_PARTS of them `unpack`
yields, even an empty piece. Called by `records_section` and by the walks over records (`walk.py`). gzip is
RFC 1952, zstd RFC 8878, lz4 the "LZ4 Frame Format Description" 1.6.
"""

import struct
import zlib
from collections.abc import Callable, Generator, Iterator

import cramjam
import zstandard

from tierlog.records.codecs import XERIAL_HEADER, XERIAL_MAGIC, Buffer, Codec
from tierlog.records.errors import MemoryLimitExceeded, RecordsError, RecordsFault

PIECE_BYTES = 128 * 1024
"""gzip takes 0.4 ms for them."""

MEMORY_BYTES_MAX = 6 * 1024 * 1024
"""Bytes that a client's batch may hold in memory beyond its own size. With twice the frame and the needs of a
step this stays within the limit in docs/explanation/guarantees.md (twice the frame and 8 MiB).
"""

NO_BOUND = 2**63 - 1
"""For batches that were accepted before and are read in pieces."""

SMALL_PARTS = 128
"""Blocks decompressed in one step: about 0.2 ms if they are empty."""

FRAMES_MAX = 1024
"""Maximum gzip members or zstd frames of one batch. Clients write one; each costs 30 microseconds."""

_FEED_BYTES = 64 * 1024
"""Input of one call: zlib copies the bytes that it does not consume."""

_BLOCK_LENGTH = struct.Struct(">i")
_ZSTD_RLE_BLOCK = 1
_ZSTD_BLOCKS_PER_PART = 16
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_BLOCK_LENGTH = struct.Struct("<I")
_LZ4_STORED = 1 << 31
_LZ4_BLOCK_BYTES = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}
_LZ4_LARGEST_RATIO = 255
_SNAPPY_LARGEST_RATIO = 22  # a copy of 64 bytes takes three
_LZ4_CHECKSUM_BYTES = 4
_LZ4_INDEPENDENT, _LZ4_BLOCK_CHECKSUM, _LZ4_CONTENT_SIZE, _LZ4_CHECKSUM, _LZ4_DICTIONARY = 32, 16, 8, 4, 1


def decompress(codec: Codec, data: Buffer, max_bytes: int) -> bytes:
    """The decompressed records section. Raises CORRUPT, or TOO_LARGE if it is longer than max_bytes."""
    return b"".join(unpack(codec, data, max_bytes))


def unpack(codec: Codec, data: Buffer, max_bytes: int, memory_bytes: int = NO_BOUND) -> Iterator[bytes]:
    """The decompressed records section in pieces. Raises CORRUPT, TOO_LARGE before they exceed max_bytes, or
    MemoryLimitExceeded before more than memory_bytes are in memory.
    """
    view = memoryview(data)
    if codec is not Codec.NONE and not len(view):
        raise _corrupt(f"{codec.name.lower()}: nothing to decompress")
    left = max_bytes
    try:
        for piece in _gathered(_UNPACK[codec](view, min(max_bytes, memory_bytes))):
            left -= len(piece)
            if left < 0:
                raise _too_large(codec, max_bytes)
            yield piece
    except (zlib.error, zstandard.ZstdError, cramjam.DecompressionError) as error:
        raise _corrupt(f"{codec.name.lower()}: {error}") from None


def _gathered(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Join small parts, as many as a step may take."""
    waiting: list[bytes] = []
    size = 0
    for part in parts:
        if size + len(part) > PIECE_BYTES or len(waiting) >= SMALL_PARTS:
            yield b"".join(waiting)
            waiting, size = [], 0
        waiting.append(part)
        size += len(part)
    if waiting:
        yield b"".join(waiting)


def _sliced(data: Buffer) -> Iterator[bytes]:
    view = memoryview(data)
    for at in range(0, len(view), PIECE_BYTES):
        yield bytes(view[at : at + PIECE_BYTES])


def _plain(data: memoryview, memory_bytes: int) -> Iterator[bytes]:
    return _sliced(data)


def _gunzip(data: memoryview, memory_bytes: int) -> Iterator[bytes]:
    """Several members may follow one another."""
    at, end, members = 0, len(data), 0
    while at < end:
        members += 1
        if members > FRAMES_MAX:
            raise _corrupt(f"gzip: more than {FRAMES_MAX} members")
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            source: Buffer = member.unconsumed_tail or data[at : at + _FEED_BYTES]
            at += 0 if member.unconsumed_tail else len(source)
            piece = member.decompress(source, PIECE_BYTES)
            if not piece and not len(source) and not member.eof:
                raise _corrupt("gzip: the stream is truncated")
            yield piece
        at -= len(member.unused_data)


def _unsnappy(data: memoryview, memory_bytes: int) -> Iterator[bytes]:
    """librdkafka and others send one raw block without framing."""
    if data[: len(XERIAL_MAGIC)] != XERIAL_MAGIC:
        yield from _unsnappy_block(data, memory_bytes)
        return
    at = len(XERIAL_HEADER)
    while at < len(data):
        if len(data) - at < _BLOCK_LENGTH.size:
            raise _corrupt("snappy: the stream is truncated")
        length = _BLOCK_LENGTH.unpack_from(data, at)[0]
        at += _BLOCK_LENGTH.size
        if not 0 <= length <= len(data) - at:
            raise _corrupt(f"snappy: a block of {length} bytes where {len(data) - at} are left")
        yield from _unsnappy_block(data[at : at + length], memory_bytes)
        at += length


def _unsnappy_block(block: memoryview, memory_bytes: int) -> Iterator[bytes]:
    length = cramjam.snappy.decompress_raw_len(block)
    if length > _SNAPPY_LARGEST_RATIO * len(block):
        raise _corrupt(f"snappy: a block of {len(block)} bytes claims {length}")
    if length > memory_bytes:
        raise _over_memory_limit(Codec.SNAPPY, memory_bytes)
    plain = bytearray(length)
    if cramjam.snappy.decompress_raw_into(block, plain) != length:
        raise _corrupt("snappy: a block is shorter than it says")
    return _sliced(plain) if length else iter((b"",))


def _unlz4(data: memoryview, memory_bytes: int) -> Iterator[bytes]:
    """The frame is parsed here, since the library only decompresses whole frames. Frames with linked blocks,
    which Kafka's clients do not write, go to the library. lz4 checksums are ignored: the batch has a CRC.
    """
    flags = data[4] if len(data) > 6 else 0
    if not flags & _LZ4_INDEPENDENT:
        yield from _sliced(_unlz4_whole(data, memory_bytes))
        return
    if (
        data[:4] != _LZ4_MAGIC
        or flags >> 6 != 1
        or flags & _LZ4_DICTIONARY
        or (data[5] >> 4 & 7) not in _LZ4_BLOCK_BYTES
    ):
        raise _corrupt("lz4: no frame begins here")
    largest = _LZ4_BLOCK_BYTES[data[5] >> 4 & 7]
    at = 15 if flags & _LZ4_CONTENT_SIZE else 7
    if len(data) < at or data[at - 1] != _xxh32_of_few(bytes(data[4 : at - 1])) >> 8 & 0xFF:
        raise _corrupt("lz4: the frame's header has a wrong checksum")
    plain = bytearray(min(largest, _LZ4_LARGEST_RATIO * len(data)))
    output = memoryview(plain)
    while True:
        if len(data) - at < _LZ4_BLOCK_LENGTH.size:
            raise _corrupt("lz4: the stream is truncated")
        length = _LZ4_BLOCK_LENGTH.unpack_from(data, at)[0]
        at += _LZ4_BLOCK_LENGTH.size
        if not length:
            break
        stored, length = length & _LZ4_STORED, length & ~_LZ4_STORED
        if not 0 < length <= min(largest, len(data) - at):
            raise _corrupt(f"lz4: a block of {length} bytes where {len(data) - at} are left")
        block = data[at : at + length]
        at += length + (_LZ4_CHECKSUM_BYTES if flags & _LZ4_BLOCK_CHECKSUM else 0)
        yield from _sliced(block if stored else output[: cramjam.lz4.decompress_block_into(block, plain)])
    at += _LZ4_CHECKSUM_BYTES if flags & _LZ4_CHECKSUM else 0
    if at != len(data):
        raise _corrupt("lz4: the frame does not end with the batch")


def _unlz4_whole(data: memoryview, memory_bytes: int) -> memoryview:
    """Output buffers of growing size up to the limit, since the library has no limit of its own.

    Only the text of its error says whether the buffer was too small or the data is corrupt.
    """
    memory_bytes = min(memory_bytes, _LZ4_LARGEST_RATIO * len(data))
    capacity = min(memory_bytes + 1, 6 * len(data) + 64)
    while True:
        output = bytearray(capacity)
        try:
            return memoryview(output)[: cramjam.lz4.decompress_into(data, output)]
        except cramjam.DecompressionError as error:
            if "write whole buffer" not in str(error):
                raise
            if capacity > memory_bytes:
                raise _over_memory_limit(Codec.LZ4, memory_bytes) from None
            capacity = min(memory_bytes + 1, 4 * capacity)


def _xxh32_of_few(data: bytes) -> int:
    """xxHash32 of fewer than 16 bytes, with seed 0."""
    mask = 0xFFFFFFFF
    value, at = (374761393 + len(data)) & mask, 0
    while at + 4 <= len(data):
        value = value + int.from_bytes(data[at : at + 4], "little") * 3266489917 & mask
        value = (value << 17 | value >> 15) * 668265263 & mask
        at += 4
    for byte in data[at:]:
        value = value + byte * 374761393 & mask
        value = (value << 11 | value >> 21) * 2654435761 & mask
    value = (value ^ value >> 15) * 2246822519 & mask
    value = (value ^ value >> 13) * 3266489917 & mask
    return value ^ value >> 16


def _unzstd(data: memoryview, memory_bytes: int) -> Iterator[bytes]:
    """The window may reach the library's limit (128 MiB), which producers at level 22 need; only the used
    part becomes resident. Content larger than the limit must have a smaller window.
    """
    widest = yield from _check_zstd_frames(data)
    left = memory_bytes if widest > memory_bytes else None
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        while piece := reader.read(PIECE_BYTES):
            if left is not None:
                left -= len(piece)
                if left < 0:
                    raise _over_memory_limit(Codec.ZSTD, memory_bytes)
            yield piece


def _check_zstd_frames(data: memoryview) -> Generator[bytes, None, int]:
    """The largest window. The streaming reader takes a truncated frame for a complete one, so all blocks are
    walked first (RFC 8878, 3.1.1). Yields empty pieces now and then.
    """
    at = blocks = frames = widest = 0
    while at < len(data):
        frames += 1
        if frames > FRAMES_MAX:
            raise _corrupt(f"zstd: more than {FRAMES_MAX} frames")
        frame = zstandard.get_frame_parameters(data[at:])
        widest = max(widest, frame.window_size)
        at += zstandard.frame_header_size(data[at:])
        last = False
        while not last:
            block = int.from_bytes(data[at : at + 3], "little")
            last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
            at += 3 + (1 if kind == _ZSTD_RLE_BLOCK else size)
            if at > len(data):
                raise _corrupt("zstd: the stream is truncated")
            blocks += 1
            if blocks % _ZSTD_BLOCKS_PER_PART == 0:
                yield b""
        at += 4 if frame.has_checksum else 0
    if at > len(data):
        raise _corrupt("zstd: the stream is truncated")
    return widest


def _too_large(codec: Codec, max_bytes: int) -> RecordsError:
    return RecordsError(
        RecordsFault.TOO_LARGE, f"{codec.name.lower()}: more than {max_bytes} bytes when decompressed"
    )


def _over_memory_limit(codec: Codec, memory_bytes: int) -> MemoryLimitExceeded:
    return MemoryLimitExceeded(
        f"{codec.name.lower()}: more than {memory_bytes} bytes that cannot be decompressed in pieces"
    )


def _corrupt(message: str) -> RecordsError:
    return RecordsError(RecordsFault.CORRUPT, message)


_UNPACK: dict[Codec, Callable[[memoryview, int], Iterator[bytes]]] = {
    Codec.NONE: _plain,
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _unzstd,
}
