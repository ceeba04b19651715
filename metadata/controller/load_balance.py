"""Load balancer: plans moves of leaders and replicas by bytes on disk and bytes written per second.

Pure: `maintenance.rebalancer` measures the loads, and executes the plan or shows it to operators. Three loads
of each broker are compared with the average: bytes stored (as a share of its disks), bytes written to all of
its replicas, and bytes written to the partitions that it leads. A plan begins beyond TRIGGER and continues up
to TARGET, which keeps it from oscillating. Each action lowers the sum of squared deviations by MIN_GAIN or
more, so that repeated plans for the same loads end.

Invariants: an action keeps the replication factor, puts no two replicas of a partition closer together than
they were (host, then zone), and leaves FREE_SHARE of the target's disks free. A plan has at most
`Bounds.max_actions` actions, copies at most `Bounds.max_bytes`, and changes each partition once.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from tierlog.base.text import counted, size
from tierlog.base.types import NO_LEADER, TopicPartition
from tierlog.metadata.controller.placement import host_of
from tierlog.metadata.image import ClusterImage

TRIGGER, TARGET = 0.25, 0.10
"""Shares of the average by which a broker's load differs when a plan begins, and when it is done."""

MIN_GAIN = 0.002
"""Least decrease of the sum of squared deviations: a load that comes closer to the average by 2 % or so."""

STORED_FLOOR, RATE_FLOOR = 8 << 20, 32 << 10
"""Averages per broker, in bytes and bytes a second, below which a load is left as it is."""

FREE_SHARE = 0.15  # twice what a full disk needs for recovery
CANDIDATES = 200
"""Partitions of a broker that are tried for an action, those with the largest load."""

HOT_SHARE, HOT_MAX = 0.5, 10
"""A partition is hot if it has this share of what an average broker leads. So many are named."""


