"""Compaction rules: the cleanable range, which segments are merged, and what is kept."""

import struct
from pathlib import Path

import pytest

from tierlog.base.segments import SegmentDescriptor
from tierlog.broker.storage.core.compaction import LogToClean, SegmentSize, group_segments, log_to_clean
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import assign, check_batch, read_header
from tierlog.records.codecs import Codec
from tierlog.records.compaction import BatchFilter, CleanedTransactionMetadata, LastRecord
from tierlog.records.indexes import AbortedTxn
from tierlog.records.markers import EndMarker
from tierlog.records.offset_map import OffsetMap
from tierlog.records.record import iter_records, records_section
from tierlog.records.rewrite import Span, spans
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_000_000
DAY = 86_400_000


def segment(at: int, *, size: int = 100, rolled: bool = True, age: int = 500) -> SegmentDescriptor:
    return SegmentDescriptor(
        base_offset=at * 10,
        end_offset=at * 10 + 10,
        size_bytes=size,
        first_timestamp=NOW - age,
        max_timestamp=NOW - age + 10,
        last_modified_ms=NOW,
        rolled=rolled,
        has_transactions=False,
        has_aborts=False,
        leader_epochs=(),
        directory=Path("x"),
        file_name="x",
    )


LOG = (segment(0, age=500), segment(1, age=300), segment(2, age=200), segment(3, rolled=False))


@pytest.mark.parametrize(
    ("config", "cleaned_to", "start", "stable", "expected"),
    [
        ({}, 0, 0, 40, LogToClean(0, 30, 0, 300, False)),
        ({}, 10, 0, 40, LogToClean(10, 30, 100, 200, False)),
        ({}, 15, 0, 40, LogToClean(15, 30, 100, 200, False)),  # the map was full within a segment
        ({}, 0, 20, 40, LogToClean(20, 30, 200, 100, False)),
        ({}, 0, 0, 29, LogToClean(0, 20, 0, 200, False)),  # an open transaction, or not replicated
        ({}, 30, 0, 40, LogToClean(30, 30, 300, 0, False)),
        ({"min_compaction_lag_ms": 200}, 0, 0, 40, LogToClean(0, 20, 0, 200, False)),
        ({"max_compaction_lag_ms": 400}, 0, 0, 40, LogToClean(0, 30, 0, 300, True)),
        ({"max_compaction_lag_ms": 400}, 10, 0, 40, LogToClean(10, 30, 100, 200, False)),
    ],
)
def test_cleanable_range(
    config: dict, cleaned_to: int, start: int, stable: int, expected: LogToClean
) -> None:
    found = log_to_clean(
        LOG,
        TopicConfig(**config),
        cleaned_to=cleaned_to,
        log_start_offset=start,
        last_stable_offset=stable,
        now_ms=NOW,
    )
    assert found == expected


@pytest.mark.parametrize(
    ("dirty", "cleans"),
    [
        (LogToClean(0, 9, 100, 100, False), False),
        (LogToClean(0, 9, 100, 101, False), True),
        (LogToClean(0, 9, 100, 1, True), True),
        (LogToClean(0, 9, 100, 0, True), False),
        (LogToClean(0, 0, 0, 0, False), False),
    ],
)
def test_log_is_cleaned_above_the_dirty_ratio_or_when_overdue(dirty: LogToClean, cleans: bool) -> None:
    assert dirty.needs_cleaning(TopicConfig(min_cleanable_dirty_ratio=0.5)) is cleans


def test_neighbouring_segments_are_merged_up_to_the_segment_limits() -> None:
    config = TopicConfig(segment_bytes=100, segment_index_bytes=80)
    sizes = [
        SegmentSize(0, 10, 40, 8, 12),
        SegmentSize(10, 20, 60, 8, 12),  # full: 100 bytes
        SegmentSize(20, 30, 1, 80, 12),
        SegmentSize(30, 40, 1, 8, 12),  # the offset index would be too large
        SegmentSize(40, 50, 1, 8, 72),  # the time index would be
        SegmentSize(50, 40 + 2**31, 1, 0, 0),
        SegmentSize(40 + 2**31, 41 + 2**31, 1, 0, 0),  # too far for a relative offset
        SegmentSize(41 + 2**31, 42 + 2**31, 500, 0, 0),  # larger than a segment may be: alone
    ]
    groups = [[size.base_offset for size in group] for group in group_segments(sizes, config)]
    assert groups == [[0, 10], [20], [30], [40, 50], [40 + 2**31], [41 + 2**31]]


