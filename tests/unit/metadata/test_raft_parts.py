"""Parts of Raft alone, and rules of the core that a random network seldom meets."""

import random
from uuid import UUID

import pytest
from crc32c import crc32c
from msgspec.structs import replace

from tierlog.base.types import InvariantViolation
from tierlog.metadata.raft import messages as m
from tierlog.metadata.raft.core import NotLeader, RaftCore, Role
from tierlog.metadata.raft.election_timer import RANK_TICKS, ElectionTimer
from tierlog.metadata.raft.log import RaftLog
from tierlog.metadata.raft.membership import (
    ChangeRefused,
    Configuration,
    Member,
    check_change,
    decode_configuration,
    encode_configuration,
)
from tierlog.metadata.raft.progress import Progress, ProgressState
from tierlog.metadata.raft.quorum import VoteResult, committed_index, count_votes
from tierlog.metadata.raft.reads import Reads
from tierlog.metadata.raft.settings import RaftSettings
from tierlog.metadata.raft.snapshots import IncomingSnapshot


@pytest.mark.parametrize(
    ("match", "committed"),
    [
        ({1: 5}, 5),
        ({1: 5, 2: 3}, 3),
        ({1: 5, 2: 3, 3: 4}, 4),
        ({1: 9, 2: 1, 3: 1}, 1),
        ({1: 9, 2: 8, 3: 7, 4: 6}, 7),
        ({1: 9, 2: 9, 3: 2, 4: 1, 5: 1}, 2),
    ],
)
def test_committed_is_what_a_majority_holds(match: dict[int, int], committed: int) -> None:
    assert committed_index(match.keys(), match) == committed


def test_voters_that_never_answered_hold_nothing() -> None:
    assert committed_index({1, 2, 3}, {1: 7}) == 0


@pytest.mark.parametrize(
    ("voters", "votes", "result"),
    [
        ({1}, {1: True}, VoteResult.WON),
        ({1, 2, 3}, {1: True}, VoteResult.PENDING),
        ({1, 2, 3}, {1: True, 2: True}, VoteResult.WON),
        ({1, 2, 3}, {1: True, 2: False, 3: False}, VoteResult.LOST),
        ({1, 2, 3, 4}, {1: True, 2: True}, VoteResult.PENDING),
        ({1, 2, 3, 4}, {1: True, 2: True, 3: False, 4: False}, VoteResult.LOST),
        ({1, 2, 3}, {1: True, 8: True, 9: True}, VoteResult.PENDING),
    ],
)
def test_votes(voters: set[int], votes: dict[int, bool], result: VoteResult) -> None:
    assert count_votes(voters, votes) is result


@pytest.mark.parametrize(
    ("election_ms", "quorum_ms", "heartbeat_ticks"),
    [(1000, 2000, 2), (500, 1000, 1), (3000, 1000, 2), (200, 200, 1)],
)
def test_five_heartbeats_fit_into_the_shortest_patience(
    election_ms: int, quorum_ms: int, heartbeat_ticks: int
) -> None:
    settings = RaftSettings.from_durations(tick_ms=100, election_ms=election_ms, quorum_ms=quorum_ms)
    assert settings.heartbeat_ticks == heartbeat_ticks


def ticks_until_over(timer: ElectionTimer) -> int:
    ticks = 0
    while not timer.has_expired:
        timer.tick()
        ticks += 1
    return ticks


def test_patience_lasts_for_one_election_timeout_to_two_and_is_drawn_anew() -> None:
    timer, lasted = ElectionTimer(RaftSettings(election_ticks=10), random.Random(1)), set()
    for _ in range(200):
        lasted.add(ticks_until_over(timer))
        timer.reset()
    assert lasted == set(range(10, 20))


def test_orphans_have_their_turns_and_little_patience_until_a_leader_is_heard() -> None:
    timer = ElectionTimer(RaftSettings(election_ticks=10), random.Random(1))
    timer.on_leader_death()
    timer.delay_for_rank(3)
    assert ticks_until_over(timer) == 3 * RANK_TICKS
    timer.reset()
    assert ticks_until_over(timer) < 2 * RANK_TICKS
    timer.on_leader_contact()
    timer.reset()
    assert ticks_until_over(timer) >= 10


