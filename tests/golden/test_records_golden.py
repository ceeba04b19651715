"""Stored batches and indexes: later versions must read the same content from the same bytes.

The `.bin` files are never rewritten. Text in batches.json is the bytes as Latin-1.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from record_files import encode_offset_index, encode_time_index

from tierlog.records.batch import assign, check_batch
from tierlog.records.indexes import (
    decode_offset_index,
    decode_time_index,
    decode_txn_index,
    encode_txn_index,
)
from tierlog.records.record import iter_records
from tierlog.records.writer import NewRecord, encode_batch, encode_end_marker

HERE = Path(__file__).parent / "records"
BATCHES: dict[str, Any] = json.loads((HERE / "batches.json").read_text())
INDEXES: dict[str, Any] = json.loads((HERE / "indexes.json").read_text())


def latin(data: bytes | None) -> str | None:
    return None if data is None else data.decode("latin-1")


@pytest.mark.parametrize("name", sorted(BATCHES))
def test_a_golden_batch_reads_as_described(name: str) -> None:
    described = BATCHES[name]
    data = (HERE / f"{name}.bin").read_bytes()
    header = check_batch(data)
    assert header._asdict() == described["header"]
    assert header.codec.name == described["codec"]
    assert header.log_append_time is described["log_append_time"]
    assert header.is_transactional is described["transactional"]
    assert header.is_control is described["control"]
    assert [
        {
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": latin(record.key),
            "value": latin(record.value),
            "headers": [[key, latin(value)] for key, value in record.headers],
        }
        for record in iter_records(data, max_bytes=1 << 20)
    ] == described["records"]


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_marker_has_the_bytes_that_kafka_writes(end: str) -> None:
    written = (HERE / f"kafka-{end}.bin").read_bytes()
    header = check_batch(written)
    marker = encode_end_marker(
        header.producer_id,
        header.producer_epoch,
        committed=end == "commit",
        coordinator_epoch=0,
        timestamp=header.base_timestamp,
    )
    assign(marker, 0, header.base_offset, header.leader_epoch)
    assert bytes(marker) == written


def test_every_golden_file_is_described() -> None:
    described = set(BATCHES) | set(INDEXES) - {"base_offset"}
    assert {path.stem for path in HERE.glob("*.bin")} == described


def test_the_plain_writer_still_writes_the_same_bytes() -> None:
    described = BATCHES["tierlog-none"]["records"]

    def raw(text: str | None) -> bytes | None:
        return None if text is None else text.encode("latin-1")

    records = [
        NewRecord(r["timestamp"], raw(r["key"]), raw(r["value"]), [(k, raw(v)) for k, v in r["headers"]])
        for r in described
    ]
    assert encode_batch(records, base_offset=1000, leader_epoch=7) == (HERE / "tierlog-none.bin").read_bytes()


def test_golden_indexes_both_ways() -> None:
    base = INDEXES["base_offset"]
    offsets, times, txns = (
        (HERE / f"{name}.bin").read_bytes() for name in ("offset-index", "time-index", "txn-index")
    )
    assert [list(entry) for entry in decode_offset_index(offsets, base)] == INDEXES["offset-index"]
    assert [list(entry) for entry in decode_time_index(times, base)] == INDEXES["time-index"]
    assert [list(entry) for entry in decode_txn_index(txns)] == INDEXES["txn-index"]
    assert encode_offset_index(base, decode_offset_index(offsets, base)) == offsets
    assert encode_time_index(base, decode_time_index(times, base)) == times
    assert encode_txn_index(decode_txn_index(txns)) == txns
