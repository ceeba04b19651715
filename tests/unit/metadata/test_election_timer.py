"""Timeouts of elections: after silence or death of a leader, after lost elections, and under a new leader."""

import random

import pytest

from tierlog.metadata.raft import messages as m
from tierlog.metadata.raft.core import RANK_TICKS, ElectionTimer, RaftCore, Role
from tierlog.metadata.raft.log import RaftLog
from tierlog.metadata.raft.settings import RaftSettings


def ticks_until_expiry(timer: ElectionTimer) -> int:
    ticks = 0
    while not timer.has_expired:
        timer.tick()
        ticks += 1
    return ticks


def test_election_timeout_is_random_between_one_and_two_timeouts() -> None:
    timer, lasted = ElectionTimer(RaftSettings(election_ticks=10), random.Random(1)), set()
    for _ in range(200):
        lasted.add(ticks_until_expiry(timer))
        timer.reset(0)
    assert lasted == set(range(10, 20))


@pytest.mark.parametrize(
    ("leader_died", "lost_elections", "timeouts"),
    [
        (False, 1, (10, 40)),
        (False, 2, (10, 80)),
        (False, 1_000_000, (10, 80)),
        (True, 1, (2, 8)),
        (True, 3, (2, 32)),
        (True, 1_000_000, (2, 80)),
    ],
)
def test_lost_elections_lengthen_the_timeout(
    leader_died: bool, lost_elections: int, timeouts: tuple[int, int]
) -> None:
    timer, lasted = ElectionTimer(RaftSettings(election_ticks=10), random.Random(1)), set()
    if leader_died:
        timer.on_leader_death()
    for _ in range(2000):
        timer.reset(lost_elections)
        lasted.add(ticks_until_expiry(timer))
    assert lasted == set(range(*timeouts))


def test_survivors_of_a_dead_leader_use_short_timeouts_in_rank_order() -> None:
    timer = ElectionTimer(RaftSettings(election_ticks=10), random.Random(1))
    timer.on_leader_death()
    timer.delay_for_rank(3)
    assert ticks_until_expiry(timer) == 3 * RANK_TICKS
    timer.reset(0)
    assert ticks_until_expiry(timer) < 2 * RANK_TICKS
    timer.on_leader_contact()
    timer.reset(0)
    assert ticks_until_expiry(timer) >= 10


def voter(seed: int) -> RaftCore:
    """It follows voter 2 in term 1."""
    log = RaftLog(m.Snapshot(), [], 0)
    core = RaftCore(1, (1, 2, 3), log, m.HardState(1, 2), random.Random(seed))
    core.step(m.Heartbeat(term=1, sender=2, to=1, commit=0))
    return core


def ticks_until_campaign(core: RaftCore) -> int:
    ticks = 0
    while core.role is Role.FOLLOWER:
        core.tick()
        ticks += 1
    return ticks


def test_a_leader_ends_the_long_timeouts_of_elections() -> None:
    lasted = set()
    for seed in range(200):
        core = voter(seed)
        core.step(m.VoteRequest(term=9, sender=3, to=1, last_index=0, last_term=0, transfer=True))
        assert core.voted_for == 3
        core.step(m.Heartbeat(term=9, sender=3, to=1, commit=0))
        lasted.add(ticks_until_campaign(core))
    assert lasted == set(range(10, 20))


def test_a_leader_that_lives_ends_the_short_timeouts_of_its_death() -> None:
    lasted = set()
    for seed in range(200):
        core = voter(seed)
        core.on_peer_death(2)
        assert core.role is Role.PRE_CANDIDATE
        core.step(m.Heartbeat(term=1, sender=2, to=1, commit=0))
        lasted.add(ticks_until_campaign(core))
    assert lasted == set(range(10, 20))


def test_committed_entries_of_a_term_prove_that_it_had_a_leader() -> None:
    lasted = set()
    for seed in range(200):
        core = voter(seed)
        core.accept_committed(None, (m.Entry(9, 1, b"x"),), leader=3, term=9)
        lasted.add(ticks_until_campaign(core))
    assert lasted == set(range(10, 20))