def test_progress_probes_one_message_at_a_time() -> None:
    progress = Progress(next_index=10, window=3)
    assert not progress.paused
    progress.on_append_sent(12, 3)
    assert progress.paused
    progress.on_heartbeat_reply()
    assert not progress.paused


def test_progress_pipelines_up_to_its_window() -> None:
    progress = Progress(next_index=1, window=2)
    progress.replicate()
    progress.on_append_sent(1, 1)
    progress.on_append_sent(4, 3)
    assert progress.paused
    assert progress.next_index == 5
    progress.on_accepted(1)
    assert not progress.paused
    assert progress.on_accepted(4)
    assert not progress.on_accepted(4)
    assert not progress.in_flight


def test_progress_ignores_refusals_that_are_old_news() -> None:
    progress = Progress(next_index=10, window=2)
    assert not progress.on_refused(refused_index=5, retry_index=3)  # not of the probe that is out
    assert progress.on_refused(refused_index=9, retry_index=4)
    assert (progress.state, progress.next_index) == (ProgressState.PROBE, 5)
    progress.on_accepted(4)
    progress.replicate()
    assert not progress.on_refused(refused_index=4, retry_index=2)
    assert progress.state is ProgressState.REPLICATE


def log(*terms: int, commit: int = 0) -> RaftLog:
    return RaftLog(m.Snapshot(), [m.Entry(term, index + 1, b"x") for index, term in enumerate(terms)], commit)


def test_the_log_refuses_to_overwrite_what_is_committed() -> None:
    held = log(1, 1, 1, commit=2)
    held.merge([m.Entry(2, 3, b"y")])
    assert held.term_at(3) == 2
    with pytest.raises(InvariantViolation):
        held.merge([m.Entry(3, 2, b"z")])


def test_a_write_that_was_overtaken_makes_nothing_durable() -> None:
    held = log(1)
    old = m.Entry(1, 2, b"old")
    held.append(old)
    held.merge([m.Entry(2, 2, b"new")])
    held.persisted(old)
    assert held.stable == 1
    assert [entry.payload for entry in held.unstable()] == [b"new"]


def test_a_hint_skips_whole_terms() -> None:
    assert log(1, 1, 4, 4, 4).find_conflict_by_term(5, 3) == (2, 1)
    assert log(1, 1, 2).find_conflict_by_term(9, 9) == (3, 2)
    assert log(5, 5).find_conflict_by_term(2, 1) == (0, 0)


def test_compaction_keeps_a_tail_and_its_term() -> None:
    held = log(1, 1, 2, 2, 3, commit=5)
    held.applied = 5
    held.compact(m.Snapshot(4, 2, b""), keep=2)
    assert (held.first_index, held.term_at(2), held.term_at(1)) == (3, 1, None)
    held.check()


def chunk(offset: int, data: bytes, *, whole: bytes = b"abcdefgh", index: int = 5) -> m.SnapshotChunk:
    return m.SnapshotChunk(
        term=1,
        sender=1,
        to=2,
        index=index,
        snapshot_term=1,
        size=len(whole),
        crc32c=crc32c(whole),
        offset=offset,
        data=data,
    )


def test_a_snapshot_is_put_together_whatever_is_repeated() -> None:
    incoming = IncomingSnapshot(100)
    assert incoming.add(chunk(4, b"efgh")) is None
    assert incoming.received(chunk(0, b"")) == 0
    incoming.add(chunk(0, b"abcd"))
    incoming.add(chunk(0, b"abcd"))
    assert incoming.received(chunk(0, b"")) == 4
    assert incoming.add(chunk(4, b"efgh")) == m.Snapshot(5, 1, b"abcdefgh")


