"""Quorum status: a member's view of the quorum, for operators and DescribeQuorum.

Nothing depends on it. Times are of the wall clock of the node that reports them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

import msgspec

OBSERVER_MS = 300_000  # a broker that was silent for so long is no longer listed, as in Kafka


class PeerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A leader's view of a member or observer. `lag`: entries that it is not known to hold. None: unknown,
    as always if the reporting node is not the leader."""

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
    """A member's view of the quorum. `observers`: brokers that are not members."""

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
    def is_leader(self) -> bool:
        return self.leader == self.node_id


class ObserverStatus(msgspec.Struct, frozen=True, kw_only=True):
    node_id: int
    cluster_id: str
    role: str
    leader: int
    applied_index: int
    voters: dict[int, str]


@dataclass(slots=True)
class Contact:
    """`leader_end`: the last index of the leader's log at the time of contact."""

    index: int
    contact_ms: int
    leader_end: int
    caught_up_ms: int | None


class FollowerContacts:
    """When each follower last contacted the leader of a term, and when it last was caught up."""

    def __init__(self) -> None:
        self._term = -1
        self._contacts: dict[int, Contact] = {}

    def record(self, term: int, node_id: int, index: int, leader_end: int, now_ms: int) -> None:
        """The follower holds everything up to `index`.

        If that reaches the leader's end of the previous contact, it was caught up then, as in Kafka.
        """
        if term != self._term:
            self._term, self._contacts = term, {}
        before = self._contacts.get(node_id)
        caught_up_ms = before.caught_up_ms if before is not None else None
        if index >= leader_end:
            caught_up_ms = now_ms
        elif before is not None and index >= before.leader_end:
            caught_up_ms = before.contact_ms
        self._contacts[node_id] = Contact(index, now_ms, leader_end, caught_up_ms)

    def get(self, term: int, node_id: int) -> Contact | None:
        return self._contacts.get(node_id) if term == self._term else None

    def recent(self, term: int, node_ids: Iterable[int], now_ms: int) -> dict[int, Contact]:
        """The contacts of these nodes that are younger than OBSERVER_MS."""
        contacts = {node_id: self.get(term, node_id) for node_id in node_ids}
        return {
            node_id: contact
            for node_id, contact in contacts.items()
            if contact is not None and now_ms - contact.contact_ms < OBSERVER_MS
        }
