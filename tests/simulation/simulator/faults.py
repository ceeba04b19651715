"""Fault injection: draws faults from the seed, one after the other, and clears all of them at the end.

The cluster run and the quorum run share the list. The run decides which nodes may lose power at once, because
that depends on the guarantee under test.
"""

import errno
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any, Protocol

from simulator.clock import SimClock
from simulator.disk import Disk
from simulator.loop import Process, SimLoop
from simulator.network import Network
from tierlog.metadata.quorum.node import MetadataNode

if TYPE_CHECKING:
    from simulator.broker import SimBroker

KINDS = (
    "kill",
    "kill leader",
    "power",
    "pause",
    "isolate",
    "isolate from nodes",
    "isolate leader from nodes",
    "isolate leader from nodes",  # twice, as it reveals most
    "one way",
    "clog",
    "heal",
    "heal",  # twice, so that the next fault meets a working cluster
    "sync",
    "write",
    "full",
    "hang",
    "skew",
)

READ_FAILS_S = 1.0
"""At most one read fails within this time."""

DOWN_S = 4.0
"""A process that ended is started again within this time."""

AT_ONCE_S = 0.005
"""Nodes that lose power together lose it within this time."""

PAUSED_FOR_S = 6.0
FULL_FOR_S = 4.0
HANGS_FOR_S = 8.0
SKEW_MS = 600_000
SKEW_TIMES = (1, 30, 430)
"""Factors of `SKEW_MS`, one per run: ten minutes, five hours, three days. The last exceeds the default
deletion grace period and producer expiration; a jump of any of them may exceed the short producer expiration
below. They are within the retention time, because retention may use such a clock.
"""

PRODUCER_EXPIRATION_MS = (300_000, 86_400_000)
"""`producer.id.expiration.ms`, one per run. Both are longer than a run, so no producer may expire."""

_NO_PROCESS = Context()
"""Context of timers that start nodes or cut their power: these belong to no simulated process."""


class Victim(Protocol):
    """A node across restarts of its process."""

    disk: Disk
    clock: SimClock
    process: Process | None

    @property
    def name(self) -> str: ...
    @property
    def metadata(self) -> MetadataNode | None: ...
    def start(self) -> None: ...
    def kill(self) -> None: ...
    def lose_power(self) -> None: ...


def producer_expiration_ms(seed: int) -> int:
    return random.Random(f"expiration {seed}").choice(PRODUCER_EXPIRATION_MS)


PowerVictims = Callable[[Victim], Sequence[Victim]]
"""(chosen node) -> the nodes that lose power: only that one, others too, or none if it is not allowed now."""