def test_a_damaged_or_too_large_snapshot_is_not_taken() -> None:
    incoming = IncomingSnapshot(8)
    assert incoming.add(chunk(0, b"abcdefgX")) is None
    assert incoming.received(chunk(0, b"")) == 0
    assert incoming.add(chunk(0, b"a" * 9, whole=b"a" * 9)) is None
    incoming.add(chunk(0, b"abcd"))
    incoming.add(chunk(0, b"zz", index=6))  # of another snapshot
    assert incoming.received(chunk(0, b"", index=6)) == 2


def follower(*terms: int) -> RaftCore:
    return RaftCore(2, {1, 2, 3}, log(*terms), m.HardState(terms[-1] if terms else 0), random.Random(1))


def leader(
    voters: frozenset[int] = frozenset({1, 2, 3}), quorum_ticks: int = 0, heartbeat_ticks: int = 1
) -> RaftCore:
    """Elected by 2, which holds all of its log; 3 has never answered."""
    settings = RaftSettings(quorum_ticks=quorum_ticks, heartbeat_ticks=heartbeat_ticks)
    core = RaftCore(1, voters, log(), m.HardState(), random.Random(1), settings=settings)
    core.campaign()
    for pre_vote in (True, False):
        core.step(m.VoteReply(term=1, sender=2, to=1, granted=True, pre_vote=pre_vote))
        core.persisted(core.ready())
    core.step(m.AppendReply(term=1, sender=2, to=1, accepted=True, match_index=1))
    core.persisted(core.ready())
    assert core.has_committed_in_term
    return core


def test_a_leader_helps_nobody_to_depose_it_while_its_quorum_may_answer() -> None:
    """The one who asks was held up, so that it heard of nobody; the third still hears the leader."""
    core = leader(quorum_ticks=20)
    for _ in range(15):
        core.tick()
    asked = m.VoteRequest(term=2, sender=3, to=1, last_index=1, last_term=1, pre_vote=True)
    core.step(asked)
    core.step(replace(asked, pre_vote=False))
    assert not [told for told in core.ready().messages if isinstance(told, m.VoteReply)]
    assert (core.is_leader, core.term) == (True, 1)
    core.step(replace(asked, pre_vote=False, transfer=True))  # which it has sent to stand
    assert (core.is_leader, core.term) == (False, 2)


def test_a_read_does_not_wait_for_the_answer_of_a_voter_that_has_left() -> None:
    core = leader(frozenset({1, 2}))
    first, second = core.request_read(), core.request_read()
    assert core.ready().reads < first
    core.propose_configuration(core.configuration.without(2))
    core.persisted(core.ready())
    assert core.ready().reads == second
    core.check()


def test_a_learner_that_has_gone_silent_is_not_caught_up_any_more() -> None:
    core = leader()
    core.propose_configuration(core.configuration.with_learner(4, Member()))
    core.persisted(core.ready())
    core.step(m.AppendReply(term=1, sender=4, to=1, accepted=True, match_index=core.log.last_index))
    assert core.replication is not None and core.replication.progress[4].caught_up
    for _ in range(9):
        core.step(m.HeartbeatReply(term=1, sender=2, to=1))
        core.step(m.HeartbeatReply(term=1, sender=4, to=1))
        core.tick()
    assert core.replication.progress[4].caught_up
    for _ in range(10):
        core.step(m.HeartbeatReply(term=1, sender=2, to=1))
        core.tick()
    assert core.is_leader and not core.replication.progress[4].caught_up


def heartbeats(core: RaftCore) -> list[int]:
    return [told.to for told in core.take_immediate_messages() if isinstance(told, m.Heartbeat)]


def test_heartbeats_that_carry_a_question_put_the_next_ones_off() -> None:
    core = leader(heartbeat_ticks=2)
    core.tick()
    core.request_read()
    assert heartbeats(core) == [2, 3]
    core.tick()
    assert heartbeats(core) == []  # they would be due, had there been none since
    core.tick()
    assert heartbeats(core) == [2, 3]


