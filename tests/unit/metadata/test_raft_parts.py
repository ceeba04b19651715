"""Parts of Raft, and rules of the core that a random network seldom exercises."""

import random
from uuid import UUID

import pytest
from crc32c import crc32c
from msgspec.structs import replace

from tierlog.base.types import InvariantViolation
from tierlog.metadata.raft import messages as m
from tierlog.metadata.raft.core import NotLeader, RaftCore, Role
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
def test_committed_index_is_the_highest_that_a_majority_has(match: dict[int, int], committed: int) -> None:
    assert committed_index(match.keys(), match) == committed


def test_voters_that_never_replied_count_as_empty() -> None:
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
def test_votes_are_counted_by_majority(voters: set[int], votes: dict[int, bool], result: VoteResult) -> None:
    assert count_votes(voters, votes) is result


@pytest.mark.parametrize(
    ("election_ms", "quorum_ms", "heartbeat_ticks"),
    [(1000, 2000, 2), (500, 1000, 1), (3000, 1000, 2), (200, 200, 1)],
)
def test_five_heartbeats_fit_into_the_shortest_timeout(
    election_ms: int, quorum_ms: int, heartbeat_ticks: int
) -> None:
    settings = RaftSettings.from_durations(tick_ms=100, election_ms=election_ms, quorum_ms=quorum_ms)
    assert settings.heartbeat_ticks == heartbeat_ticks


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


def test_progress_ignores_stale_refusals() -> None:
    progress = Progress(next_index=10, window=2)
    assert not progress.on_refused(refused_index=5, retry_index=3)  # not the probe in flight
    assert progress.on_refused(refused_index=9, retry_index=4)
    assert (progress.state, progress.next_index) == (ProgressState.PROBE, 5)
    progress.on_accepted(4)
    progress.replicate()
    assert not progress.on_refused(refused_index=4, retry_index=2)
    assert progress.state is ProgressState.REPLICATE


def log(*terms: int, commit: int = 0) -> RaftLog:
    return RaftLog(m.Snapshot(), [m.Entry(term, index + 1, b"x") for index, term in enumerate(terms)], commit)


def test_log_refuses_to_overwrite_committed_entries() -> None:
    held = log(1, 1, 1, commit=2)
    held.merge([m.Entry(2, 3, b"y")])
    assert held.term_at(3) == 2
    with pytest.raises(InvariantViolation):
        held.merge([m.Entry(3, 2, b"z")])


def test_write_of_truncated_entries_makes_nothing_durable() -> None:
    held = log(1)
    old = m.Entry(1, 2, b"old")
    held.append(old)
    held.merge([m.Entry(2, 2, b"new")])
    held.persisted(old)
    assert held.stable == 1
    assert [entry.payload for entry in held.unstable()] == [b"new"]


def test_conflict_hint_skips_whole_terms() -> None:
    assert log(1, 1, 4, 4, 4).find_conflict_by_term(5, 3) == (2, 1)
    assert log(1, 1, 2).find_conflict_by_term(9, 9) == (3, 2)
    assert log(5, 5).find_conflict_by_term(2, 1) == (0, 0)


def test_compaction_keeps_a_suffix_and_the_term_before_it() -> None:
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


def test_snapshot_is_assembled_from_repeated_chunks() -> None:
    incoming = m.IncomingSnapshot(100)
    assert incoming.add(chunk(4, b"efgh")) is None
    assert incoming.received(chunk(0, b"")) == 0
    incoming.add(chunk(0, b"abcd"))
    incoming.add(chunk(0, b"abcd"))
    assert incoming.received(chunk(0, b"")) == 4
    assert incoming.add(chunk(4, b"efgh")) == m.Snapshot(5, 1, b"abcdefgh")


def test_damaged_or_too_large_snapshot_is_rejected() -> None:
    incoming = m.IncomingSnapshot(8)
    assert incoming.add(chunk(0, b"abcdefgX")) is None
    assert incoming.received(chunk(0, b"")) == 0
    assert incoming.add(chunk(0, b"a" * 9, whole=b"a" * 9)) is None
    incoming.add(chunk(0, b"abcd"))
    incoming.add(chunk(0, b"zz", index=6))  # another snapshot
    assert incoming.received(chunk(0, b"", index=6)) == 2


def follower(*terms: int) -> RaftCore:
    return RaftCore(2, {1, 2, 3}, log(*terms), m.HardState(terms[-1] if terms else 0), random.Random(1))


def leader(
    voters: frozenset[int] | Configuration = frozenset({1, 2, 3}),
    quorum_ticks: int = 0,
    heartbeat_ticks: int = 1,
) -> RaftCore:
    """Elected by 2, which has the whole log; 3 has never replied."""
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


