"""Uniform assignor: spreads partitions evenly, and moves as few as possible.

- Balance: no partition could move from its member to a subscriber with two partitions less. Members with
  equal subscriptions therefore differ by at most one partition.
- Stickiness: a member keeps what it has, unless balance takes a partition away. If all members have the same
  subscription, the number of partitions that move is the smallest possible.
- Racks: a member gives up partitions without a replica in its rack first. Unassigned partitions go to members
  in a rack of theirs. Neither changes how many partitions a member has, or how many move.

Topics with the same subscribers form one pool, whose partitions are interchangeable for balance. Members are
therefore only counted at first: how many partitions of a pool a member keeps, and how many unassigned ones it
claims. Which ones these are is decided at the end.
"""

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from uuid import UUID

from tierlog.broker.groups.core.consumer.group_spec import (
    Assignment,
    MemberSpec,
    TopicSpec,
    in_order,
    subscribers,
)

TopicPartition = tuple[int, int]
"""The topic's place in the order of names, and the partition."""


class UniformAssignor:
    name = "uniform"

    def assign(self, members: Mapping[str, MemberSpec], topics: Mapping[UUID, TopicSpec]) -> Assignment:
        draft = _Draft(members, topics)
        draft.keep_current()
        draft.claim_unassigned()
        draft.balance()
        draft.choose_partitions()
        return draft.assignment()


@dataclass(slots=True, eq=False)
class _Member:
    """`current`: its present partitions that it may keep, of which it keeps the first `keeps`. `claims`: how
    many others it gets."""

    order: int
    member_id: str
    rack_id: str | None
    load: int = 0
    pools: "list[_Pool]" = field(default_factory=list)
    current: "dict[_Pool, list[TopicPartition]]" = field(default_factory=dict)
    keeps: "dict[_Pool, int]" = field(default_factory=dict)
    claims: "dict[_Pool, int]" = field(default_factory=dict)
    received: list[TopicPartition] = field(default_factory=list)

    def add(self, pool: "_Pool") -> None:
        """One partition more. A member that gave one up takes it back."""
        self.load += 1
        keeps = self.keeps.get(pool, 0)
        if keeps < len(self.current.get(pool, ())):
            self.keeps[pool] = keeps + 1
        else:
            self.claims[pool] = self.claims.get(pool, 0) + 1

    def remove(self, pool: "_Pool") -> None:
        """One partition less, preferably one that the member does not have yet."""
        self.load -= 1
        if self.claims.get(pool):
            self.claims[pool] -= 1
        else:
            self.keeps[pool] -= 1

    def has_any(self, pool: "_Pool") -> bool:
        return bool(self.keeps.get(pool) or self.claims.get(pool))


@dataclass(slots=True, eq=False)
class _Pool:
    """Topics with the same subscribers. `least`: a heap of (load, order) of its subscribers. A load in it may
    be out of date, which shows when it comes to the top."""

    index: int
    subscribers: list[_Member]
    unassigned: list[TopicPartition] = field(default_factory=list)
    least: list[tuple[int, int]] = field(default_factory=list)

    def least_loaded(self, members: list[_Member]) -> _Member:
        while True:
            load, order = self.least[0]
            member = members[order]
            if load == member.load:
                return member
            heapreplace(self.least, (member.load, order))


