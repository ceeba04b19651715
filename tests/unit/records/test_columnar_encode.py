"""Arrow columns to record batches, against the record reader, and the partitioner against that of the CLI."""

import random

import numpy as np
import pyarrow as pa
import pytest

from tierlog.client.partitioner import partition_of
from tierlog.records.batch import check_produced, iter_batches
from tierlog.records.codecs import Codec
from tierlog.records.columnar_encode import (
    OpenBatch,
    Producer,
    column_bytes,
    partitions_of_keys,
    record_columns,
)
from tierlog.records.record import Record, iter_records

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
NOW_MS = 1_700_000_000_000


def made_rows(count: int, seed: int = 1) -> list[Record]:
    rng = random.Random(seed)

    def some(most: int) -> bytes | None:
        return None if rng.random() < 0.2 else rng.randbytes(rng.randrange(most))

    return [
        Record(
            at,
            NOW_MS + rng.randrange(-100_000, 100_000),
            some(20),
            some(300),
            tuple((f"h{n}é", some(9)) for n in range(rng.randrange(4))) if rng.random() < 0.5 else (),
        )
        for at in range(count)
    ]


def encoded(
    rows: list[Record], *, cut: int = 0, codec: Codec = Codec.NONE, max_bytes: int = 4_000
) -> list[bytearray]:
    """The batches of the rows, whose Arrow arrays are slices that begin at `cut`."""
    headers = [[{"key": k, "value": v} for k, v in row.headers] or None for row in rows]
    columns = record_columns(
        pa.array([row.key for row in rows], pa.binary())[cut:],
        pa.array([row.value for row in rows], pa.binary())[cut:],
        pa.array(headers, HEADERS)[cut:],
        np.array([row.timestamp for row in rows], np.int64)[cut:],
    )
    batch, order = OpenBatch(max_bytes), np.arange(columns.rows)
    found, at, sequence = [], 0, 0
    while at < columns.rows:
        at = batch.append(columns, order, at)
        records = batch.records
        found.append(batch.seal(codec, Producer(7, 3, transactional=True), sequence))
        sequence += records
    return found


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("cut", [0, 13])
def test_records_are_read_as_they_were_in_the_columns(codec: Codec, cut: int) -> None:
    rows = made_rows(500)
    found: list[tuple[object, ...]] = []
    for batch in encoded(rows, cut=cut, codec=codec):
        header = check_produced(batch)
        assert (header.producer_id, header.producer_epoch, header.is_transactional) == (7, 3, True)
        assert header.base_sequence == len(found)
        records = list(iter_records(batch, max_bytes=1 << 20))
        assert header.max_timestamp == max(record.timestamp for record in records)
        found += [record[1:] for record in records]
    assert found == [row[1:] for row in rows[cut:]]


def test_batches_are_as_large_as_allowed_and_one_record_may_be_larger() -> None:
    rows = [Record(0, NOW_MS, None, b"x" * size) for size in (10, 50_000, 100, 2_900, 900, 200)]
    batches = encoded(rows, max_bytes=4_000)
    sizes = [[header.record_count for _, header in iter_batches(batch)] for batch in batches]
    assert sizes == [[1], [1], [3], [1]]


def test_strings_and_missing_columns_are_encoded() -> None:
    value = pa.array(["ü", None, ""], pa.large_string())
    columns = record_columns(None, value, None, np.full(3, NOW_MS))
    batch = OpenBatch(1_000)
    assert batch.append(columns, np.array([2, 0, 1]), 0) == 3
    records = list(iter_records(batch.seal(Codec.NONE, Producer(-1, -1), -1), max_bytes=1_000))
    assert [(r.key, r.value, r.headers) for r in records] == [
        (None, b"", ()),
        (None, "ü".encode(), ()),
        (None, None, ()),
    ]


def test_header_without_a_key_is_refused() -> None:
    headers = pa.array([[{"key": None, "value": b""}]], HEADERS)
    with pytest.raises(ValueError, match="header has no key"):
        record_columns(None, pa.array([b""]), headers, np.zeros(1, np.int64))


def test_partitions_of_keys_are_those_of_the_cli() -> None:
    rng = random.Random(2)
    keys = [rng.randbytes(size) if size != 11 else None for size in range(64) for _ in range(20)]
    of_null = np.arange(len(keys)) % 7
    found = partitions_of_keys(column_bytes(pa.array(keys, pa.binary())), 7, of_null)
    expected = [of_null[at] if key is None else partition_of(key, 7) for at, key in enumerate(keys)]
    assert found.tolist() == expected
