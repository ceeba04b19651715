"""The offset from which a manifest diverges from the log of a new leader, by their leader epochs."""

from typing import Any

import pytest
from remote_segments import remote_segment

from tierlog.base.leader_epochs import LeaderEpochs
from tierlog.metadata.image import RemotePartition
from tierlog.metadata.records import PageRef, RemoteSegment
from tierlog.tiering.lineage import Divergence, agrees_below, find_divergence

LOCAL = LeaderEpochs([(1, 0), (4, 100)])  # epoch 1 up to 100, where the new leader's begins


def entry(base: int, last: int, *epochs: tuple[int, int]) -> RemoteSegment:
    return remote_segment(base, last, leader_epochs=epochs)


def page(base: int, last: int) -> PageRef:
    uuid = remote_segment(base, last).uuid
    return PageRef(
        uuid=uuid, base_offset=base, last_offset=last, entries=1, log_bytes=1, max_timestamp=1, crc32c=1
    )


SAME = entry(0, 19, (1, 0))
PARTLY_OTHER = entry(20, 39, (1, 0), (2, 30))
OTHER = entry(40, 59, (2, 30), (3, 50))


def find(*entries: RemoteSegment, start: int = 0, end: int = 100, **more: Any) -> Divergence | None:
    remote = RemotePartition(entries=entries, **more)
    return find_divergence(remote, LOCAL, start, end)


@pytest.mark.parametrize("entries", [(), (SAME,), (SAME, entry(20, 39, (1, 0)))])
def test_equal_epochs_agree(entries: tuple[RemoteSegment, ...]) -> None:
    assert find(*entries) is None


def test_divergence_begins_at_the_first_entry_with_another_record() -> None:
    assert find(SAME, PARTLY_OTHER, OTHER) == Divergence(59, 3, 20, True)
    assert find(SAME, PARTLY_OTHER) == Divergence(39, 2, 20, True)


@pytest.mark.parametrize(("start", "is_covered"), [(20, True), (21, False), (39, False)])
def test_local_log_covers_the_divergence_only_from_the_entry_on(start: int, is_covered: bool) -> None:
    assert find(SAME, PARTLY_OTHER, start=start) == Divergence(39, 2, 20, is_covered)


def test_entries_below_the_local_log_start_are_not_compared() -> None:
    assert find(SAME, PARTLY_OTHER, OTHER, start=40) == Divergence(59, 3, 40, True)
    assert find(SAME, PARTLY_OTHER, OTHER, start=60) is None


def test_records_below_the_log_start_need_not_be_covered() -> None:
    assert find(PARTLY_OTHER, start=25, log_start_offset=25) == Divergence(39, 2, 20, True)


def test_entries_of_unknown_epochs_agree() -> None:
    assert find(entry(0, 19)) is None
    assert find_divergence(RemotePartition(entries=(OTHER,)), LeaderEpochs([(4, 100)]), 0, 200) is None


@pytest.mark.parametrize(("first", "is_covered"), [(PARTLY_OTHER, True), (OTHER, False)])
def test_divergence_within_a_page_is_not_covered(first: RemoteSegment, is_covered: bool) -> None:
    base = first.base_offset
    found = find(first, pages=(page(0, base - 1),))
    assert found is not None and (found.first_offset, found.is_covered) == (base, is_covered)
    from_page = find(first, pages=(page(0, base - 1),), start=base)
    assert from_page is not None and from_page.is_covered


@pytest.mark.parametrize(
    ("end", "local_start", "agrees"),
    [
        (20, 0, True),
        (30, 0, True),
        (31, 0, False),
        (40, 0, False),
        (40, 40, True),
        (99, 0, False),
        (0, 0, True),
    ],
)
def test_logs_agree_below_an_offset_if_they_do_just_below_it(
    end: int, local_start: int, agrees: bool
) -> None:
    remote = RemotePartition(entries=(SAME, PARTLY_OTHER))
    assert agrees_below(remote, LOCAL, local_start, end) is agrees
