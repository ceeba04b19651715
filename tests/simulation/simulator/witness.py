"""Invariants of the quorum's messages, checked with every message.

The witness sees messages alone, so it also detects what a node has forgotten: if a crash undoes a vote or a
term, the node's next message shows it, long before any entry is lost.
"""

from collections import defaultdict
from collections.abc import Callable

from tierlog.metadata.raft import messages as m
from tierlog.metadata.raft.core import RaftCore
from tierlog.metadata.raft.quorum import majority

UNANSWERED_S = 3.0
"""A leader without responses from a majority for this long must have stepped down (check-quorum, 1 to 2
s with the Raft settings of the quorum runs)."""


class Violation(AssertionError):
    """A guarantee or an invariant was broken. The seed replays it."""


class QuorumWitness:
    """`voters` gives the number of voters that a node knows. `on_vote` is called for each vote."""

    def __init__(
        self,
        now: Callable[[], float],
        voters: Callable[[int], int],
        violations: list[BaseException],
        on_vote: Callable[[int], None],
        unanswered_s: float = UNANSWERED_S,
    ) -> None:
        self._now, self._voters, self._violations = now, voters, violations
        self._on_vote, self._unanswered_s = on_vote, unanswered_s
        self._terms: defaultdict[int, int] = defaultdict(int)
        self._leaders: dict[int, int] = {}  # term -> node
        self._votes: dict[tuple[int, int], int] = {}  # (voter, term) -> candidate
        self._pre_votes: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        """(candidate, term) -> nodes that granted a pre-vote."""
        self._answered_at: dict[tuple[int, int], float] = {}  # (leader, member) -> time of the last response
        self._leader_since: dict[int, tuple[tuple[int, int], float]] = {}
        """Node -> ((term, index of its configuration), since). The time starts again with each
        configuration, because the responding voters may have been removed. A leader cannot evade the check
        by changes: a change is refused until a majority has committed the one before."""

    def on_send(self, message: m.AnyMessage) -> None:
        """Check a message that is sent."""
        match message:
            case m.VoteRequest(pre_vote=True) | m.VoteReply(pre_vote=True):
                return
            case m.VoteReply(granted=True):
                self._record_vote(message.sender, message.term, message.to)
            case m.VoteRequest():
                self._record_vote(message.sender, message.term, message.sender)
                pre_votes = self._pre_votes[message.sender, message.term]
                needed = self._voters(message.sender) // 2 + 1
                if not message.transfer and len(pre_votes) + 1 < needed:
                    self._violated(f"node {message.sender} stands in term {message.term} without pre-votes")
            case m.Append() | m.Heartbeat() | m.SnapshotChunk():
                if self._leaders.setdefault(message.term, message.sender) != message.sender:
                    self._violated(f"term {message.term} has two leaders")
            case m.AppendReply(accepted=True) if self._leaders.get(message.term) != message.to:
                self._violated(f"node {message.sender} accepted an append that its leader did not send")
        if message.term < self._terms[message.sender]:
            self._violated(f"node {message.sender} went back from term {self._terms[message.sender]}")
        self._terms[message.sender] = message.term

    def on_receive(self, message: m.AnyMessage) -> None:
        match message:
            case m.VoteReply(pre_vote=True, granted=True):
                self._pre_votes[message.to, message.term].add(message.sender)
            case m.AppendReply() | m.HeartbeatReply() | m.SnapshotReply():
                self._answered_at[message.to, message.sender] = self._now()

    def on_start(self, core: RaftCore) -> None:
        """A new process has read its disk: it must have the term and vote of the process before it."""
        node = core.node_id
        vote = self._votes.get((node, core.term))
        if core.term < self._terms[node] or (vote is not None and vote != core.voted_for):
            self._violated(f"node {node} has forgotten what it promised in term {self._terms[node]}")

    def check(self, core: RaftCore, *, paused: bool) -> None:
        """Called periodically for each live node."""
        core.check()
        node, now = core.node_id, self._now()
        if paused or not core.is_leader:
            self._leader_since.pop(node, None)
            return
        leads = (core.term, core.configuration_index)
        if self._leader_since.setdefault(node, (leads, now))[0] != leads:
            self._leader_since[node] = (leads, now)
        since = self._leader_since[node][1]
        last = {v: now if v == node else self._answered_at.get((node, v), since) for v in core.voters}
        answered = sum(now - at < self._unanswered_s for at in last.values())
        if now - since >= self._unanswered_s and answered < majority(core.voters):
            self._violated(f"node {node} leads, and no majority has answered it for {self._unanswered_s} s")

    def _record_vote(self, voter: int, term: int, candidate: int) -> None:
        if self._votes.setdefault((voter, term), candidate) != candidate:
            self._violated(f"node {voter} voted twice in term {term}")
        self._on_vote(voter)

    def _violated(self, what: str) -> None:
        self._violations.append(Violation(what))