def span(key: bytes, offset: int) -> Span:
    return Span(0, 0, 0, 0, 0, offset, key, False)


# -- batches --


def batch_of(records: list[NewRecord], base: int = 0, **options: object) -> bytes:
    batch = encode_batch(records, **options)  # type: ignore[arg-type]
    assign(batch, 0, base, 4)
    return bytes(batch)


def keys_with(records: dict[bytes, int], end: int = 100) -> OffsetMap:
    keys = OffsetMap(1 << 20, 0, len(records))
    assert keys.add_batch([span(key, offset) for key, offset in records.items()], len(records), end)
    return keys


def filter_for(
    keys: OffsetMap,
    *,
    now: int = NOW,
    aborted: tuple[AbortedTxn, ...] = (),
    producers: dict[int, LastRecord] | None = None,
) -> BatchFilter:
    return BatchFilter(keys, CleanedTransactionMetadata(aborted), producers or {}, now, DAY)


def run(chosen: BatchFilter, batch: bytes, *, stays: bool = False) -> bytes:
    header = check_batch(batch)
    plain = bytes(records_section(batch, 0, header, 1 << 20)) if header.record_count else b""
    return chosen.data(batch, header, plain, lambda: spans(plain, header), stays=stays)


PAIR = [NewRecord(NOW, b"a", b"1", (("h", b"x"),)), NewRecord(NOW + 700, b"b", b"2" * 300)]


@pytest.mark.parametrize("codec", list(Codec))
def test_kept_records_keep_their_bytes(codec: Codec) -> None:
    batch = batch_of(PAIR, 50, codec=codec, producer_id=3, producer_epoch=1, base_sequence=8)
    before = check_batch(batch)
    kept = run(filter_for(keys_with({b"a": 60, b"b": 51})), batch)
    header = check_batch(kept)
    assert header._replace(record_count=2, batch_length=before.batch_length, crc=before.crc) == before
    old, new = (bytes(records_section(b, 0, read_header(b), 1 << 20)) for b in (batch, kept))
    second = list(spans(old, before))[1]
    assert new == old[second.start : second.stop]
    assert [record.offset for record in iter_records(kept, max_bytes=1 << 20)] == [51]


def test_batch_without_removed_records_is_not_copied() -> None:
    batch = batch_of(PAIR, 50)
    assert run(filter_for(keys_with({b"a": 50, b"b": 51})), batch) is batch
    assert run(filter_for(keys_with({b"a": 99}, end=50)), batch) is batch  # beyond what was mapped


def test_tombstone_is_removed_after_delete_retention_ms() -> None:
    batch = batch_of([NewRecord(NOW - 5, b"a", b"1"), NewRecord(NOW, b"b", None)], 50)
    keys = keys_with({b"a": 50, b"b": 51})
    marked = run(filter_for(keys), batch)
    header = check_batch(marked)
    assert (header.delete_horizon_ms, header.attributes) == (NOW + DAY, 0x40)
    assert list(iter_records(marked, max_bytes=99)) == list(iter_records(batch, max_bytes=99))
    assert (header.max_timestamp, header.first_timestamp) == (NOW, NOW)
    assert run(filter_for(keys, now=NOW + DAY - 1), marked) is marked  # the horizon does not move
    after = run(filter_for(keys, now=NOW + DAY), marked)
    assert [record.key for record in iter_records(after, max_bytes=99)] == [b"a"]
    assert check_batch(after).delete_horizon_ms == NOW + DAY
    assert [record.timestamp for record in iter_records(after, max_bytes=99)] == [NOW - 5]


