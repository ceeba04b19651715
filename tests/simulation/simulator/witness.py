"""What members of the quorum were heard to say, and what must never be said: checked with every message.

It knows the words alone, so it also sees what a node has forgotten: a vote or a term that a crash took back
shows as soon as the node speaks again, long before anything is lost by it.
"""

from collections import defaultdict
from collections.abc import Callable

from tierlog.metadata.raft import messages as m
from tierlog.metadata.raft.core import RaftCore
from tierlog.metadata.raft.quorum import majority

UNHEARD_S = 3.0
"""A leader that no majority has answered for so long should have stepped down (check-quorum, 1 to 2 s)."""


class Violation(AssertionError):
    """A promise was broken; the seed says how to see it again."""


class QuorumWitness:
    """`voters`: how many there are, as a node knows it. `voted`: is told of each vote."""

    def __init__(
        self,
        now: Callable[[], float],
        voters: Callable[[int], int],
        violations: list[BaseException],
        voted: Callable[[int], None],
    ) -> None:
        self._now, self._voters, self._violations = now, voters, violations
        self._voted = voted
        self._terms: defaultdict[int, int] = defaultdict(int)
        self._leaders: dict[int, int] = {}  # term -> who
        self._votes: dict[tuple[int, int], int] = {}  # (voter, term) -> candidate
        self._encouraged: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        """(candidate, term) -> who said that it could win."""
        self._heard: dict[tuple[int, int], float] = {}  # (leader, member) -> when it answered last
        self._leads_since: dict[int, tuple[tuple[int, int], float]] = {}
        """Node -> ((term, index of its configuration), since). Each configuration is asked anew: one that
        lets go of who answered says nothing of the time before it. No leader lives on changes: the next is
        refused until a majority has committed the one before."""

    def leaves(self, message: m.AnyMessage) -> None:
        """A message is sent."""
        match message:
            case m.VoteRequest(pre_vote=True) | m.VoteReply(pre_vote=True):
                return
            case m.VoteReply(granted=True):
                self._votes_for(message.sender, message.term, message.to)
            case m.VoteRequest():
                self._votes_for(message.sender, message.term, message.sender)
                encouraged = self._encouraged[message.sender, message.term]
                enough = self._voters(message.sender) // 2 + 1
                if not message.transfer and len(encouraged) + 1 < enough:
                    self._broken(f"node {message.sender} stands in term {message.term}, unasked for")
            case m.Append() | m.Heartbeat() | m.SnapshotChunk():
                if self._leaders.setdefault(message.term, message.sender) != message.sender:
                    self._broken(f"term {message.term} has two leaders")
            case m.AppendReply(accepted=True) if self._leaders.get(message.term) != message.to:
                self._broken(f"node {message.sender} took in what the leader of its term did not send")
        if message.term < self._terms[message.sender]:
            self._broken(f"node {message.sender} went back from term {self._terms[message.sender]}")
        self._terms[message.sender] = message.term

    def arrives(self, message: m.AnyMessage) -> None:
        match message:
            case m.VoteReply(pre_vote=True, granted=True):
                self._encouraged[message.to, message.term].add(message.sender)
            case m.AppendReply() | m.HeartbeatReply() | m.SnapshotReply():
                self._heard[message.to, message.sender] = self._now()

    def wakes(self, core: RaftCore) -> None:
        """A new process has read its disk: what the one before it promised is there."""
        node = core.node_id
        vote = self._votes.get((node, core.term))
        if core.term < self._terms[node] or (vote is not None and vote != core.voted_for):
            self._broken(f"node {node} has forgotten what it promised in term {self._terms[node]}")

    def check(self, core: RaftCore, *, paused: bool) -> None:
        """Now and then, of each live node."""
        core.check()
        node, now = core.node_id, self._now()
        if paused or not core.is_leader:
            self._leads_since.pop(node, None)
            return
        leads = (core.term, core.configuration_index)
        if self._leads_since.setdefault(node, (leads, now))[0] != leads:
            self._leads_since[node] = (leads, now)
        since = self._leads_since[node][1]
        heard = sum(v == node or now - self._heard.get((node, v), since) < UNHEARD_S for v in core.voters)
        if now - since >= UNHEARD_S and heard < majority(core.voters):
            self._broken(f"node {node} leads, and no majority has answered it for {UNHEARD_S} s")

    def _votes_for(self, voter: int, term: int, candidate: int) -> None:
        if self._votes.setdefault((voter, term), candidate) != candidate:
            self._broken(f"node {voter} voted twice in term {term}")
        self._voted(voter)

    def _broken(self, what: str) -> None:
        self._violations.append(Violation(what))