def test_leader_refuses_votes_until_check_quorum_fails() -> None:
    """The candidate was paused, so that it heard no leader; the third voter still hears this leader."""
    core = leader(quorum_ticks=20)
    for _ in range(15):
        core.tick()
    request = m.VoteRequest(term=2, sender=3, to=1, last_index=1, last_term=1, pre_vote=True)
    core.step(request)
    core.step(replace(request, pre_vote=False))
    assert not [message for message in core.ready().messages if isinstance(message, m.VoteReply)]
    assert (core.is_leader, core.term) == (True, 1)
    core.step(replace(request, pre_vote=False, transfer=True))  # requested by the leader
    assert (core.is_leader, core.term) == (False, 2)


def test_read_does_not_wait_for_a_removed_voter() -> None:
    core = leader(frozenset({1, 2}))
    first, second = core.request_read(), core.request_read()
    assert core.ready().reads < first
    core.propose_configuration(core.configuration.without(2))
    core.persisted(core.ready())
    assert core.ready().reads == second
    core.check()


def test_silent_learner_is_no_longer_caught_up() -> None:
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
    return [message.to for message in core.take_immediate_messages() if isinstance(message, m.Heartbeat)]


def test_heartbeats_for_a_read_delay_the_next_periodic_ones() -> None:
    core = leader(heartbeat_ticks=2)
    core.tick()
    core.request_read()
    assert heartbeats(core) == [2, 3]
    core.tick()
    assert heartbeats(core) == []  # they would be due without those of the read
    core.tick()
    assert heartbeats(core) == [2, 3]


def test_voter_that_was_unreachable_once_is_a_transfer_target_again() -> None:
    core = leader()
    core.on_peer_unreachable(2)
    assert not core.hand_over()
    core.step(m.HeartbeatReply(term=1, sender=2, to=1))
    probes = [message for message in core.take_immediate_messages() if isinstance(message, m.Append)]
    assert [(message.to, message.prev_index, message.entries) for message in probes] == [(2, 1, ())]
    assert not core.hand_over()
    core.step(m.AppendReply(term=1, sender=2, to=1, accepted=True, match_index=1))
    assert core.hand_over()
    assert [
        message.to for message in core.take_immediate_messages() if isinstance(message, m.TimeoutNow)
    ] == [2]


def test_follower_commits_only_up_to_the_entries_of_the_append() -> None:
    core = follower(1, 1, 1)  # its entries 2 and 3 may not be the leader's
    core.step(m.Append(term=2, sender=1, to=2, prev_index=1, prev_term=1, entries=(), commit=3))
    assert core.log.commit == 1


def test_late_snapshot_keeps_acknowledged_entries() -> None:
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
        (message.accepted, message.match_index)
        for message in ready.messages
        if isinstance(message, m.AppendReply)
    ] == [(True, 2)]


def test_vote_is_given_once_per_term_and_sent_after_it_is_durable() -> None:
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


def test_longer_log_of_an_older_term_gets_no_vote() -> None:
    core = follower(1, 2)
    core.step(m.VoteRequest(term=3, sender=1, to=2, last_index=9, last_term=1))
    assert [vote.granted for vote in core.ready().messages if isinstance(vote, m.VoteReply)] == [False]


def test_misrouted_messages_are_ignored() -> None:
    core = follower()
    core.step(m.Heartbeat(term=9, sender=1, to=3, commit=0))
    core.step(m.Heartbeat(term=9, sender=2, to=2, commit=0))
    assert core.term == 0
    assert not core.has_ready()


def test_follower_accepts_a_leader_outside_its_configuration() -> None:
    """Its log may hold the change that this node has yet to learn of (4.1)."""
    core = follower()
    core.step(m.Heartbeat(term=9, sender=8, to=2, commit=0))
    assert (core.term, core.leader) == (9, 8)


def test_only_a_leader_accepts_proposals() -> None:
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
def test_change_that_could_split_the_quorum_is_refused(new: Configuration, why: str) -> None:
    with pytest.raises(ChangeRefused, match=why):
        check_change(VOTERS, new)


def test_last_voter_cannot_be_removed() -> None:
    alone = Configuration({1: Member()})
    with pytest.raises(ChangeRefused, match="last voter"):
        check_change(alone, alone.without(1))