class Faults:
    def __init__(
        self,
        rng: random.Random,
        loop: SimLoop,
        network: Network,
        nodes: Mapping[int, Victim],
        power_victims: PowerVictims,
        counts: Counter[str],
        kinds: Sequence[str] = KINDS,
        may_fail: Callable[[Any], bool] = lambda node: True,
    ) -> None:
        """`may_fail`: whether a disk of the node may fail now."""
        self._rng, self._loop, self._network, self._nodes = rng, loop, network, nodes
        self._power_victims, self._counts = power_victims, counts
        self._kinds, self._may_fail = kinds, may_fail
        self.skew_times = 1

    def draw_message_faults(self) -> None:
        """Draw the faults of messages for the whole run."""
        message_faults, rng = self._network.message_faults, self._rng
        message_faults.loss = rng.choice((0.0, 0.0, 0.05, 0.3))
        message_faults.duplication = rng.choice((0.0, 0.1, 0.5))
        message_faults.reordering = rng.choice((0.0, 0.1, 0.5))
        message_faults.echo = rng.choice((0.0, 0.5))
        message_faults.corruption = rng.choice((0.0, 0.0, 0.02))

    def inject(self) -> None:
        """Draw a fault and inject it if it is allowed now and applies to a node; then it is counted."""
        rng, kind = self._rng, self._rng.choice(self._kinds)
        node = self._nodes[rng.choice(sorted(self._nodes))]
        other = self._nodes[rng.choice(sorted(self._nodes))]
        self._counts[kind] += self._inject(kind, node, other)

    def _inject(self, kind: str, node: Victim, other: Victim) -> bool:
        rng, victims = self._rng, list[Victim]()
        match kind:
            case "kill":
                self.kill(node)
            case "kill leader" | "isolate leader from nodes":
                victims += self._quorum_leaders()
                inject = self.kill if kind == "kill leader" else self._isolate_from_nodes
                for leader in victims:
                    inject(leader)
                return bool(victims)
            case "power":
                victims += self._power_victims(node)
                for victim in victims:
                    self._lose_power(victim)
                return bool(victims)
            case "isolate from nodes":  # clients still reach it
                self._isolate_from_nodes(node)
            case "pause" if node.process is not None:
                node.process.pause()
                self._loop.call_later(rng.uniform(0, PAUSED_FOR_S), node.process.resume)
            case "hang" if node.process is not None:
                node.process.disk_hangs_until_s = self._loop.time() + rng.uniform(0, HANGS_FOR_S)
            case "skew":
                node.clock.skew_ms = self.skew_times * rng.randrange(-SKEW_MS, SKEW_MS)
            case "sync" | "write" if self._may_fail(node):
                node.disk.fails_at[kind] = errno.EIO
                self._start_later(node)
            case "full":
                node.disk.free_bytes = rng.randrange(4000)
                self._loop.call_later(rng.uniform(0, FULL_FOR_S), node.disk.clear_full)
                self._start_later(node)
            case _:
                return self.inject_cluster_fault(kind, node) or self._inject_network_fault(
                    kind, node.name, other.name
                )
        return True

    def inject_cluster_fault(self, kind: str, node: Any) -> bool:
        """Hook for kinds that only cluster runs have. Returns False if it did nothing."""
        return False

    def _inject_network_fault(self, kind: str, one: str, other: str) -> bool:
        match kind:
            case "isolate":
                self._network.isolate(one)
            case "one way":
                self._network.cut(one, other)
            case "clog":
                self._network.clog(one, other)
            case "heal":
                message_faults = self._network.message_faults
                self._network.heal()
                self._network.message_faults = message_faults
            case _:
                return False
        return True

    def power(self, node: Victim) -> None:
        """Cut the node's power within AT_ONCE_S."""
        self._loop.call_later(self._rng.uniform(0, AT_ONCE_S), self._lose_power, node, context=_NO_PROCESS)

    def end(self) -> None:
        """Clear all faults and start all nodes."""
        self._network.heal()
        for node in self._nodes.values():
            node.disk.fails_at.clear()
            node.disk.clear_full()
            if node.process is not None and node.process.paused:
                node.process.resume()
            if node.process is not None:
                node.process.disk_hangs_until_s = 0.0
            node.start()

    def _quorum_leaders(self) -> list[Victim]:
        nodes = self._nodes.values()
        return [node for node in nodes if node.metadata is not None and node.metadata.is_leader]

    def _isolate_from_nodes(self, isolated: Victim) -> None:
        for node in self._nodes.values():
            if node is not isolated:
                self._network.cut(isolated.name, node.name)
                self._network.cut(node.name, isolated.name)

    def _lose_power(self, node: Victim) -> None:
        node.lose_power()
        self._start_later(node)

    def kill(self, node: Victim) -> None:
        node.kill()
        self._start_later(node)

    def _start_later(self, node: Victim) -> None:
        self._loop.call_later(self._rng.uniform(0, DOWN_S), node.start, context=_NO_PROCESS)


class ClusterFaults(Faults):
    """Faults of nodes and of their log directories."""

    may_wipe: "Callable[[SimBroker], bool]"
    over = False

    def inject_cluster_fault(self, kind: str, node: "SimBroker") -> bool:
        if kind == "directory" and self._may_fail(node):
            node.lose_directory(self._rng)
            self._loop.call_later(self._rng.uniform(1, DOWN_S), self._restart, node)
        elif kind == "read" and self._may_fail(node):
            node.disk.fails_at["read"] = errno.EIO
            self._loop.call_later(READ_FAILS_S, node.disk.fails_at.pop, "read", None)
            self._loop.call_later(self._rng.uniform(1, DOWN_S), self._restart_lacking, node)
        elif kind == "reset" and node.is_up:
            node.reset_connections()
        elif kind == "wipe" and self.may_wipe(node):
            self.kill(node)
            node.wipe_directory(self._rng)
        else:
            return False
        return True

    def end(self) -> None:
        self.over = True
        super().end()

    def _restart_lacking(self, node: "SimBroker") -> None:
        """A failed read takes a directory offline only while its logs are opened."""
        if node.lacks_directories:
            self._restart(node)

    def _restart(self, node: "SimBroker") -> None:
        if not self.over:  # after the faults, the run restarts nodes while it waits for recovery
            self.kill(node)