class _Draft:
    def __init__(self, members: Mapping[str, MemberSpec], topics: Mapping[UUID, TopicSpec]) -> None:
        self._specs = members
        self._topic_ids = sorted(topics, key=lambda each: (topics[each].name, each))
        self._topics = [topics[each] for each in self._topic_ids]
        self._members = [
            _Member(order, member_id, members[member_id].rack_id)
            for order, member_id in enumerate(in_order(members))
        ]
        self._pools: list[_Pool] = []
        self._pool_of: dict[UUID, tuple[int, _Pool]] = {}
        """Topic id -> the topic's place and pool, for topics with subscribers."""
        self._form_pools()

    def _form_pools(self) -> None:
        named = {each.member_id: each for each in self._members}
        served = subscribers(self._specs)
        pools: dict[tuple[str, ...], _Pool] = {}
        for place, topic_id in enumerate(self._topic_ids):
            if topic_id in served:
                pool = pools.get(served[topic_id])
                if pool is None:
                    pool = _Pool(len(pools), [named[each] for each in served[topic_id]])
                    pools[served[topic_id]] = pool
                self._pool_of[topic_id] = place, pool
        self._pools = list(pools.values())
        for pool in self._pools:
            for member in pool.subscribers:
                member.pools.append(pool)

    def keep_current(self) -> None:
        """Every member keeps what it has of its subscribed topics. If two members have the same partition,
        the first one keeps it."""
        free = {
            topic_id: set(range(self._topics[place].partitions))
            for topic_id, (place, _) in self._pool_of.items()
        }
        for member in self._members:
            spec = self._specs[member.member_id]
            for topic_id, partitions in spec.current.items():
                if topic_id in free and topic_id in spec.topic_ids:
                    place, pool = self._pool_of[topic_id]
                    kept = free[topic_id].intersection(partitions)
                    free[topic_id] -= kept
                    member.current.setdefault(pool, []).extend((place, each) for each in kept)
                    member.keeps[pool] = len(member.current[pool])
                    member.load += len(kept)
        for topic_id, (place, pool) in self._pool_of.items():
            pool.unassigned += [(place, each) for each in free[topic_id]]
        for pool in self._pools:
            pool.least = [(each.load, each.order) for each in pool.subscribers]
            heapify(pool.least)

    def claim_unassigned(self) -> None:
        """Each unassigned partition goes to the least loaded subscriber. Topics with few subscribers come
        first, because the others can make up for their imbalance."""
        for pool in sorted(self._pools, key=lambda each: len(each.subscribers)):
            for _ in pool.unassigned:
                pool.least_loaded(self._members).add(pool)

    def balance(self) -> None:
        while _Moves(self._members, self._pools).perform():
            pass

    def choose_partitions(self) -> None:
        for member in self._members:
            for pool, current in member.current.items():
                if member.keeps[pool] < len(current):
                    current.sort(key=lambda each: self._rank(member, each))
                    pool.unassigned += current[member.keeps[pool] :]
                    del current[member.keeps[pool] :]
        for pool in self._pools:
            self._hand_out(pool)

    def _rank(self, member: _Member, partition: TopicPartition) -> tuple[bool, int, int]:
        """The last ones are given up: a few of each topic rather than many of one."""
        far = member.rack_id is not None and member.rack_id not in self._racks(partition)
        return far, partition[1], partition[0]

    def _hand_out(self, pool: _Pool) -> None:
        """Give the unassigned partitions to the members with claims, in turn."""
        claimants = [each for each in pool.subscribers if each.claims.get(pool)]
        near: dict[str, deque[_Member]] = defaultdict(deque)
        for member in claimants:
            if member.rack_id is not None:
                near[member.rack_id].append(member)
        rest = []
        for partition in sorted(pool.unassigned):
            queues = [near[rack] for rack in sorted(self._racks(partition)) if near.get(rack)] if near else []
            if queues:
                _give(max(queues, key=len), partition, pool)
            else:
                rest.append(partition)
        queue = deque(each for each in claimants if each.claims[pool])
        for partition in rest:
            _give(queue, partition, pool)

    def _racks(self, partition: TopicPartition) -> frozenset[str]:
        racks = self._topics[partition[0]].racks
        return frozenset() if racks is None else racks(partition[1])

    def assignment(self) -> Assignment:
        return {each.member_id: self._partitions(each) for each in self._members}

    def _partitions(self, member: _Member) -> dict[UUID, frozenset[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        for partitions in (*member.current.values(), member.received):
            for place, partition in partitions:
                found[place].append(partition)
        return {self._topic_ids[place]: frozenset(found[place]) for place in sorted(found)}


class _Moves:
    """One pass that moves partitions from the members with the most to those with the least.

    Each move makes the sum of the squared loads smaller, so that passes come to an end.

    A member's lower load enters the heaps of its pools only when it has nothing more to give. Until then no
    member with a higher load than its own plus one is left, and none could give it a partition.
    """

    def __init__(self, members: list[_Member], pools: list[_Pool]) -> None:
        self._members = members
        self._pools = pools
        self._options: dict[_Member, list[tuple[int, bool, int]]] = {}
        """Heap of (load of the least loaded subscriber, no claims, index) of the pools from which a member
        can give. A load in it may be out of date, which shows when it comes to the top."""

    def perform(self) -> bool:
        """True if partitions moved. A member that could give nothing away may be able to in the next pass,
        because others have less."""
        most = [(-each.load, each.order) for each in self._members]
        heapify(most)
        least = min((each.load for each in self._members), default=0)  # no move falls below it
        gave: set[_Member] = set()
        moved = False
        while most and -most[0][0] - least > 1:
            load, order = heappop(most)
            member = self._members[order]
            if -load != member.load:
                continue
            move = self._best_move(member)
            if move is None:
                if member in gave:
                    self._publish(member)
                continue
            pool, receiver = move
            member.remove(pool)
            receiver.add(pool)
            gave.add(member)
            self._options.pop(receiver, None)
            for each in (member, receiver):
                heappush(most, (-each.load, each.order))
            moved = True
        return moved

    def _best_move(self, member: _Member) -> tuple[_Pool, _Member] | None:
        """The pool and the receiver of a partition that should move, if any should. The receiver is the least
        loaded subscriber. A claimed partition moves rather than one that the member has."""
        options = self._options.get(member)
        if options is None:
            options = self._options[member] = [
                (pool.least_loaded(self._members).load, not member.claims.get(pool), pool.index)
                for pool in member.pools
                if member.has_any(pool)
            ]
            heapify(options)
        while options:
            load, unclaimed, index = options[0]
            pool = self._pools[index]
            if not member.has_any(pool):
                heappop(options)
                continue
            receiver = pool.least_loaded(self._members)
            if (receiver.load, not member.claims.get(pool)) == (load, unclaimed):
                return (pool, receiver) if member.load - load > 1 else None
            heapreplace(options, (receiver.load, not member.claims.get(pool), index))
        return None

    def _publish(self, member: _Member) -> None:
        """Other members may now give to this one."""
        for pool in member.pools:
            heappush(pool.least, (member.load, member.order))


def _give(queue: deque[_Member], partition: TopicPartition, pool: _Pool) -> None:
    """Give a partition to the first in the queue, which goes to its end if it has more claims."""
    member = queue.popleft()
    member.received.append(partition)
    member.claims[pool] -= 1
    if member.claims[pool]:
        queue.append(member)
