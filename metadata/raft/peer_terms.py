"""Terms and votes of other members, as far as a node knows them: one that has forgotten them must stop.

A member persists its term and vote before it sends a message. If it later has an older term, or another
vote in that term, it has forgotten them and could vote twice in one term. Heartbeats and vote requests tell
it what their sender knows of it.
"""

from tierlog.base.types import InvariantViolation
from tierlog.metadata.raft import messages as m
from tierlog.metadata.raft.membership import Configuration


class PeerTerms:
    """Kept in memory, for members of the configuration. Terms are 0 where nothing is known."""

    __slots__ = ("_terms", "_votes")

    def __init__(self) -> None:
        self._terms: dict[int, int] = {}
        self._votes: dict[int, int] = {}

    def term_of(self, member: int) -> int:
        """The latest term of a message from the member."""
        return self._terms.get(member, 0)

    def vote_of(self, member: int) -> int:
        """The latest term in which the member voted for this node."""
        return self._votes.get(member, 0)

    def note(self, message: m.AnyMessage) -> None:
        """Record the sender's term and vote. A pre-vote is in a term that its sender has not persisted."""
        if isinstance(message, m.VoteRequest | m.VoteReply) and message.pre_vote:
            return
        self._terms[message.sender] = max(self.term_of(message.sender), message.term)
        if isinstance(message, m.VoteReply) and message.granted:
            self._votes[message.sender] = max(self.vote_of(message.sender), message.term)

    def forget_replaced(self, old: Configuration, new: Configuration) -> None:
        """Keep what is known of members that have not been added, removed or moved to another directory."""
        before, after = old.members, new.members
        for node in list(self._terms):
            stays = node in before and node in after
            if not stays or before[node].directory not in (None, after[node].directory):
                del self._terms[node]
                self._votes.pop(node, None)


def check_remembered(message: m.VoteRequest | m.Heartbeat, term: int, voted_for: int) -> None:
    """Raise InvariantViolation if this node has an older term, or another vote in its term, than the sender
    knows of it.
    """
    forgotten = message.known_term > term or (0 < message.known_vote == term and voted_for != message.sender)
    if forgotten:
        raise InvariantViolation(
            f"this voter is in term {term} and voted for node {voted_for}, but node {message.sender} knows "
            f"that it was in term {message.known_term} and voted for it in term {message.known_vote}: "
            "the metadata directory is an older copy, or its disk lost synced data. Remove it from the "
            "quorum, empty the directory and add it again (docs/runbooks/replace-node.md)"
        )
