"""Tiering planner, rule by rule; tests/property/test_planner_model.py combines them."""

import uuid

import pytest
from msgspec.structs import replace
from remote_segments import local_segment, remote_segment

from tierlog.base.segments import DescribedSegments, SegmentDescriptor
from tierlog.metadata.image import RemotePartition, StartedCopy
from tierlog.metadata.records import PageRef, RemoteSegment
from tierlog.tiering import page_tree
from tierlog.tiering.page_tree import ENTRIES_MAX, Spill
from tierlog.tiering.planner import (
    Abandon,
    Blocked,
    Copy,
    DropLocal,
    DropRemote,
    LeaderView,
    MoveLogStart,
    TierPolicy,
    UploadLag,
    actions,
    follower_local_start,
    needs_log_start_pages,
    pending_bytes,
    plan,
    summarize_log_start_pages,
    upload_lag,
)

NOW = 1_000_000
KEEP = TierPolicy()


def entry(base: int, end: int, *, size: int = 100, at: int = 1) -> RemoteSegment:
    return remote_segment(base, end - 1, log_bytes=size, first_timestamp=at, max_timestamp=at)


def page(base: int, end: int, *, size: int, at: int = 1) -> PageRef:
    return PageRef(
        uuid=uuid.UUID(int=base + 1),
        base_offset=base,
        last_offset=end - 1,
        entries=2,
        log_bytes=size,
        max_timestamp=at,
        crc32c=0,
    )


def local(
    base: int, end: int, *, size: int = 100, at: int = 1, rolled: bool = True, damaged_end: int = -1
) -> SegmentDescriptor:
    return local_segment(base, end, size=size, at=at, rolled=rolled, damaged_end=damaged_end)


def active(base: int, end: int) -> SegmentDescriptor:
    return local(base, end, rolled=False)


def view(high: int, *, stable: int | None = None, bucket: int | None = None, **more: object) -> LeaderView:
    return LeaderView(
        leader_epoch=0,
        high_watermark=high,
        last_stable_offset=high if stable is None else stable,
        bucket_end=bucket,
        **more,  # type: ignore[arg-type]
    )


def test_rolled_segments_are_copied_in_order():
    segments = [local(0, 10), local(10, 20), active(20, 25)]
    assert plan(RemotePartition(), segments, KEEP, view(25), NOW) == [Copy(segments[0]), Copy(segments[1])]


def described(segments: list[SegmentDescriptor], read: set[int]) -> DescribedSegments:
    def describe(at: int) -> SegmentDescriptor:
        read.add(at)
        return segments[at]

    return DescribedSegments(len(segments), describe)


@pytest.mark.parametrize(
    "policy", [KEEP, TierPolicy(local_retention_bytes=300), TierPolicy(retention_bytes=1000, retention_ms=1)]
)
def test_first_action_reads_few_of_many_segments(policy: TierPolicy) -> None:
    segments = [local(base, base + 10, at=NOW) for base in range(0, 50_000, 10)] + [active(50_000, 50_005)]
    remote = RemotePartition(entries=(entry(0, 100, at=NOW), entry(100, 49_900, at=NOW)))
    read: set[int] = set()
    leader = view(50_005, bucket=100)
    first = next(actions(remote, described(segments, read), policy, leader, NOW))
    assert first == plan(remote, segments, policy, leader, NOW)[0]
    assert len(read) <= 40


def test_local_drop_reads_what_it_deletes_and_what_it_keeps() -> None:
    segments = [local(base, base + 10) for base in range(0, 50_000, 10)] + [active(50_000, 50_005)]
    remote, read = RemotePartition(entries=(entry(0, 100),)), set[int]()
    policy = TierPolicy(local_retention_bytes=300)
    first = next(actions(remote, described(segments, read), policy, view(50_005, bucket=100), NOW))
    assert first == DropLocal(100)
    assert len(read) <= 40


