"""Consumer group of the consumer protocol (KIP-848) in a simulated cluster.

In some runs a few members (`consumer_member`) follow the assignments of their coordinator, which faults move.
`consumer_witness` says what must hold.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import count

from simulator.broker import SimBroker
from simulator.consumer_member import Consumer
from simulator.consumer_witness import ConsumerWitness, Member
from simulator.loop import Process, SimLoop
from simulator.network import Network
from simulator.partitions import PartitionWitness
from simulator.workload import RETRY_S, Client, History

SHARE = 0.3
"""Share of the cluster runs with such a group."""

MEMBERS, STATIC = (2, 3, 4), 0.3
SESSION_EXTRA_S = 2.0
"""How much longer the session of a member is than that of a broker."""


def has_consumers(seed: int) -> bool:
    """Whether a cluster run has such a group."""
    return random.Random(f"consumer groups {seed}").random() < SHARE


def consumer_settings(broker_session_ms: int) -> dict[str, str]:
    session_ms = broker_session_ms + int(1000 * SESSION_EXTRA_S)
    return {
        "group.consumer.session.timeout.ms": str(session_ms),
        "group.consumer.min.session.timeout.ms": str(session_ms),
        "group.consumer.heartbeat.interval.ms": "100",
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.assignment.interval.ms": "100",
    }


class ConsumerGroups:
    """Uses generators of its own, which no run without such a group notices."""

    def __init__(
        self,
        seed: int,
        loop: SimLoop,
        network: Network,
        brokers: Mapping[int, SimBroker],
        done: Counter[str],
        session_ms: int,
        partitions: PartitionWitness,
        faults_last: Callable[[], bool],
    ) -> None:
        self._rng = random.Random(f"consumer groups {seed}")
        self.is_on = self._rng.random() < SHARE
        self.seed = seed
        self._network, self._brokers, self.done = network, brokers, done
        self.session_s, self.faults_last = session_ms / 1000 + SESSION_EXTRA_S, faults_last
        self.witness = ConsumerWitness(loop.time, self.session_s, lambda: partitions.image, done)

    def start(self, clients: Process, failures: list[BaseException]) -> None:
        for number in range(self._rng.choice(MEMBERS)) if self.is_on else ():
            name = f"consumer-member-{number}"
            self._network.listen(name, clients)
            draws = random.Random(self._rng.random())
            client = Client(name, self._network, dict(self._brokers), History(), draws)
            clients.watch(self._run(client, name if draws.random() < STATIC else None), failures)

    async def _run(self, client: Client, instance_id: str | None) -> None:
        """One member after the other. Runs until cancelled."""
        for number in count():
            member = Member(f"{client.name}-{number}", instance_id)
            await Consumer(self, client, member).run()
            await asyncio.sleep(client.rng.uniform(*RETRY_S))

    @property
    def counts(self) -> list[int]:
        """Counts that grow in a healthy cluster."""
        return [self.witness.commits] if self.is_on else []

    @property
    def is_balanced(self) -> bool:
        return not self.is_on or self.witness.is_balanced

    def status(self) -> str:
        return f", {self.witness.status()}" if self.is_on else ""
