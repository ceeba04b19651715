"""Index bundle (the `.idx` object): the indexes and state files of a segment, with a table of contents.

Big-endian, like Kafka's files: magic, version, number of sections, CRC-32C of the table; for each section its
kind, CRC-32C, position and length; then the sections. The table comes first, so that a reader can fetch only
the section that it needs. Readers skip sections of unknown kinds and reject unknown versions. Specified in
docs/formats/remote.md; written by the copier, read by the remote log, new replicas and Spark.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

import crc32c

MAGIC = b"TIERLIDX"
VERSION = 1
MAX_SECTIONS = 64  # leaves room for new kinds; limits the table size that a damaged header can claim

_HEAD = struct.Struct(">8sHHI")
_ENTRY = struct.Struct(">HHIQQ")
_EPOCH = struct.Struct(">iq")


class BundleError(ValueError):
    """The data is not an index bundle, is damaged, or has a newer version."""


class Section(IntEnum):
    """Kinds of sections. The numbers are on disk and must not be reused."""

    OFFSET_INDEX = 1
    TIME_INDEX = 2
    TXN_INDEX = 3
    PRODUCER_SNAPSHOT = 4
    LEADER_EPOCHS = 5


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


def encode_bundle(bundle: IndexBundle) -> bytes:
    sections = (
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
    found = {kind: _section(data, kind, *place) for kind, place in _read_table(data).items()}
    missing = [kind.name for kind in Section if kind not in found]
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
    )


def _read_table(data: bytes) -> dict[int, tuple[int, int, int]]:
    """Kind -> (crc32c, position, length)."""
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
    return {kind: (crc, position, length) for kind, _, crc, position, length in _ENTRY.iter_unpack(table)}


def _section(data: bytes, kind: int, checksum: int, position: int, length: int) -> bytes:
    content = data[position : position + length]
    if len(content) != length or crc32c.crc32c(content) != checksum:
        raise BundleError(f"index bundle: section {kind} is damaged or truncated")
    return content
