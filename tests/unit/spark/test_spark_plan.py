"""Plans: every batch of the requested range is in exactly one part, and no other batch is."""

import pickle
import random
import uuid
from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise

import pytest
from crc32c import crc32c
from record_files import encode_offset_index
from remote_segments import remote_segment

from tierlog.metadata.records import PageRef, RemoteSegment
from tierlog.records.chunks import ChunkEntry
from tierlog.records.indexes import AbortedTxn, OffsetEntry, encode_txn_index
from tierlog.spark.history.plan import (
    PART_BYTES,
    SPLITS_OF_A_SMALL_QUERY,
    OffsetRange,
    OffsetsUnavailable,
    Part,
    Pruning,
    Source,
    SplitLimits,
    choose_sources,
    committed_range,
    group_into_splits,
    nodes_from_time,
    nodes_in,
    pack_split,
    parts_of_segment,
    resolve_bound,
    unpack_split,
    whole_segment,
)
from tierlog.spark.history.segment_index import ChunkIndex, OffsetIndex, undivided
from tierlog.spark.options import EARLIEST, LATEST, Bound, InvalidOption, parse_options
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.format.manifest import ManifestRoot, TopicDocument

TOPIC = uuid.UUID(int=1)
KEYS = Keys("cluster")
SOURCE = Source("flights", TOPIC, 0)


def page(base: int, last: int) -> PageRef:
    return PageRef(
        uuid=uuid.UUID(int=7),
        base_offset=base,
        last_offset=last,
        entries=1,
        log_bytes=1,
        max_timestamp=0,
        crc32c=0,
    )


def root(
    log_start: int, *, pages: tuple[PageRef, ...] = (), entries: tuple[RemoteSegment, ...] = ()
) -> ManifestRoot:
    return ManifestRoot(
        topic_id=TOPIC,
        partition=0,
        version=1,
        metadata_index=1,
        leader_epoch=0,
        log_start_offset=log_start,
        pages=pages,
        entries=entries,
    )


@pytest.mark.parametrize("seed", range(20))
def test_splits_cover_each_wanted_batch_once(seed: int) -> None:
    rng = random.Random(seed)
    base, batches, index, position, offset = 10_000, [], [], 0, 10_000
    for i in range(200):
        last, size = offset + rng.randrange(20), rng.randrange(61, 900)
        batches.append((offset, last, position, position + size))
        if i and rng.random() < 0.4:
            index.append(OffsetEntry(last, position))
        offset, position = last + 1, position + size
    segment = remote_segment(base, offset - 1, log_bytes=position)
    wanted = OffsetRange(rng.randrange(base - 50, offset), rng.randrange(base, offset + 50))
    parts = parts_of_segment(
        KEYS,
        SOURCE,
        segment,
        OffsetIndex(segment, encode_offset_index(base, index), b""),
        wanted,
        part_bytes=rng.choice([1, 2_000, 10_000]),
    )
    edges = {at for _, _, at, _ in batches} | {position}
    for part in parts:
        assert part.start in edges and part.end in edges and part.start < part.end
        assert (part.offsets.start, part.offsets.end) == (max(wanted.start, base), min(wanted.end, offset))
    for before, after in pairwise(parts):
        assert before.end == after.start
    for first, last, start, end in batches:
        holding = [part for part in parts if part.start <= start and end <= part.end]
        overlapping = first < wanted.end and last >= wanted.start and bool(wanted)
        assert len(holding) == 1 if overlapping else len(holding) <= 1


@pytest.mark.parametrize("seed", range(20))
def test_splits_at_chunks_cover_each_wanted_batch_once_with_the_checksum_of_their_bytes(seed: int) -> None:
    """Also with offsets that compaction has removed, between batches and at the segment's start."""
    rng = random.Random(seed)
    base, batches, chunks, log, offset = 10_000, [], [], b"", 10_000
    for _ in range(200):
        first = offset + rng.choice((0, 0, 7))
        last, content = first + rng.randrange(20), rng.randbytes(rng.randrange(61, 900))
        if not chunks or rng.random() < 0.1:
            chunks.append((len(log), first))
        batches.append((first, last, len(log), len(log) + len(content)))
        log, offset = log + content, last + 1
    ends = [*(position for position, _ in chunks[1:]), len(log)]
    index = ChunkIndex(
        tuple(
            ChunkEntry(at, first, -1, crc32c(log[at:end]))
            for (at, first), end in zip(chunks, ends, strict=True)
        ),
        len(log),
    )
    segment = remote_segment(base, offset - 1, log_bytes=len(log))
    wanted = OffsetRange(rng.randrange(base - 50, offset), rng.randrange(base, offset + 50))
    part_bytes = rng.choice([1, 20_000, 40_000])
    parts = parts_of_segment(KEYS, SOURCE, segment, index, wanted, part_bytes)
    for part in parts:
        assert part.crc32c == crc32c(log[part.start : part.end])
        assert (
            part.end - part.start <= part_bytes
            or part.end == ends[[at for at, _ in chunks].index(part.start)]
        )
    for before, after in pairwise(parts):
        assert before.end == after.start and before.last_offsets.end == after.last_offsets.start
    for first, last, start, end in batches:
        holding = [part for part in parts if part.start <= start and end <= part.end]
        overlapping = first < wanted.end and last >= wanted.start and bool(wanted)
        assert len(holding) == 1 if overlapping else len(holding) <= 1
        if overlapping:
            assert holding[0].last_offsets.start <= last < holding[0].last_offsets.end


