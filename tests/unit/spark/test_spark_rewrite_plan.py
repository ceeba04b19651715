"""Plan of `rewrite`: which segments become one, and that a second run finds nothing to do."""

import random
import uuid
from collections.abc import Sequence
from itertools import pairwise

import pytest
from msgspec.structs import replace

from tierlog.metadata.records import RemoteSegment
from tierlog.spark.jobs.rewrite_plan import Group, RewriteLimits, groups_of, tags_of

NO_LIMIT = 1 << 40


def limits(segment_bytes: int = 100, codec: str | None = None, **changes: int) -> RewriteLimits:
    return RewriteLimits(segment_bytes, codec, changes.get("bytes_max", NO_LIMIT), changes.get("span_ms_max"))


def entry(base: int, size: int, timestamp: int = 0, tags: tuple[tuple[str, str], ...] = ()) -> RemoteSegment:
    return RemoteSegment(
        uuid=uuid.UUID(int=base + 1),
        base_offset=base,
        last_offset=base,
        leader_epochs=((0, 0),),
        log_bytes=size,
        index_bytes=1,
        records=1,
        first_timestamp=timestamp,
        max_timestamp=timestamp,
        has_transactions=False,
        has_aborts=False,
        log_crc32c=0,
        index_crc32c=0,
        leader_epoch=0,
        control_records=0,
        tags=tags,
    )


def entries(*sizes: int) -> list[RemoteSegment]:
    return [entry(at, size) for at, size in enumerate(sizes)]


def sizes(segments: Sequence[RemoteSegment], wanted: RewriteLimits) -> list[list[int]]:
    return [[one.log_bytes for one in group.old] for group in groups_of(segments, wanted)]


def test_groups_are_as_large_as_the_segment_size_allows() -> None:
    assert sizes(entries(40, 40, 40, 200, 10, 10), limits()) == [[40, 40], [10, 10]]
    assert sizes(entries(200, 90, 90), limits()) == []


def test_another_codec_takes_every_segment() -> None:
    assert sizes(entries(40, 40, 40, 200), limits(codec="zstd")) == [[40, 40], [40], [200]]
    assert sizes(entries(40, 40), limits(0, "zstd")) == [[40], [40]]


def test_segments_of_the_wanted_codec_and_markers_alone_are_left() -> None:
    done = entry(0, 40, tags=(("codec", "zstd"),))
    markers = replace(entry(1, 40), control_records=1)
    assert sizes([done, markers], limits(0, "zstd")) == []
    assert sizes([done, markers], limits(0, "gzip")) == [[40]]


def test_retention_limits_the_size_and_the_time_of_a_segment() -> None:
    assert sizes(entries(30, 30, 30, 30), limits(bytes_max=60)) == [[30, 30], [30, 30]]
    timed = [entry(at, 10, timestamp=at * 1000) for at in range(6)]
    assert sizes(timed, limits(span_ms_max=2000)) == [[10] * 3, [10] * 3]


def test_offsets_of_a_group_fit_into_its_indexes() -> None:
    far = [entry(0, 10), replace(entry(1, 10), last_offset=1 << 31)]
    assert sizes(far, limits()) == []


def test_group_says_how_far_it_is_compacted_and_that_it_is_full() -> None:
    old = (entry(0, 40, tags=(("compacted.to", "1"), ("compacted.at", "9"), ("codec", "gzip"))), entry(1, 40))
    assert dict(tags_of(Group(old, is_full=False), limits())) == {"compacted.to": "1", "compacted.at": "9"}
    assert dict(tags_of(Group(old[:1], is_full=True), limits(codec="lz4"))) == {
        "compacted.to": "1",
        "compacted.at": "9",
        "codec": "lz4",
        "grouped.bytes": "100",
    }


@pytest.mark.parametrize("seed", range(20))
def test_second_run_finds_nothing_even_if_the_new_segments_are_smaller(seed: int) -> None:
    rng, wanted = random.Random(seed), limits(1000, "zstd")
    segments = entries(*(rng.randrange(1, 700) for _ in range(100)))
    rewritten = {group.base_offset: group for group in groups_of(segments, wanted)}
    after: list[RemoteSegment] = []
    for segment in segments:
        group = rewritten.get(segment.base_offset)
        if group is not None:
            size = max(1, int(group.size_bytes * rng.uniform(0.1, 1.3)))
            tags = tags_of(group, wanted)
            after.append(replace(segment, last_offset=group.end_offset - 1, log_bytes=size, tags=tags))
    assert after[0].base_offset == 0 and after[-1].end_offset == 100
    assert all(one.end_offset == two.base_offset for one, two in pairwise(after))
    assert list(groups_of(after, wanted)) == []
    later = [*after, *(entry(100 + at, 50) for at in range(3))]
    assert list(groups_of(later, wanted))[-1].end_offset == 103, "what came later is rewritten"