class Load(StrEnum):
    """Loads of a broker that are balanced, in order of urgency."""

    STORED = "stored"
    LED = "led"
    WRITTEN = "written"


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

    max_actions: int = 10
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
    none. `hot`: partitions that alone are a large share of what a broker should lead."""

    actions: tuple[Action, ...] = ()
    before: tuple[BrokerLoad, ...] = ()
    after: tuple[BrokerLoad, ...] = ()
    left_alone: tuple[int, ...] = ()
    hot: tuple[tuple[TopicPartition, float], ...] = ()


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
    before = state.brokers_loads()
    actions: list[Action] = []
    urgent = [load for load in Load if state.deviates(load, TRIGGER)]
    while urgent and len(actions) < bounds.max_actions:
        load = urgent[0]
        change = state.best_change(load) if state.deviates(load, TARGET) else None
        if change is None:
            urgent.pop(0)
            continue
        action = state.action(change, load)
        state.apply(change)
        actions.append(action)
    return LoadPlan(
        actions=tuple(actions),
        before=before,
        after=state.brokers_loads(),
        left_alone=tuple(sorted(state.left_alone)),
        hot=tuple(state.hot()),
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
        self._load: dict[Load, dict[int, float]] = {load: dict.fromkeys(self._brokers, 0.0) for load in Load}
        for where, replicas in self._replicas.items():
            for one in replicas:
                self._add(where, one, is_leader=one == replicas[0])
        self._averages = {load: self._average(load) for load in Load}

    # --- loads

    def _add(self, where: TopicPartition, broker_id: int, *, is_leader: bool, factor: int = 1) -> None:
        if broker_id not in self._free:
            return
        found = self._loads.partitions[where]
        self._load[Load.STORED][broker_id] += factor * found.size_bytes
        self._load[Load.WRITTEN][broker_id] += factor * found.bytes_per_s
        if is_leader:
            self._load[Load.LED][broker_id] += factor * found.bytes_per_s

    def _average(self, load: Load) -> float:
        return sum(self._load[load].values()) / max(len(self._brokers), 1)

    def _fair(self, load: Load, broker_id: int) -> float:
        """The broker's share if the load were even: for stored bytes by the size of its disks."""
        average = self._averages[load]
        if load is not Load.STORED:
            return average
        total = sum(self._loads.disks[one].total_bytes for one in self._brokers)
        return average * len(self._brokers) * self._loads.disks[broker_id].total_bytes / max(total, 1)

    def _is_balanced(self, load: Load) -> bool:
        """Whether the load counts at all."""
        floor = STORED_FLOOR if load is Load.STORED else RATE_FLOOR
        return len(self._brokers) > 1 and self._averages[load] >= floor

    def _deviation(self, load: Load, broker_id: int, added: float = 0.0) -> float:
        return (self._load[load][broker_id] + added) / max(self._fair(load, broker_id), 1.0) - 1

    def deviates(self, load: Load, share: float) -> bool:
        return self._is_balanced(load) and any(
            abs(self._deviation(load, one)) > share for one in self._brokers
        )

    def brokers_loads(self) -> tuple[BrokerLoad, ...]:
        return tuple(
            BrokerLoad(
                one, self._load[Load.STORED][one], self._load[Load.WRITTEN][one], self._load[Load.LED][one]
            )
            for one in self._brokers
        )

    def hot(self) -> Iterator[tuple[TopicPartition, float]]:
        if not self._is_balanced(Load.LED):
            return
        ordered = sorted(self._loads.partitions.items(), key=lambda one: (-one[1].bytes_per_s, one[0]))
        for where, found in ordered[:HOT_MAX]:
            if found.bytes_per_s >= HOT_SHARE * self._averages[Load.LED]:
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
                changes = [one for one in kind(load, source) if one.gain >= MIN_GAIN]
                if changes:
                    return max(changes, key=lambda one: (one.gain, -one.copied_bytes, one.where))
        return None

    def _heaviest(self, load: Load, source: int) -> list[TopicPartition]:
        """Partitions of the broker that add to this load, the largest first."""
        found = [
            where
            for where, replicas in self._replicas.items()
            if where not in self._changed
            and (replicas[0] == source if load is Load.LED else source in replicas)
        ]
        at = 0 if load is Load.STORED else 1
        return sorted(found, key=lambda one: (-self._loads.partitions[one][at], one))[:CANDIDATES]

    def _handovers(self, load: Load, source: int) -> Iterator[_Change]:
        """Leaderships that another replica takes: the two change places in the order of replicas."""
        if not self._bounds.moves_leaders:
            return
        for where in self._heaviest(load, source):
            replicas = self._replicas[where]
            for at, target in enumerate(replicas[1:], 1):
                if target in self._free:
                    after = (target, *replicas[1:at], source, *replicas[at + 1 :])
                    rate = self._loads.partitions[where].bytes_per_s
                    gain = self._gain(source, target, {Load.LED: rate})
                    yield _Change(where, source, target, after, 0, gain)

    def _copies(self, load: Load, source: int) -> Iterator[_Change]:
        if not self._bounds.moves_replicas:
            return
        for where in self._heaviest(load, source):
            found, replicas = self._loads.partitions[where], self._replicas[where]
            if self._copied_bytes + found.size_bytes > self._bounds.max_bytes:
                continue
            moved = {Load.STORED: float(found.size_bytes), Load.WRITTEN: found.bytes_per_s}
            if replicas[0] == source:
                moved[Load.LED] = found.bytes_per_s
            for target in self._brokers:
                if target not in replicas and self._may_hold(target, found.size_bytes):
                    after = tuple(target if one == source else one for one in replicas)
                    if self._closeness(after, target) <= self._closeness(replicas, source):
                        gain = self._gain(source, target, moved)
                        yield _Change(where, source, target, after, found.size_bytes, gain)

    def _may_hold(self, target: int, size_bytes: int) -> bool:
        return self._free[target] - size_bytes >= FREE_SHARE * self._loads.disks[target].total_bytes

    def _closeness(self, replicas: Sequence[int], broker_id: int) -> tuple[int, int]:
        """How many other replicas share the host, and the zone, of the one on this broker."""
        brokers = self._image.brokers
        others = [brokers[one] for one in replicas if one != broker_id and one in brokers]
        own = brokers[broker_id]
        hosts = sum(host_of(one) == host_of(own) for one in others)
        return hosts, sum(one.zone == own.zone for one in others)

    def _gain(self, source: int, target: int, moved: Mapping[Load, float]) -> float:
        """Decrease of the sum of squared deviations."""
        gain = 0.0
        for load, amount in moved.items():
            if self._is_balanced(load):
                for one, added in ((source, -amount), (target, amount)):
                    gain += self._deviation(load, one) ** 2 - self._deviation(load, one, added) ** 2
        return gain

    def apply(self, change: _Change) -> None:
        replicas = self._replicas[change.where]
        for one in replicas:
            self._add(change.where, one, is_leader=one == replicas[0], factor=-1)
        for one in change.after:
            self._add(change.where, one, is_leader=one == change.after[0])
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


def faults(image: ClusterImage) -> list[str]:
    """Why nothing may be moved now: replication or a change of the cluster is in progress. Empty in a healthy
    cluster."""
    found = [
        f"broker {one} is {'fenced' if broker.fenced else 'stopping'}"
        for one, broker in sorted(image.brokers.items())
        if not broker.may_lead
    ]
    counts: Counter[str] = Counter()
    for topic in image.topics.values():
        for partition in topic.partitions:
            counts["without a leader"] += partition.leader == NO_LEADER
            counts["being moved"] += partition.is_reassigned
            counts["with a replica out of sync"] += len(partition.in_sync) < len(partition.replicas)
            counts["with a replica on a failed or full disk"] += bool(partition.offline or partition.full)
    return [*found, *(f"{counted(count, 'partition')} {what}" for what, count in counts.items() if count)]


def with_replicas(image: ClusterImage, actions: Sequence[Action]) -> list[tuple[str, int, tuple[int, ...]]]:
    """The actions that still start from the partition's replicas, as changes of a reassignment."""
    return [
        (one.topic, one.partition, one.after)
        for one in actions
        if (topic := image.topic(one.topic)) is not None
        and one.partition < len(topic.partitions)
        and topic.partitions[one.partition].replicas == one.before
    ]
