"""Batch headers: validation, and changes in place that keep a batch readable."""

import struct
from collections.abc import Callable

import pytest

from tierlog.records.batch import (
    assign,
    check_batch,
    check_produced,
    iter_batches,
    read_header,
    seal,
    set_log_append_time,
)
from tierlog.records.codecs import Codec
from tierlog.records.errors import RecordsError, RecordsFault
from tierlog.records.record import iter_records
from tierlog.records.writer import NewRecord, encode_batch

RECORDS = [NewRecord(1_000 + i, b"key-%d" % i, b"value-%d" % i, [("h", b"x")]) for i in range(5)]


def poke(layout: str, at: int, value: int, *, sealed: bool = True) -> bytearray:
    """A valid batch with one field overwritten; `sealed`: with a matching CRC."""
    batch = encode_batch(RECORDS)
    struct.pack_into(layout, batch, at, value)
    if sealed:
        seal(batch, 0, len(batch))
    return batch


def test_header_has_the_values_of_the_writer() -> None:
    batch = encode_batch(
        RECORDS,
        base_offset=77,
        leader_epoch=3,
        codec=Codec.LZ4,
        producer_id=9,
        producer_epoch=2,
        base_sequence=40,
        transactional=True,
    )
    header = check_batch(batch)
    assert (header.base_offset, header.last_offset, header.next_offset) == (77, 81, 82)
    assert (header.leader_epoch, header.codec, header.record_count) == (3, Codec.LZ4, 5)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 40)
    assert header.is_transactional and not header.is_control and not header.log_append_time
    assert (header.base_timestamp, header.max_timestamp) == (1_000, 1_004)
    assert header.size == len(batch)


def test_assign_keeps_the_crc_and_moves_every_offset() -> None:
    batch = bytearray(b"junk" + encode_batch(RECORDS))
    assign(memoryview(batch), 4, 1_000_000_000_000, 12)
    header = check_batch(batch, 4)
    assert (header.base_offset, header.leader_epoch) == (1_000_000_000_000, 12)
    assert [record.offset for record in iter_records(batch, 4, max_bytes=1 << 20)] == [
        10**12 + i for i in range(5)
    ]


@pytest.mark.parametrize("codec", list(Codec))
def test_log_append_time_is_every_records_timestamp(codec: Codec) -> None:
    batch = encode_batch(RECORDS, codec=codec)
    set_log_append_time(memoryview(batch), 0, 123_456_789)
    header = check_batch(batch)
    assert header.log_append_time and header.max_timestamp == 123_456_789 and header.codec is codec
    assert {record.timestamp for record in iter_records(batch, max_bytes=1 << 20)} == {123_456_789}


@pytest.mark.parametrize(
    ("batch", "fault"),
    [
        (bytearray(), RecordsFault.CORRUPT),
        (encode_batch(RECORDS)[:40], RecordsFault.CORRUPT),
        (encode_batch(RECORDS)[:-1], RecordsFault.CORRUPT),
        (poke(">i", 8, 48), RecordsFault.CORRUPT),
        (poke(">i", 8, -1, sealed=False), RecordsFault.CORRUPT),
        (poke(">i", 8, 2**31 - 1, sealed=False), RecordsFault.CORRUPT),
        (poke(">b", 16, 0), RecordsFault.UNSUPPORTED_MAGIC),
        (poke(">b", 16, 1), RecordsFault.UNSUPPORTED_MAGIC),
        (poke(">b", 16, 3), RecordsFault.INVALID),
        (poke(">b", 16, -1), RecordsFault.INVALID),
        (poke(">I", 17, 0xDEAD, sealed=False), RecordsFault.CORRUPT),
        (poke(">i", 57, -1), RecordsFault.INVALID),
        (poke(">i", 57, 6), RecordsFault.INVALID),
        (poke(">i", 23, -5), RecordsFault.INVALID),
    ],
)
def test_a_bad_batch_is_refused_with_its_fault(batch: bytearray, fault: RecordsFault) -> None:
    with pytest.raises(RecordsError) as refused:
        check_batch(batch)
    assert refused.value.fault is fault


def test_old_formats_are_unsupported_even_if_shorter_than_a_header() -> None:
    """A v1 message set of one empty message has 34 bytes, which is too short for a header."""
    old = struct.pack(">qiIbbqii", 0, 22, 0, 1, 0, 0, -1, -1)
    with pytest.raises(RecordsError) as refused:
        check_batch(old)
    assert refused.value.fault is RecordsFault.UNSUPPORTED_MAGIC


def test_every_flipped_byte_after_the_crc_is_detected() -> None:
    batch = encode_batch(RECORDS)
    for at in range(17, len(batch)):
        batch[at] ^= 0x40
        with pytest.raises(RecordsError):
            check_batch(batch)
        batch[at] ^= 0x40
    check_batch(batch)


def gaps() -> bytearray:
    return encode_batch(RECORDS, offset_deltas=[0, 2, 3, 7, 9])


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (gaps, RecordsFault.INVALID),
        (lambda: poke(">i", 57, 4), RecordsFault.INVALID),
        (lambda: encode_batch(RECORDS, base_offset=5), RecordsFault.INVALID),
        (bytearray, RecordsFault.INVALID),
        (lambda: encode_batch(RECORDS)[:16], RecordsFault.INVALID),
        (lambda: encode_batch(RECORDS)[:17], RecordsFault.CORRUPT),
        (lambda: encode_batch(RECORDS, control=True), RecordsFault.INVALID),
        (lambda: encode_batch(RECORDS, producer_id=5, producer_epoch=0), RecordsFault.INVALID),
        (lambda: encode_batch(RECORDS, transactional=True), RecordsFault.INVALID),
        (lambda: encode_batch(RECORDS) + encode_batch(RECORDS), RecordsFault.INVALID),
        (lambda: encode_batch(RECORDS) + b"tail", RecordsFault.CORRUPT),
        (lambda: poke(">h", 21, 5), RecordsFault.UNKNOWN_CODEC),
    ],
)
def test_invalid_batches_of_clients_are_refused(make: Callable[[], bytearray], fault: RecordsFault) -> None:
    with pytest.raises(RecordsError) as refused:
        check_produced(make())
    assert refused.value.fault is fault


def test_compacted_batches_are_valid_in_a_log() -> None:
    header = check_batch(gaps())
    assert (header.record_count, header.last_offset_delta) == (5, 9)
    assert [record.offset for record in iter_records(gaps(), max_bytes=1 << 20)] == [0, 2, 3, 7, 9]


def test_iteration_stops_at_a_truncated_batch() -> None:
    batches = [encode_batch(RECORDS, base_offset=5 * i) for i in range(3)]
    log = b"".join(batches)
    assert [(at, header.base_offset) for at, header in iter_batches(log)] == [
        (0, 0),
        (len(batches[0]), 5),
        (2 * len(batches[0]), 10),
    ]
    assert [header.base_offset for _, header in iter_batches(log[:-1])] == [0, 5]
    assert list(iter_batches(log[:30])) == []


def test_iteration_ends_at_an_invalid_length() -> None:
    with pytest.raises(RecordsError):
        list(iter_batches(poke(">i", 8, -12, sealed=False)))


def test_a_header_needs_its_bytes() -> None:
    with pytest.raises(RecordsError):
        read_header(b"\x00" * 60)
