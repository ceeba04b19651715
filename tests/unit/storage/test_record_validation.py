"""Batch validation gives the same result at once and in steps, for any size and codec."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import cramjam
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tierlog.broker.storage.core.record_validation import BatchValidation, ValidationResult
from tierlog.config.topic import MAX_LONG, TopicConfig
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import HEADER_SIZE, check_batch, check_produced, read_header, seal
from tierlog.records.codecs import Codec, compress
from tierlog.records.record import iter_records
from tierlog.records.walk import FIELDS_PER_SLICE, RECORDS_PER_SLICE
from tierlog.records.writer import NewRecord, encode_batch, with_section

NOW = 1_700_000_000_000
PLAIN = TopicConfig()
COMPACT = TopicConfig(cleanup_policy=("compact",))
RECENT_ONLY = TopicConfig(message_timestamp_before_max_ms=1000)
SMALL, LARGE = 3, 3_000
COMPRESSION_TYPE = {codec: "uncompressed" if codec is Codec.NONE else codec.name.lower() for codec in Codec}


def records(count: int) -> list[NewRecord]:
    return [NewRecord(NOW + number, b"k", b"v") for number in range(count)]


def validation(batch: bytearray, config: TopicConfig) -> BatchValidation:
    view = memoryview(batch)
    return BatchValidation(view, check_produced(view), config, NOW)


def validate(batch: bytearray, config: TopicConfig) -> ValidationResult:
    """The result of validation at once, which must equal that of validation in steps."""
    at_once, in_steps = validation(batch, config), validation(batch, config)
    at_once.fits_one_turn()
    result = at_once.at_once()
    for _ in range(1 + at_once.needs_exclusive_memory):
        for step in in_steps.steps():
            if step is not None:
                step()
    assert in_steps.result == result
    return result


def code(batch: bytearray, config: TopicConfig) -> ErrorCode:
    refused = validate(batch, config).refused
    return ErrorCode.NONE if refused is None else refused.error


def rebuilt(batch: bytearray, change: Callable[[bytearray], bytes]) -> bytearray:
    """The batch with `change` applied to its uncompressed records, and an unchanged header."""
    header = read_header(batch)
    plain = encode_batch(records(header.record_count))[HEADER_SIZE:]
    return with_section(header, compress(header.codec, change(plain)), header.codec)


def zstd_with_window(plain: bytes) -> bytes:
    """Compress with a large window, as a producer does at the highest levels when the size is unknown."""
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=25)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return compressor.compress(plain) + compressor.flush()


def with_count_changed(batch: bytearray, by: int) -> bytearray:
    """The batch with another record count in its header, and a valid CRC."""
    changed = bytearray(batch)
    for at in (23, 57):  # last offset delta, record count
        changed[at : at + 4] = (int.from_bytes(changed[at : at + 4], "big") + by).to_bytes(4, "big")
    seal(changed, 0, len(changed))
    return changed


def with_gap(count: int, codec: Codec) -> bytearray:
    """A batch with a gap in its offset deltas that does not agree with its header."""
    batch = encode_batch(records(count), codec=codec, offset_deltas=[*range(count - 1), count])
    batch[23:27] = (count - 1).to_bytes(4, "big")
    seal(batch, 0, len(batch))
    return batch


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize("config", [PLAIN, COMPACT, RECENT_ONLY])
def test_invalid_batches_are_rejected(codec: Codec, count: int, config: TopicConfig) -> None:
    if codec is Codec.NONE and config is PLAIN:
        config = TopicConfig(compression_type="zstd")  # otherwise only the first records are checked
    good = encode_batch(records(count), codec=codec)
    assert code(good, config) is ErrorCode.NONE
    assert code(with_count_changed(good, 1), config) is ErrorCode.INVALID_RECORD
    assert code(with_count_changed(good, -1), config) is ErrorCode.INVALID_RECORD
    assert code(with_gap(count, codec), config) is ErrorCode.INVALID_RECORD
    assert code(rebuilt(good, lambda plain: plain + b"\0"), config) is ErrorCode.INVALID_RECORD
    assert code(rebuilt(good, lambda plain: plain[:-1]), config) is ErrorCode.INVALID_RECORD
    if codec is not Codec.NONE:
        damaged = bytearray(good)
        damaged[HEADER_SIZE : HEADER_SIZE + 20] = b"\xff" * 20
        seal(damaged, 0, len(damaged))
        assert code(damaged, config) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])  # snappy's ratio is 21 at the most
@pytest.mark.parametrize("config", [PLAIN, COMPACT, TopicConfig(compression_type="uncompressed")])
def test_decompression_bomb_is_too_large(codec: Codec, config: TopicConfig) -> None:
    bomb = encode_batch([NewRecord(NOW, b"k", bytes(40 << 20))], codec=codec)
    assert code(bomb, config) is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_implausible_record_count_is_rejected(codec: Codec) -> None:
    """Reading so many records would take seconds, although they have few bytes."""
    header = read_header(encode_batch(records(1)))
    header = header._replace(record_count=3_000_000, last_offset_delta=2_999_999)
    assert (
        code(with_section(header, compress(codec, bytes(1 << 20)), codec), PLAIN)
        is ErrorCode.MESSAGE_TOO_LARGE
    )


COMPRESSORS: dict[str, tuple[Codec, Callable[[bytes], bytes]]] = {
    "raw snappy": (Codec.SNAPPY, lambda plain: bytes(cramjam.snappy.compress_raw(plain))),
    "linked lz4": (Codec.LZ4, lambda plain: bytes(cramjam.lz4.compress(plain))),
    "zstd level 19": (Codec.ZSTD, zstandard.ZstdCompressor(level=19).compress),
    "zstd with a wide window": (Codec.ZSTD, zstd_with_window),
}


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("max_bytes", [1 << 20, 20 << 20])
def test_batches_that_cannot_be_decompressed_in_pieces_are_valid(name: str, max_bytes: int) -> None:
    codec, pack = COMPRESSORS[name]
    text = b"".join(b'{"carrier":"AA","flight":%d}' % number for number in range(600))
    plain = encode_batch([NewRecord(NOW, b"k", text)] * 900)
    batch = with_section(read_header(plain), pack(bytes(plain[HEADER_SIZE:])), codec)
    assert len(plain) > 12 << 20
    config = TopicConfig(max_message_bytes=max_bytes)
    assert code(batch, config) is ErrorCode.NONE


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_invalid_records_are_reported(codec: Codec, count: int) -> None:
    keyless = records(count)
    keyless[1] = NewRecord(NOW, None, b"v")
    refused = validate(encode_batch(keyless, codec=codec), COMPACT).refused
    assert refused is not None and refused.error is ErrorCode.INVALID_RECORD
    assert [bad.number for bad in refused.records] == [1]
    old = records(count)
    old[2] = NewRecord(NOW - 1001, None, b"v")
    refused = validate(encode_batch(old, codec=codec), RECENT_ONLY).refused
    assert refused is not None and refused.error is ErrorCode.INVALID_TIMESTAMP
    assert [bad.number for bad in refused.records] == [2]
    assert str(NOW - 1001) in refused.message
    without_timestamp = [NewRecord(-1, None, b"v"), *records(count)]
    assert code(encode_batch(without_timestamp, codec=codec), RECENT_ONLY) is ErrorCode.NONE


@pytest.mark.parametrize(
    "record",
    [
        "10 00 00 00 02 6b 7e 76 00",  # value past the record
        "10 00 00 00 03 6b 02 76 00",  # key length -2
        "10 00 00 00 02 6b 02 76 02",  # one header, but no bytes for it
        "10 00 00 00 02 6b 02 76 01",  # header count -1
        "14 00 00 00 02 6b 02 76 02 01 01",  # header without key
        "18 00 00 00 02 6b 02 76 02 02 ff 00 00",  # header key not UTF-8
        "0e 00 00 00 02 6b 02 76",  # no header count
    ],
)
def test_all_fields_are_checked_where_every_record_is_validated(record: str) -> None:
    batch = rebuilt(encode_batch(records(1), codec=Codec.LZ4), lambda _: bytes.fromhex(record))
    assert code(batch, COMPACT) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("source", list(Codec))
@pytest.mark.parametrize("target", list(Codec))
@settings(max_examples=20, deadline=None)
@given(
    values=st.lists(
        st.builds(
            NewRecord,
            timestamp=st.integers(0, 2**43),
            key=st.none() | st.binary(max_size=40),
            value=st.none() | st.binary(max_size=300),
            headers=st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=10)), max_size=3),
        ),
        min_size=1,
        max_size=20,
    ),
    sequence=st.integers(0, 2**31 - 1),
)
def test_recompression_changes_nothing_else(
    source: Codec, target: Codec, values: Sequence[NewRecord], sequence: int
) -> None:
    batch = encode_batch(
        values, codec=source, producer_id=9, producer_epoch=3, base_sequence=sequence, transactional=True
    )
    before = bytes(batch)
    config = TopicConfig(compression_type=COMPRESSION_TYPE[target], message_timestamp_after_max_ms=MAX_LONG)
    stored = validate(batch, config)
    assert stored.refused is None
    assert bytes(batch) == before
    header = check_batch(stored.records)
    assert header == stored.header
    assert header.codec is target
    read = partial(iter_records, max_bytes=1 << 20)
    assert list(read(stored.records)) == list(read(batch))
    may_differ = {"batch_length": 0, "crc": 0, "attributes": 0}
    assert header._replace(**may_differ) == read_header(batch)._replace(**may_differ)
    assert header.attributes & ~7 == read_header(batch).attributes & ~7


def test_size_limit_applies_to_the_stored_batch() -> None:
    batch = encode_batch([NewRecord(NOW, None, bytes(5000))], codec=Codec.ZSTD)
    config = TopicConfig(compression_type="uncompressed", max_message_bytes=1000)
    assert code(batch, config) is ErrorCode.MESSAGE_TOO_LARGE


def turns(batch: bytearray, config: TopicConfig) -> int:
    """How many times the validation yields, so that the event loop can do other work."""
    yielded = 0
    for step in validation(batch, config).steps():
        if step is None:
            yielded += 1
        else:
            step()
    return yielded


def test_validation_is_divided_into_short_steps() -> None:
    many = encode_batch([NewRecord(NOW, b"k", b"v")] * 9 * RECORDS_PER_SLICE, codec=Codec.ZSTD)
    assert turns(many, PLAIN) >= 9
    assert turns(many, COMPACT) >= 9 * RECORDS_PER_SLICE // FIELDS_PER_SLICE
    one = encode_batch([NewRecord(NOW, b"k", b"v", [("", None)] * 9 * FIELDS_PER_SLICE)], codec=Codec.ZSTD)
    assert turns(one, COMPACT) >= 9
    spread = [NewRecord(NOW, b"k", b"v", [("", None)] * (FIELDS_PER_SLICE - 1))] * 9
    assert turns(encode_batch(spread, codec=Codec.ZSTD), COMPACT) >= 9


@pytest.mark.parametrize("config", [PLAIN, COMPACT, TopicConfig(compression_type="gzip")])
def test_work_that_fits_one_turn_is_bounded(config: TopicConfig) -> None:
    """It is bounded in records and in decompressed bytes."""
    sizes = [10, 100_000, 1_000_000]
    by_bytes = [encode_batch([NewRecord(NOW, b"k", bytes(size))], codec=Codec.ZSTD) for size in sizes]
    by_records = [encode_batch(records(count), codec=Codec.ZSTD) for count in (1, 100, 100_000)]
    for batches in (by_bytes, by_records):
        fit = [validation(batch, config).fits_one_turn() for batch in batches]
        assert fit[0] and not fit[-1]
        assert all(smaller or not larger for smaller, larger in pairwise(fit))
