"""Tests of witnesses: a leader without its quorum, and a topic that a loss of power could damage."""

from dataclasses import dataclass
from typing import cast
from uuid import UUID

import pytest
from simulator.partitions import PartitionWitness
from simulator.witness import UNANSWERED_S, QuorumWitness, Violation

from tierlog.metadata.evolve import apply_entry
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.raft import messages as m
from tierlog.metadata.raft.core import RaftCore
from tierlog.metadata.records import ConfigRecord, ConfigScope, TopicCreated


@dataclass
class Leader:
    """The part of a core that the witness reads."""

    voters: frozenset[int]
    configuration_index: int = 1
    node_id: int = 1
    term: int = 1
    is_leader: bool = True

    def check(self) -> None:
        return


class Watched:
    """Node 1 is leader and is checked every half second."""

    def __init__(self, voters: set[int]) -> None:
        self.now = 0.0
        self.violations: list[BaseException] = []
        self.leader = Leader(frozenset(voters))
        self._witness = QuorumWitness(lambda: self.now, lambda node: 3, self.violations, lambda voter: None)

    def changes(self, voters: set[int]) -> None:
        self.leader.voters = frozenset(voters)
        self.leader.configuration_index += 1

    def lead(self, seconds: float, *answering: int) -> bool:
        """Returns whether no violation was found."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.5
            for node in answering:
                self._witness.on_receive(m.HeartbeatReply(term=1, sender=node, to=1))
            self._witness.check(cast(RaftCore, self.leader), paused=False)
        return not self.violations


def test_leader_without_responses_must_step_down():
    watched = Watched({1, 2, 3})
    assert watched.lead(10.0, 2)
    assert not watched.lead(UNANSWERED_S + 0.5)


def test_time_starts_again_with_a_new_configuration():
    """Seed 3492: node 3 had never responded when node 2, which had, was removed."""
    watched = Watched({1, 2, 3})
    assert watched.lead(10.0, 2)
    watched.changes({1, 3})
    assert watched.lead(2.0)
    assert not watched.lead(UNANSWERED_S)


def test_leader_that_removes_itself_counts_only_the_others():
    watched = Watched({1, 2})
    watched.changes({2})
    assert watched.lead(10.0, 2)
    assert not watched.lead(UNANSWERED_S + 0.5)


def test_power_of_all_nodes_may_not_fail_with_a_topic_that_is_not_flushed():
    """The topic of the guests was one, and seed 43 lost its committed records."""
    topic = TopicCreated(topic_id=UUID(int=1), name="guests")
    flushed = ConfigRecord(scope=ConfigScope.TOPIC, name="guests", key="flush.messages", value="1")
    witness = PartitionWitness("orders", 1, 2, {})
    image = apply_entry(ClusterImage(cluster_id="c"), 1, [topic])
    witness.on_published(image)
    with pytest.raises(Violation, match="guests without flush"):
        witness.check_flushed()
    witness.on_published(apply_entry(image, 2, [flushed]))
    witness.check_flushed()
