"""Index bundle (the `.idx` object): the indexes and state files of a segment, with a table of contents.

Big-endian, like Kafka's files: magic, version, number of sections, CRC-32C of the table; for each section its
kind, CRC-32C, position and length; then the sections. The table comes first, and after it the chunk table:
one request for the first HEAD_BYTES is enough to find every record of the segment. Readers skip sections of
unknown kinds and reject unknown versions. Specified in docs/formats/remote.md; written by the copier, read by
the remote log, new replicas and Spark.
"""

import struct
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

import crc32c

from tierlog.metadata.records import RemoteSegment
from tierlog.records.chunks import ChunkEntry

MAGIC = b"TIERLIDX"
VERSION = 1
MAX_SECTIONS = 64  # leaves room for new kinds; limits the table size that a damaged header can claim
HEAD_BYTES = 16 << 10
"""A segment of at most 2 GiB has fewer than 512 chunks (two neighbours are larger than one chunk's limit), so
its chunk table ends below this position."""

_HEAD = struct.Struct(">8sHHI")
_ENTRY = struct.Struct(">HHIQQ")
_EPOCH = struct.Struct(">iq")
_CHUNK_TABLE = struct.Struct(">16sQI")
_CHUNK = struct.Struct(">QqqI")


class BundleError(ValueError):
    """The data is not an index bundle, is damaged, or has a newer version."""


class Section(IntEnum):
    """Kinds of sections. The numbers are on disk and must not be reused."""

    OFFSET_INDEX = 1
    TIME_INDEX = 2
    TXN_INDEX = 3
    PRODUCER_SNAPSHOT = 4
    LEADER_EPOCHS = 5
    CHUNK_TABLE = 6  # first in the bundle; absent from bundles that earlier versions wrote


OPTIONAL = frozenset({Section.CHUNK_TABLE})


class Place(NamedTuple):
    """Position and checksum of a section of the bundle."""

    crc32c: int
    position: int
    length: int


Places = Mapping[int, Place]
"""Kind of section -> its place."""