def test_described_segments_are_a_sequence() -> None:
    segments = [local(0, 10), local(10, 20), active(20, 25)]
    lazy = described(segments, set())
    assert len(lazy) == 3 and lazy[-1] is segments[2]
    assert list(lazy) == segments and lazy[1:] == segments[1:]
    with pytest.raises(IndexError):
        lazy[3]


@pytest.mark.parametrize(("high", "stable"), [(15, 15), (25, 15), (15, 25)])
def test_copies_end_at_the_high_watermark_and_last_stable_offset(high, stable):
    segments = [local(0, 10), local(10, 20), active(20, 25)]
    assert plan(RemotePartition(), segments, KEEP, view(high, stable=stable), NOW) == [Copy(segments[0])]


def test_finished_copy_is_not_repeated():
    remote = RemotePartition(entries=(entry(0, 10),), copied_end_offset=10)
    segments = [local(0, 10), local(10, 20), active(20, 25)]
    assert plan(remote, segments, KEEP, view(25, bucket=10), NOW) == [Copy(segments[1])]


def test_copying_can_be_disabled():
    assert (
        plan(RemotePartition(), [local(0, 10), active(10, 10)], TierPolicy(copy=False), view(10), NOW) == []
    )


def test_gap_after_the_remote_end_blocks_copies():
    remote = RemotePartition(entries=(entry(0, 10),), copied_end_offset=10)
    (action,) = plan(remote, [local(15, 20), active(20, 20)], KEEP, view(20), NOW)
    assert isinstance(action, Blocked)
    assert "must start at 10" in action.reason


def test_log_start_that_moved_while_tiering_was_off_is_committed_before_the_next_copy():
    remote = RemotePartition(entries=(entry(0, 1000),), copied_end_offset=1000)
    segments = [local(2000, 3000), active(3000, 3000)]
    first = plan(remote, segments, KEEP, view(3000, bucket=1000, log_start_offset=2000), NOW)[0]
    assert first == MoveLogStart(2000)
    moved = RemotePartition(log_start_offset=2000, copied_end_offset=1000)
    assert plan(moved, segments, KEEP, view(3000, log_start_offset=2000), NOW) == [Copy(segments[0])]


def test_everything_remote_is_deleted_once_tiering_is_off():
    remote = RemotePartition(entries=(entry(0, 10), entry(10, 20)), copied_end_offset=20)
    segments = [local(5, 20), local(20, 30), active(30, 31)]
    off = TierPolicy(enabled=False, local_retention_ms=0)
    assert plan(remote, segments, off, view(31, bucket=20), NOW) == [DropRemote(5)]
    assert follower_local_start(remote, segments, off, 0, NOW) == -1, "and no local data before that"
    dropped = RemotePartition(log_start_offset=5, copied_end_offset=5)
    assert plan(dropped, segments, off, view(31, log_start_offset=5), NOW) == []
    fewer = [local(20, 30), active(30, 31)]
    assert plan(dropped, fewer, off, view(31, log_start_offset=5), NOW) == [DropRemote(20)]


def test_nothing_is_deleted_once_tiering_is_off_until_the_local_start_is_known_to_be_committed():
    remote = RemotePartition(entries=(entry(0, 20),), copied_end_offset=20)
    off = TierPolicy(enabled=False)
    assert plan(remote, [local(20, 30), active(30, 31)], off, view(12, bucket=20), NOW) == []


def test_retention_continues_once_tiering_is_off():
    remote = RemotePartition(log_start_offset=5, copied_end_offset=5)
    segments = [local(5, 20), local(20, 30), active(30, 31)]
    off = TierPolicy(enabled=False, retention_bytes=200)
    expected = [MoveLogStart(20), DropLocal(20)]
    assert plan(remote, segments, off, view(31, log_start_offset=5), NOW) == expected


def test_copies_continue_at_the_log_start_once_tiering_is_on_again():
    dropped = RemotePartition(log_start_offset=7, copied_end_offset=7)
    segments = [local(5, 20), active(20, 20)]
    policy = TierPolicy(local_retention_ms=0)
    assert plan(dropped, segments, policy, view(20, log_start_offset=7), NOW) == [Copy(segments[0], 7)]


