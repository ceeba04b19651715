"""Index lookups compared with a plain scan, and the exact bytes of each entry."""

import random

import pytest
from record_files import encode_offset_index, encode_time_index

from tierlog.records.errors import RecordsError
from tierlog.records.indexes import (
    AbortedTxn,
    OffsetEntry,
    TimeEntry,
    decode_offset_index,
    decode_time_index,
    decode_txn_index,
    encode_offset_entry,
    encode_txn_entry,
    encode_txn_index,
    find_aborted,
    find_end_position,
    find_offset_for_time,
    find_position,
    search_aborted,
)

BASE = 5_000_000_000


def batches(seed: int, count: int = 60) -> list[tuple[int, int, int]]:
    """(first offset, last offset, position) of a made-up segment."""
    rng = random.Random(seed)
    made, offset, position = [], BASE, 0
    for _ in range(count):
        last = offset + rng.randrange(30)
        made.append((offset, last, position))
        offset, position = last + 1 + rng.randrange(3), position + rng.randrange(61, 500)
    return made


@pytest.mark.parametrize("seed", range(5))
def test_read_between_the_found_positions_has_all_records(seed: int) -> None:
    segment = batches(seed)
    index = encode_offset_index(BASE, [OffsetEntry(last, at) for _, last, at in segment[1::4]])
    for first, last, position in segment:
        for offset in (first, last):
            assert find_position(index, BASE, offset) <= position
        end = find_end_position(index, BASE, first + 1)
        assert end is None or end > position
    assert find_position(index, BASE, BASE) == 0
    assert find_position(b"", BASE, BASE + 10) == 0
    assert find_end_position(b"", BASE, BASE + 10) is None


def test_lookup_is_exact() -> None:
    index = encode_offset_index(BASE, [OffsetEntry(BASE + 10 * i, 1_000 * i) for i in range(1, 100)])
    assert find_position(index, BASE, BASE + 505) == 50_000
    assert find_end_position(index, BASE, BASE + 505) == 52_000


def test_time_lookup_starts_at_or_before_the_first_match() -> None:
    stamps = [(100, BASE), (300, BASE + 7), (300, BASE + 7), (900, BASE + 30)]
    index = encode_time_index(BASE, [TimeEntry(*stamp) for stamp in stamps])
    assert [find_offset_for_time(index, BASE, ts) for ts in (0, 100, 101, 300, 301, 900, 901)] == [
        BASE,
        BASE,
        BASE,
        BASE,
        BASE + 7,
        BASE + 7,
        BASE + 30,
    ]


def test_bytes_are_kafkas() -> None:
    assert encode_offset_entry(BASE, BASE + 258, 4096).hex() == "0000010200001000"
    assert encode_time_index(BASE, [TimeEntry(1, BASE + 2)]).hex() == "0000000000000001" + "00000002"
    entry = encode_txn_entry(AbortedTxn(1, 2, 3, 4))
    assert entry.hex() == "0000" + "".join(f"{n:016x}" for n in (1, 2, 3, 4)) and len(entry) == 34


def test_decoded_entries_equal_the_encoded_ones() -> None:
    offsets = [OffsetEntry(BASE + i, 100 * i) for i in range(1, 20)]
    times = [TimeEntry(i // 2, BASE + i // 2) for i in range(20)]
    txns = [AbortedTxn(i, 10 * i, 10 * i + 15, 10 * i) for i in range(20)]
    assert list(decode_offset_index(encode_offset_index(BASE, offsets), BASE)) == offsets
    assert list(decode_time_index(memoryview(encode_time_index(BASE, times)), BASE)) == times
    assert list(decode_txn_index(bytearray(encode_txn_index(txns)))) == txns
    assert find_aborted(encode_txn_index(txns), 25, 30) == txns[1:3]


@pytest.mark.parametrize("seed", range(20))
def test_aborted_transactions_of_a_range_are_those_that_a_scan_finds(seed: int) -> None:
    rng = random.Random(seed)
    txns, begun, offset = [], {}, 0
    while len(txns) < 40:
        offset += 1
        producer_id = rng.randrange(6)
        if producer_id not in begun:
            begun[producer_id] = offset
        elif rng.random() < 0.5:
            first = begun.pop(producer_id)
            if rng.random() < 0.7:  # else it is committed
                txns.append(AbortedTxn(producer_id, first, offset, min(begun.values(), default=offset + 1)))
    index = encode_txn_index(txns)
    for start in range(offset + 3):
        for end in (start + 1, start + rng.randrange(2, 20)):
            overlapping = [txn for txn in txns if txn.last_offset >= start and txn.first_offset < end]
            found = find_aborted(index, start, end)
            assert found == overlapping, (start, end)
            first_segment, is_complete = search_aborted(encode_txn_index(txns[:20]), start, end)
            assert first_segment == overlapping[: len(first_segment)]
            assert not is_complete or first_segment == overlapping, "no later segment has another"
    assert search_aborted(encode_txn_index(txns[:20]), 0, txns[0].first_offset + 1)[1]


@pytest.mark.parametrize(
    "index",
    [
        b"\x00" * 7,
        encode_offset_index(BASE, [OffsetEntry(BASE + 5, 10), OffsetEntry(BASE + 5, 20)]),
        encode_offset_index(BASE, [OffsetEntry(BASE + 5, 10), OffsetEntry(BASE + 6, 10)]),
    ],
)
def test_offset_index_that_is_cut_or_does_not_increase_is_corrupt(index: bytes) -> None:
    with pytest.raises(RecordsError):
        list(decode_offset_index(index, BASE))


def test_truncated_and_foreign_entries_are_corrupt() -> None:
    with pytest.raises(RecordsError):
        list(decode_txn_index(b"\x00" * 35))
    with pytest.raises(RecordsError):
        list(decode_txn_index(b"\x00\x01" + b"\x00" * 32))
    with pytest.raises(RecordsError):
        list(decode_time_index(encode_time_index(BASE, [TimeEntry(9, BASE), TimeEntry(8, BASE + 1)]), BASE))


def test_offsets_too_far_from_the_base_do_not_fit() -> None:
    with pytest.raises(RecordsError):
        encode_offset_entry(0, 2**31, 0)
