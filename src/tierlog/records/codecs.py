"""Compression codecs of record batches: compress at once, or piece by piece.

Decompression is in `unpacking.py`. Called by writer, rewrite and the leader's batch validation.
"""

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Protocol

import cramjam
import zstandard

from tierlog.records.errors import RecordsError, RecordsFault

Buffer = bytes | bytearray | memoryview

# Snappy as Java clients write it (the xerial framing): magic, version, least compatible version, then blocks.
XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_LENGTH = struct.Struct(">i")
_LZ4_SLICE_BYTES = 128 * 1024
"""Unlike the others, this library holds the interpreter lock while it compresses. Between slices of half a
millisecond other threads can run; the frame is the same.
"""


class Codec(IntEnum):
    """Kafka's numbers: the low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Codec, data: Buffer) -> bytes:
    """The records section of a batch, in the framing that all Kafka clients read."""
    if codec is Codec.ZSTD:  # states the size of its content, which a packer does not know
        return zstandard.ZstdCompressor(level=3).compress(data)
    packer = _PACKERS[codec]()
    return packer.compress(bytes(data)) + packer.flush()


class Packer:
    """Compresses pieces of a records section. Raises TOO_LARGE if the result exceeds `max_bytes`."""

    def __init__(self, codec: Codec, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._packer = _PACKERS[codec]()
        self._packed = bytearray()

    def add(self, piece: bytes) -> None:
        self._take(self._packer.compress(piece))

    def finish(self) -> bytearray:
        self._take(self._packer.flush())
        return self._packed

    def _take(self, packed: bytes) -> None:
        self._packed += packed
        if len(self._packed) > self._max_bytes:
            raise RecordsError(
                RecordsFault.TOO_LARGE, f"the batch has more than {self._max_bytes} bytes as stored"
            )


class _PackerOfCodec(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self) -> bytes: ...


class _Verbatim:
    def compress(self, data: bytes) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


class _SnappyPacker:
    def __init__(self) -> None:
        self._rest = b""
        self._begun = False

    def compress(self, data: bytes) -> bytes:
        self._rest += data
        whole = len(self._rest) // XERIAL_BLOCK_BYTES * XERIAL_BLOCK_BYTES
        ready, self._rest = self._rest[:whole], self._rest[whole:]
        packed = _snappy(ready)[len(XERIAL_HEADER) * self._begun :]
        self._begun = True
        return packed

    def flush(self) -> bytes:
        return _snappy(self._rest)[len(XERIAL_HEADER) * self._begun :]


class _Lz4Packer:
    """Independent blocks, since the Java client rejects frames with linked blocks."""

    def __init__(self) -> None:
        self._packer = cramjam.lz4.Compressor(level=1, content_checksum=False, block_linked=False)

    def compress(self, data: bytes) -> bytes:
        for at in range(0, len(data), _LZ4_SLICE_BYTES):
            self._packer.compress(data[at : at + _LZ4_SLICE_BYTES])
        return b""

    def flush(self) -> bytes:
        return bytes(self._packer.finish())


def _snappy(data: Buffer) -> bytes:
    view = memoryview(data)
    pieces = [XERIAL_HEADER]
    for at in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[at : at + XERIAL_BLOCK_BYTES]))
        pieces += (_BLOCK_LENGTH.pack(len(block)), block)
    return b"".join(pieces)


_PACKERS: dict[Codec, Callable[[], _PackerOfCodec]] = {
    Codec.NONE: _Verbatim,
    Codec.GZIP: lambda: zlib.compressobj(wbits=31),
    Codec.SNAPPY: _SnappyPacker,
    Codec.LZ4: _Lz4Packer,
    Codec.ZSTD: lambda: zstandard.ZstdCompressor(level=3).compressobj(),
}