def test_damaged_segment_blocks_its_copy_and_later_ones():
    segments = [local(0, 10), local(10, 20, damaged_end=12), local(20, 30), active(30, 30)]
    copy, blocked = plan(RemotePartition(), segments, KEEP, view(30), NOW)
    assert copy == Copy(segments[0])
    assert isinstance(blocked, Blocked) and "from 10 is damaged" in blocked.reason


@pytest.mark.parametrize(("damaged_end", "copied"), [(14, True), (15, True), (16, False)])
def test_damage_below_the_remote_end_blocks_no_copy(damaged_end, copied):
    remote = RemotePartition(entries=(entry(0, 15),), copied_end_offset=15)
    segments = [local(10, 20, damaged_end=damaged_end), active(20, 20)]
    (action,) = plan(remote, segments, KEEP, view(20), NOW)
    assert action == Copy(segments[0], 15) if copied else isinstance(action, Blocked)


def test_copies_continue_after_the_log_start_passed_the_remote_end():
    remote = RemotePartition(log_start_offset=22, copied_end_offset=10)
    segments = [local(20, 30), active(30, 30)]
    assert plan(remote, segments, KEEP, view(30), NOW) == [Copy(segments[0])]


def test_copy_that_is_not_running_is_abandoned():
    mine, lost = (
        StartedCopy(uuid=uuid.UUID(int=n), base_offset=0, last_offset=9, leader_epoch=0, at_ms=0)
        for n in (1, 2)
    )
    running = view(0, running=frozenset({mine.uuid}))
    assert plan(RemotePartition(started=(mine, lost)), [active(0, 0)], KEEP, running, NOW) == [
        Abandon(lost.uuid)
    ]


@pytest.mark.parametrize("bucket", [None, 0, 9])
def test_local_data_is_kept_until_the_manifest_names_its_copy(bucket):
    remote = RemotePartition(entries=(entry(0, 10),), copied_end_offset=10)
    policy = TierPolicy(local_retention_ms=0)
    assert plan(remote, [local(0, 10), active(10, 12)], policy, view(12, bucket=bucket), NOW) == []


def test_local_data_above_the_high_watermark_is_kept():
    """A new leader's high watermark may be behind the segments that another leader uploaded."""
    remote = RemotePartition(entries=(entry(0, 10), entry(10, 20)), copied_end_offset=20)
    segments = [local(0, 10), local(10, 20), active(20, 22)]
    policy = TierPolicy(local_retention_ms=0)
    assert plan(remote, segments, policy, view(9, bucket=20), NOW) == []
    assert plan(remote, segments, policy, view(15, bucket=20), NOW) == [DropLocal(10)]


def test_tiered_local_data_is_deleted_by_age():
    remote = RemotePartition(entries=(entry(0, 10), entry(10, 20)), copied_end_offset=20)
    segments = [local(0, 10, at=NOW - 101), local(10, 20, at=NOW - 99), active(20, 20)]
    policy = TierPolicy(local_retention_ms=100)
    assert plan(remote, segments, policy, view(20, bucket=20), NOW) == [DropLocal(10)]


def test_tiered_local_data_is_deleted_by_size():
    remote = RemotePartition(entries=(entry(0, 10), entry(10, 20)), copied_end_offset=20)
    segments = [local(0, 10), local(10, 20), local(20, 30, size=150), active(30, 30)]
    policy = TierPolicy(local_retention_bytes=251, copy=False)
    assert plan(remote, segments, policy, view(20, bucket=20), NOW) == [DropLocal(10)]


def test_total_retention_counts_both_tiers_once():
    remote = RemotePartition(entries=(entry(0, 10), entry(10, 20), entry(20, 30)), copied_end_offset=30)
    segments = [local(20, 30), local(30, 40), active(40, 41)]  # 20 to 30 is in both
    policy = TierPolicy(retention_bytes=400, copy=False)
    assert plan(remote, segments, policy, view(41, bucket=30), NOW) == [MoveLogStart(10)]


