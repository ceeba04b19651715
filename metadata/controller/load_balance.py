"""Load balancer: plans moves of leaders and replicas by bytes on disk and bytes written per second.

Pure: `maintenance.rebalancer` measures the loads, and executes the plan or shows it to operators. Three loads
of each broker are compared with the average: bytes stored (as a share of its disks), bytes written to all of
its replicas, and bytes written to the partitions that it leads. A plan begins beyond TRIGGER and continues up
to TARGET, which keeps it from oscillating. Each action lowers the sum of squared deviations, so that repeated
plans for the same loads end.

Invariants: an action keeps the replication factor, puts no two replicas of a partition closer together than
they were (host, then zone), and leaves FREE_SHARE of the target's disks free. A plan has at most
`Bounds.max_actions` actions, copies at most `Bounds.max_bytes`, and changes each partition once.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import nsmallest
from typing import NamedTuple

from tierlog.base.text import counted, size
from tierlog.base.types import NO_LEADER, TopicPartition
from tierlog.config.balancing import MAX_MOVES
from tierlog.metadata.controller.placement import host_of
from tierlog.metadata.image import ClusterImage

TRIGGER, TARGET = 0.25, 0.10
"""Shares of the average by which a broker's load differs when a plan begins, and when it is done."""

MIN_DIFFERENCE = 0.05
"""Share of the average that two brokers must differ by after a move between them. An action that brings less
is not worth a copy."""

STORED_FLOOR, RATE_FLOOR = 8 << 20, 32 << 10
"""Averages per broker, in bytes and bytes a second, below which a load is left as it is."""

FREE_SHARE = 0.15  # twice what a full disk needs for recovery
CANDIDATES = 100
"""Partitions of a broker that are tried for an action, those with the largest load."""

HOT_MAX = 10
"""Maximum number of hot partitions that are named. A partition is hot if it alone exceeds a broker's fair
share of the led bytes by more than TRIGGER: no move can make the load even."""


class Load(StrEnum):
    """Loads of a broker that are balanced."""

    STORED = "stored"
    LED = "led"
    WRITTEN = "written"


class Hold(StrEnum):
    """Reasons for which nothing is moved."""

    BROKER = "broker"
    LEADER = "leader"
    MOVES = "moves"
    IN_SYNC = "in_sync"
    DISK = "disk"
    VOTER = "voter"
    LOAD = "load"
    THROTTLE = "throttle"
    METADATA = "metadata"


class Fault(NamedTuple):
    """`text`: for people."""

    reason: Hold
    text: str


class PartitionLoad(NamedTuple):
    """`size_bytes`: of one replica. `bytes_per_s`: appended by its leader."""

    size_bytes: int
    bytes_per_s: float


class Disks(NamedTuple):
    """The log directories of a broker together."""

    total_bytes: int
    usable_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    partitions: Mapping[TopicPartition, PartitionLoad]
    disks: Mapping[int, Disks]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """`fills_empty`: brokers without replicas may get some. An operator may have emptied them."""

    max_actions: int = MAX_MOVES
    max_bytes: int = 100 << 30
    moves_leaders: bool = True
    moves_replicas: bool = True
    fills_empty: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A partition's next replicas, the preferred leader first. `copied_bytes`: 0 if only the leader moves."""

    topic: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    copied_bytes: int
    reason: str


class BrokerLoad(NamedTuple):
    """`stored_bytes`: of the replicas in the plan. Rates are in bytes a second."""

    broker_id: int
    stored_bytes: float
    written_per_s: float
    led_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """`before`, `after`: loads of the brokers that take part. `left_alone`: brokers without replicas that get
    none. `hot`: partitions that alone are more than what a broker should lead. `imbalance`: share of
    its fair load by which the broker that differs most does so; 0 for loads that are too small to matter."""

    actions: tuple[Action, ...] = ()
    before: tuple[BrokerLoad, ...] = ()
    after: tuple[BrokerLoad, ...] = ()
    left_alone: tuple[int, ...] = ()
    hot: tuple[tuple[TopicPartition, float], ...] = ()
    imbalance: tuple[tuple[Load, float], ...] = ()


