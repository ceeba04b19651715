"""Group specification: what an assignor sees of a consumer group.

As in Kafka, an assignor computes the target assignment of the whole group from the subscriptions of the
members, the topics, and the present target assignment. It is a pure function: the same specification gives
the same assignment on every broker.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

Partitions = Mapping[UUID, frozenset[int]]
"""Topic id -> partitions."""
Assignment = dict[str, dict[UUID, frozenset[int]]]
"""Member id -> partitions. A member without partitions is in it too. No set of partitions is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSpec:
    """`topic_ids`: the subscribed topics that exist. `current`: the member's part of the present target
    assignment. It may name topics that are gone or no longer subscribed."""

    topic_ids: frozenset[UUID]
    current: Partitions
    instance_id: str | None = None
    rack_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """`racks`: the racks of a partition's replicas; None if they are not known."""

    name: str
    partitions: int
    racks: Callable[[int], frozenset[str]] | None = None


class Assignor(Protocol):
    """`name` is what a member names as its server assignor, and `group.consumer.assignors` lists."""

    @property
    def name(self) -> str: ...

    def assign(self, members: Mapping[str, MemberSpec], topics: Mapping[UUID, TopicSpec]) -> Assignment:
        """Assign each partition of `topics` to exactly one of its subscribers, if it has any. Topics that are
        not in `topics` are ignored."""
        ...
