"""Compares tierlog's batches with kafka-python, aiokafka and kio, in both directions."""

import datetime
import io
from collections.abc import Callable, Iterable

import kio.records.readers
import kio.records.schema
import kio.records.writers
import pytest
from aiokafka.record import default_records as aiokafka_records
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record import default_records as kafka_records
from structure import count_check

from tierlog.records.batch import check_batch, check_produced, iter_batches
from tierlog.records.codecs import Codec
from tierlog.records.errors import RecordsError
from tierlog.records.record import Record, iter_records
from tierlog.records.unpacking import decompress
from tierlog.records.walk import BadField, walk_fields, walk_one, walk_structure
from tierlog.records.window import Window, run_all_steps
from tierlog.records.writer import NewRecord, encode_batch

LIMIT = 1 << 24
# kafka-python needs further packages for snappy and lz4; aiokafka brings all codecs.
KAFKA_PYTHON_CODECS = [Codec.NONE, Codec.GZIP, Codec.ZSTD]

payloads = st.none() | st.binary(max_size=40) | st.binary(min_size=200, max_size=300)
headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=10)), max_size=3)
new_records = st.lists(
    st.builds(
        NewRecord,
        timestamp=st.integers(0, 2**43),
        key=payloads,
        value=payloads,
        headers=headers,
    ),
    min_size=1,
    max_size=12,
)


def expected(records: Iterable[NewRecord], base_offset: int = 0) -> list[Record]:
    return [
        Record(base_offset + i, record.timestamp, record.key, record.value, tuple(record.headers))
        for i, record in enumerate(records)
    ]


def theirs(records: Iterable) -> list[Record]:  # type: ignore[type-arg]
    return [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in records]


@settings(max_examples=150, deadline=None)
@given(records=new_records, codec=st.sampled_from(list(Codec)), base=st.integers(0, 2**50))
def test_tierlog_reads_its_own_batches(records: list[NewRecord], codec: Codec, base: int) -> None:
    batch = encode_batch(records, codec=codec, base_offset=base)
    assert check_batch(batch).max_timestamp == max(record.timestamp for record in records)
    assert list(iter_records(batch, max_bytes=LIMIT)) == expected(records, base)
    count_check(batch, max_bytes=LIMIT)


@settings(max_examples=60, deadline=None)
@given(records=new_records, codec=st.sampled_from(KAFKA_PYTHON_CODECS), base=st.integers(0, 2**50))
def test_kafka_python_reads_batches_of_tierlog(records: list[NewRecord], codec: Codec, base: int) -> None:
    batch = kafka_records.DefaultRecordBatch(bytes(encode_batch(records, codec=codec, base_offset=base)))
    assert batch.validate_crc()
    assert theirs(batch) == expected(records, base)


@settings(max_examples=60, deadline=None)
@given(records=new_records, codec=st.sampled_from(list(Codec)), base=st.integers(0, 2**50))
def test_aiokafka_reads_batches_of_tierlog(records: list[NewRecord], codec: Codec, base: int) -> None:
    batch = aiokafka_records.DefaultRecordBatch(bytes(encode_batch(records, codec=codec, base_offset=base)))
    assert batch.validate_crc()
    assert theirs(batch) == expected(records, base)


@pytest.mark.parametrize(
    ("builder", "codecs"),
    [
        (kafka_records.DefaultRecordBatchBuilder, KAFKA_PYTHON_CODECS),
        (aiokafka_records.DefaultRecordBatchBuilder, list(Codec)),
    ],
    ids=["kafka-python", "aiokafka"],
)
def test_tierlog_reads_batches_of_other_encoders(builder: Callable[..., object], codecs: list[Codec]) -> None:
    @settings(max_examples=60, deadline=None)
    @given(records=new_records, codec=st.sampled_from(codecs))
    def check(records: list[NewRecord], codec: Codec) -> None:
        made: object = builder(2, int(codec), False, -1, -1, -1, 1 << 20)
        for i, record in enumerate(records):
            made.append(i, record.timestamp, record.key, record.value, record.headers)  # type: ignore[attr-defined]
        batch = bytes(made.build())  # type: ignore[attr-defined]
        assert check_produced(batch).record_count == len(records)
        assert list(iter_records(batch, max_bytes=LIMIT)) == expected(records)

    check()