def test_an_idle_voter_that_could_not_be_reached_once_takes_over_all_the_same() -> None:
    core = leader()
    core.on_peer_unreachable(2)
    assert not core.hand_over()
    core.step(m.HeartbeatReply(term=1, sender=2, to=1))
    probes = [told for told in core.take_immediate_messages() if isinstance(told, m.Append)]
    assert [(told.to, told.prev_index, told.entries) for told in probes] == [(2, 1, ())]
    assert not core.hand_over()
    core.step(m.AppendReply(term=1, sender=2, to=1, accepted=True, match_index=1))
    assert core.hand_over()
    assert [told.to for told in core.take_immediate_messages() if isinstance(told, m.TimeoutNow)] == [2]


def test_a_follower_commits_no_further_than_the_leaders_message_proves() -> None:
    core = follower(1, 1, 1)  # its entries 2 and 3 may not be the leader's
    core.step(m.Append(term=2, sender=1, to=2, prev_index=1, prev_term=1, entries=(), commit=3))
    assert core.log.commit == 1


def test_a_late_snapshot_drops_nothing_that_was_acknowledged() -> None:
    core = follower(1, 1, 1)
    core.step(
        m.SnapshotChunk(
            term=1, sender=1, to=2, index=2, snapshot_term=1, size=1, crc32c=crc32c(b"s"), offset=0, data=b"s"
        )
    )
    assert (core.log.last_index, core.log.commit) == (3, 2)
    ready = core.ready()
    assert ready.snapshot is None
    assert [
        (told.accepted, told.match_index) for told in ready.messages if isinstance(told, m.AppendReply)
    ] == [(True, 2)]


def test_a_vote_is_given_once_per_term_and_leaves_only_after_it_is_written() -> None:
    core = follower()
    core.step(m.VoteRequest(term=1, sender=1, to=2, last_index=0, last_term=0))
    core.step(m.VoteRequest(term=1, sender=3, to=2, last_index=0, last_term=0))
    ready = core.ready()
    assert ready.immediate_messages == ()
    assert ready.hard_state == m.HardState(1, 1, 0)
    assert [(vote.to, vote.granted) for vote in ready.messages if isinstance(vote, m.VoteReply)] == [
        (1, True),
        (3, False),
    ]


def test_a_longer_log_of_an_older_term_does_not_win() -> None:
    core = follower(1, 2)
    core.step(m.VoteRequest(term=3, sender=1, to=2, last_index=9, last_term=1))
    assert [vote.granted for vote in core.ready().messages if isinstance(vote, m.VoteReply)] == [False]


def test_misrouted_messages_are_ignored() -> None:
    core = follower()
    core.step(m.Heartbeat(term=9, sender=1, to=3, commit=0))
    core.step(m.Heartbeat(term=9, sender=2, to=2, commit=0))
    assert core.term == 0
    assert not core.has_ready()


def test_a_leader_of_a_configuration_that_is_not_known_here_is_followed() -> None:
    """Its log may hold the change that this node has yet to learn of (4.1)."""
    core = follower()
    core.step(m.Heartbeat(term=9, sender=8, to=2, commit=0))
    assert (core.term, core.leader) == (9, 8)


def test_only_a_leader_takes_proposals() -> None:
    with pytest.raises(NotLeader):
        follower().propose(b"x")


VOTERS = Configuration({1: Member(), 2: Member(), 3: Member()})


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (Configuration({1: Member()}), "one at a time"),
        (VOTERS.without(3).with_voter(4, Member()), "one at a time"),
        (Configuration({n: Member() for n in range(1, 6)}), "one at a time"),
        (Configuration(VOTERS.voters, {3: Member()}), "voters and learners"),
    ],
)
def test_a_change_that_could_part_the_quorum_is_refused(new: Configuration, why: str) -> None:
    with pytest.raises(ChangeRefused, match=why):
        check_change(VOTERS, new)


def test_the_last_voter_stays() -> None:
    alone = Configuration({1: Member()})
    with pytest.raises(ChangeRefused, match="last voter"):
        check_change(alone, alone.without(1))