def test_learners_change_freely_and_members_keep_their_directories() -> None:
    check_change(VOTERS, VOTERS.with_learner(4, Member("u")).with_learner(5, Member("v")))
    known = VOTERS.with_directories({2: UUID(int=2)})
    assert known.with_directories({2: UUID(int=9), 3: UUID(int=3)}).voters == {
        1: Member(),
        2: Member("", UUID(int=2)),
        3: Member("", UUID(int=3)),
    }
    assert decode_configuration(encode_configuration(known)) == known


def test_learner_is_caught_up_after_a_short_round() -> None:
    progress = Progress(next_index=1, window=2)
    progress.round_end, progress.round_ticks = 100, 30
    progress.on_accepted(99)
    progress.end_round(200, max_ticks=10)
    assert not progress.caught_up  # the round continues
    progress.on_accepted(100)
    progress.end_round(200, max_ticks=10)
    assert not progress.caught_up  # it took too long: another
    progress.on_accepted(200)
    progress.end_round(200, max_ticks=10)
    assert progress.caught_up


def test_read_waits_for_a_round_that_began_after_it() -> None:
    reads = Reads()
    reads.requested = reads.sent = 1
    reads.requested = 2  # while the first is under way
    assert not reads.round_is_due
    reads.on_majority_reply(2)
    assert (reads.confirmed, reads.round_is_due) == (1, True)


def test_vote_request_of_the_leader_ends_its_leadership() -> None:
    """The leader has restarted, so voters need not wait for its timeout."""
    core = follower(1)
    core.step(m.Heartbeat(term=1, sender=1, to=2, commit=0))
    core.step(m.VoteRequest(term=2, sender=3, to=2, last_index=1, last_term=1, pre_vote=True))
    core.step(m.VoteRequest(term=2, sender=1, to=2, last_index=1, last_term=1, pre_vote=True))
    votes = [reply for reply in core.ready().messages if isinstance(reply, m.VoteReply)]
    assert [(reply.to, reply.granted) for reply in votes] == [(1, True)]


def test_truncation_restores_the_previous_configuration() -> None:
    core = follower(1)
    change = encode_configuration(VOTERS.without(3))
    entry = m.Entry(1, 2, change, m.CONFIGURATION)
    core.step(m.Append(term=1, sender=1, to=2, prev_index=1, prev_term=1, entries=(entry,), commit=1))
    assert core.voters == {1, 2}
    other = m.Entry(2, 2, b"x")
    core.step(m.Append(term=2, sender=3, to=2, prev_index=1, prev_term=1, entries=(other,), commit=1))
    assert core.voters == {1, 2, 3}


def test_snapshot_carries_its_configuration() -> None:
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


def test_candidate_that_reads_of_its_removal_stops_campaigning() -> None:
    core = follower(1)
    core.campaign()
    removal = m.Entry(3, 2, encode_configuration(VOTERS.without(2)), m.CONFIGURATION)
    core.accept_committed(None, (m.Entry(1, 1, b"x"), removal), leader=1)
    core.step(m.VoteReply(term=2, sender=3, to=2, granted=True, pre_vote=True))
    for _ in range(100):
        core.tick()
    assert (core.role, core.term, core.leader, core.log.commit) == (Role.FOLLOWER, 3, 1, 2)
    core.check()


def test_voter_ignores_the_leader_that_a_page_names() -> None:
    core = follower(1)
    core.accept_committed(None, (m.Entry(1, 1, b"x"), m.Entry(1, 2, b"y")), leader=1)
    assert (core.leader, core.log.commit) == (m.NO_NODE, 2)


def test_observer_adopts_the_term_with_the_leader_of_a_page() -> None:
    core = removed()
    assert core.accept_committed(None, (), leader=3, term=7)
    assert (core.term, core.leader) == (7, 3)
    core.step(m.Heartbeat(term=4, sender=1, to=2, commit=0))  # from a deposed leader
    assert core.leader == 3
    assert core.accept_committed(None, (), leader=m.NO_NODE, term=9)
    assert (core.term, core.leader) == (7, m.NO_NODE)  # no leader is known in term 9


def removed() -> RaftCore:
    core = follower(1)
    removal = m.Entry(3, 2, encode_configuration(VOTERS.without(2)), m.CONFIGURATION)
    assert core.accept_committed(None, (m.Entry(1, 1, b"x"), removal), leader=1, term=3, after_term=0)
    assert not core.is_member
    return core


