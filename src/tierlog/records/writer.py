"""Builds record batches: for the coordinators' topics, the REST gateway, the CLI and tests.

The batches have their CRC and may be appended as they are. The layout is in KIP-98.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from tierlog.records.batch import (
    CODEC_MASK,
    CONTROL,
    HEADER,
    HEADER_SIZE,
    KNOWN_ATTRIBUTES,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    seal,
)
from tierlog.records.codecs import Codec, compress
from tierlog.records.record import Header

ABORT_MARKER, COMMIT_MARKER = 0, 1
_MARKER_VERSION = 0
_MARKER_KEY = struct.Struct(">hh")  # version, type
_MARKER_VALUE = struct.Struct(">hi")  # version, coordinator epoch


class NewRecord(NamedTuple):
    """A record without an offset; timestamp in milliseconds."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()


def encode_batch(
    records: Sequence[NewRecord],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    log_append_time: int | None = None,
    offset_deltas: Sequence[int] | None = None,
) -> bytearray:
    """One batch of at least one record. `offset_deltas` (ascending) may have gaps, as after compaction."""
    if not records:
        raise ValueError("a batch needs at least one record")
    deltas = range(len(records)) if offset_deltas is None else offset_deltas
    base_timestamp = records[0].timestamp
    plain = bytearray()
    for delta, record in zip(deltas, records, strict=True):
        _append_record(plain, record, record.timestamp - base_timestamp, delta)
    section = compress(codec, plain)
    attributes = (
        codec
        | (TRANSACTIONAL if transactional else 0)
        | (CONTROL if control else 0)
        | (LOG_APPEND_TIME if log_append_time is not None else 0)
    )
    batch = bytearray(HEADER_SIZE + len(section))
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - LOG_OVERHEAD,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        deltas[-1],
        base_timestamp,
        max(record.timestamp for record in records) if log_append_time is None else log_append_time,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    batch[HEADER_SIZE:] = section
    seal(batch, 0, len(batch))
    return batch


def encode_end_marker(
    producer_id: int, producer_epoch: int, *, committed: bool, coordinator_epoch: int, timestamp: int
) -> bytearray:
    """The control batch that commits or aborts a transaction in one partition (KIP-98)."""
    key = _MARKER_KEY.pack(_MARKER_VERSION, COMMIT_MARKER if committed else ABORT_MARKER)
    value = _MARKER_VALUE.pack(_MARKER_VERSION, coordinator_epoch)
    return encode_batch(
        [NewRecord(timestamp, key, value)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def with_section(header: BatchHeader, section: Buffer, codec: Codec) -> bytearray:
    """A batch with the given header and a records section compressed by another codec. Only codec, length and
    CRC of the header change."""
    batch = bytearray(HEADER_SIZE + len(section))
    attributes = header.attributes & KNOWN_ATTRIBUTES & ~CODEC_MASK | codec
    HEADER.pack_into(
        batch, 0, *header._replace(batch_length=len(batch) - LOG_OVERHEAD, attributes=attributes)
    )
    batch[HEADER_SIZE:] = section
    seal(batch, 0, len(batch))
    return batch


def append_varint(out: bytearray, value: int) -> None:
    """Zigzag, seven bits a byte, low bits first (as in Protocol Buffers' sint64)."""
    raw = (value << 1) ^ (value >> 63)
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)


def _append_record(out: bytearray, record: NewRecord, timestamp_delta: int, offset_delta: int) -> None:
    body = bytearray(1)  # attributes, unused
    append_varint(body, timestamp_delta)
    append_varint(body, offset_delta)
    _append_bytes(body, record.key)
    _append_bytes(body, record.value)
    append_varint(body, len(record.headers))
    for name, value in record.headers:
        _append_bytes(body, name.encode())
        _append_bytes(body, value)
    append_varint(out, len(body))
    out += body


def _append_bytes(out: bytearray, field: bytes | None) -> None:
    if field is None:
        append_varint(out, -1)
        return
    append_varint(out, len(field))
    out += field