def test_size_retention_does_not_estimate_a_partly_remote_segment():
    """Its first batch may have nearly all of its bytes, so an estimate by offsets could delete too much."""
    remote = RemotePartition(entries=(entry(0, 10), entry(10, 25)), copied_end_offset=25)
    segments = [local(20, 30, size=200), local(30, 40), active(40, 41)]
    most_that_is_sure = 200  # 30 to 41; what 25 to 30 adds is not known
    policy = TierPolicy(retention_bytes=most_that_is_sure + 1, copy=False)
    assert plan(remote, segments, policy, view(41, bucket=25), NOW) == [MoveLogStart(10)]


def test_total_retention_works_without_uploads():
    segments = [local(0, 10, at=1), local(10, 20, at=NOW), active(20, 21)]
    policy = TierPolicy(retention_ms=100, copy=False)
    assert plan(RemotePartition(), segments, policy, view(21), NOW) == [MoveLogStart(10), DropLocal(10)]


def test_time_retention_stops_at_the_first_young_segment():
    remote = RemotePartition(entries=(entry(0, 10, at=NOW), entry(10, 20, at=1)), copied_end_offset=20)
    assert plan(remote, [active(20, 20)], TierPolicy(retention_ms=100), view(20, bucket=20), NOW) == []


def test_data_without_timestamps_does_not_expire_by_time():
    remote = RemotePartition(entries=(entry(0, 10, at=-1),), copied_end_offset=10)
    assert plan(remote, [active(10, 10)], TierPolicy(retention_ms=0), view(10, bucket=10), NOW) == []


def test_retention_never_passes_the_high_watermark():
    segments = [local(0, 10, at=1), local(10, 20, at=1), active(20, 20)]
    policy = TierPolicy(retention_ms=100, copy=False)
    assert plan(RemotePartition(), segments, policy, view(15), NOW) == [MoveLogStart(10), DropLocal(10)]


def test_unloaded_page_expires_as_one_range():
    ref = page(0, 20, size=200)
    remote = RemotePartition(pages=(ref,), entries=(entry(20, 30),), copied_end_offset=30)
    policy = TierPolicy(retention_bytes=200)
    assert plan(remote, [active(30, 30)], policy, view(30, bucket=30), NOW) == []
    read = view(30, bucket=30, pages={ref.uuid: (entry(0, 10), entry(10, 20))})
    assert plan(remote, [active(30, 30)], policy, read, NOW) == [MoveLogStart(10)]


def test_without_the_delete_policy_records_do_not_expire():
    remote = RemotePartition(entries=(entry(0, 10, at=1),), copied_end_offset=10)
    policy = TierPolicy(retention_ms=1, retention_bytes=0, delete=False)
    assert plan(remote, [active(10, 10)], policy, view(10, bucket=10), NOW) == []


