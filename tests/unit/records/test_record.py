"""Hostile bytes inside a batch with a valid CRC: every length is checked before it is used."""

from functools import partial

import pytest
from structure import count_check

from tierlog.records.batch import HEADER_SIZE, seal
from tierlog.records.codecs import Codec
from tierlog.records.errors import RecordsError, RecordsFault
from tierlog.records.record import Record, iter_records
from tierlog.records.walk import HEAD_BYTES, _walk
from tierlog.records.writer import NewRecord, append_varint, encode_batch

LIMIT = 1 << 20
GOOD = bytes.fromhex("10 00 00 00 02 6b 02 76 00".replace(" ", ""))  # key k, value v, no headers


def batch_of(section: bytes, records: int = 1) -> bytearray:
    """A sealed batch around any bytes."""
    batch = encode_batch([NewRecord(0, None, None)] * records)[:HEADER_SIZE] + section
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    seal(batch, 0, len(batch))
    return batch


def test_reference_record_is_valid() -> None:
    assert list(iter_records(batch_of(GOOD), max_bytes=LIMIT)) == [Record(0, 0, b"k", b"v", ())]
    assert count_check(batch_of(GOOD), max_bytes=LIMIT) == 0


@pytest.mark.parametrize(
    "section",
    [
        b"",
        GOOD[:-1],
        GOOD + b"\x00",
        b"\x00" + GOOD[1:],  # no length
        b"\x01" + GOOD[1:],  # length -1
        b"\x12" + GOOD[1:],  # one byte more than there is
        b"\x0e" + GOOD[1:],  # one byte less than the fields need
        b"\x80\x80\x80\x80\x80\x01" + GOOD[1:],  # over-long length
        b"\xff\xff\xff\xff\x0f" + GOOD[1:],  # length -2^31
        bytes.fromhex("100000000 26b 7e 76 00".replace(" ", "")),  # value past the record
        bytes.fromhex("1000000003 6b 02 76 00".replace(" ", "")),  # key length -2
        bytes.fromhex("1000000002 6b 02 76 02".replace(" ", "")),  # one header, but no bytes for it
        bytes.fromhex("1000000002 6b 02 76 01".replace(" ", "")),  # header count -1
        bytes.fromhex("14 00 00 00 02 6b 02 76 02 01 01".replace(" ", "")),  # header without key
        bytes.fromhex("18 00 00 00 02 6b 02 76 02 02 ff 00 00".replace(" ", "")),  # header key not UTF-8
    ],
)
def test_a_bad_record_is_invalid(section: bytes) -> None:
    with pytest.raises(RecordsError) as refused:
        list(iter_records(batch_of(section), max_bytes=LIMIT))
    assert refused.value.fault is RecordsFault.INVALID


def test_a_record_count_that_cannot_fit_is_refused_at_once() -> None:
    with pytest.raises(RecordsError) as refused:
        next(iter_records(batch_of(GOOD, records=50_000), max_bytes=LIMIT))
    assert refused.value.fault is RecordsFault.INVALID


def test_an_over_long_timestamp_delta_is_invalid_in_every_reader() -> None:
    body = b"\x00" + b"\x80" * 10 + b"\x00" + b"\x00\x02k\x02v\x00"
    batch = batch_of(bytes((2 * len(body),)) + body)
    for read in (
        lambda: count_check(batch, max_bytes=LIMIT),
        lambda: list(iter_records(batch, max_bytes=LIMIT)),
    ):
        with pytest.raises(RecordsError) as refused:
            read()
        assert refused.value.fault is RecordsFault.INVALID


@pytest.mark.parametrize(
    "batch",
    [
        encode_batch([NewRecord(0, b"k", b"v")] * 3, offset_deltas=[0, 2, 3]),
        encode_batch([NewRecord(0, b"k", b"v")] * 3, offset_deltas=[0, 1, 1]),
        batch_of(GOOD * 2),
        batch_of(GOOD, records=2),
    ],
)
def test_count_check_requires_consecutive_deltas(batch: bytearray) -> None:
    with pytest.raises(RecordsError) as refused:
        count_check(batch, max_bytes=LIMIT)
    assert refused.value.fault is RecordsFault.INVALID


@pytest.mark.parametrize("wrong", [63, 64, 8_191, 8_192, 16_383, 16_384, 19_999])
def test_offset_deltas_of_one_two_and_three_bytes(wrong: int) -> None:
    records = [NewRecord(0, b"k", b"v")] * 20_000
    assert count_check(encode_batch(records), max_bytes=LIMIT) == 0
    deltas = [*range(wrong), *range(wrong + 1, len(records) + 1)]
    with pytest.raises(RecordsError, match=f"record {wrong} of the batch has offset delta {wrong + 1}"):
        count_check(encode_batch(records, offset_deltas=deltas), max_bytes=LIMIT)


def test_count_check_limits_decompressed_size() -> None:
    bomb = encode_batch([NewRecord(0, None, bytes(LIMIT))], codec=Codec.ZSTD)
    with pytest.raises(RecordsError) as refused:
        count_check(bomb, max_bytes=LIMIT)
    assert refused.value.fault is RecordsFault.TOO_LARGE


def test_null_and_empty_are_distinct() -> None:
    records = [NewRecord(-1, None, b"", [("", None), ("a", b"")]), NewRecord(5, b"", None)]
    assert list(iter_records(encode_batch(records), max_bytes=LIMIT)) == [
        Record(0, -1, None, b"", (("", None), ("a", b""))),
        Record(1, 5, b"", None, ()),
    ]


def test_a_batch_without_records_is_not_written() -> None:
    with pytest.raises(ValueError):
        encode_batch([])


@pytest.mark.parametrize("border", [1 << 6, 1 << 13, 1 << 20, 1 << 27])
@pytest.mark.parametrize("wrong", [None, -1, 2])
def test_offset_deltas_of_any_length_are_walked(border: int, wrong: int | None) -> None:
    """Deltas of up to four bytes have fast paths; longer ones take the slow path."""
    data = bytearray()
    for number in range(border - 3, border + 3):
        body = bytearray(b"\0\0")
        append_varint(body, wrong + border if number == border and wrong is not None else number)
        append_varint(data, len(body) + 3)
        data += body + b"\1\1\0"
    walked = partial(_walk, bytes(data) + bytes(HEAD_BYTES), 0, border - 3, border + 3, -1, ended=False)
    if wrong is None:
        assert walked() == (len(data), border + 3, 0)
    else:
        with pytest.raises(RecordsError) as refused:
            walked()
        assert refused.value.fault is RecordsFault.INVALID
