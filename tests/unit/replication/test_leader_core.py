"""Leader core: high watermark, in-sync set and its proposals, acknowledgements, epochs."""

import pytest

from tierlog.base.types import InvariantViolation
from tierlog.broker.replication.core.in_sync import IsrProposal
from tierlog.broker.replication.core.leader import ALL_IN_SYNC, LeaderCore
from tierlog.broker.storage.core.producer_state import ProducerStateManager, Rejection
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import BatchHeader

HEADER = BatchHeader(0, 100, 0, 2, 0, 0, 0, 5, 5, -1, -1, -1, 1)
LAG_MS = 30_000
LIVE = {1: 11, 2: 12, 3: 13}


def leader(*in_sync: int, end: int = 0, min_in_sync: int = 1, now_ms: int = 0) -> LeaderCore:
    """Broker 1 of 1, 2 and 3, in leader epoch 4 and partition epoch 7."""
    core = LeaderCore(1, end, 0)
    core.become_leader(4, 7, [1, 2, 3], in_sync, now_ms, min_in_sync=min_in_sync)
    core.check()
    return core


def fetch(core: LeaderCore, follower: int, offset: int, now_ms: int = 0) -> bool:
    moved = core.follower_fetched(follower, LIVE[follower], offset, now_ms)
    core.check()
    return moved


def propose(core: LeaderCore, now_ms: int = 0, live: dict[int, int] | None = None) -> IsrProposal | None:
    proposal = core.isr_proposal(now_ms, LAG_MS, LIVE if live is None else live)
    core.check()
    return proposal


def with_one_joining() -> LeaderCore:
    """The only replica in sync, with six records. It waits for broker 2, which is joining and has five of
    them."""
    core = leader(1)
    propose(core)
    core.appended(5)
    fetch(core, 2, 5)
    assert not core.appended(6) and core.high_watermark == 5
    return core


def test_leader_without_followers_commits_its_appends() -> None:
    core = LeaderCore(1, 5, 0)
    assert core.become_leader(0, 0, [1], [1], 0, min_in_sync=1) and core.high_watermark == 5
    assert core.appended(8) and core.high_watermark == 8
    core.check()


def test_high_watermark_is_the_smallest_log_end_in_sync() -> None:
    core = leader(1, 2, 3)
    assert not core.appended(10)
    assert not fetch(core, 2, 10)
    assert fetch(core, 3, 4) and core.high_watermark == 4
    assert not core.follower_fetched(9, 1, 10, 0) and not core.knows(9, 1)
    assert core.become_leader(4, 8, [1, 2, 3], [1, 2], 0, min_in_sync=1) and core.high_watermark == 10


def test_replica_out_of_sync_does_not_hold_back_the_high_watermark() -> None:
    core = leader(1, 2)
    core.appended(10)
    fetch(core, 3, 4)
    assert fetch(core, 2, 9) and core.high_watermark == 9


def test_high_watermark_never_decreases_and_older_epochs_are_ignored() -> None:
    core = LeaderCore(1, 10, 0)
    core.become_leader(3, 5, [1], [1], 0, min_in_sync=1)
    assert not core.become_leader(2, 6, [1, 2], [1, 2], 0, min_in_sync=1) and core.leader_epoch == 3
    assert not core.become_leader(3, 4, [1, 2], [1, 2], 0, min_in_sync=1) and core.in_sync == {1}
    assert not core.become_leader(4, 6, [1, 2], [1, 2], 0, min_in_sync=1) and core.high_watermark == 10
    core.appended(12)
    assert core.high_watermark == 10
    with pytest.raises(InvariantViolation):
        core.appended(11)


def test_fetch_offsets_of_an_older_epoch_do_not_count() -> None:
    core = leader(1, 2)
    core.appended(10)
    fetch(core, 2, 10)
    core.appended(12)
    core.become_leader(5, 8, [1, 2, 3], [1, 2], 0, min_in_sync=1)
    assert core.appended(13) is False and core.high_watermark == 10
    assert fetch(core, 2, 11) and core.high_watermark == 11


