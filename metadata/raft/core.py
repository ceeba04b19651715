"""Raft core: the consensus algorithm as a pure state machine (`step`, `tick`, `propose`, `ready`).

Invariants ("thesis" is Ongaro's dissertation, as in the whole package):

- A node votes at most once per term, and a leader never overwrites its own log.
- Only an entry of the current term commits by counting replicas (thesis 3.6.2).
- Voters change one at a time (thesis 4.1), and only after the leader has committed an entry of its term.

Pre-vote (thesis 9.6), check-quorum (thesis 6.2) and the refusal to vote while a leader is recent keep a
rejoining or partitioned node from disrupting the others. Messages of nodes outside the configuration are
accepted, because the sender's configuration may be newer (thesis 4.1). Called by MetadataNode.
"""

from collections.abc import Collection
from enum import Enum

from tierlog.base.safeguards import safeguard
from tierlog.base.types import Rng, require
from tierlog.metadata.raft import messages as m
from tierlog.metadata.raft.log import RaftLog
from tierlog.metadata.raft.membership import (
    ChangeRefused,
    Configuration,
    Member,
    check_change,
    encode_configuration,
)
from tierlog.metadata.raft.messages import CONFIGURATION, NO_NODE, PAYLOAD, Entry, HardState, Snapshot
from tierlog.metadata.raft.peer_terms import PeerTerms, check_remembered
from tierlog.metadata.raft.quorum import VoteResult, count_votes, needs_pre_vote
from tierlog.metadata.raft.reads import Reads
from tierlog.metadata.raft.ready import Ready
from tierlog.metadata.raft.replication import Replication
from tierlog.metadata.raft.settings import RaftSettings

PENDING_REPLIES_MAX = 10_000
"""Maximum number of replies that wait for a write. More are dropped, as a network might: the disk hangs."""

RANK_TICKS = 2
"""Ticks between the campaigns of two survivors of a dead leader: enough for an election if disks are fast."""

BACKOFF_MAX = 4
"""Elections without a winner lengthen the election timeout up to this many times."""


