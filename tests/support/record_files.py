"""Indexes and batches that only tests build or check as a whole."""

from collections.abc import Iterable

from tierlog.records.batch import BatchHeader, Buffer
from tierlog.records.codecs import Codec, compress
from tierlog.records.indexes import OffsetEntry, TimeEntry, encode_offset_entry, encode_time_entry
from tierlog.records.writer import with_section


def encode_offset_index(base_offset: int, entries: Iterable[OffsetEntry]) -> bytes:
    return b"".join(encode_offset_entry(base_offset, *entry) for entry in entries)


def encode_time_index(base_offset: int, entries: Iterable[TimeEntry]) -> bytes:
    return b"".join(encode_time_entry(base_offset, *entry) for entry in entries)


def under_codec(header: BatchHeader, plain: Buffer, codec: Codec) -> bytearray:
    """The batch with these decompressed records in another codec. No record is decoded; only codec, length
    and CRC of the header change.
    """
    return with_section(header, compress(codec, plain), codec)
