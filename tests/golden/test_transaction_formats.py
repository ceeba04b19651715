"""Bytes of `__transaction_state` records, which must never change: Kafka's own tools read them.

transactions/kafka-4.3.1.bin has batches as that version wrote them, of clients of transaction versions 0 and
2: with a fenced producer (`golden`), a timeout (`late`), two-phase commit (`prepared`), epochs that ran out
(`worn`), and an abort without partitions (`two`).
"""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.base.types import TopicPartition
from tierlog.broker.coordinators.core.stored import FormatError
from tierlog.broker.transactions.core.formats import decode_key, decode_value, encode_key, encode_value
from tierlog.broker.transactions.core.states import TransactionState as S
from tierlog.broker.transactions.core.transaction import NO_TIMEOUT_MS, Transaction
from tierlog.records.batch import iter_batches
from tierlog.records.record import iter_records

BATCHES = (Path(__file__).parent / "transactions" / "kafka-4.3.1.bin").read_bytes()
RECORDS = [
    (record.key or b"", record.value or b"")
    for at, _ in iter_batches(BATCHES)
    for record in iter_records(BATCHES, at, max_bytes=1 << 20)
]
EXPECTED = [  # (id, state, producer id and epoch, next producer id, version of the client, partitions)
    ("golden", S.EMPTY, 0, 0, -1, 0, ""),
    ("golden", S.ONGOING, 0, 0, -1, 0, "orders-0 orders-2"),
    ("golden", S.ONGOING, 0, 0, -1, 0, "audit-1 orders-0 orders-2"),
    ("golden", S.PREPARE_COMMIT, 0, 0, -1, 0, "audit-1 orders-0 orders-2"),
    ("golden", S.COMPLETE_COMMIT, 0, 0, -1, 0, ""),
    ("golden", S.ONGOING, 0, 0, -1, 0, "orders-1"),
    ("golden", S.PREPARE_ABORT, 0, 0, -1, 0, "orders-1"),
    ("golden", S.COMPLETE_ABORT, 0, 0, -1, 0, ""),
    ("golden", S.ONGOING, 0, 0, -1, 0, "orders-1"),
    ("golden", S.PREPARE_ABORT, 0, 1, -1, 2, "orders-1"),
    ("golden", S.COMPLETE_ABORT, 0, 1, -1, 2, ""),
    ("golden", S.EMPTY, 0, 2, -1, 2, ""),
    ("late", S.EMPTY, 1, 0, -1, 0, ""),
    ("late", S.ONGOING, 1, 0, -1, 0, "orders-1"),
    ("late", S.PREPARE_ABORT, 1, 1, -1, 2, "orders-1"),
    ("late", S.COMPLETE_ABORT, 1, 1, -1, 2, ""),
    ("prepared", S.EMPTY, 1000, 0, -1, 0, ""),
    ("prepared", S.ONGOING, 1000, 0, -1, 2, "orders-0"),
    ("worn", S.EMPTY, 1001, 32_766, -1, 0, ""),
    ("worn", S.ONGOING, 1001, 32_766, -1, 2, "orders-0"),
    ("worn", S.PREPARE_COMMIT, 1001, 32_767, 1002, 2, "orders-0"),
    ("worn", S.COMPLETE_COMMIT, 1002, 0, -1, 2, ""),
    ("two", S.EMPTY, 1003, 0, -1, 0, ""),
    ("two", S.ONGOING, 1003, 0, -1, 2, "audit-0 orders-0 orders-1"),
    ("two", S.PREPARE_COMMIT, 1003, 1, -1, 2, "audit-0 orders-0 orders-1"),
    ("two", S.COMPLETE_COMMIT, 1003, 1, -1, 2, ""),
    ("two", S.ONGOING, 1003, 1, -1, 2, "orders-2"),
    ("two", S.PREPARE_ABORT, 1003, 2, -1, 2, "orders-2"),
    ("two", S.COMPLETE_ABORT, 1003, 2, -1, 2, ""),
    ("two", S.PREPARE_ABORT, 1003, 3, -1, 2, ""),
    ("two", S.COMPLETE_ABORT, 1003, 3, -1, 2, ""),
]
WORN = next(value for value in reversed([value for key, value in RECORDS if decode_key(key) == "worn"]))


