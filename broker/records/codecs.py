"""The five compression codecs of record batches, with a bound on what decompression may yield.

A few bytes can claim gigabytes, so every decompressor works against `max_bytes`: it raises TOO_LARGE as soon
as the output would pass it, and never allocates more than that and a block. Called by writer, record and
columnar.
"""

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum

import cramjam
import zstandard

from tierlog.broker.records.errors import RecordsError, RecordsFault

Buffer = bytes | bytearray | memoryview

# Snappy as Java clients write it (the xerial framing): magic, version, least compatible version, then blocks.
XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_LENGTH = struct.Struct(">i")
_STEP_BYTES = 256 * 1024
_ZSTD_RLE_BLOCK = 1
_LZ4_SLICE_BYTES = 128 * 1024
"""The library keeps the interpreter while it compresses, unlike the others. Between slices, each half a
millisecond of work, other threads have their turn; the frame is the same.
"""

_GUESSED_RATIO = 6
"""Size of lz4's first output buffer; text seldom does better, and a wrong guess costs one more attempt."""


class Codec(IntEnum):
    """Kafka's numbers, the low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Codec, data: Buffer) -> bytes:
    """The records section of a batch in the framing that every Kafka client reads."""
    return _COMPRESS[codec](data)


def decompress(codec: Codec, data: Buffer, max_bytes: int) -> bytes:
    """The plain records section. Raises CORRUPT, or TOO_LARGE if it is longer than max_bytes."""
    if codec is not Codec.NONE and len(data) == 0:
        raise _corrupt(f"{codec.name.lower()}: nothing to decompress")
    try:
        plain = _DECOMPRESS[codec](data, max_bytes)
    except (zlib.error, zstandard.ZstdError, cramjam.DecompressionError) as error:
        raise RecordsError(RecordsFault.CORRUPT, f"{codec.name.lower()}: {error}") from None
    if len(plain) > max_bytes:
        raise _too_large(codec, max_bytes)
    return plain


def _too_large(codec: Codec, max_bytes: int) -> RecordsError:
    return RecordsError(
        RecordsFault.TOO_LARGE, f"{codec.name.lower()}: more than {max_bytes} bytes when decompressed"
    )


def _corrupt(message: str) -> RecordsError:
    return RecordsError(RecordsFault.CORRUPT, message)


def _plain(data: Buffer, max_bytes: int) -> bytes:
    return bytes(data)


def _gzip(data: Buffer) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(data) + packer.flush()


def _gunzip(data: Buffer, max_bytes: int) -> bytes:
    """zlib, because it alone takes a bound; members may follow one another (RFC 1952)."""
    pieces: list[bytes] = []
    room = max_bytes
    while data:
        member = zlib.decompressobj(wbits=31)
        pieces.append(member.decompress(data, room + 1))
        room -= len(pieces[-1])
        if room < 0:
            raise _too_large(Codec.GZIP, max_bytes)
        if not member.eof:
            raise _corrupt("gzip: the stream is cut")
        data = member.unused_data
    return b"".join(pieces)


def _snappy(data: Buffer) -> bytes:
    view = memoryview(data)
    pieces = [XERIAL_HEADER]
    for at in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[at : at + XERIAL_BLOCK_BYTES]))
        pieces += (_BLOCK_LENGTH.pack(len(block)), block)
    return b"".join(pieces)


def _unsnappy(data: Buffer, max_bytes: int) -> bytes:
    """librdkafka and others send one raw block without the framing."""
    view = memoryview(data)
    if view[: len(XERIAL_MAGIC)] != XERIAL_MAGIC:
        return _unsnappy_block(view, max_bytes)
    pieces: list[bytes] = []
    room, at = max_bytes, len(XERIAL_HEADER)
    while at < len(view):
        if len(view) - at < 4:
            raise _corrupt("snappy: the stream is cut")
        length = _BLOCK_LENGTH.unpack_from(view, at)[0]
        at += 4
        if not 0 <= length <= len(view) - at:
            raise _corrupt(f"snappy: a block of {length} bytes where {len(view) - at} are left")
        pieces.append(_unsnappy_block(view[at : at + length], room))
        room -= len(pieces[-1])
        at += length
    return b"".join(pieces)


def _unsnappy_block(block: memoryview, max_bytes: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(block) > max_bytes:
        raise _too_large(Codec.SNAPPY, max_bytes)
    return bytes(cramjam.snappy.decompress_raw(block))


def _lz4(data: Buffer) -> bytes:
    """Independent blocks: the Java client refuses frames whose blocks are linked."""
    packer = cramjam.lz4.Compressor(level=1, content_checksum=False, block_linked=False)
    view = memoryview(data)
    for at in range(0, len(view), _LZ4_SLICE_BYTES):
        packer.compress(bytes(view[at : at + _LZ4_SLICE_BYTES]))
    return bytes(packer.finish())


def _unlz4(data: Buffer, max_bytes: int) -> bytes:
    """Output buffers of growing size up to the bound: the library takes a buffer, but no bound.

    Only the text of its error says whether the buffer was too small or the data is bad.
    """
    capacity = min(max_bytes + 1, _GUESSED_RATIO * len(data) + 64)
    while True:
        room = bytearray(capacity)
        try:
            length = cramjam.lz4.decompress_into(data, room)
        except cramjam.DecompressionError as error:
            if "write whole buffer" not in str(error):
                raise
            if capacity > max_bytes:
                raise _too_large(Codec.LZ4, max_bytes) from None
            capacity = min(max_bytes + 1, capacity * _GUESSED_RATIO)
        else:
            return bytes(memoryview(room)[:length])


def _zstd(data: Buffer) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(data)


def _unzstd(data: Buffer, max_bytes: int) -> bytes:
    """Streamed, because the one-shot call allocates whatever content size the frame claims.

    The window is left at the library's limit (128 MiB): a producer at level 22 needs it, and only what is
    used of it becomes resident.
    """
    _require_whole_zstd_frames(memoryview(data))
    pieces: list[bytes] = []
    room = max_bytes
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        while piece := reader.read(min(room + 1, _STEP_BYTES)):
            pieces.append(piece)
            room -= len(piece)
            if room < 0:
                raise _too_large(Codec.ZSTD, max_bytes)
    return b"".join(pieces)


def _require_whole_zstd_frames(view: memoryview) -> None:
    """The streaming reader takes a cut frame for its end, so walk the blocks first (RFC 8878, 3.1.1)."""
    at = 0
    while at < len(view):
        frame = zstandard.get_frame_parameters(view[at:])
        at += zstandard.frame_header_size(view[at:])
        last = False
        while not last:
            block = int.from_bytes(view[at : at + 3], "little")
            last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
            at += 3 + (1 if kind == _ZSTD_RLE_BLOCK else size)
            if at > len(view):
                raise _corrupt("zstd: the stream is cut")
        at += 4 if frame.has_checksum else 0
    if at > len(view):
        raise _corrupt("zstd: the stream is cut")


_COMPRESS: dict[Codec, Callable[[Buffer], bytes]] = {
    Codec.NONE: bytes,
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snappy,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}
_DECOMPRESS: dict[Codec, Callable[[Buffer, int], bytes]] = {
    Codec.NONE: _plain,
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _unzstd,
}