def test_committed_entries_that_conflict_belong_to_another_log() -> None:
    core = removed()
    assert not core.accept_committed(None, (m.Entry(3, 3, b"y"),), leader=1, term=3, after_term=2)
    assert not core.accept_committed(m.Snapshot(9, 2, b"s"), (), leader=1, term=3)  # terms never fall
    assert not core.accept_committed(None, (m.Entry(3, 4, b"z"),), leader=1, term=3)  # entries are left out
    assert (core.log.commit, core.log.last_index) == (2, 2)
    assert core.accept_committed(None, (m.Entry(3, 3, b"y"),), leader=1, term=3, after_term=3)
    assert core.accept_committed(m.Snapshot(9, 3, b"s"), (), leader=1, term=3)
    assert core.log.commit == 9
    core.check()


def test_voter_that_lacks_acknowledged_entries_fails() -> None:
    """A leader never sends a commit index beyond what the follower has acknowledged to it."""
    core = follower(1, 1)
    core.step(m.Heartbeat(term=1, sender=1, to=2, commit=2))
    with pytest.raises(InvariantViolation, match="is an older copy"):
        core.step(m.Heartbeat(term=1, sender=1, to=2, commit=3))


def sent(core: RaftCore) -> list[m.AnyMessage]:
    """All messages that the core sends now. Its state is durable before it returns."""
    ready = core.ready()
    core.persisted(ready)
    return [*ready.immediate_messages, *ready.messages]


def heartbeat_to(core: RaftCore, member: int) -> m.Heartbeat:
    core.tick()
    return next(one for one in sent(core) if isinstance(one, m.Heartbeat) and one.to == member)


def test_voter_that_forgot_its_vote_stops() -> None:
    heartbeat = replace(heartbeat_to(leader(), 2), commit=0)
    assert (heartbeat.known_term, heartbeat.known_vote) == (1, 1)
    for state in (m.HardState(0), m.HardState(1, 3)):  # its term is older; it voted again in that term
        restored = RaftCore(2, VOTERS, RaftLog(m.Snapshot(), (), 0), state, random.Random(1))
        with pytest.raises(InvariantViolation, match="knows that it was in term 1 and voted for"):
            restored.step(heartbeat)
    for state in (m.HardState(1, 1), m.HardState(2), m.HardState(2, 3)):
        RaftCore(2, VOTERS, RaftLog(m.Snapshot(), (), 0), state, random.Random(1)).step(heartbeat)
    assert heartbeat_to(leader(), 3).known_term == 0, "nothing is known of node 3"


def test_candidate_tells_a_voter_of_its_later_term() -> None:
    """It is only the candidate that knows it: the leader of that term is gone."""
    core = follower(1)
    core.step(m.AppendReply(term=5, sender=3, to=2, accepted=False))
    core.step(m.VoteRequest(term=9, sender=1, to=2, last_index=0, last_term=0, pre_vote=True))
    sent(core)
    core.campaign()
    request, other = (one for one in sent(core) if isinstance(one, m.VoteRequest))
    if other.to == 3:
        request, other = other, request
    assert (request.known_term, request.known_vote) == (5, 0)
    assert other.known_term == 0, "the term of a pre-vote is not persisted"
    with pytest.raises(InvariantViolation, match="is an older copy"):
        RaftCore(3, VOTERS, RaftLog(m.Snapshot(), (), 0), m.HardState(4), random.Random(1)).step(request)


def test_member_with_a_new_directory_may_be_in_an_older_term() -> None:
    """Its old one was removed from the quorum, emptied, and added again."""
    old, new = UUID(int=1), UUID(int=2)
    voters = Configuration({n: Member(directory=old) for n in (1, 2, 3)})
    core = leader(voters)
    assert heartbeat_to(core, 2).known_term == 1
    for member in (2, 3):
        core.step(m.AppendReply(term=1, sender=member, to=1, accepted=True, match_index=1))
    core.propose_configuration(voters.with_learner(2, Member(directory=new)))
    assert heartbeat_to(core, 2).known_term == 0


def test_follower_without_leader_contact_names_no_leader() -> None:
    core = follower(1)
    core.step(m.Heartbeat(term=1, sender=1, to=2, commit=0))
    assert core.knows_leader_first_hand
    assert not removed().knows_leader_first_hand
    for _ in range(10):
        core.tick()
    assert not core.knows_leader_first_hand


def test_cached_checksum_belongs_to_the_current_snapshot() -> None:
    held = RaftLog(m.Snapshot(4, 2, b"abc"), (), 4)
    assert held.snapshot_crc32c == crc32c(b"abc")
    held.restore(m.Snapshot(9, 2, b"def"))
    assert held.snapshot_crc32c == crc32c(b"def")


def test_messages_survive_their_encoding() -> None:
    entries = (m.Entry(1, 2, b"x"),)
    messages: tuple[m.AnyMessage, ...] = (
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
    assert m.decode_messages(m.encode_messages(messages)) == messages