def test_kafkas_records_are_read():
    found = [(decode_key(key), decode_value("", value)) for key, value in RECORDS]
    assert [
        (
            name,
            each.state,
            each.producer_id,
            each.producer_epoch,
            each.next_producer_id,
            each.client_version,
            " ".join(f"{topic}-{partition}" for topic, partition in sorted(each.partitions)),
        )
        for name, each in found
    ] == EXPECTED
    timeouts = {"late": 1_000, "prepared": NO_TIMEOUT_MS}
    assert all(each.timeout_ms == timeouts.get(name, 60_000) for name, each in found)
    assert all(each.updated_ms > 1_700_000_000_000 for _, each in found)
    assert all((each.started_ms == -1) == (each.state is S.EMPTY) for _, each in found)
    assert found[-10][1].previous_producer_id == 1001


@pytest.mark.parametrize(("key", "value"), RECORDS)
def test_the_same_records_are_written(key, value):
    name = decode_key(key)
    assert encode_key(name) == key
    assert encode_value(decode_value(name, value)) == value


VALUE_V0 = (
    "0000 000000000000002a 0003 0000ea60 01"
    "00000001 0001 61 00000002 00000000 00000005 0000018bcfe56be8 0000018bcfe56800"
)


def test_values_of_version_0_are_read():
    assert decode_value("t", bytes.fromhex(VALUE_V0)) == Transaction(
        transactional_id="t",
        producer_id=42,
        producer_epoch=3,
        timeout_ms=60_000,
        state=S.ONGOING,
        partitions=frozenset([TopicPartition("a", 0), TopicPartition("a", 5)]),
        started_ms=1_700_000_000_000,
        updated_ms=1_700_000_001_000,
    )
    empty = "0000 000000000000002a 0003 0000ea60 00 ffffffff 0000018bcfe56be8 ffffffffffffffff"
    assert decode_value("t", bytes.fromhex(empty)).partitions == frozenset()


KEPT = (  # tagged fields: previous and next producer id, version of the client, next epoch
    "0001 000000000000002a 0003 7fffffff 01 02 02 61 02 00000000 00"
    "0000018bcfe56be8 0000018bcfe56800"
    "04 00 08 000000000000002a 01 08 0000000000000049 02 02 0002 03 02 0001"
)


def test_transaction_that_a_later_producer_keeps():
    """KIP-939. Kafka 4.3 does not write it."""
    transaction = Transaction(
        transactional_id="t",
        producer_id=42,
        producer_epoch=3,
        previous_producer_id=42,
        next_producer_id=73,
        next_producer_epoch=1,
        timeout_ms=NO_TIMEOUT_MS,
        state=S.ONGOING,
        partitions=frozenset([TopicPartition("a", 0)]),
        started_ms=1_700_000_000_000,
        updated_ms=1_700_000_001_000,
        client_version=2,
    )
    assert encode_value(transaction) == bytes.fromhex(KEPT)
    assert decode_value("t", bytes.fromhex(KEPT)) == transaction


@pytest.mark.parametrize("version", ["0002", "ffff"])
def test_unknown_versions_are_refused(version):
    with pytest.raises(FormatError, match="version"):
        decode_value("t", bytes.fromhex(version) + bytes(60))


@given(st.binary(max_size=80))
def test_any_bytes_decode_or_are_refused(data):
    for decode in decode_key, lambda data: decode_value("t", data):
        with contextlib.suppress(FormatError):
            decode(data)


@given(st.integers(0, len(WORN) - 1))
def test_a_cut_value_is_refused(end):
    with pytest.raises(FormatError):
        decode_value("t", WORN[:end])
