"""The stage of a chaos run, and the registry of its faults: the modules of faults enter theirs here."""

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from havoc.builds import Builds
from havoc.network import CLIENTS
from havoc.nodes import Cluster, Node
from havoc.store import Store


@dataclass(frozen=True, slots=True)
class Stage:
    """The cluster under test. Roles of nodes are those in the topic's first partition and in the quorum.
    `tiered`: the tiered topic, whose segments are in `store`, if there is one. `builds`: for upgrades."""

    cluster: Cluster
    topic: str
    tiered: str = ""
    store: Store | None = None
    builds: Builds | None = None

    def partitions(self) -> list[dict[str, Any]]:
        """Partitions of all topics."""
        return [row for topic in (self.topic, self.tiered) if topic for row in self.cluster.partitions(topic)]

    def leader(self) -> Node:
        return self.cluster.nodes[self.cluster.partitions(self.topic)[0]["leader"]]

    def follower(self) -> Node:
        """The broker with the fewest leaderships."""
        leaders = [row["leader"] for row in self.partitions()]
        return min(self.cluster.brokers.values(), key=lambda node: (leaders.count(node.id), -node.id))

    def controller(self) -> Node:
        return self.cluster.controller()

    def all_nodes(self) -> set[int]:
        return {CLIENTS, *self.cluster.network.places}

    def tiers(self) -> list[dict[str, Any]]:
        """Tier status of each partition of the tiered topic, from its leader. Raises ChaosFailed."""
        return self.cluster.tiers(self.tiered)


Play = Callable[[Stage], AbstractContextManager[str]]


@dataclass(frozen=True, slots=True)
class Fault:
    """`play` yields a description of the injected fault. `within_s`: how long an acknowledgement may take;
    None: the fault removes the majority. `needs`: see `left_out`. `only`: the shape that it needs.
    `hurts_early`: injecting it takes time, and clients are affected from the first moment."""

    name: str
    play: Play
    within_s: float | None
    needs: str = ""
    only: str = ""
    hurts_early: bool = False


APART, TIERED = "apart", "tiered"
"""Shapes: controllers in processes of their own; a tiered topic with an object store."""

FAULTS: dict[str, Fault] = {}
DEATH_S = 10.0
SILENCE_S = 20.0
"""A hanging node is noticed by its session (3 s), and by timeouts of the clients (2 s, 4 s)."""


def fault(
    name: str, within_s: float | None, needs: str = "", *, only: str = "", hurts_early: bool = False
) -> Callable[[Callable[[Stage], Iterator[str]]], Play]:
    def enter(play: Callable[[Stage], Iterator[str]]) -> Play:
        made = contextmanager(play)
        FAULTS[name] = Fault(name, made, within_s, needs, only, hurts_early)
        return made

    return enter


def of_shape(shape: Collection[str]) -> list[str]:
    """Names of the faults in this shape."""
    return [name for name, fault in FAULTS.items() if not fault.only or fault.only in shape]


def left_out(stage: Stage, shape: Collection[str]) -> dict[str, str]:
    """Faults of this shape that this machine does not support, with the reason."""
    cluster = stage.cluster
    reasons = {} if cluster.shim else {"shim": "there is no C compiler for the library that lies to a node"}
    reasons |= {} if cluster.disks else {"disks": "without namespaces, nothing is mounted"}
    reasons |= {} if stage.builds else {"builds": "there is no other build"}
    return {name: reasons[FAULTS[name].needs] for name in of_shape(shape) if FAULTS[name].needs in reasons}