def at_seconds(records: list[NewRecord]) -> list[NewRecord]:
    """kio's records module keeps whole seconds only."""
    return [record._replace(timestamp=record.timestamp // 1_000_000 * 1_000) for record in records]


@settings(max_examples=60, deadline=None)
@given(records=new_records.map(at_seconds), base=st.integers(0, 2**50))
def test_kio_reads_batches_of_tierlog(records: list[NewRecord], base: int) -> None:
    batch, size = kio.records.readers.read_batch(bytes(encode_batch(records, base_offset=base)), 0)
    assert size == batch.batch_length + 12
    assert [
        Record(
            record.offset,
            round(record.timestamp.timestamp() * 1000),
            record.key,
            record.value,
            tuple(((header.key or b"").decode(), header.value) for header in record.headers),
        )
        for record in batch.records
    ] == expected(records, base)


@settings(max_examples=60, deadline=None)
@given(records=new_records.map(at_seconds))
def test_tierlog_reads_batches_of_kio(records: list[NewRecord]) -> None:
    batch = kio.records.schema.NewRecordBatch(
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        attributes=0,
        records=tuple(
            kio.records.schema.Record(
                attributes=0,
                timestamp=datetime.datetime.fromtimestamp(record.timestamp / 1000, datetime.UTC),
                offset=i,
                key=record.key,
                value=record.value,
                headers=tuple(
                    kio.records.schema.RecordHeader(key=name.encode(), value=value)
                    for name, value in record.headers
                ),
            )
            for i, record in enumerate(records)
        ),
    )
    out = io.BytesIO()
    kio.records.writers.write_batch(out, batch)
    assert check_batch(out.getvalue()).record_count == len(records)
    assert list(iter_records(out.getvalue(), max_bytes=LIMIT)) == expected(records)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=300), codec=st.sampled_from(list(Codec)))
def test_any_bytes_raise_records_errors_only(data: bytes, codec: Codec) -> None:
    for read in (
        lambda: decompress(codec, data, 1 << 16),
        lambda: check_batch(data),
        lambda: list(iter_batches(data)),
        lambda: list(iter_records(data, max_bytes=1 << 16)),
    ):
        try:
            read()
        except RecordsError:
            continue


@settings(max_examples=300, deadline=None)
@given(records=new_records, codec=st.sampled_from(list(Codec)), data=st.data())
def test_a_damaged_batch_raises_records_errors_only(
    records: list[NewRecord], codec: Codec, data: st.DataObject
) -> None:
    batch = encode_batch(records, codec=codec)
    for _ in range(3):
        batch[data.draw(st.integers(17, len(batch) - 1))] = data.draw(st.integers(0, 255))
    try:
        list(iter_records(batch, max_bytes=1 << 16))
        count_check(batch, max_bytes=1 << 16)
    except RecordsError:
        pass


def pieces_of(data: bytes, size: int) -> list[bytes]:
    """The data in at most 300 pieces of about this size, after an empty piece."""
    size = max(size, len(data) // 300)
    return [b"", *(data[at : at + size] for at in range(0, len(data), size))]


@settings(max_examples=500, deadline=None)
@given(
    count=st.integers(1, 200),
    size=st.sampled_from([0, 1, 50, 57, 58, 200, 9_000]),
    spread=st.sampled_from([0, 1, 70, -70, 2**40, 2**54]),
    damage=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=2),
    piece=st.integers(1, 400),
)
def test_fast_and_slow_paths_of_the_walk_agree(
    count: int, size: int, spread: int, damage: list[tuple[int, int]], piece: int
) -> None:
    batch = encode_batch([NewRecord(i * spread, None, bytes(size)) for i in range(count)])
    for place, byte in damage:
        batch[61 + place % (len(batch) - 61)] = byte
    position, failed, largest = 61, False, -(2**63)
    try:
        for expected in range(count):
            position, delta = walk_one(bytes(batch), position, len(batch), expected, ended=True)
            largest = max(largest, delta)
    except RecordsError:
        failed = True
    for pieces in ([bytes(batch[61:])], pieces_of(bytes(batch[61:]), piece)):
        walk = walk_structure(Window(iter(pieces)), count)
        if failed or position != len(batch):
            with pytest.raises(RecordsError):
                run_all_steps(walk)
        else:
            assert run_all_steps(walk) == largest


@settings(max_examples=500, deadline=None)
@given(
    records=new_records,
    spread=st.sampled_from([0, 1, 70, 2**40]),
    damage=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=2),
    piece=st.integers(1, 400),
)
def test_walk_over_fields_agrees_with_the_decoder(
    records: list[NewRecord], spread: int, damage: list[tuple[int, int]], piece: int
) -> None:
    batch = encode_batch([record._replace(timestamp=i * spread) for i, record in enumerate(records)])
    for place, byte in damage:
        batch[61 + place % (len(batch) - 61)] = byte
    oldest, newest, bad = 2 * spread, 4 * spread, list[BadField]()
    window = Window(iter(pieces_of(bytes(batch[61:]), piece)))
    walk = walk_fields(window, len(records), 0, needs_key=True, oldest=oldest, newest=newest, bad=bad)
    try:
        read = list(iter_records(batch, max_bytes=LIMIT))
        failed = [record.offset for record in read] != list(range(len(records)))
    except RecordsError:
        failed = True
    if failed:
        with pytest.raises(RecordsError):
            run_all_steps(walk)
        return
    assert run_all_steps(walk) == max(record.timestamp for record in read)
    assert bad == [
        BadField(record.offset, None if record.key is None else record.timestamp)
        for record in read
        if record.key is None or (not oldest <= record.timestamp <= newest and record.timestamp != -1)
    ]