def test_learners_come_and_go_freely_and_what_is_known_of_a_member_is_kept() -> None:
    check_change(VOTERS, VOTERS.with_learner(4, Member("u")).with_learner(5, Member("v")))
    known = VOTERS.with_directories({2: UUID(int=2)})
    assert known.with_directories({2: UUID(int=9), 3: UUID(int=3)}).voters == {
        1: Member(),
        2: Member("", UUID(int=2)),
        3: Member("", UUID(int=3)),
    }
    assert decode_configuration(encode_configuration(known)) == known


def test_a_learner_has_caught_up_after_a_round_that_was_short() -> None:
    progress = Progress(next_index=1, window=2)
    progress.round_end, progress.round_ticks = 100, 30
    progress.on_accepted(99)
    progress.end_round(200, max_ticks=10)
    assert not progress.caught_up  # the round goes on
    progress.on_accepted(100)
    progress.end_round(200, max_ticks=10)
    assert not progress.caught_up  # it took too long: another
    progress.on_accepted(200)
    progress.end_round(200, max_ticks=10)
    assert progress.caught_up


def test_a_question_waits_for_a_round_that_began_after_it() -> None:
    reads = Reads()
    reads.requested = reads.sent = 1
    reads.requested = 2  # while the first is under way
    assert not reads.round_is_due
    reads.on_majority_answered(2)
    assert (reads.confirmed, reads.round_is_due) == (1, True)


def test_a_leader_that_asks_for_votes_leads_no_more() -> None:
    """It has started again; nobody should wait for its silence."""
    core = follower(1)
    core.step(m.Heartbeat(term=1, sender=1, to=2, commit=0))
    core.step(m.VoteRequest(term=2, sender=3, to=2, last_index=1, last_term=1, pre_vote=True))
    core.step(m.VoteRequest(term=2, sender=1, to=2, last_index=1, last_term=1, pre_vote=True))
    votes = [reply for reply in core.ready().messages if isinstance(reply, m.VoteReply)]
    assert [(reply.to, reply.granted) for reply in votes] == [(1, True)]


def test_a_configuration_goes_with_the_entries_that_are_cut() -> None:
    core = follower(1)
    change = encode_configuration(VOTERS.without(3))
    entry = m.Entry(1, 2, change, m.CONFIGURATION)
    core.step(m.Append(term=1, sender=1, to=2, prev_index=1, prev_term=1, entries=(entry,), commit=1))
    assert core.voters == {1, 2}
    other = m.Entry(2, 2, b"x")
    core.step(m.Append(term=2, sender=3, to=2, prev_index=1, prev_term=1, entries=(other,), commit=1))
    assert core.voters == {1, 2, 3}


def test_a_snapshot_brings_its_configuration() -> None:
    core = follower()
    core.step(
        m.SnapshotChunk(
            term=1,
            sender=1,
            to=2,
            index=9,
            snapshot_term=1,
            size=1,
            crc32c=crc32c(b"s"),
            offset=0,
            data=b"s",
            configuration=VOTERS.without(3),
        )
    )
    assert core.voters == {1, 2}
    assert core.log.configuration_at(9) == VOTERS.without(3)


def test_who_reads_of_its_removal_while_it_stands_stands_no_more() -> None:
    core = follower(1)
    core.campaign()
    removal = m.Entry(3, 2, encode_configuration(VOTERS.without(2)), m.CONFIGURATION)
    core.accept_committed(None, (m.Entry(1, 1, b"x"), removal), leader=1)
    core.step(m.VoteReply(term=2, sender=3, to=2, granted=True, pre_vote=True))
    for _ in range(100):
        core.tick()
    assert (core.role, core.term, core.leader, core.log.commit) == (Role.FOLLOWER, 3, 1, 2)
    core.check()


