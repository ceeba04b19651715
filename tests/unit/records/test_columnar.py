"""Columnar decoder: which records it leaves out, and which input it refuses."""

from collections.abc import Callable

import pytest

from tierlog.records.codecs import Codec
from tierlog.records.columnar import AbortedRange, decode_columns
from tierlog.records.errors import RecordsError, RecordsFault
from tierlog.records.kernels import compiled
from tierlog.records.writer import NewRecord, encode_batch

pytestmark = pytest.mark.slow  # numba compiles the decoder's loops


def offsets(log: bytes, **options: object) -> list[int]:
    """Offsets of the records that the decoder returns."""
    return [
        offset
        for group in decode_columns(log, ["offset"], **options)  # type: ignore[arg-type]
        for offset in group.arrays["offset"].to_pylist()
    ]


def records(count: int) -> list[NewRecord]:
    return [NewRecord(1_000 + number, b"k", b"v") for number in range(count)]


def transactional(base_offset: int, producer_id: int, **options: object) -> bytearray:
    """A batch of two records in a transaction."""
    return encode_batch(
        records(2),
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("is_checked", [False, True])
def test_control_batches_are_left_out(is_checked: bool) -> None:
    marker = encode_batch(
        records(1), base_offset=2, control=True, transactional=True, producer_id=7, producer_epoch=0
    )
    log = encode_batch(records(2)) + marker + encode_batch(records(2), base_offset=3)
    assert offsets(bytes(log), is_checked=is_checked) == [0, 1, 3, 4]


def test_only_batches_of_the_aborted_transaction_are_left_out() -> None:
    log = (
        transactional(0, 7)
        + transactional(2, 8)
        + transactional(4, 7)
        + encode_batch(records(2), base_offset=6)
    )
    for is_checked in (False, True):
        kept = offsets(bytes(log), aborted=[AbortedRange(7, 0, 3)], is_checked=is_checked)
        assert kept == [2, 3, 4, 5, 6, 7]


def test_offsets_that_compaction_removed_are_skipped() -> None:
    log = encode_batch(records(3), base_offset=10, offset_deltas=[0, 5, 9])
    assert offsets(bytes(log), first_offset=11, end_offset=19) == [15]


@pytest.mark.parametrize("codec", list(Codec))
def test_batch_with_a_flipped_bit_is_refused(codec: Codec) -> None:
    log = encode_batch(records(50), codec=codec)
    log[70] ^= 1
    with pytest.raises(RecordsError) as error:
        offsets(bytes(log))
    assert error.value.fault is RecordsFault.CORRUPT


@pytest.mark.parametrize("is_checked", [False, True])
@pytest.mark.parametrize("missing", [1, 60, 100])
def test_truncated_batch_is_refused_and_not_skipped(missing: int, is_checked: bool) -> None:
    log = encode_batch(records(5)) + encode_batch(records(5), base_offset=5)
    with pytest.raises(RecordsError):
        offsets(bytes(log[:-missing]), is_checked=is_checked)


@pytest.mark.parametrize("is_checked", [False, True])
def test_batches_out_of_order_are_refused(is_checked: bool) -> None:
    log = encode_batch(records(5), base_offset=5) + encode_batch(records(5), base_offset=4)
    with pytest.raises(RecordsError, match="follows"):
        offsets(bytes(log), is_checked=is_checked)


def test_decompression_bomb_is_refused() -> None:
    bomb = encode_batch([NewRecord(0, None, bytes(1 << 20))], codec=Codec.ZSTD)
    with pytest.raises(RecordsError) as error:
        offsets(bytes(bomb), max_batch_bytes=1 << 19)
    assert error.value.fault is RecordsFault.TOO_LARGE


def test_timestamp_too_large_for_microseconds_saturates() -> None:
    log = encode_batch([NewRecord(2**62, None, None)])
    (group,) = decode_columns(bytes(log), ["timestamp"])
    assert group.arrays["timestamp"].view("int64").to_pylist() == [(2**63 - 1) // 1000 * 1000]


def test_error_for_an_unknown_column_names_it() -> None:
    with pytest.raises(ValueError, match="topic"):
        list(decode_columns(b"", ["topic"]))


def test_decreasing_offsets_are_refused() -> None:
    log = encode_batch(records(3), base_offset=5) + encode_batch(records(3), base_offset=7)
    with pytest.raises(RecordsError) as error:
        offsets(bytes(log))
    assert error.value.fault is RecordsFault.CORRUPT


def test_kernels_compile_without_a_cache_directory() -> None:
    """A Spark executor may have no writable directory. numba cannot cache a function without a source file
    either.
    """
    namespace: dict[str, Callable[[int], int]] = {}
    exec("def successor(x):\n    return x + 1", namespace)
    assert compiled(namespace["successor"])(1) == 2
