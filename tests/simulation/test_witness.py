"""What the witness takes for a leader without its quorum, and what not."""

from dataclasses import dataclass
from typing import cast

from simulator.witness import UNHEARD_S, QuorumWitness

from tierlog.metadata.raft import messages as m
from tierlog.metadata.raft.core import RaftCore


@dataclass
class Leader:
    """As much of a core as is looked at."""

    voters: frozenset[int]
    configuration_index: int = 1
    node_id: int = 1
    term: int = 1
    is_leader: bool = True

    def check(self) -> None:
        return


class Watched:
    """Node 1 leads; it is looked at every half second."""

    def __init__(self, voters: set[int]) -> None:
        self.now = 0.0
        self.violations: list[BaseException] = []
        self.leader = Leader(frozenset(voters))
        self._witness = QuorumWitness(lambda: self.now, lambda node: 3, self.violations, lambda voter: None)

    def changes(self, voters: set[int]) -> None:
        self.leader.voters = frozenset(voters)
        self.leader.configuration_index += 1

    def lead(self, seconds: float, *answering: int) -> bool:
        """Whether that is right."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.5
            for node in answering:
                self._witness.arrives(m.HeartbeatReply(term=1, sender=node, to=1))
            self._witness.check(cast(RaftCore, self.leader), paused=False)
        return not self.violations


def test_a_leader_that_nobody_answers_should_have_stepped_down():
    watched = Watched({1, 2, 3})
    assert watched.lead(10.0, 2)
    assert not watched.lead(UNHEARD_S + 0.5)


def test_a_configuration_without_those_who_answered_is_given_its_time():
    """Seed 3492: nothing was heard of node 3 when node 2, which had answered all along, was let go."""
    watched = Watched({1, 2, 3})
    assert watched.lead(10.0, 2)
    watched.changes({1, 3})
    assert watched.lead(2.0)
    assert not watched.lead(UNHEARD_S)


def test_a_leader_that_removes_itself_counts_the_others_alone():
    watched = Watched({1, 2})
    watched.changes({2})
    assert watched.lead(10.0, 2)
    assert not watched.lead(UNHEARD_S + 0.5)
