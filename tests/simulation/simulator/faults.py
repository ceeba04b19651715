"""What goes wrong in a run: drawn one after the other from the seed, and all taken back at its end.

One list for the cluster and for the quorum alone. Whose power may go at once is the run's to say, since it
depends on the promise under test.
"""

import errno
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from typing import Any, Protocol

from simulator.clock import SimClock
from simulator.disk import Disk
from simulator.loop import Process, SimLoop
from simulator.network import Network
from tierlog.metadata.quorum.node import MetadataNode

KINDS = (
    "kill",
    "kill leader",
    "power",
    "pause",
    "isolate",
    "part",
    "part leader",
    "part leader",  # most is at stake there
    "one way",
    "clog",
    "heal",
    "heal",  # so that the next one strikes nodes that work
    "sync",
    "write",
    "full",
    "hang",
    "skew",
)

DOWN_S = 4.0
"""A process that ended is started again within that time."""

AT_ONCE_S = 0.005
PAUSED_S = 6.0
FULL_S = 4.0
HANGS_S = 8.0
SKEW_MS = 600_000
SKEW_TIMES = (1, 30, 430)
"""Times `SKEW_MS`, drawn for a run: ten minutes, five hours, three days. That is beyond the grace of objects
and the expiration of producers by default, and within the retention of records, which may go by such a clock.
"""

_NO_PROCESS = Context()
"""Faults strike and pass whoever runs at the moment."""


class Victim(Protocol):
    """A node through its lives."""

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


Powerless = Callable[[Victim], Sequence[Victim]]
"""Who loses power when that node is struck: it, none, or others with it."""


class Faults:
    def __init__(
        self,
        rng: random.Random,
        loop: SimLoop,
        network: Network,
        nodes: Mapping[int, Victim],
        powerless: Powerless,
        told: Counter[str],
        kinds: Sequence[str] = KINDS,
        may_fail: Callable[[Any], bool] = lambda node: True,
    ) -> None:
        """`may_fail`: whether a disk of the node may fail now."""
        self._rng, self._loop, self._network, self._nodes = rng, loop, network, nodes
        self._powerless, self._told, self._kinds, self._may_fail = powerless, told, kinds, may_fail
        self.skew_times = 1

    def weather(self) -> None:
        """What messages suffer for the whole of the run."""
        weather, rng = self._network.weather, self._rng
        weather.loss = rng.choice((0.0, 0.0, 0.05, 0.3))
        weather.repetition = rng.choice((0.0, 0.1, 0.5))
        weather.overtaking = rng.choice((0.0, 0.1, 0.5))
        weather.echo = rng.choice((0.0, 0.5))
        weather.garbling = rng.choice((0.0, 0.0, 0.02))

    def strike(self) -> None:
        """Draws one; it is counted unless it may not happen now, or finds nobody."""
        rng, kind = self._rng, self._rng.choice(self._kinds)
        node = self._nodes[rng.choice(sorted(self._nodes))]
        other = self._nodes[rng.choice(sorted(self._nodes))]
        self._told[kind] += self._strike(kind, node, other)

    def _strike(self, kind: str, node: Victim, other: Victim) -> bool:
        rng, struck = self._rng, list[Victim]()
        match kind:
            case "kill":
                self.kill(node)
            case "kill leader" | "part leader":
                struck += self._leading()
                strike = self.kill if kind == "kill leader" else self._part
                for leader in struck:
                    strike(leader)
                return bool(struck)
            case "power":
                struck += self._powerless(node)
                for one in struck:
                    self._lose_power(one)
                return bool(struck)
            case "part":  # from the other nodes; clients still reach it
                self._part(node)
            case "pause" if node.process is not None:
                node.process.pause()
                self._loop.call_later(rng.uniform(0, PAUSED_S), node.process.go_on)
            case "hang" if node.process is not None:
                node.process.disk_back_s = self._loop.time() + rng.uniform(0, HANGS_S)
            case "skew":
                node.clock.skew_ms = self.skew_times * rng.randrange(-SKEW_MS, SKEW_MS)
            case "sync" | "write" if self._may_fail(node):
                node.disk.fails_at[kind] = errno.EIO
                self._start_later(node)
            case "full":
                node.disk.room = rng.randrange(4000)
                self._loop.call_later(rng.uniform(0, FULL_S), node.disk.make_room)
                self._start_later(node)
            case _:
                return self.strike_further(kind, node) or self._strike_network(kind, node.name, other.name)
        return True

    def strike_further(self, kind: str, node: Any) -> bool:
        """Kinds that not all runs know. False if it did nothing."""
        return False

    def _strike_network(self, kind: str, one: str, other: str) -> bool:
        match kind:
            case "isolate":
                self._network.isolate(one)
            case "one way":
                self._network.cut(one, other)
            case "clog":
                self._network.clog(one, other)
            case "heal":
                weather = self._network.weather
                self._network.heal()
                self._network.weather = weather
            case _:
                return False
        return True

    def power(self, node: Victim) -> None:
        """Goes any moment now."""
        self._loop.call_later(self._rng.uniform(0, AT_ONCE_S), self._lose_power, node, context=_NO_PROCESS)

    def end(self) -> None:
        """All is well again, and all nodes run."""
        self._network.heal()
        for node in self._nodes.values():
            node.disk.fails_at.clear()
            node.disk.make_room()
            if node.process is not None and node.process.paused:
                node.process.go_on()
            if node.process is not None:
                node.process.disk_back_s = 0.0
            node.start()

    def _leading(self) -> list[Victim]:
        nodes = self._nodes.values()
        return [node for node in nodes if node.metadata is not None and node.metadata.is_leader]

    def _part(self, one: Victim) -> None:
        for node in self._nodes.values():
            if node is not one:
                self._network.cut(one.name, node.name)
                self._network.cut(node.name, one.name)

    def _lose_power(self, node: Victim) -> None:
        node.lose_power()
        self._start_later(node)

    def kill(self, node: Victim) -> None:
        node.kill()
        self._start_later(node)

    def _start_later(self, node: Victim) -> None:
        self._loop.call_later(self._rng.uniform(0, DOWN_S), node.start, context=_NO_PROCESS)