class _Change(NamedTuple):
    """Replica or leadership of a partition that goes from one broker to another."""

    where: TopicPartition
    source: int
    target: int
    after: tuple[int, ...]
    copied_bytes: int
    gain: float


def plan_by_load(image: ClusterImage, loads: Loads, bounds: Bounds) -> LoadPlan:
    """The actions that help most, at most as many as `bounds` allows. Partitions without a load are not
    moved. Deterministic."""
    state = _State(image, loads, bounds)
    before, imbalance = state.brokers_loads(), tuple((load, state.imbalance(load)) for load in Load)
    actions: list[Action] = []
    urgent = [load for load in Load if state.deviates(load, TRIGGER)]
    while urgent and len(actions) < bounds.max_actions:
        load = urgent.pop(0)
        change = state.best_change(load) if state.deviates(load, TARGET) else None
        if change is not None:
            actions.append(state.action(change, load))
            state.apply(change)
            urgent.append(load)  # the loads take turns
    return LoadPlan(
        actions=tuple(actions),
        before=before,
        after=state.brokers_loads(),
        left_alone=tuple(sorted(state.left_alone)),
        hot=tuple(state.hot()),
        imbalance=imbalance,
    )


class _State:
    """Loads of the brokers while a plan is made."""

    def __init__(self, image: ClusterImage, loads: Loads, bounds: Bounds) -> None:
        self._image, self._loads, self._bounds = image, loads, bounds
        self._replicas = {
            where: image.topics[image.topic_ids[where.topic]].partitions[where.partition].replicas
            for where in sorted(loads.partitions)
        }
        held = Counter(one for replicas in self._replicas.values() for one in replicas)
        active = {one for one, broker in image.brokers.items() if broker.may_lead and one in loads.disks}
        self.left_alone = set() if bounds.fills_empty else {one for one in active if not held[one]}
        self._brokers = sorted(active - self.left_alone)
        self._changed: set[TopicPartition] = set()
        self._copied_bytes = 0
        self._free = {one: float(loads.disks[one].usable_bytes) for one in self._brokers}
        self._load = {load: dict.fromkeys(self._brokers, 0.0) for load in Load}
        self._held: dict[int, set[TopicPartition]] = {one: set() for one in self._brokers}
        for where, replicas in self._replicas.items():
            self._add(where, replicas)
        self._averages = {load: sum(self._load[load].values()) / max(len(self._brokers), 1) for load in Load}
        self._counting = [load for load in Load if self._counts(load)]
        self._fair = {(load, one): self._fair_share(load, one) for load in Load for one in self._brokers}

    # --- loads

    def _add(self, where: TopicPartition, replicas: Sequence[int], sign: int = 1) -> None:
        """Add a partition to the loads of its brokers, or subtract it (`sign` -1)."""
        found = self._loads.partitions[where]
        for one in replicas:
            if one not in self._held:
                continue
            self._load[Load.STORED][one] += sign * found.size_bytes
            self._load[Load.WRITTEN][one] += sign * found.bytes_per_s
            if one == replicas[0]:
                self._load[Load.LED][one] += sign * found.bytes_per_s
            if sign > 0:
                self._held[one].add(where)
            else:
                self._held[one].discard(where)

    def _counts(self, load: Load) -> bool:
        """Whether the load is large enough to matter."""
        floor = STORED_FLOOR if load is Load.STORED else RATE_FLOOR
        return len(self._brokers) > 1 and self._averages[load] >= floor

    def _fair_share(self, load: Load, broker_id: int) -> float:
        """The broker's load if it were even: of stored bytes by the size of its disks."""
        average = self._averages[load]
        if load is Load.STORED:
            disks = self._loads.disks
            total = sum(disks[one].total_bytes for one in self._brokers)
            average *= len(self._brokers) * disks[broker_id].total_bytes / max(total, 1)
        return max(average, 1.0)

    def _deviation(self, load: Load, broker_id: int) -> float:
        return self._load[load][broker_id] / self._fair[load, broker_id] - 1

    def imbalance(self, load: Load) -> float:
        """The largest deviation of a broker; 0 if the load is too small to matter."""
        if load not in self._counting:
            return 0.0
        return max(abs(self._deviation(load, one)) for one in self._brokers)

    def deviates(self, load: Load, share: float) -> bool:
        return self.imbalance(load) > share

    def brokers_loads(self) -> tuple[BrokerLoad, ...]:
        return tuple(
            BrokerLoad(
                one, self._load[Load.STORED][one], self._load[Load.WRITTEN][one], self._load[Load.LED][one]
            )
            for one in self._brokers
        )

    def hot(self) -> Iterator[tuple[TopicPartition, float]]:
        if Load.LED not in self._counting:
            return
        ordered = sorted(self._loads.partitions.items(), key=lambda one: (-one[1].bytes_per_s, one[0]))
        for where, found in ordered[:HOT_MAX]:
            if found.bytes_per_s > (1 + TRIGGER) * self._averages[Load.LED]:
                yield where, found.bytes_per_s

    # --- changes

    def best_change(self, load: Load) -> _Change | None:
        """The change with the largest gain, from the broker with the largest load for which there is one.
        Leadership moves without copying if that helps."""
        sources = sorted(self._brokers, key=lambda one: (-self._deviation(load, one), one))
        for source in sources:
            if self._deviation(load, source) <= 0:
                return None
            kinds = [self._copies] if load is not Load.LED else [self._handovers, self._copies]
            for kind in kinds:
                best = max(kind(load, source), key=lambda one: one.gain, default=None)
                if best is not None:
                    return best
        return None

    def _heaviest(self, load: Load, source: int) -> list[TopicPartition]:
        """Partitions of the broker that add to this load, the largest first."""
        at = 0 if load is Load.STORED else 1
        found = [
            where
            for where in self._held[source] - self._changed
            if load is not Load.LED or self._replicas[where][0] == source
        ]
        return nsmallest(CANDIDATES, found, key=lambda one: (-self._loads.partitions[one][at], one))

    def _handovers(self, load: Load, source: int) -> Iterator[_Change]:
        """Leaderships that another replica takes: the two change places in the order of replicas."""
        if not self._bounds.moves_leaders:
            return
        for where in self._heaviest(load, source):
            replicas = self._replicas[where]
            for at, target in enumerate(replicas[1:], 1):
                if target in self._held:
                    after = (target, *replicas[1:at], source, *replicas[at + 1 :])
                    rate = self._loads.partitions[where].bytes_per_s
                    gain = self._gain(source, target, {Load.LED: rate})
                    if gain > 0:
                        yield _Change(where, source, target, after, 0, gain)

    def _copies(self, load: Load, source: int) -> Iterator[_Change]:
        """Replicas that another broker gets, each with a larger gain than those before it."""
        if not self._bounds.moves_replicas:
            return
        best = 0.0
        for where in self._heaviest(load, source):
            found, replicas = self._loads.partitions[where], self._replicas[where]
            if self._copied_bytes + found.size_bytes > self._bounds.max_bytes:
                continue
            moved = {Load.STORED: float(found.size_bytes), Load.WRITTEN: found.bytes_per_s}
            if replicas[0] == source:
                moved[Load.LED] = found.bytes_per_s
            for target in self._brokers:
                gain = self._gain(source, target, moved) if target not in replicas else 0.0
                if gain > best and self._may_hold(target, where, source):
                    best = gain
                    after = tuple(target if one == source else one for one in replicas)
                    yield _Change(where, source, target, after, found.size_bytes, gain)

    def _may_hold(self, target: int, where: TopicPartition, source: int) -> bool:
        """Whether the target has space, and is no closer to the other replicas than the source."""
        size_bytes, disks = self._loads.partitions[where].size_bytes, self._loads.disks[target]
        if self._free[target] - size_bytes < FREE_SHARE * disks.total_bytes:
            return False
        others = [one for one in self._replicas[where] if one != source]
        return self._closeness(others, target) <= self._closeness(others, source)

    def _closeness(self, others: Sequence[int], broker_id: int) -> tuple[int, int]:
        """How many of these replicas share the host, and the zone, of a broker."""
        brokers = self._image.brokers
        found, broker = [brokers[one] for one in others if one in brokers], brokers[broker_id]
        hosts = sum(host_of(one) == host_of(broker) for one in found)
        return hosts, sum(one.zone == broker.zone for one in found)

    def _gain(self, source: int, target: int, moved: Mapping[Load, float]) -> float:
        """Decrease of the sum of squared deviations; 0 if it is not worth the move."""
        gain = shares = 0.0
        for load in self._counting:
            if amount := moved.get(load, 0.0):
                less, more = amount / self._fair[load, source], amount / self._fair[load, target]
                gain += less * (2 * self._deviation(load, source) - less)
                gain -= more * (2 * self._deviation(load, target) + more)
                shares += less + more
        return gain if gain > MIN_DIFFERENCE * shares else 0.0

    def apply(self, change: _Change) -> None:
        self._add(change.where, self._replicas[change.where], -1)
        self._add(change.where, change.after)
        self._replicas[change.where] = change.after
        self._changed.add(change.where)
        self._copied_bytes += change.copied_bytes
        self._free[change.target] -= change.copied_bytes

    def action(self, change: _Change, load: Load) -> Action:
        found, source, target = self._loads.partitions[change.where], change.source, change.target
        verb, unit = _WORDS[load]
        have = self._load[load]
        what = f"its replica of {size(found.size_bytes)}" if change.copied_bytes else "its leadership"
        if change.after[0] != self._replicas[change.where][0] and change.copied_bytes:
            what += " with its leadership"
        from_, to = self._deviation(load, source), self._deviation(load, target)
        reason = (
            f"broker {source} {verb} {size(have[source])}{unit}, {from_:+.0%} beside its fair share, and "
            f"broker {target} {size(have[target])}{unit}, {to:+.0%}: {what} moves "
            f"({size(found.bytes_per_s)}/s)"
        )
        return Action(
            topic=change.where.topic,
            partition=change.where.partition,
            before=self._replicas[change.where],
            after=change.after,
            copied_bytes=change.copied_bytes,
            reason=reason,
        )


