"""How a member sees the quorum, and when a leader last heard of the others: for operators and DescribeQuorum.

Nothing is decided by it. Times are of the wall clock of the node that tells them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

import msgspec

OBSERVER_MS = 300_000  # a broker that has not been heard of for so long is not told any more, as in Kafka


class PeerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a leader knows of a member, or of a broker that only follows. `lag`: entries that it is not known
    to hold. What is None is not known: always, if this node does not lead."""

    node_id: int
    url: str
    voter: bool
    directory_id: UUID | None = None
    match_index: int | None = None
    lag: int | None = None
    caught_up: bool | None = None
    last_heard_ms: int | None = None
    last_caught_up_ms: int | None = None


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator sees of a member of the quorum. `observers`: brokers that are no members."""

    node_id: int
    cluster_id: str
    directory_id: UUID
    role: str
    leader: int
    term: int
    applied_index: int
    commit_index: int
    last_index: int
    snapshot_index: int
    voters: dict[int, str]
    learners: dict[int, str]
    members: tuple[PeerStatus, ...]
    observers: tuple[PeerStatus, ...] = ()

    @property
    def leads(self) -> bool:
        return self.leader == self.node_id


@dataclass(slots=True)
class Heard:
    """`leader_end`: the last index of the leader's log when it was heard of."""

    index: int
    heard_ms: int
    leader_end: int
    caught_up_ms: int | None


class FollowerContacts:
    """When the leader of a term heard of each follower, and when that one last held all there was."""

    def __init__(self) -> None:
        self._term = -1
        self._of: dict[int, Heard] = {}

    def note(self, term: int, node_id: int, index: int, leader_end: int, now_ms: int) -> None:
        """It holds everything up to `index`. To hold now what there was last time is to have caught up then
        (as Kafka's leaders judge their followers)."""
        if term != self._term:
            self._term, self._of = term, {}
        before = self._of.get(node_id)
        caught_up_ms = before.caught_up_ms if before is not None else None
        if index >= leader_end:
            caught_up_ms = now_ms
        elif before is not None and index >= before.leader_end:
            caught_up_ms = before.heard_ms
        self._of[node_id] = Heard(index, now_ms, leader_end, caught_up_ms)

    def of(self, term: int, node_id: int) -> Heard | None:
        return self._of.get(node_id) if term == self._term else None

    def lately(self, term: int, node_ids: Iterable[int], now_ms: int) -> dict[int, Heard]:
        """Of these, who was heard of."""
        found = {node_id: self.of(term, node_id) for node_id in node_ids}
        return {
            node_id: heard
            for node_id, heard in found.items()
            if heard is not None and now_ms - heard.heard_ms < OBSERVER_MS
        }
