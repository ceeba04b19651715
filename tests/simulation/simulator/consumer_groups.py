"""Consumer group of the consumer protocol (KIP-848) in a simulated cluster.

In some runs a few members (`consumer_member`) follow the assignments of their coordinator, which faults move.
In a part of them members of the classic protocol (`classic_consumer`) come and go in the same group, which is
converted each time. `consumer_witness` says what must hold.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import count

from simulator.broker import SimBroker
from simulator.classic_consumer import COOPERATIVE, EAGER, ClassicConsumer
from simulator.consumer_member import Consumer
from simulator.consumer_witness import ConsumerWitness, Member
from simulator.loop import Process, SimLoop
from simulator.network import Network
from simulator.partitions import PartitionWitness
from simulator.workload import RETRY_S, Client, History

SHARE = 0.3
"""Share of the cluster runs with such a group."""

MEMBERS, STATIC = (2, 3, 4), 0.3
MIXED, FORGETFUL, TRANSACTIONAL = 0.4, 0.4, 0.4
"""Shares of these runs in which members of both protocols are in the group, in which some members miss
responses, and in which members commit offsets in transactions."""

CLASSIC = 0.6
"""Share of the members of the classic protocol, in a group of both."""

FATE, FATE_MIXED = 0.1, 0.2
"""Shares of the steps with which something happens to a member: it must end to make a group convert."""

SESSION_EXTRA_S = 2.0
"""How much longer the session of a member is than that of a broker."""


def has_consumers(seed: int) -> bool:
    """Whether a cluster run has such a group."""
    return random.Random(f"consumer groups {seed}").random() < SHARE


def have_members_transactions(seed: int) -> bool:
    """Whether members of such a group commit offsets in transactions."""
    return has_consumers(seed) and _Kinds(seed).has_transactions


class _Kinds:
    """Kinds of members in the group of a run."""

    def __init__(self, seed: int) -> None:
        self.draws = random.Random(f"kinds of members {seed}")
        self.is_mixed, self.has_forgetful, self.has_transactions = (
            self.draws.random() < share for share in (MIXED, FORGETFUL, TRANSACTIONAL)
        )
        self.classic_protocol = self.draws.choice((EAGER, COOPERATIVE))


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
        self._kinds = _Kinds(seed)
        self.has_forgetful, self.classic_protocol = self._kinds.has_forgetful, self._kinds.classic_protocol
        self.has_transactions = self._kinds.has_transactions
        self._clients = 0
        self._leaves_last = frozenset(("consumer-member-0", "consumer-member-1"))
        self.fate = FATE_MIXED if self._kinds.is_mixed else FATE
        self.seed = seed
        self._network, self._brokers, self.done = network, brokers, done
        self.session_s, self.faults_last = session_ms / 1000 + SESSION_EXTRA_S, faults_last
        self.witness = ConsumerWitness(loop.time, self.session_s, lambda: partitions.image, done)

    def start(self, clients: Process, failures: list[BaseException]) -> None:
        self._clients = self._rng.choice(MEMBERS) if self.is_on else 0
        for number in range(self._clients):
            name = f"consumer-member-{number}"
            self._network.listen(name, clients)
            draws = random.Random(self._rng.random())
            client = Client(name, self._network, dict(self._brokers), History(), draws)
            clients.watch(self._run(client, name if draws.random() < STATIC else None), failures)

    async def _run(self, client: Client, instance_id: str | None) -> None:
        """One member after the other. Runs until cancelled."""
        for number in count():
            member = Member(f"{client.name}-{number}", instance_id)
            is_classic = self._kinds.is_mixed and self._kinds.draws.random() < CLASSIC
            await (ClassicConsumer if is_classic else Consumer)(self, client, member).run()
            if self._kinds.is_mixed and instance_id is not None:
                self.witness.gave_up(member)  # the next member may take its place at once
            await asyncio.sleep(client.rng.uniform(*RETRY_S))

    def must_leave_last(self, name: str) -> bool:
        """Without faults, the next member of this client waits for its partitions in one epoch: what it gets
        in a late response stays unknown to it, unless the coordinator repeats it."""
        must_leave = self.has_forgetful and name in self._leaves_last
        self._leaves_last -= {name}
        return must_leave

    @property
    def counts(self) -> list[int]:
        """Counts that grow in a healthy cluster."""
        return [self.witness.commits] if self.is_on else []

    @property
    def is_balanced(self) -> bool:
        if not self.is_on:
            return True
        has_left = not self.has_forgetful or not self._leaves_last
        return has_left and self.witness.is_balanced(self._clients)

    def status(self) -> str:
        return f", {self.witness.status()}" if self.is_on else ""
