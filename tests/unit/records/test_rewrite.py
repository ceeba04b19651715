"""Batch rewriting: spans equal the decoded records, and invalid lengths are refused."""

import random

import pytest

from tierlog.records.batch import HEADER_SIZE, read_header
from tierlog.records.errors import RecordsError
from tierlog.records.record import iter_records
from tierlog.records.rewrite import rewritten, spans
from tierlog.records.writer import NewRecord, encode_batch

RNG = random.Random(5)


def some_record() -> NewRecord:
    key = RNG.choice([None, b"", bytes(RNG.randrange(200))])
    value = RNG.choice([None, b"", bytes(RNG.randrange(200))])
    headers = [("h" * RNG.randrange(3), RNG.choice([None, b"x"]))] * RNG.randrange(3)
    return NewRecord(RNG.choice([1000, 1001, 900, 2**41]), key, value, headers)


@pytest.mark.parametrize(
    "count", [1, 2, 70, 9000]
)  # the varint of the offset delta takes up to one, two or three bytes
def test_spans_and_a_rewritten_batch_equal_the_decoded_records(count: int) -> None:
    batch = bytes(encode_batch([some_record() for _ in range(count)], base_offset=2**40))
    header = read_header(batch)
    records = list(iter_records(batch, max_bytes=1 << 30))
    found = list(spans(batch[HEADER_SIZE:], header))
    assert [(s.offset, s.key, s.is_tombstone) for s in found] == [
        (r.offset, r.key, r.value is None) for r in records
    ]
    assert [header.base_timestamp + s.timestamp_delta for s in found] == [r.timestamp for r in records]
    new_batch = rewritten(header, batch[HEADER_SIZE:], found[::2], 2**41 + 7)
    assert list(iter_records(new_batch, max_bytes=1 << 30)) == records[::2]


def test_truncated_records_are_refused_and_corrupt_ones_give_no_span_outside_the_batch() -> None:
    """Cut the records at each byte, and set each byte to each value."""
    batch = bytes(encode_batch([NewRecord(1000, b"key", b"value"), NewRecord(1001, b"k", None)]))
    header, plain = read_header(batch), batch[HEADER_SIZE:]
    refused = 0
    for at in range(len(plain)):
        with pytest.raises(RecordsError):
            list(spans(plain[:at], header))
        for value in range(256):
            try:
                found = list(spans(plain[:at] + bytes((value,)) + plain[at + 1 :], header))
            except RecordsError:
                refused += 1
            else:
                assert all(0 <= s.start < s.stop <= len(plain) for s in found)
    assert refused > 500, "hardly any corrupt byte was detected"
