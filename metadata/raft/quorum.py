"""Quorum arithmetic: majorities of votes and of match indexes."""

from collections.abc import Collection, Mapping, Set
from enum import Enum

from tierlog.base.safeguards import safeguard


class VoteResult(Enum):
    WON = "won"
    LOST = "lost"
    PENDING = "pending"


def majority(voters: Collection[int]) -> int:
    return len(voters) // 2 + 1


@safeguard("pre-vote")
def needs_pre_vote(node_id: int, voters: Set[int]) -> bool:
    """The only voter asks no other node (thesis 9.6)."""
    return voters != {node_id}


def count_votes(voters: Collection[int], votes: Mapping[int, bool]) -> VoteResult:
    """`votes`: voter -> granted, without voters that have not replied. Only votes of `voters` count."""
    granted = sum(votes.get(voter, False) for voter in voters)
    refused = sum(not votes[voter] for voter in voters if voter in votes)
    if granted >= majority(voters):
        return VoteResult.WON
    return VoteResult.LOST if len(voters) - refused < majority(voters) else VoteResult.PENDING


def committed_index(voters: Collection[int], match: Mapping[int, int]) -> int:
    """The highest index that a majority has on disk. `match`: voter -> index."""
    return sorted((match.get(voter, 0) for voter in voters), reverse=True)[majority(voters) - 1]