class Role(Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class NotLeader(Exception):
    """This node cannot accept proposals: it is not the leader, or is transferring its leadership."""


class RaftCore:
    def __init__(
        self,
        node_id: int,
        voters: Collection[int] | Configuration,
        log: RaftLog,
        hard_state: HardState,
        rng: Rng,
        *,
        first_payload: bytes = b"",
        settings: RaftSettings | None = None,
    ) -> None:
        """`voters` apply until the log holds a configuration. A new leader appends `first_payload` to commit
        the entries before it (thesis 6.4)."""
        self.node_id = node_id
        self._initial = (
            voters if isinstance(voters, Configuration) else Configuration({v: Member() for v in voters})
        )
        self.log = log
        self.term = hard_state.term
        self.voted_for = hard_state.voted_for
        self.role = Role.FOLLOWER
        self.leader = NO_NODE
        self.transfer_target = NO_NODE
        self.replication: Replication | None = None  # while this node is the leader
        self._settings = settings or RaftSettings()
        self._led_term = self.term  # the newest term that had a leader, as far as this node knows
        self._election_timer = ElectionTimer(self._settings, rng)
        self._first_payload = first_payload
        self._votes: dict[int, bool] = {}
        self._reads = Reads()
        self._reads_reported = 0
        self._peer_terms = PeerTerms()
        self.configuration = self._initial
        self._load_configuration()
        self._durable_term_and_vote = self._term_and_vote()
        self._immediate: list[m.AnyMessage] = []
        self._messages: list[m.AnyMessage] = []
        self._pending_snapshot: Snapshot | None = None
        self._incoming = m.IncomingSnapshot(self._settings.max_snapshot_bytes)

    # --- called by the driver

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def is_member(self) -> bool:
        """Whether this node is a voter or a learner in the newest configuration it knows."""
        return self.configuration.includes(self.node_id)

    @property
    def has_recent_leader(self) -> bool:
        """True for the leader itself until check-quorum fails, so that it does not vote to depose itself."""
        return self.is_leader or (self.leader != NO_NODE and self._election_timer.leader_is_recent)

    @property
    def knows_leader_first_hand(self) -> bool:
        """Whether this node is the leader, or a member that the leader contacted recently."""
        return self.is_leader or (self.is_member and self.has_recent_leader)

    def tick(self) -> None:
        self._election_timer.tick()
        if self.replication is not None:
            self._tick_leader(self.replication)
        elif self._election_timer.has_expired:
            self.campaign()

    def campaign(self, *, transfer: bool = False) -> None:
        """Start an election. A pre-vote comes first (thesis 9.6) unless the leader transfers leadership."""
        if self.is_leader or not self._may_campaign():
            return
        if transfer or not needs_pre_vote(self.node_id, self.voters):
            self._become_candidate(transfer)
        else:
            self._become_pre_candidate()

    def propose(self, payload: bytes) -> int:
        """Append an entry and replicate it. Returns its index. Raises NotLeader."""
        if not self.is_leader or self.transfer_target != NO_NODE:
            raise NotLeader
        index = self._append(payload)
        self._replicate()
        return index

    def propose_configuration(self, configuration: Configuration) -> int:
        """Append a configuration, which takes effect at once. Raises NotLeader, ChangeRefused."""
        if self.replication is None or self.transfer_target != NO_NODE:
            raise NotLeader
        if not self.has_committed_in_term:  # an earlier leader's change may still commit (the bug in 4.1)
            raise ChangeRefused("the leader has committed nothing of its term yet")
        if self.configuration_index > self.log.commit:
            raise ChangeRefused("the change before this one is not committed yet")
        check_change(self.configuration, configuration)
        index = self._append(encode_configuration(configuration), CONFIGURATION)
        self._replicate()  # also to a node that this change removes, so that it learns of its removal
        self._load_configuration()
        self._replicate()
        self._advance_commit(self.replication)
        return index

    def request_read(self) -> int:
        """Returns the number of a linearizable read (thesis 6.4). `Ready.reads` reaches it once a majority
        has confirmed that this node was still the leader after the request. Raises NotLeader."""
        if self.replication is None or not self.has_committed_in_term:
            raise NotLeader
        return self.replication.request_read()

    @property
    def has_committed_in_term(self) -> bool:
        """Whether this node is the leader and knows the commit index (thesis 6.4)."""
        return self.is_leader and self.log.matches(self.log.commit, self.term)

    def on_peer_death(self, peer: int) -> None:
        """The peer's process seems dead: its host refuses connections. If it was the leader, the survivors
        campaign one after the other, so that they do not split the vote. Pre-vote protects a living
        leader."""
        self.on_peer_unreachable(peer)
        if peer != self.leader or self.is_leader:
            return
        self.leader = NO_NODE
        self._election_timer.on_leader_death()
        survivors = sorted(self.voters - {peer})
        if survivors[:1] == [self.node_id]:
            self.campaign()
        elif self.node_id in self.voters:
            self._election_timer.delay_for_rank(survivors.index(self.node_id))

    def transfer_leadership(self, to: int) -> None:
        """Transfer leadership to a voter once its log is complete (thesis 3.10). Stop after an election
        timeout."""
        if self.is_leader and to in self.voters and to != self.node_id:
            self.transfer_target = to
            self._election_timer.restart()
            self._finish_transfer()

    def hand_over(self) -> bool:
        """Transfer leadership to the most up-to-date voter that responds; False if none does. The caller
        repeats this while the node is the leader, because the target may have died."""
        if self.replication is None:
            return False
        if not self.replication.is_replicating(self.transfer_target):
            target = self.replication.transfer_target()
            self.transfer_target = NO_NODE
            if target is None:
                return False
            self.transfer_leadership(target)
        return True

    def accept_committed(
        self,
        snapshot: Snapshot | None,
        entries: tuple[Entry, ...],
        leader: int,
        term: int = 0,
        after_term: int = -1,
    ) -> bool:
        """Append committed entries that an observer (KIP-853) has read from another node.

        Their term does not matter, since they are committed, and conflicting entries here can be truncated.
        `leader` and `term` are what the sender believes. Only a node outside the configuration adopts them: a
        member's vote depends on its leader, so it trusts messages of the leader alone. Returns False, and
        changes nothing, if the entries belong to another log (`RaftLog.is_continued_by`).
        """
        if self.is_leader:
            return True
        if not self.log.is_continued_by(snapshot, entries, after_term):
            return False
        if snapshot is not None and snapshot.index > self.log.commit:
            self._yield_to_term(snapshot.term)
            if self.log.matches(snapshot.index, snapshot.term):
                self.log.commit_to(snapshot.index)
            else:
                self._restore(snapshot)
        new = tuple(entry for entry in entries if entry.index > self.log.commit)
        if new:
            self._yield_to_term(new[-1].term)
            self.log.merge(new)
            self.log.commit_to(new[-1].index)
            self._load_configuration()
        if not self.is_member:
            if leader != NO_NODE:
                self._yield_to_term(term)
            self.leader = leader if leader != self.node_id else NO_NODE
        return True

    def on_peer_unreachable(self, peer: int) -> None:
        """Messages to the peer were lost: probe it instead of pipelining."""
        if self.replication is not None:
            self.replication.on_peer_unreachable(peer)

    def has_ready(self) -> bool:
        return bool(
            self._immediate
            or self._messages
            or self._pending_snapshot
            or self.log.stable < self.log.last_index
            or self._term_and_vote() != self._durable_term_and_vote
            or self.log.applied < min(self.log.commit, self.log.stable)
            or self._reads_reported < self._reads.confirmed
        )

    def take_immediate_messages(self) -> tuple[m.AnyMessage, ...]:
        """Take the messages that need not wait for a write, such as heartbeats."""
        messages = tuple(self._immediate)
        self._immediate.clear()
        return messages

    def ready(self) -> Ready:
        """Take the outstanding work. Call `persisted` with it before the next `ready`."""
        writes = self._pending_snapshot is not None or self.log.stable < self.log.last_index
        ready = Ready(
            immediate_messages=self.take_immediate_messages(),
            snapshot=self._pending_snapshot,
            entries=self.log.unstable(),
            hard_state=self._hard_state()
            if writes or self._term_and_vote() != self._durable_term_and_vote
            else None,
            messages=tuple(self._messages),
            committed=self.log.unapplied(),
            reads=self._reads.confirmed,
        )
        self._reads_reported = self._reads.confirmed
        self._messages.clear()
        self._pending_snapshot = None
        self._durable_term_and_vote = self._term_and_vote()
        if ready.committed:
            self.log.applied = ready.committed[-1].index
        return ready

    def persisted(self, ready: Ready) -> None:
        """The snapshot, entries and hard state of `ready` are durable."""
        if ready.entries:
            self.log.persisted(ready.entries[-1])
        if ready.hard_state and self.role is Role.CANDIDATE and ready.hard_state.term == self.term:
            self._count_vote(self.node_id, True)
        if self.replication is not None:
            self.replication.on_persisted(self.log.stable)
            self._advance_commit(self.replication)

    def compact(self, snapshot: Snapshot, keep: int) -> None:
        """A snapshot of applied state is durable: drop the entries before it, except the last `keep`."""
        self.log.compact(snapshot, keep)

    def check(self) -> None:
        """Check the invariants. Tests and the simulator call this after each event."""
        self.log.check()
        require(self._durable_term_and_vote[0] <= self.term, "the term went back")
        require(self.is_leader == (self.replication is not None), "only a leader tracks followers")
        require(not self.is_leader or self.leader == self.node_id, "a leader knows itself as the leader")
        newest = self.log.configuration
        require(
            newest is None or newest[1] == self.configuration,
            "the newest configuration of the log is in effect",
        )
        if self.replication is not None:
            tracked, members = self.replication.progress.keys(), self.configuration.members.keys()
            require(tracked == members, "a leader tracks all members, and no others")

    # --- messages

    @safeguard("appends from older terms are refused")
    def step(self, message: m.AnyMessage) -> None:
        if message.to != self.node_id or message.sender == self.node_id:
            return
        if isinstance(message, m.VoteRequest | m.Heartbeat):
            check_remembered(message, self.term, self.voted_for)
        self._peer_terms.note(message)
        if message.term > self.term and not self._accept_newer_term(message):
            return
        if message.term < self.term:
            self._reply_older_term(message)
            return
        match message:
            case m.VoteRequest():
                self._on_vote_request(message)
            case m.VoteReply():
                self._on_vote_reply(message)
            case m.Append():
                self._on_append(message)
            case m.Heartbeat():
                self._on_heartbeat(message)
            case m.SnapshotChunk():
                self._on_snapshot_chunk(message)
            case m.AppendReply():
                self._on_append_reply(message)
            case m.HeartbeatReply() | m.SnapshotReply():
                if self.replication is not None:
                    self.replication.on_reply(message)
            case m.TimeoutNow():
                self.campaign(transfer=True)

    def _accept_newer_term(self, message: m.AnyMessage) -> bool:
        """Adopt the message's newer term, except from a pre-vote. Returns False to ignore the message."""
        if isinstance(message, m.VoteRequest):
            if not message.transfer and self.has_recent_leader and message.sender != self.leader:
                return False
            if message.pre_vote:
                return True
        if isinstance(message, m.VoteReply) and message.pre_vote and message.granted:
            return True
        from_leader = isinstance(message, m.Append | m.Heartbeat | m.SnapshotChunk)
        self._become_follower(message.term, message.sender if from_leader else NO_NODE)
        return True

    def _reply_older_term(self, message: m.AnyMessage) -> None:
        """Send the current term to a leader or candidate of an older one, which could not learn it otherwise:
        pre-vote keeps this node from campaigning."""
        if isinstance(message, m.Append | m.Heartbeat | m.SnapshotChunk):
            self._reply(m.HeartbeatReply(term=self.term, sender=self.node_id, to=message.sender))
        elif isinstance(message, m.VoteRequest):
            self._reply_vote(message, granted=False)

    def _on_vote_request(self, request: m.VoteRequest) -> None:
        can_vote = self.voted_for == request.sender or (self.voted_for == NO_NODE and self.leader == NO_NODE)
        can_vote = can_vote or (request.pre_vote and request.term > self.term)
        granted = can_vote and self.log.is_candidate_up_to_date(request.last_index, request.last_term)
        if granted and not request.pre_vote:
            self.voted_for = request.sender
            self._election_timer.restart()
        self._reply_vote(request, granted)

    def _reply_vote(self, request: m.VoteRequest, granted: bool) -> None:
        term = request.term if granted else self.term
        reply = m.VoteReply(
            term=term, sender=self.node_id, to=request.sender, granted=granted, pre_vote=request.pre_vote
        )
        self._reply(reply)

    def _on_vote_reply(self, reply: m.VoteReply) -> None:
        role = Role.PRE_CANDIDATE if reply.pre_vote else Role.CANDIDATE
        if self.role is role and (not reply.pre_vote or not reply.granted or reply.term == self.term + 1):
            self._count_vote(reply.sender, reply.granted)

    @safeguard("an append must match the previous entry's term")
    def _on_append(self, append: m.Append) -> None:
        self._follow(append.sender)
        if append.prev_index < self.log.commit:
            self._reply_accepted(append.sender, self.log.commit)
        elif self.log.matches(append.prev_index, append.prev_term):
            self.log.merge(append.entries)
            self._load_configuration()
            last = append.prev_index + len(append.entries)
            self.log.commit_to(min(append.commit, last))
            self._reply_accepted(append.sender, last)
        else:
            index, term = self.log.find_conflict_by_term(append.prev_index, append.prev_term)
            self._reply(
                m.AppendReply(
                    term=self.term,
                    sender=self.node_id,
                    to=append.sender,
                    accepted=False,
                    refused_index=append.prev_index,
                    hint_index=index,
                    hint_term=term,
                )
            )

    def _on_heartbeat(self, heartbeat: m.Heartbeat) -> None:
        self.log.check_acknowledged(heartbeat.commit)
        self._follow(heartbeat.sender)
        self.log.commit_to(heartbeat.commit)
        self._reply(
            m.HeartbeatReply(term=self.term, sender=self.node_id, to=heartbeat.sender, read=heartbeat.read)
        )

    def _on_snapshot_chunk(self, chunk: m.SnapshotChunk) -> None:
        """Collect the chunks. The last one installs the snapshot and is acknowledged like an append."""
        self._follow(chunk.sender)
        if chunk.index <= self.log.commit:
            self._reply_accepted(chunk.sender, self.log.commit)
            return
        if self.log.matches(chunk.index, chunk.snapshot_term):
            # The log covers the snapshot, and may hold more acknowledged entries, which must stay (7).
            self.log.commit_to(chunk.index)
            self._reply_accepted(chunk.sender, chunk.index)
            return
        snapshot = self._incoming.add(chunk)
        if snapshot is not None:
            self._restore(snapshot)
            self._reply_accepted(chunk.sender, chunk.index)
            return
        held = self._incoming.received(chunk)
        reply = m.SnapshotReply(
            term=self.term, sender=self.node_id, to=chunk.sender, index=chunk.index, next_offset=held
        )
        self._reply(reply)

    def _on_append_reply(self, reply: m.AppendReply) -> None:
        if self.replication is not None and self.replication.on_append_reply(reply):
            self._advance_commit(self.replication)
        if self.replication is not None and reply.accepted and reply.sender in self.replication.progress:
            self.replication.send_appends(reply.sender)
            self._finish_transfer()

    def _restore(self, snapshot: Snapshot) -> None:
        self._pending_snapshot = snapshot
        self.log.restore(snapshot)
        self._load_configuration()

    # --- roles

    def _yield_to_term(self, term: int) -> None:
        """Another node leads or led in this term, so a campaign of this node is obsolete."""
        self._led_term = max(term, self._led_term)
        if term > self.term or self.role is not Role.FOLLOWER:
            self._become_follower(max(term, self.term), NO_NODE)

    def _become_follower(self, term: int, leader: int) -> None:
        if term > self.term:
            self.term, self.voted_for = term, NO_NODE
        self.role, self.leader = Role.FOLLOWER, leader
        self._reset_role_state()

    def _become_pre_candidate(self) -> None:
        """A pre-vote leaves term and vote as they are."""
        self.role, self.leader = Role.PRE_CANDIDATE, NO_NODE
        self._reset_role_state()
        self._request_votes(self.term + 1, pre_vote=True, transfer=False)
        self._count_vote(self.node_id, True)

    def _become_candidate(self, transfer: bool) -> None:
        """The node's own vote counts once it is durable (see `persisted`)."""
        self.term, self.voted_for = self.term + 1, self.node_id
        self.role, self.leader = Role.CANDIDATE, NO_NODE
        self._reset_role_state()
        self._request_votes(self.term, pre_vote=False, transfer=transfer)

    def _become_leader(self) -> None:
        self.role, self.leader, self._led_term = Role.LEADER, self.node_id, self.term
        self._reset_role_state()
        self.replication = Replication(
            self.node_id,
            self.configuration,
            self.term,
            self.log,
            self._settings,
            self._immediate.append,
            self._reads,
            self._peer_terms,
        )
        self._append(self._first_payload)
        self._replicate()

    def _reset_role_state(self) -> None:
        self._votes, self.replication, self.transfer_target = {}, None, NO_NODE
        self._election_timer.reset(self.term - self._led_term)

    def _follow(self, leader: int) -> None:
        """A message of this term's leader arrived."""
        require(not self.is_leader, f"two leaders in term {self.term}")
        self._election_timer.on_leader_contact()
        if self.role is not Role.FOLLOWER:
            self._become_follower(self.term, leader)
        self.leader = leader
        if self._led_term != self.term:
            self._led_term = self.term
            self._election_timer.reset(0)

    def _load_configuration(self) -> None:
        """Adopt the newest configuration in the log, committed or not; truncation restores the one before."""
        before = self.configuration
        self.configuration_index, self.configuration = self.log.configuration or (0, self._initial)
        if self.configuration is not before:
            self._peer_terms.forget_replaced(before, self.configuration)
        self.voters = frozenset(self.configuration.voters)
        if self.replication is not None:
            self.replication.configure(self.configuration)

    def _may_campaign(self) -> bool:
        """A node that an uncommitted change removes may be the only one with that entry. It must be able to
        campaign, without counting its own vote, or no node could win (thesis 4.2.2)."""
        if self.node_id in self.voters or self.configuration_index <= self.log.commit:
            return self.node_id in self.voters
        before = self.log.configuration_at(self.configuration_index - 1) or self._initial
        return self.node_id in before.voters

    def _request_votes(self, term: int, *, pre_vote: bool, transfer: bool) -> None:
        for voter in sorted(self.voters - {self.node_id}):
            self._messages.append(
                m.VoteRequest(
                    term=term,
                    sender=self.node_id,
                    to=voter,
                    last_index=self.log.last_index,
                    last_term=self.log.last_term,
                    pre_vote=pre_vote,
                    transfer=transfer,
                    known_term=self._peer_terms.term_of(voter),
                    known_vote=self._peer_terms.vote_of(voter),
                )
            )

    def _count_vote(self, voter: int, granted: bool) -> None:
        self._votes.setdefault(voter, granted)
        result = count_votes(self.voters, self._votes)
        if result is VoteResult.LOST:
            self._become_follower(self.term, NO_NODE)
        elif result is VoteResult.WON and self.role is Role.PRE_CANDIDATE:
            self._become_candidate(transfer=False)
        elif result is VoteResult.WON:
            self._become_leader()

    # --- leader

    def _tick_leader(self, replication: Replication) -> None:
        """Check-quorum (thesis 6.2): a leader steps down if no majority responds within an election
        timeout."""
        replication.tick()
        if self._election_timer.quorum_check_is_due:
            self._election_timer.restart()
            self.transfer_target = NO_NODE
            if not replication.majority_is_active():
                self._become_follower(self.term, NO_NODE)
                return
        if replication.since_heartbeat >= self._settings.heartbeat_ticks:
            replication.broadcast_heartbeats()

    def _append(self, payload: bytes, kind: int = PAYLOAD) -> int:
        index = self.log.last_index + 1
        self.log.append(Entry(self.term, index, payload, kind))
        return index

    def _replicate(self) -> None:
        if self.replication is not None:
            self.replication.broadcast_appends()

    def _advance_commit(self, replication: Replication) -> None:
        """A majority commits only entries of this term, and with them all before (thesis 3.6.2)."""
        index = replication.majority_index()
        if self.log.matches(index, self.term) and self.log.commit_to(index):
            replication.broadcast_commit()
            self._step_down_if_removed(replication)

    def _step_down_if_removed(self, replication: Replication) -> None:
        """A leader that is removed stays the leader until its removal is committed (thesis 4.2.2)."""
        if self.node_id in self.voters or self.configuration_index > self.log.commit:
            return
        target = replication.most_up_to_date()
        if target is not None:
            self._immediate.append(m.TimeoutNow(term=self.term, sender=self.node_id, to=target))
        self._become_follower(self.term, NO_NODE)

    def _finish_transfer(self) -> None:
        if self.replication is not None and self.replication.holds_entire_log(self.transfer_target):
            self._immediate.append(m.TimeoutNow(term=self.term, sender=self.node_id, to=self.transfer_target))

    # --- outgoing

    def _term_and_vote(self) -> tuple[int, int]:
        """Must be durable before a reply leaves. The commit index need not be, but is written with them."""
        return self.term, self.voted_for

    def _hard_state(self) -> HardState:
        return HardState(self.term, self.voted_for, self.log.commit)

    def _reply_accepted(self, leader: int, match_index: int) -> None:
        reply = m.AppendReply(
            term=self.term, sender=self.node_id, to=leader, accepted=True, match_index=match_index
        )
        self._reply(reply)

    def _reply(self, message: m.AnyMessage) -> None:
        if len(self._messages) < PENDING_REPLIES_MAX:
            self._messages.append(message)


class ElectionTimer:
    """Counts the ticks that a node waits for a leader before it campaigns.

    The timeout is drawn at random after each change of role, and when a term has a leader, so that nodes
    rarely campaign at the same time (thesis 3.4). Contact with a leader or a granted vote restarts the timer.
    Each election without a winner doubles the longest timeout: if messages and fsyncs take longer than a
    campaign, it never succeeds.
    """

    __slots__ = ("_leader_died", "_rng", "_settings", "_ticks", "_timeout")

    def __init__(self, settings: RaftSettings, rng: Rng) -> None:
        self._settings, self._rng = settings, rng
        self._leader_died = False
        self.reset(0)

    @property
    def has_expired(self) -> bool:
        return self._ticks >= self._timeout

    @property
    def leader_is_recent(self) -> bool:
        """Whether the timer restarted less than the shortest election timeout ago."""
        return self._ticks < self._settings.election_ticks

    @property
    def quorum_check_is_due(self) -> bool:
        """Whether the leader must check again that a majority responds (thesis 6.2)."""
        return self._ticks >= self._settings.check_quorum_ticks

    def tick(self) -> None:
        self._ticks += 1

    def restart(self) -> None:
        self._ticks = 0

    def on_leader_contact(self) -> None:
        self._ticks, self._leader_died = 0, False

    def reset(self, lost_elections: int) -> None:
        """Draw a new timeout. It is short after a leader's death, because a pre-vote fails while other nodes
        have not noticed the death yet. `lost_elections`: terms since the last leader."""
        shortest = RANK_TICKS if self._leader_died else self._settings.election_ticks
        longest = BACKOFF_MAX * 2 * self._settings.election_ticks
        doublings = min(lost_elections, longest.bit_length())
        self._ticks = 0
        self._timeout = self._rng.randrange(shortest, min(2 * shortest << doublings, longest))

    def on_leader_death(self) -> None:
        """The leader's process has died: use short timeouts until the next leader contact."""
        self._leader_died = True

    def delay_for_rank(self, rank: int) -> None:
        """Campaign after `rank` other survivors have had their turn."""
        self._ticks, self._timeout = 0, RANK_TICKS * rank