@dataclass(frozen=True, slots=True)
class ChunkTable:
    """The chunks of a segment's `.log` object, in order. The other fields say which object it is."""

    segment: uuid.UUID
    log_bytes: int
    log_crc32c: int
    chunks: tuple[ChunkEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexBundle:
    """Indexes of one segment and the producer state at its end, in Kafka's formats, and leader epochs.

    `txn_index` contains every aborted transaction that overlaps the segment, even if it ends after it.
    """

    offset_index: bytes
    time_index: bytes
    txn_index: bytes
    producer_snapshot: bytes
    leader_epochs: tuple[tuple[int, int], ...]  # (epoch, its first offset), up to the segment's end
    chunk_table: ChunkTable | None = None


def encode_bundle(bundle: IndexBundle) -> bytes:
    table_of_chunks = bundle.chunk_table
    sections = (
        *(() if table_of_chunks is None else [(Section.CHUNK_TABLE, _encode_chunks(table_of_chunks))]),
        (Section.OFFSET_INDEX, bundle.offset_index),
        (Section.TIME_INDEX, bundle.time_index),
        (Section.TXN_INDEX, bundle.txn_index),
        (Section.PRODUCER_SNAPSHOT, bundle.producer_snapshot),
        (Section.LEADER_EPOCHS, b"".join(_EPOCH.pack(*entry) for entry in bundle.leader_epochs)),
    )
    table = bytearray()
    position = _HEAD.size + len(sections) * _ENTRY.size
    for kind, content in sections:
        table += _ENTRY.pack(kind, 0, crc32c.crc32c(content), position, len(content))
        position += len(content)
    head = _HEAD.pack(MAGIC, VERSION, len(sections), crc32c.crc32c(bytes(table)))
    return b"".join([head, table, *(content for _, content in sections)])


def decode_bundle(data: bytes) -> IndexBundle:
    """Raises BundleError unless every section is present and its checksum matches."""
    found = {kind: section(data, kind, place) for kind, place in read_places(data).items()}
    missing = [kind.name for kind in Section if kind not in found and kind not in OPTIONAL]
    if missing:
        raise BundleError(f"index bundle: missing sections {', '.join(missing)}")
    epochs = found[Section.LEADER_EPOCHS]
    if len(epochs) % _EPOCH.size:
        raise BundleError("index bundle: leader epochs are truncated")
    return IndexBundle(
        offset_index=found[Section.OFFSET_INDEX],
        time_index=found[Section.TIME_INDEX],
        txn_index=found[Section.TXN_INDEX],
        producer_snapshot=found[Section.PRODUCER_SNAPSHOT],
        leader_epochs=tuple((epoch, offset) for epoch, offset in _EPOCH.iter_unpack(epochs)),
        chunk_table=decode_chunks(found[Section.CHUNK_TABLE]) if Section.CHUNK_TABLE in found else None,
    )


def chunks_of(entry: RemoteSegment, head: bytes, places: Places) -> tuple[ChunkEntry, ...] | None:
    """The chunks of a segment, from the head of its bundle; None if the bundle has no chunk table. Raises
    BundleError if the table is damaged or belongs to another segment."""
    if Section.CHUNK_TABLE not in places:
        return None
    table = decode_chunks(section(head, Section.CHUNK_TABLE, places[Section.CHUNK_TABLE]))
    if (table.segment, table.log_bytes, table.log_crc32c) != (entry.uuid, entry.log_bytes, entry.log_crc32c):
        raise BundleError("the chunk table belongs to another segment")
    return table.chunks


def txn_place(places: Places) -> Place:
    """The place of the transaction index. Raises BundleError if the bundle has none."""
    if Section.TXN_INDEX not in places:
        raise BundleError("index bundle: missing section TXN_INDEX")
    return places[Section.TXN_INDEX]


def decode_chunks(data: bytes) -> ChunkTable:
    """Decode a chunk table. Raises BundleError unless positions and offsets ascend within the segment."""
    if len(data) < _CHUNK_TABLE.size or (len(data) - _CHUNK_TABLE.size) % _CHUNK.size:
        raise BundleError(f"chunk table of {len(data)} bytes is truncated")
    segment, log_bytes, log_crc32c = _CHUNK_TABLE.unpack_from(data)
    chunks = tuple(map(ChunkEntry._make, _CHUNK.iter_unpack(data[_CHUNK_TABLE.size :])))
    ascends = all(
        one.position < two.position and one.first_offset < two.first_offset for one, two in pairwise(chunks)
    )
    if not chunks or chunks[0].position != 0 or chunks[-1].position >= log_bytes or not ascends:
        raise BundleError(f"chunk table: its chunks do not divide a segment of {log_bytes} bytes")
    return ChunkTable(uuid.UUID(bytes=segment), log_bytes, log_crc32c, chunks)


def _encode_chunks(table: ChunkTable) -> bytes:
    head = _CHUNK_TABLE.pack(table.segment.bytes, table.log_bytes, table.log_crc32c)
    return b"".join([head, *(_CHUNK.pack(*chunk) for chunk in table.chunks)])


def read_places(data: bytes) -> dict[int, Place]:
    """The table of contents, from the first bytes of a bundle. Raises BundleError."""
    if len(data) < _HEAD.size:
        raise BundleError(f"index bundle of {len(data)} bytes is truncated")
    magic, version, count, checksum = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise BundleError("not an index bundle: wrong magic")
    if version != VERSION:
        raise BundleError(
            f"index bundle of version {version} is not supported (this version reads {VERSION})"
        )
    table = data[_HEAD.size : _HEAD.size + count * _ENTRY.size]
    if count > MAX_SECTIONS or len(table) != count * _ENTRY.size or crc32c.crc32c(table) != checksum:
        raise BundleError("index bundle: its table of contents is damaged")
    return {
        kind: Place(crc, position, length) for kind, _, crc, position, length in _ENTRY.iter_unpack(table)
    }


def section(data: bytes, kind: int, place: Place, begin: int = 0) -> bytes:
    """A section's bytes. `data`: the bytes of the bundle from position `begin` on. Raises BundleError if it
    is damaged or not within `data`."""
    at = place.position - begin
    content = data[at : at + place.length]
    if len(content) != place.length or crc32c.crc32c(content) != place.crc32c:
        raise BundleError(f"index bundle: section {kind} is damaged or truncated")
    return content