def test_high_watermark_does_not_advance_below_min_insync_replicas() -> None:
    """A replica that left the in-sync set must still have everything committed (KIP-966)."""
    core = leader(1, 2, min_in_sync=2)
    core.appended(5)
    assert fetch(core, 2, 5)
    core.become_leader(4, 8, [1, 2, 3], [1], 0, min_in_sync=2)
    assert not core.appended(9) and core.high_watermark == 5
    assert core.set_min_in_sync(1) and core.high_watermark == 9


def test_min_insync_replicas_is_at_most_the_replication_factor() -> None:
    core = LeaderCore(1, 0, 0)
    core.become_leader(0, 0, [1, 2], [1, 2], 0, min_in_sync=3)
    assert core.min_in_sync == 2
    assert core.decide_append(HEADER, ProducerStateManager(), acks=ALL_IN_SYNC) is None


def test_acks_all_is_rejected_below_min_insync_replicas() -> None:
    core = leader(1, min_in_sync=2)
    verdict = core.decide_append(HEADER, ProducerStateManager(), acks=ALL_IN_SYNC)
    assert isinstance(verdict, Rejection) and verdict.error == ErrorCode.NOT_ENOUGH_REPLICAS
    assert core.decide_append(HEADER, ProducerStateManager(), acks=1) is None


def test_follower_rejects_appends() -> None:
    core = leader(1)
    core.resign(5, 8)
    for requested in (core, LeaderCore(1, 0, 0)):
        verdict = requested.decide_append(HEADER, ProducerStateManager(), acks=1)
        assert isinstance(verdict, Rejection) and verdict.error == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_acknowledgement_needs_the_high_watermark_or_the_log_end() -> None:
    core = leader(1, 2)
    core.appended(5)
    assert core.acknowledgement(5, 1, 4) == ErrorCode.NONE
    assert core.acknowledgement(5, ALL_IN_SYNC, 4) is None
    fetch(core, 2, 5)
    assert core.acknowledgement(5, ALL_IN_SYNC, 4) == ErrorCode.NONE
    assert core.acknowledgement(6, 1, 4) is None