@pytest.mark.parametrize("seed", range(20))
def test_splits_have_all_parts_in_order_and_no_more_bytes_than_allowed(seed: int) -> None:
    rng = random.Random(seed)
    ends = list(accumulate(rng.randrange(1, 20 << 20) for _ in range(rng.randrange(1, 300))))
    anywhere = OffsetRange(0, 1)
    parts = [Part(SOURCE, "log", at, end, anywhere, anywhere, None) for at, end in pairwise([0, *ends])]
    split_bytes = rng.choice([1, 10 << 20, 64 << 20, 1 << 40])
    splits = group_into_splits(parts, SplitLimits(split_bytes))
    assert [part for split in splits for part in split] == parts
    sizes = [sum(part.end - part.start for part in split) for split in splits]
    assert all(size <= split_bytes or len(split) == 1 for size, split in zip(sizes, splits, strict=True))
    assert len(splits) >= min(len(parts), SPLITS_OF_A_SMALL_QUERY, ends[-1] // (40 << 20))
    for size, following in pairwise(sizes):
        assert size + following > min(split_bytes, PART_BYTES), "neighbours that fit into one split"


def test_a_packed_split_has_the_same_parts_and_is_small() -> None:
    rng = random.Random(3)
    entries = [
        remote_segment(100 * n, 100 * n + 99, uuid=uuid.UUID(int=rng.getrandbits(128))) for n in range(64)
    ]
    whole = OffsetRange(0, 6_400)
    parts = [part for entry in entries for part in whole_segment("cluster/data/", SOURCE, entry, whole)]
    aborted = Part(SOURCE, "key", 1, 2, whole, whole, None, (AbortedTxn(1, 2, 3, 4),), 5)
    split = (*parts, aborted)
    packed = pack_split(split)
    assert unpack_split(packed) == split and unpack_split(pack_split(())) == ()
    assert len(packed) < 64 * len(split) < len(pickle.dumps(split)) / 2


def test_a_part_lists_the_aborted_transactions_of_its_own_batches() -> None:
    aborts = [AbortedTxn(at % 3, at, at + 5, at + 6) for at in range(0, 1_000, 10)]
    index = ChunkIndex(tuple(ChunkEntry(at, at, -1, 1) for at in range(0, 1_000, 100)), 1_000)
    segment, wanted = remote_segment(0, 999), OffsetRange(150, 950)
    parts = parts_of_segment(KEYS, SOURCE, segment, index, wanted, 100, encode_txn_index(aborts))
    assert len(parts) == 9
    for part in parts:
        start, end = max(part.start, 150), min(part.end, 950)
        needed = [txn for txn in aborts if txn.first_offset < end and txn.last_offset >= start]
        assert set(needed) <= set(part.aborted) and len(part.aborted) <= len(needed) + 11


def test_offsets_before_the_first_batch_of_a_compacted_segment_need_no_split() -> None:
    index = ChunkIndex((ChunkEntry(0, 50, -1, 1),), 1_000)
    assert parts_of_segment(KEYS, SOURCE, remote_segment(0, 99), index, OffsetRange(0, 50), 1_000) == []


def test_splits_are_no_longer_than_requested_if_the_index_allows() -> None:
    segment = remote_segment(0, 100, log_bytes=10_100)
    lines = [OffsetEntry(i, 100 * i) for i in range(1, 100)]
    index = OffsetIndex(segment, encode_offset_index(0, lines), b"")
    parts = parts_of_segment(KEYS, SOURCE, segment, index, OffsetRange(0, 101), 1_000)
    assert [part.end - part.start for part in parts] == [1_000] * 9 + [900, 200]


def test_undivided_segment_is_one_split_with_the_checksum_of_the_manifest() -> None:
    segment = remote_segment(5, 9)
    (part,) = parts_of_segment(KEYS, SOURCE, segment, undivided(segment), OffsetRange(0, 8), 10)
    assert (part.start, part.end, part.offsets) == (0, 1_000, OffsetRange(5, 8))
    assert (part.key, part.crc32c) == (KEYS.log(SOURCE.id, segment), segment.log_crc32c)
    assert parts_of_segment(KEYS, SOURCE, segment, undivided(segment), OffsetRange(10, 12), 10) == []


def test_scan_for_a_timestamp_begins_in_the_first_chunk_that_has_it() -> None:
    chunks = (ChunkEntry(0, 5, 70, 0), ChunkEntry(100, 20, 40, 0), ChunkEntry(200, 30, 90, 0))
    index = ChunkIndex(chunks, 300)
    assert [index.offset_for_time(stamp) for stamp in (10, 70, 71, 90, 91)] == [5, 5, 30, 30, 30]


def test_manifests_prune_by_offset_and_time() -> None:
    held = [
        remote_segment(0, 9, max_timestamp=50),
        remote_segment(10, 19, max_timestamp=40),
        remote_segment(20, 29, max_timestamp=90),
    ]
    assert nodes_in(held, OffsetRange(9, 10)) == held[:1]
    assert nodes_in(held, OffsetRange(9, 21)) == held
    assert nodes_in(held, OffsetRange(5, 5)) == []
    assert nodes_from_time(held, 45, 0) == [held[0], held[2]]
    assert nodes_from_time(held, 45, 10) == [held[2]]
    assert nodes_in((page(0, 9), page(10, 19)), OffsetRange(10, 11)) == [page(10, 19)]


def test_committed_range_is_from_the_log_start_to_the_last_entry() -> None:
    assert committed_range(root(7)) == OffsetRange(7, 7)
    assert committed_range(root(7, pages=(page(0, 9),), entries=(remote_segment(10, 19),))) == OffsetRange(
        7, 20
    )
    assert committed_range(root(0, entries=(remote_segment(10, 19),))) == OffsetRange(10, 20)


def test_bounds_outside_the_bucket_are_errors_unless_waived() -> None:
    committed = OffsetRange(100, 200)
    assert resolve_bound(SOURCE, Bound(EARLIEST), committed, True) == 100
    assert resolve_bound(SOURCE, Bound(LATEST), committed, True) == 200
    for offset, clamped in ((99, 100), (201, 200)):
        bound = Bound(EARLIEST, {("flights", 0): offset})
        with pytest.raises(OffsetsUnavailable, match=str(offset)):
            resolve_bound(SOURCE, bound, committed, True)
        assert resolve_bound(SOURCE, bound, committed, False) == clamped


def made_parts(rng: random.Random) -> list[Part]:
    parts, offset = [], 0
    for number in range(rng.randrange(1, 60)):
        rows = OffsetRange(offset, offset + rng.randrange(1, 500))
        parts.append(Part(SOURCE, f"{number}", 0, rng.randrange(1, 9 << 20), rows, rows, None))
        offset = rows.end
    return parts


@pytest.mark.parametrize("seed", range(30))
def test_splits_keep_to_the_numbers_of_partitions_and_records(seed: int) -> None:
    rng = random.Random(seed)
    parts = made_parts(rng)
    most, records = rng.randrange(1, 20), rng.randrange(1, 300)
    few = group_into_splits(parts, SplitLimits(1 << 20, max_splits=most))
    assert len(few) <= most and [part for split in few for part in split] == parts
    many = group_into_splits(parts, SplitLimits(64 << 20, min_splits=len(parts) // 2 or 1))
    assert len(many) >= len(parts) // 2 and [part for split in many for part in split] == parts
    small = group_into_splits(parts, SplitLimits(64 << 20, max_records=records))
    assert all(sum(len(part.rows) for part in split) <= records for split in small)
    rows = [offset for split in small for part in split for offset in part.rows]
    assert rows == [offset for part in parts for offset in part.rows]


def test_chunks_and_entries_that_are_older_than_the_query_are_left_out() -> None:
    chunks = (
        ChunkEntry(0, 0, 50, 1),
        ChunkEntry(100, 10, 90, 2),
        ChunkEntry(200, 20, 40, 3),
        ChunkEntry(300, 30, -1, 4),
    )
    index = ChunkIndex(chunks, 400)
    assert [(one.start, one.end) for one in index.pieces(0, 40, 1_000, 60)] == [(100, 200), (300, 400)]
    assert [(one.start, one.end) for one in index.pieces(0, 40, 1_000)] == [(0, 400)]
    held = [remote_segment(0, 9, max_timestamp=50), remote_segment(10, 19, max_timestamp=-1)]
    assert nodes_in(held, OffsetRange(0, 20), 51) == held[1:]


def test_filters_on_time_narrow_to_milliseconds_that_contain_them() -> None:
    at = datetime(2013, 1, 1, 10, 0, 0, 500_900, UTC)
    ms = 1_357_034_400_500
    pruning = Pruning().narrow("timestamp", ">=", at).narrow("timestamp", "<", at)
    assert (pruning.since_ms, pruning.until_ms) == (ms, ms + 1)
    assert Pruning().narrow("timestamp", "=", at) == pruning
    assert pruning.narrow("timestamp", ">", at - timedelta(1)).since_ms == ms
    later = Pruning().narrow("timestamp", "in", (at, at + timedelta(seconds=1)))
    assert (later.since_ms, later.until_ms) == (ms, ms + 1_001)
    assert Pruning().narrow("timestamp", "=", "2013-01-01") == Pruning()
    exact = datetime(2039, 3, 8, 18, 47, 6, 411_000, UTC)  # as a float it is a millisecond less
    assert Pruning().narrow("timestamp", "<=", exact).until_ms == 2_183_222_826_412


def test_topics_of_a_pattern_and_assigned_partitions_are_sources() -> None:
    documents = [document("a", 1), document("ab", 2), document("b", 3)]

    def chosen(**options: str) -> list[str]:
        return [str(one) for one in choose_sources(documents, parse_options({"path": "/b", **options}))]

    assert chosen(subscribePattern="a.?") == ["a-0", "a-1", "ab-0", "ab-1"]
    assert chosen(assign='{"b":[1],"a":[0]}') == ["b-1", "a-0"]
    assert chosen(table="segments") == ["a-0", "a-1", "ab-0", "ab-1", "b-0", "b-1"]
    with pytest.raises(InvalidOption, match=r"matches 'c': `subscribePattern` .*3 topics \(a, ab, b\)"):
        chosen(subscribePattern="c")
    with pytest.raises(InvalidOption, match="`assign`: topic 'a' has no partition 2, but 2 of them"):
        chosen(assign='{"a":[2]}')


def document(name: str, number: int, partitions: int = 2) -> TopicDocument:
    return TopicDocument(topic_id=uuid.UUID(int=number), name=name, partitions=partitions, configs={})


def test_sources_are_named_partitions_that_exist() -> None:
    documents = [document("a", 1), document("b", 2), document("b", 3)]
    options = {"path": "/b"}
    assert [str(s) for s in choose_sources(documents, parse_options({**options, "topic": "a"}))] == [
        "a-0",
        "a-1",
    ]
    one = parse_options({**options, "topic": "a", "partitions": "1"})
    assert [str(s) for s in choose_sources(documents, one)] == ["a-1"]
    for wrong in ({"topic": "b"}, {"topic": "c"}, {"topic": "a", "partitions": "2"}):
        with pytest.raises(InvalidOption):
            choose_sources(documents, parse_options({**options, **wrong}))


def test_filters_narrow_and_never_widen() -> None:
    pruning = Pruning().narrow("offset", ">", 10).narrow("offset", "<=", 20).narrow("offset", ">=", 5)
    assert pruning.offsets == OffsetRange(11, 21)
    assert pruning.narrow("offset", "=", 15).offsets == OffsetRange(15, 16)
    assert pruning.narrow("offset", "in", (3, 14, 12)).offsets == OffsetRange(11, 15)
    assert not pruning.narrow("offset", "=", 3).offsets
    two = Pruning().narrow("partition", "in", (1, 2)).narrow("partition", "=", 2)
    assert two.partitions == {2}
    assert not Pruning().narrow("topic", "=", "weather").keeps(SOURCE)
    for column, comparison, value in (
        ("value", "=", b"x"),
        ("offset", ">", 1.5),
        ("partition", "in", (1, None)),
        ("partition", ">", 0),
        ("topic", ">", "a"),
        ("offset", "in", ()),
    ):
        assert Pruning().narrow(column, comparison, value) == Pruning()


def test_error_of_a_topic_that_is_not_in_the_bucket_names_the_next_step() -> None:
    documents = [document("orders", 1)]
    with pytest.raises(InvalidOption, match=r"not in the bucket. Did you mean 'orders'\? .*remote"):
        choose_sources(documents, parse_options({"path": "/b", "topic": "order"}))
