"""Elections between Raft cores whose messages and fsyncs are slow, by seed: the survivors agree on a leader.

Time is counted in ticks of the cores, in steps of any size. A machine that is overloaded, or a disk with slow
fsyncs, makes a vote take longer than the shortest election timeout.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tierlog.metadata.raft import messages as m
from tierlog.metadata.raft.core import RaftCore
from tierlog.metadata.raft.log import RaftLog

DEAD, SURVIVORS = 2, (1, 3)
LIMIT_TICKS = 300
SEEDS = range(40)


class Slowness(NamedTuple):
    """Shortest and longest time, in ticks, that a message travels and that an fsync takes."""

    message: tuple[float, float]
    fsync: tuple[float, float]


class Survivors:
    """Two of three voters; the third, which led them, is dead."""

    def __init__(self, seed: int, slowness: Slowness) -> None:
        self.rng, self.slowness = random.Random(seed), slowness
        self.now, self.counter = 0.0, itertools.count()
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.writing: set[int] = set()
        self.cores = {node: self._follower(node) for node in SURVIVORS}
        for node in SURVIVORS:
            self.after(self.rng.random(), lambda node=node: self.tick(node))

    def _follower(self, node: int) -> RaftCore:
        """A follower that has just heard from the leader of term 1."""
        log, seed = RaftLog(m.Snapshot(), [], 0), self.rng.getrandbits(32)
        core = RaftCore(
            node, (DEAD, *SURVIVORS), log, m.HardState(1, DEAD), random.Random(seed), first_payload=b"first"
        )
        core.step(m.Heartbeat(term=1, sender=DEAD, to=node, commit=0))
        return core

    def after(self, ticks: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + ticks, next(self.counter), action))

    def notice_death(self) -> None:
        for node in SURVIVORS:
            self.after(self.rng.random(), lambda node=node: self._notice(node))

    def _notice(self, node: int) -> None:
        self.cores[node].on_peer_death(DEAD)
        self.work(node)

    def tick(self, node: int) -> None:
        self.cores[node].tick()
        self.work(node)
        self.after(1, lambda: self.tick(node))

    def work(self, node: int) -> None:
        core = self.cores[node]
        self.send(core.take_immediate_messages())
        if node in self.writing or not core.has_ready():
            return
        ready = core.ready()
        self.send(ready.immediate_messages)
        self.writing.add(node)

        def written() -> None:
            self.writing.remove(node)
            core.persisted(ready)
            self.send(ready.messages)
            self.work(node)

        self.after(self.rng.uniform(*self.slowness.fsync) if ready.must_persist else 0, written)

    def send(self, messages: tuple[m.AnyMessage, ...]) -> None:
        for message in messages:
            if message.to in self.cores:
                self.after(
                    self.rng.uniform(*self.slowness.message), lambda message=message: self.receive(message)
                )

    def receive(self, message: m.AnyMessage) -> None:
        self.cores[message.to].step(message)
        self.work(message.to)

    def ticks_until_led(self) -> float:
        """Until a leader has committed an entry; LIMIT_TICKS if none has by then."""
        while self.now < LIMIT_TICKS:
            if any(core.has_committed_in_term for core in self.cores.values()):
                return self.now
            self.now, _, action = heapq.heappop(self.events)
            action()
        return LIMIT_TICKS


@pytest.mark.parametrize("death_is_noticed", [True, False], ids=["death noticed", "silence"])
@pytest.mark.parametrize(
    "slowness",
    [
        Slowness(message=(0.0, 0.1), fsync=(0.0, 0.2)),
        Slowness(message=(0.5, 1.5), fsync=(0.5, 2)),
        Slowness(message=(1, 4), fsync=(1, 6)),
    ],
    ids=["fast", "slow", "very slow"],
)
def test_survivors_elect_a_leader_however_slow_they_are(slowness: Slowness, death_is_noticed: bool) -> None:
    lasted = []
    for seed in SEEDS:
        survivors = Survivors(seed, slowness)
        if death_is_noticed:
            survivors.notice_death()
        lasted.append(survivors.ticks_until_led())
    assert max(lasted) < LIMIT_TICKS, lasted