_WORDS = {
    Load.STORED: ("stores", ""),
    Load.WRITTEN: ("writes", "/s"),
    Load.LED: ("leads", "/s"),
}
"""Verb and unit of a load."""


def faults(image: ClusterImage) -> list[Fault]:
    """Why nothing may be moved now: replication or a change of the cluster is in progress. Empty in a healthy
    cluster."""
    found = [
        Fault(Hold.BROKER, f"broker {one} is {'fenced' if broker.fenced else 'stopping'}")
        for one, broker in sorted(image.brokers.items())
        if not broker.may_lead
    ]
    counts: Counter[Hold] = Counter()
    for topic in image.topics.values():
        for partition in topic.partitions:
            counts[Hold.LEADER] += partition.leader == NO_LEADER
            counts[Hold.MOVES] += partition.is_reassigned
            counts[Hold.IN_SYNC] += len(partition.in_sync) < len(partition.replicas)
            counts[Hold.DISK] += bool(partition.offline or partition.full)
    found += (
        Fault(reason, f"{counted(count, 'partition')} {_PARTITIONS[reason]}")
        for reason, count in counts.items()
        if count
    )
    return found


_PARTITIONS = {
    Hold.LEADER: "without a leader",
    Hold.MOVES: "being moved",
    Hold.IN_SYNC: "with a replica out of sync",
    Hold.DISK: "with a replica on a failed or full disk",
}
"""Words for partitions that hold a plan."""


def with_replicas(image: ClusterImage, actions: Sequence[Action]) -> list[tuple[str, int, tuple[int, ...]]]:
    """The actions that still start from the partition's replicas, as changes of a reassignment."""
    return [
        (one.topic, one.partition, one.after)
        for one in actions
        if (topic := image.topic(one.topic)) is not None
        and one.partition < len(topic.partitions)
        and topic.partitions[one.partition].replicas == one.before
    ]
