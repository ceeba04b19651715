"""Group specification: what an assignor sees of a consumer group.

As in Kafka, an assignor computes the target assignment of the whole group from the subscriptions of the
members, the topics, and the present target assignment. It is a pure function: the same specification gives
the same assignment on every broker.
"""

from collections import defaultdict
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


def in_order(members: Mapping[str, MemberSpec]) -> list[str]:
    """Member ids in the order in which assignors serve them: static members by instance id, then the others
    by member id. A static member that returns with another member id keeps its place."""

    def place(member_id: str) -> tuple[bool, str, str]:
        instance_id = members[member_id].instance_id
        return instance_id is None, instance_id or "", member_id

    return sorted(members, key=place)


def subscribers(members: Mapping[str, MemberSpec]) -> dict[UUID, tuple[str, ...]]:
    """The subscribers of each topic, in order. Topics with equal subscribers share one tuple.

    Most groups have few different subscriptions. Members are therefore grouped by subscription first.
    """
    order = {member_id: place for place, member_id in enumerate(in_order(members))}
    alike: dict[frozenset[UUID], list[str]] = {}
    for member_id in order:
        alike.setdefault(members[member_id].topic_ids, []).append(member_id)
    parts: dict[UUID, list[int]] = defaultdict(list)
    for number, topic_ids in enumerate(alike):
        for topic_id in topic_ids:
            parts[topic_id].append(number)
    lists = list(alike.values())
    joined: dict[tuple[int, ...], tuple[str, ...]] = {}
    for numbers in set(map(tuple, parts.values())):
        each = (member_id for number in numbers for member_id in lists[number])
        joined[numbers] = tuple(sorted(each, key=order.__getitem__))
    return {topic_id: joined[tuple(numbers)] for topic_id, numbers in parts.items()}