def test_oldest_entries_are_spilled_to_a_page():
    entries = tuple(entry(n * 10, n * 10 + 10) for n in range(ENTRIES_MAX + 1))
    remote = RemotePartition(entries=entries, copied_end_offset=entries[-1].end_offset)
    end = entries[-1].end_offset
    assert plan(remote, [active(end, end)], KEEP, view(end, bucket=end), NOW) == [
        Spill(None, entries[: ENTRIES_MAX * 2 // 3])
    ]


def test_budget_of_the_quorum_is_divided_among_partitions():
    budget = page_tree.image_budget(256 << 20)
    for partitions in (1, 100, 1000, 10_000):
        limits = page_tree.limits_for(budget, partitions, 2)
        nodes = limits.entries + 2 * limits.references  # pages of two levels
        assert nodes * page_tree.NODE_BYTES * partitions <= budget
        assert limits.entries <= page_tree.ENTRIES_MAX
    least = page_tree.limits_for(budget, 1_000_000, 2)
    assert (least.entries, least.references) == (12, 2)
    assert page_tree.limits_for(budget, 1_000_000, 1) == page_tree.TREE_LIMITS_1


def test_pages_at_the_log_start_are_loaded_only_if_retention_may_act():
    ref = page(0, 20, size=200)
    loaded = {ref.uuid: (entry(0, 10, at=NOW - 50), entry(10, 20, at=NOW))}
    remote = RemotePartition(pages=(ref,), entries=(entry(20, 30, at=NOW),), copied_end_offset=30)
    segments = [active(30, 30)]
    assert needs_log_start_pages(remote, segments, TierPolicy(retention_ms=100), None, NOW)
    assert not needs_log_start_pages(remote, segments, KEEP, None, NOW)
    log_start_pages = summarize_log_start_pages(remote, loaded)
    for policy, needed in (
        (TierPolicy(retention_ms=50), False),
        (TierPolicy(retention_ms=49), True),
        (TierPolicy(retention_bytes=201), False),
        (TierPolicy(retention_bytes=200), True),
        (TierPolicy(retention_bytes=0, delete=False), False),
    ):
        assert needs_log_start_pages(remote, segments, policy, log_start_pages, NOW) == needed, policy
        acts = plan(remote, segments, policy, view(30, bucket=30, pages=loaded), NOW) != []
        assert acts == needed, policy
    moved = replace(remote, log_start_offset=10)
    assert needs_log_start_pages(moved, segments, TierPolicy(retention_ms=50), log_start_pages, NOW)
    assert summarize_log_start_pages(moved, loaded).page_bytes == 100


def test_page_of_pages_is_trimmed_at_the_log_start():
    below = page(0, 20, size=200), page(20, 40, size=200)
    top = replace(page(0, 40, size=400), uuid=uuid.UUID(int=99), level=1, children=2)
    loaded = {top.uuid: below, below[1].uuid: (entry(20, 30), entry(30, 40))}
    remote = RemotePartition(pages=(top,), log_start_offset=25, copied_end_offset=40)
    assert not summarize_log_start_pages(remote, loaded).is_trimmed
    tree = view(40, bucket=40, pages=loaded, limits=page_tree.TreeLimits())
    (trim,) = plan(remote, [active(40, 40)], KEEP, tree, NOW)
    assert (trim.page, trim.new.dropped, trim.new.pages[0].nodes) == (top, below[:1], below[1:])


def test_pending_bytes_count_rolled_local_segments():
    remote = RemotePartition(entries=(entry(0, 10),), copied_end_offset=10)
    assert pending_bytes(remote, [local(0, 10), local(10, 20, size=7), active(20, 25)]) == 7


def test_upload_lag_counts_rolled_segments_and_the_age_of_the_active_one():
    remote = RemotePartition(entries=(entry(0, 10),))
    segments = [local(0, 10, at=5), local(10, 20, size=7, at=NOW - 300), active(20, 25)]
    assert upload_lag(remote, segments, NOW) == UploadLag(bytes=7, segments=1, age_ms=300)
    only_active = [local(0, 10, at=5), local(10, 20, at=NOW - 40, rolled=False)]
    assert upload_lag(remote, only_active, NOW) == UploadLag(bytes=0, segments=0, age_ms=40)


def test_upload_lag_is_zero_once_all_is_uploaded_or_deleted():
    nothing = UploadLag(bytes=0, segments=0, age_ms=0)
    assert upload_lag(RemotePartition(entries=(entry(0, 10),)), [local(0, 10)], NOW) == nothing
    assert upload_lag(RemotePartition(), [local(0, 0, size=0, rolled=False)], NOW) == nothing
    future = upload_lag(RemotePartition(), [local(0, 5, at=NOW + 100, rolled=False)], NOW)
    assert future.age_ms == 0
    deleted = RemotePartition(log_start_offset=10)
    assert upload_lag(deleted, [local(0, 10), local(10, 10, size=0, rolled=False)], NOW) == nothing


def test_upload_lag_leaves_out_deleted_records_above_the_remote_end():
    remote = RemotePartition(entries=(entry(0, 10),), copied_end_offset=10, log_start_offset=20)
    segments = [local(10, 20, size=100), local(20, 30, size=7, at=NOW - 30), active(30, 35)]
    assert upload_lag(remote, segments, NOW) == UploadLag(bytes=7, segments=1, age_ms=30)