def test_a_voter_takes_nobodys_word_for_who_leads_but_the_leaders() -> None:
    core = follower(1)
    core.accept_committed(None, (m.Entry(1, 1, b"x"), m.Entry(1, 2, b"y")), leader=1)
    assert (core.leader, core.log.commit) == (m.NO_NODE, 2)


def test_who_is_no_member_takes_the_leaders_term_along() -> None:
    core = removed()
    assert core.accept_committed(None, (), leader=3, term=7)
    assert (core.term, core.leader) == (7, 3)
    core.step(m.Heartbeat(term=4, sender=1, to=2, commit=0))  # of one that was deposed
    assert core.leader == 3
    assert core.accept_committed(None, (), leader=m.NO_NODE, term=9)
    assert (core.term, core.leader) == (7, m.NO_NODE)  # nobody leads in that one, for all that is known


def removed() -> RaftCore:
    core = follower(1)
    removal = m.Entry(3, 2, encode_configuration(VOTERS.without(2)), m.CONFIGURATION)
    assert core.accept_committed(None, (m.Entry(1, 1, b"x"), removal), leader=1, term=3, after_term=0)
    assert not core.is_member
    return core


def test_what_is_committed_elsewhere_and_differs_here_is_of_another_log() -> None:
    core = removed()
    assert not core.accept_committed(None, (m.Entry(3, 3, b"y"),), leader=1, term=3, after_term=2)
    assert not core.accept_committed(m.Snapshot(9, 2, b"s"), (), leader=1, term=3)  # terms never fall
    assert not core.accept_committed(None, (m.Entry(3, 4, b"z"),), leader=1, term=3)  # entries are left out
    assert (core.log.commit, core.log.last_index) == (2, 2)
    assert core.accept_committed(None, (m.Entry(3, 3, b"y"),), leader=1, term=3, after_term=3)
    assert core.accept_committed(m.Snapshot(9, 3, b"s"), (), leader=1, term=3)
    assert core.log.commit == 9
    core.check()


def test_a_voter_that_lacks_what_it_acknowledged_fails() -> None:
    """A leader never tells a commit index beyond what the follower has acknowledged to it."""
    core = follower(1, 1)
    core.step(m.Heartbeat(term=1, sender=1, to=2, commit=2))
    with pytest.raises(InvariantViolation, match="put back to an older copy"):
        core.step(m.Heartbeat(term=1, sender=1, to=2, commit=3))


def test_a_follower_that_does_not_hear_its_leader_names_none_to_others() -> None:
    core = follower(1)
    core.step(m.Heartbeat(term=1, sender=1, to=2, commit=0))
    assert core.knows_leader_first_hand
    assert not removed().knows_leader_first_hand
    for _ in range(10):
        core.tick()
    assert not core.knows_leader_first_hand


def test_the_checksum_that_is_kept_is_that_of_the_present_snapshot() -> None:
    held = RaftLog(m.Snapshot(4, 2, b"abc"), (), 4)
    assert held.snapshot_crc32c == crc32c(b"abc")
    held.restore(m.Snapshot(9, 2, b"def"))
    assert held.snapshot_crc32c == crc32c(b"def")


def test_messages_survive_their_encoding() -> None:
    entries = (m.Entry(1, 2, b"x"),)
    said: tuple[m.AnyMessage, ...] = (
        m.VoteRequest(term=1, sender=1, to=2, last_index=3, last_term=1, pre_vote=True),
        m.VoteReply(term=1, sender=2, to=1, granted=True),
        m.Append(term=1, sender=1, to=2, prev_index=1, prev_term=1, entries=entries, commit=1),
        m.AppendReply(term=1, sender=2, to=1, accepted=False, refused_index=1, hint_index=0),
        m.Heartbeat(term=1, sender=1, to=2, commit=1),
        m.HeartbeatReply(term=1, sender=2, to=1),
        chunk(0, b"abcd"),
        m.SnapshotReply(term=1, sender=2, to=1, index=5, next_offset=4),
        m.TimeoutNow(term=1, sender=1, to=2),
    )
    assert m.decode_messages(m.encode_messages(said)) == said
