"""In-sync set: a follower's lag by time, and the maximal set."""

from tierlog.broker.replication.core.in_sync import Follower, InSyncSet

LAG_MS = 100


def test_follower_with_everything_is_caught_up() -> None:
    follower = Follower(2)
    assert not follower.is_caught_up(0, 0, LAG_MS), "nothing is known of it"
    follower.fetched(1, 5, 5, now_ms=10)
    assert follower.is_caught_up(5, 10_000, LAG_MS)
    assert follower.is_caught_up(6, 110, LAG_MS) and not follower.is_caught_up(6, 111, LAG_MS)


def test_follower_one_fetch_behind_a_busy_leader_does_not_lag() -> None:
    """Each fetch reaches the log end that the leader had at the fetch before."""
    follower = Follower(2)
    for turn in range(10):
        follower.fetched(1, 10 * turn, 10 * (turn + 1), now_ms=90 * turn)
    assert follower.caught_up_ms == 90 * 8
    assert follower.is_caught_up(1000, 90 * 9, LAG_MS)


def test_follower_always_more_than_one_fetch_behind_lags() -> None:
    follower = Follower(2, caught_up_ms=0)
    for turn in range(10):
        follower.fetched(1, 9 * turn, 10 * (turn + 1), now_ms=90 * turn)
    assert not follower.is_caught_up(1000, 90 * 9, LAG_MS)


def test_fetch_of_an_earlier_process_is_ignored() -> None:
    follower = Follower(2)
    assert follower.fetched(7, 50, 50, now_ms=0)
    assert follower.fetched(8, 20, 50, now_ms=1) and follower.end_offset == 20
    assert not follower.fetched(7, 50, 50, now_ms=2) and follower.end_offset == 20


def test_new_process_does_not_inherit_the_fetches_of_the_previous_one() -> None:
    follower = Follower(2)
    follower.fetched(7, 0, 50, now_ms=1000)
    follower.fetched(8, 50, 60, now_ms=2000)
    assert follower.caught_up_ms < 0


def test_maximal_set_has_all_sets_that_may_be_committed() -> None:
    known = InSyncSet()
    known.commit(3, [1, 2])
    known.propose(frozenset({1}))
    assert known.maximal == {1, 2}
    known.mark_uncertain()
    known.propose(frozenset({1, 2, 3}))
    known.mark_uncertain()
    known.commit(3, [1, 2])
    assert known.maximal == {1, 2, 3}, "the same partition epoch settles nothing"
    known.commit(4, [1])
    assert known.maximal == {1}
