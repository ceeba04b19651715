"""Compares the columnar decoder with the record decoder: equal on valid bytes, equivalent on invalid ones."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tierlog.records.batch import iter_batches, seal
from tierlog.records.codecs import Codec
from tierlog.records.columnar import COLUMNS, decode_columns
from tierlog.records.errors import RecordsError
from tierlog.records.record import Record, iter_records
from tierlog.records.writer import NewRecord, encode_batch

LIMIT = 1 << 24
payloads = st.none() | st.binary(max_size=20) | st.binary(min_size=100, max_size=200)
headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
new_records = st.lists(
    st.builds(NewRecord, timestamp=st.integers(-1, 2**43), key=payloads, value=payloads, headers=headers),
    min_size=1,
    max_size=8,
)
batches = st.lists(
    st.tuples(new_records, st.sampled_from(list(Codec)), st.none() | st.integers(0, 2**43)), max_size=5
)


PLAIN = batches.map(lambda made: [(records, Codec.NONE, append_time) for records, _, append_time in made])
"""Only these are found by a compiled loop if the caller has checked the bytes."""


def write(made: list[tuple[list[NewRecord], Codec, int | None]]) -> bytes:
    log, offset = b"", 1_000
    for records, codec, append_time in made:
        log += encode_batch(records, codec=codec, base_offset=offset, log_append_time=append_time)
        offset += len(records)
    return log


def rows(log: bytes) -> list[dict[str, Any]]:
    """Expected rows, from the record decoder."""
    return [
        {
            "key": record.key,
            "value": record.value,
            "offset": record.offset,
            "timestamp": record.timestamp * 1000,
            "timestampType": int(header.log_append_time),
            "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
        }
        for at, header in iter_batches(log)
        for record in iter_records(log, at, max_bytes=LIMIT)
    ]


def columnar(log: bytes, columns: Iterable[str] = COLUMNS, **options: Any) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for group in decode_columns(log, list(columns), **options):
        for array in group.arrays.values():
            array.validate(full=True)
            assert len(array) == group.rows
        lists = {
            name: (array.view("int64") if name == "timestamp" else array).to_pylist()
            for name, array in group.arrays.items()
        }
        out += [{name: values[i] for name, values in lists.items()} for i in range(group.rows)]
    return out


@pytest.mark.slow  # the first example waits for the compiler
@settings(max_examples=150, deadline=None)
@given(made=batches | PLAIN, group_bytes=st.sampled_from([1, 300, 1 << 20]), is_checked=st.booleans())
def test_columns_equal_the_decoded_records(made: list[Any], group_bytes: int, is_checked: bool) -> None:
    log = write(made)
    assert columnar(log, group_bytes=group_bytes, is_checked=is_checked) == rows(log)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(made=batches | PLAIN, columns=st.sets(st.sampled_from(sorted(COLUMNS)), min_size=1), data=st.data())
def test_any_columns_of_any_range(made: list[Any], columns: set[str], data: st.DataObject) -> None:
    log = write(made)
    first, end = sorted(data.draw(st.tuples(st.integers(995, 1040), st.integers(995, 1040))))
    is_checked = data.draw(st.booleans())
    assert columnar(log, columns, first_offset=first, end_offset=end, is_checked=is_checked) == [
        {name: row[name] for name in columns} for row in rows(log) if first <= row["offset"] < end
    ]


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(
    records=new_records, damage=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3)
)
def test_damaged_records_are_refused_by_both_or_read_alike(
    records: list[NewRecord], damage: list[tuple[int, int]]
) -> None:
    """The CRC is recomputed, so that only the checks of the fields protect the compiled loops."""
    batch = encode_batch(records)
    for place, byte in damage:
        batch[57 + place % (len(batch) - 57)] = byte  # the record count and all records
    seal(batch, 0, len(batch))
    try:
        plain: list[Record] | None = list(iter_records(batch, max_bytes=LIMIT))
    except RecordsError:
        plain = None
    try:
        decoded: list[dict[str, Any]] | None = columnar(bytes(batch))
    except RecordsError:
        decoded = None
    if plain is None:
        assert decoded is None
    elif (
        decoded is not None
    ):  # check_batch, which only the columnar decoder calls, may refuse the record count
        assert [(r["offset"], r["key"], r["value"]) for r in decoded] == [
            (r.offset, r.key, r.value) for r in plain
        ]


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(
    made=PLAIN,
    damage=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=3),
)
def test_damaged_batches_are_refused_or_read_alike_without_their_checksums(
    made: list[Any], damage: list[tuple[int, int]]
) -> None:
    """With checksums of the damaged bytes, both ways through a log must agree: what the compiled loop does
    not take is refused by the other way."""
    log = bytearray(write(made))
    places = [at for at, _ in iter_batches(bytes(log))]
    for place, byte in damage if log else []:
        log[place % len(log)] = byte
    for at, stop in pairwise([*places, len(log)]):
        seal(log, at, stop)

    def outcome(is_checked: bool) -> Any:
        try:
            return columnar(bytes(log), is_checked=is_checked)
        except RecordsError as error:
            return type(error)

    assert outcome(True) == outcome(False)