def test_last_batch_of_an_active_producer_is_kept_empty() -> None:
    options = {"producer_id": 3, "producer_epoch": 1, "base_sequence": 8, "codec": Codec.LZ4}
    batch = batch_of(PAIR, 50, **options)
    keys = keys_with({b"a": 60, b"b": 61})
    kept = run(filter_for(keys, producers={3: LastRecord(1, 51)}), batch)
    header = check_batch(kept)
    assert (header.record_count, header.size, header.last_offset) == (0, 61, 51)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (3, 1, 8)
    assert (header.leader_epoch, header.max_timestamp) == (4, NOW + 700)
    assert list(iter_records(kept, max_bytes=9)) == []
    assert run(filter_for(keys, producers={3: LastRecord(1, 51)}), kept) == kept
    assert run(filter_for(keys, producers={3: LastRecord(1, 80)}), batch) == b""
    assert run(filter_for(keys), kept) == b""
    assert run(filter_for(keys), kept, stays=True) == kept


def test_records_without_a_key_are_removed() -> None:
    batch = batch_of([NewRecord(NOW, None, b"1"), NewRecord(NOW, b"b", b"2")], 50)
    kept = run(filter_for(keys_with({b"b": 51})), batch)
    assert [record.key for record in iter_records(kept, max_bytes=99)] == [b"b"]


# -- transactions --

ABORT, COMMIT = EndMarker(False, 0), EndMarker(True, 0)


def marker_of(base: int, producer: int, kind: EndMarker) -> bytes:
    record = NewRecord(NOW, struct.pack(">hh", 0, int(kind.committed)), struct.pack(">hi", 0, 0))
    options = {"producer_id": producer, "producer_epoch": 0, "base_sequence": -1}
    return batch_of([record], base, transactional=True, control=True, **options)


def control(chosen: BatchFilter, batch: bytes, kind: EndMarker | None) -> bytes:
    return chosen.control(batch, check_batch(batch), kind, stays=False)


def of_transaction(base: int, producer: int) -> bytes:
    options = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    return batch_of([NewRecord(NOW, b"k%d" % base, b"v")], base, **options)


def test_aborted_data_is_removed_at_once_and_its_marker_later() -> None:
    entry = AbortedTxn(7, 10, 11, 12)
    chosen = filter_for(keys_with({b"k10": 10}), aborted=(entry,))
    assert run(chosen, of_transaction(10, 7)) == b""
    marker = marker_of(11, 7, ABORT)
    assert control(chosen, marker, ABORT) is marker
    assert chosen.transactions.kept == [entry]

    again = filter_for(keys_with({}), aborted=(entry,))
    waiting = control(again, marker, ABORT)
    assert check_batch(waiting).delete_horizon_ms == NOW + DAY
    assert again.transactions.kept == []
    assert control(filter_for(keys_with({}), now=NOW + DAY - 1), waiting, ABORT) is waiting
    assert control(filter_for(keys_with({}), now=NOW + DAY), waiting, ABORT) == b""


def test_aborted_transaction_whose_marker_is_gone_ends_at_its_last_offset() -> None:
    """A segment without its data may list it in the transaction index after compaction has removed both."""
    gone, later = AbortedTxn(7, 10, 20, 21), AbortedTxn(7, 40, 41, 42)
    chosen = filter_for(keys_with({b"k30": 30, b"k40": 40}), aborted=(gone, later))
    other, data = of_transaction(15, 8), of_transaction(30, 7)
    assert run(chosen, other) is other
    assert run(chosen, data) is data
    assert run(chosen, of_transaction(40, 7)) == b""
    marker = marker_of(41, 7, ABORT)
    assert control(chosen, marker, ABORT) is marker
    assert chosen.transactions.kept == [later]


def test_commit_marker_is_kept_while_its_data_exists() -> None:
    marker = marker_of(11, 7, COMMIT)
    chosen = filter_for(keys_with({b"k10": 10}))
    data = of_transaction(10, 7)
    assert run(chosen, data) is data
    assert control(chosen, marker, COMMIT) is marker
    assert check_batch(control(chosen, marker, COMMIT)).delete_horizon_ms == NOW + DAY


def test_last_marker_of_a_producer_is_kept_for_its_epoch() -> None:
    marker = marker_of(11, 7, COMMIT)
    waiting = control(filter_for(keys_with({})), marker, COMMIT)
    late = filter_for(keys_with({}), now=NOW + DAY, producers={7: LastRecord(0, -1)})
    kept = control(late, waiting, COMMIT)
    header = check_batch(kept)
    assert (header.record_count, header.is_control, header.producer_epoch) == (0, True, 0)
    assert control(late, kept, None) == kept