def test_an_append_of_another_leader_epoch_is_not_acknowledged() -> None:
    """The offset may have another record by then."""
    core = leader(1, 2)
    core.appended(5)
    fetch(core, 2, 5)
    assert core.acknowledgement(5, ALL_IN_SYNC, 3) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    core.resign(5, 8)
    assert core.acknowledgement(5, ALL_IN_SYNC, 4) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert core.acknowledgement(5, 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_not_enough_replicas_after_append() -> None:
    core = leader(1, 2, min_in_sync=2)
    core.appended(5)
    core.become_leader(4, 8, [1, 2, 3], [1], 0, min_in_sync=2)
    assert core.acknowledgement(5, ALL_IN_SYNC, 4) == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert core.acknowledgement(6, ALL_IN_SYNC, 4) is None, "not even appended as far as that"


def test_committed_append_stays_acknowledged_when_the_in_sync_set_shrinks() -> None:
    core = leader(1, 2, min_in_sync=2)
    core.appended(5)
    fetch(core, 2, 5)
    core.become_leader(4, 8, [1, 2, 3], [1], 0, min_in_sync=2)
    assert core.acknowledgement(5, ALL_IN_SYNC, 4) == ErrorCode.NONE


# -- leaving and joining --


def test_lagging_follower_is_proposed_to_leave() -> None:
    core = leader(1, 2, 3, now_ms=1000)
    core.appended(5)
    fetch(core, 2, 5, now_ms=1000 + LAG_MS)
    assert propose(core, 1000 + LAG_MS) is None
    proposal = propose(core, 1001 + LAG_MS)
    assert proposal == IsrProposal(4, 7, ((1, -1), (2, 12)))


def test_follower_of_an_idle_leader_does_not_lag() -> None:
    core = leader(1, 2, end=5, now_ms=0)
    fetch(core, 2, 5, now_ms=0)
    assert propose(core, 10 * LAG_MS, {1: 11, 2: 12}) is None


def test_old_set_counts_while_a_shrink_is_pending() -> None:
    core = leader(1, 2, 3)
    core.appended(5)
    fetch(core, 2, 5, now_ms=LAG_MS + 1)
    proposal = propose(core, LAG_MS + 1)
    assert proposal and core.high_watermark == 0 and core._in_sync.maximal == {1, 2, 3}
    assert propose(core, LAG_MS + 1) is None, "one at a time"
    assert not core.on_isr_response(proposal, ErrorCode.NONE, 4, 8) and core._in_sync.maximal == {1, 2, 3}
    assert propose(core, LAG_MS + 1) is None, "the image has yet to come"
    assert core.become_leader(4, 8, [1, 2, 3], [1, 2], 0, min_in_sync=1) and core.high_watermark == 5


def test_new_set_counts_only_with_the_settings_of_its_image() -> None:
    """min.insync.replicas was raised before the set shrank; the leader receives the set first."""
    core = leader(1, 2, min_in_sync=1)
    core.appended(5)
    proposal = propose(core, LAG_MS + 1)
    assert proposal == IsrProposal(4, 7, ((1, -1),))
    core.on_isr_response(proposal, ErrorCode.NONE, 4, 8)
    assert core.high_watermark == 0
    core.become_leader(4, 8, [1, 2, 3], [1], 0, min_in_sync=2)
    assert core.high_watermark == 0, "broker 2 may be elected, as nothing is committed without it"


def test_response_without_a_change_ends_the_proposal_but_not_uncertain_ones() -> None:
    core = leader(1, 2)
    fetch(core, 3, 0)
    first = propose(core)
    assert first is not None
    core.on_isr_failure(first)
    again = propose(core, 0, {1: 11, 2: 12})
    assert again is not None
    core.on_isr_response(again, ErrorCode.NONE, 4, 7)
    assert core._in_sync.maximal == {1, 2, 3}
    assert propose(core, 0, {1: 11, 2: 12}) is not None


def test_live_follower_with_all_committed_records_is_proposed_to_join() -> None:
    core = leader(1, 2)
    core.appended(5)
    fetch(core, 2, 4)
    fetch(core, 3, 3)
    assert not core.isr_due and propose(core) is None
    fetch(core, 3, 4)
    assert core.isr_due
    for live in ({1: 11, 2: 12}, {**LIVE, 3: 14}):
        assert propose(core, 0, live) is None, "fenced, or another process than the one that fetched"
    assert propose(core) == IsrProposal(4, 7, ((1, -1), (2, 12), (3, 13))) and not core.isr_due


def test_follower_without_the_records_of_earlier_epochs_does_not_join() -> None:
    """A new leader's high watermark may lag: everything below its first record counts as committed."""
    core = leader(1, end=5)
    core.become_leader(5, 8, [1, 2, 3], [1, 2], 0, min_in_sync=2)
    assert (core.high_watermark, core.epoch_start_offset) == (5, 5)
    behind = LeaderCore(1, 5, 2)
    behind.become_leader(5, 8, [1, 2, 3], [1, 2], 0, min_in_sync=2)
    fetch(behind, 3, 4)
    assert propose(behind) is None
    fetch(behind, 3, 5)
    assert propose(behind) == IsrProposal(5, 8, ((1, -1), (2, -1), (3, 13)))


def test_both_sets_count_while_an_expansion_is_pending() -> None:
    core = leader(1, 2)
    core.appended(5)
    fetch(core, 2, 5)
    fetch(core, 3, 5)
    proposal = propose(core)
    assert proposal and core._in_sync.maximal == {1, 2, 3} and core.in_sync == {1, 2}
    core.appended(9)
    assert not fetch(core, 2, 9), "it waits for the third"
    assert core.on_isr_response(proposal, ErrorCode.INELIGIBLE_REPLICA) and core.high_watermark == 9


def test_larger_set_counts_after_a_lost_response_until_the_partition_epoch_increases() -> None:
    core = leader(1, 2)
    fetch(core, 3, 0)
    first = propose(core)
    assert first and not core.on_isr_failure(first)
    again = propose(core, 0, {1: 11, 2: 12})
    assert again is not None and dict(again.in_sync).keys() == {1, 2}, "asked again, so that the epoch moves"
    core.appended(5)
    fetch(core, 2, 5)
    assert not core.on_isr_response(again, ErrorCode.INELIGIBLE_REPLICA)
    assert (core.high_watermark, core._in_sync.maximal) == (0, {1, 2, 3}), "the first may yet be carried out"
    assert core.become_leader(4, 8, [1, 2, 3], [1, 2], 0, min_in_sync=1) and core.high_watermark == 5


def test_response_counts_only_for_the_pending_proposal() -> None:
    core = leader(1, 2)
    fetch(core, 3, 0)
    first = propose(core)
    assert first is not None
    core.become_leader(4, 8, [1, 2, 3], [1, 2], 0, min_in_sync=1)
    second = propose(core)
    assert second is not None and second.partition_epoch == 8
    core.appended(5)
    fetch(core, 2, 5)
    assert not core.on_isr_response(first, ErrorCode.INELIGIBLE_REPLICA) and core.high_watermark == 0
    assert not core.on_isr_failure(first) and core._in_sync.maximal == {1, 2, 3}


def test_no_proposal_after_a_stale_partition_epoch_until_the_next_image() -> None:
    core = leader(1, 2)
    fetch(core, 3, 0)
    proposal = propose(core)
    assert proposal is not None
    core.on_isr_response(proposal, ErrorCode.INVALID_UPDATE_VERSION)
    assert propose(core) is None and core._in_sync.maximal == {1, 2, 3}
    core.become_leader(4, 9, [1, 2, 3], [1, 2], 0, min_in_sync=1)
    assert propose(core) == IsrProposal(4, 9, ((1, -1), (2, -1), (3, 13)))


def test_high_watermark_waits_for_a_joining_follower() -> None:
    """Otherwise a leader without in-sync followers commits every append, and no follower reaches it."""
    core = with_one_joining()
    assert core.set_live({1: 11}) and core.high_watermark == 6, "not once it is fenced"
    core.set_live({1: 11, 3: 13})
    fetch(core, 3, 6)
    core.appended(7)
    assert core.high_watermark == 6
    assert propose(core, LAG_MS + 1, {1: 11, 3: 13}) is not None
    assert core._in_sync.maximal == {1, 3}


def test_high_watermark_does_not_wait_for_a_removed_replica() -> None:
    core = with_one_joining()
    assert core.become_leader(4, 8, [1, 3], [1], 0, min_in_sync=1) and core.high_watermark == 6
    assert not core.set_live({1: 11}) and not core.knows(2, 12)
    core.check()


def test_high_watermark_does_not_wait_for_a_lagging_follower() -> None:
    core = with_one_joining()
    core.appended(7)
    fetch(core, 2, 4, now_ms=LAG_MS)
    assert core.high_watermark == 5
    assert propose(core, LAG_MS + 1) is None
    assert core.high_watermark == 7


def test_follower_on_a_full_disk_neither_joins_nor_is_waited_for() -> None:
    core = with_one_joining()
    assert core.become_leader(4, 8, [1, 2, 3], [1], 0, min_in_sync=1, full=[2]) and core.high_watermark == 6
    assert propose(core) is None
    fetch(core, 2, 6)
    assert not core.isr_due
    assert core.appended(7)
    core.become_leader(4, 9, [1, 2, 3], [1], 0, min_in_sync=1)
    fetch(core, 2, 7)
    assert core.isr_due and propose(core) == IsrProposal(4, 9, ((1, -1), (2, 12)))


def test_emptied_follower_joins_by_its_later_fetches() -> None:
    """A damaged log is truncated after the controller has marked it, so earlier fetches must not count."""
    core = leader(1, 2)
    core.appended(5)
    fetch(core, 2, 5)
    core.become_leader(4, 8, [1, 2, 3], [1], 0, min_in_sync=1, emptied=[2])
    core.set_live({1: 11, 2: 12, 3: 13})
    assert core.followers[2].end_offset == -1 and propose(core) is None
    fetch(core, 2, 3)
    core.become_leader(4, 9, [1, 2], [1], 0, min_in_sync=1, emptied=[2])  # the mark is no news
    assert core.followers[2].end_offset == 3 and propose(core) is None
    assert core.appended(6)
    fetch(core, 2, 6)
    assert propose(core) == IsrProposal(4, 9, ((1, -1), (2, 12)))


def test_high_watermark_does_not_wait_for_an_emptied_follower() -> None:
    core = with_one_joining()
    assert core.become_leader(4, 8, [1, 2, 3], [1], 0, min_in_sync=1, emptied=[2])
    assert core.high_watermark == 6
    core.check()


def test_member_that_lost_records_is_proposed_to_leave_at_once() -> None:
    core = leader(1, 2)
    core.appended(5)
    fetch(core, 2, 5)
    assert not core.isr_due
    fetch(core, 2, 0)
    assert core.isr_due and propose(core) == IsrProposal(4, 7, ((1, -1),))


# -- followers --


def test_followers_high_watermark_is_bounded_by_the_leaders_and_its_log_end() -> None:
    core = LeaderCore(2, 5, 3)
    core.resign(4, 7)
    assert core.on_leader_high_watermark(9) and core.high_watermark == 5
    assert core.appended(8) and core.high_watermark == 8
    assert not core.on_leader_high_watermark(6) and core.high_watermark == 8


def test_high_watermark_of_a_former_leader_does_not_commit_the_next_leaders_records() -> None:
    core = LeaderCore(2, 5, 3)
    core.resign(4, 7)
    core.on_leader_high_watermark(9)
    core.resign(5, 8)
    assert not core.appended(9) and core.high_watermark == 5


def test_resigned_leader_commits_nothing_by_itself() -> None:
    core = leader(1, 2)
    core.appended(5)
    core.resign(5, 8)
    assert not core.appended(6) and core.high_watermark == 0


def test_new_leader_keeps_its_high_watermark() -> None:
    core = LeaderCore(2, 8, 3)
    core.resign(4, 7)
    core.on_leader_high_watermark(6)
    core.become_leader(5, 8, [1, 2, 3], [2, 3], 0, min_in_sync=1)
    assert core.high_watermark == 6
    assert not core.on_leader_high_watermark(8), "it leads"


def test_truncation_lowers_the_high_watermark() -> None:
    core = LeaderCore(2, 8, 6)
    core.resign(4, 7)
    core.truncated(4)
    assert (core.log_end_offset, core.high_watermark) == (4, 4)
    core.started_at(100)
    assert (core.log_end_offset, core.high_watermark) == (100, 100)
    core.become_leader(5, 8, [2], [2], 0, min_in_sync=1)
    with pytest.raises(InvariantViolation):
        core.truncated(50)


def test_low_watermark_is_the_smallest_log_start_of_possible_leaders() -> None:
    core = leader(1, 2, end=10)
    assert core.low_watermark(6) == 0, "an in-sync follower that has not fetched yet"
    core.follower_fetched(2, 12, 10, 0, 6)
    assert core.low_watermark(6) == 6, "3 is not in sync, and not known to live"
    core.set_live(LIVE)
    assert core.low_watermark(6) == 0, "3 lives and may come into the in-sync set"
    core.follower_fetched(3, 13, 10, 0, 4)
    assert core.low_watermark(6) == 4
    core.set_live({1: 11, 2: 22})
    assert core.low_watermark(6) == 0, "another process of 2, which may begin anywhere"
    core.follower_fetched(2, 22, 10, 0, 6)
    assert core.low_watermark(6) == 6
