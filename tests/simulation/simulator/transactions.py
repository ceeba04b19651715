"""Transactions of a run: their topics and applications, faults that need them, and the checks.

In some runs two applications write transactions to two partitions, and a loop reads a topic, writes an output
for each input, and commits its offset in the same transaction (`transactional_applications`). Coordinators
are killed when they have decided an outcome, and markers arrive late. `transaction_history` says what must
hold.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from simulator.broker import SimBroker
from simulator.consumer_groups import have_members_transactions
from simulator.groups import OFFSETS_TOPIC
from simulator.loop import Process, SimLoop
from simulator.network import Network
from simulator.transaction_history import TransactionHistory
from simulator.transaction_producer import INPUTS, OUTPUTS, Producer
from simulator.transaction_reader import fetch, fetch_offset
from simulator.transactional_applications import KILLED, LATE_S, LOOP, PARTITIONS, Applications
from simulator.witness import Violation
from simulator.workload import Client, History
from tierlog.base.types import TopicPartition
from tierlog.broker.replication.replica import Replica
from tierlog.broker.transactions.core.transaction import EPOCH_BUMP_VERSION
from tierlog.broker.transactions.marker_sender import MARKERS_VERSION, Job, MarkerSender
from tierlog.broker.transactions.marker_sender import _marker as marker_of
from tierlog.config.topic import TRANSACTIONS_TOPIC
from tierlog.metadata.controller.commands import NewTopic
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.messages.write_txn_markers import WriteTxnMarkersRequest

SHARE = 0.3
"""Share of the cluster runs with transactions."""

TOPICS = {INPUTS: 1, OUTPUTS: PARTITIONS, TRANSACTIONS_TOPIC: 2}
"""Partitions by topic."""

NAMES = ("writer-1", "writer-2", LOOP)
TIMEOUTS_MS = (1000, 3000)
ENDS_S = 10.0
"""How much longer than its timeout a transaction may hold the last stable offset (guarantee 11)."""

LATE_MARKERS = 0.1
"""Share of the transactions, of version 2, of whose markers copies arrive late."""

DOOMED_RUNS, DOOMED = 0.4, 0.3
"""Share of these runs in which transactions write to topics that are deleted, and of their transactions."""

MARKERS = BY_NAME["WriteTxnMarkers"].key
POLL_S = 0.05
KILLED_S = 0.01
"""Within this time after a batch or an EndTxn is sent, or after the outcome is decided."""


def has_transactions(seed: int) -> bool:
    """Whether clients of a cluster run use transactions."""
    return random.Random(f"transactions {seed}").random() < SHARE


class Transactions:
    """Uses generators of its own, which no run without transactions notices."""

    def __init__(
        self,
        seed: int,
        loop: SimLoop,
        network: Network,
        brokers: Mapping[int, SimBroker],
        done: Counter[str],
    ) -> None:
        self._seed, self._loop, self._network, self._brokers = seed, loop, network, brokers
        rng = self._rng = random.Random(f"transactions {seed}")
        self.is_on = rng.random() < SHARE
        self._of_members = have_members_transactions(seed)
        self.history = TransactionHistory(done)
        self._done = done
        self._timeout_ms = rng.choice(TIMEOUTS_MS)
        self._versions = {name: rng.choice((1, 2, 2)) for name in NAMES}
        self._kills = random.Random(rng.random())
        self._dooms = random.Random(f"doomed topics {seed}")
        self._has_doomed, self._doomed_topics = self._dooms.random() < DOOMED_RUNS, 0
        self._held: dict[TopicPartition, tuple[int, float]] = {}
        """The partitions whose last stable offset is held back: the offset, and since when."""
        self.configs: Sequence[tuple[str, str]] = ()
        self._clients: Process | None = None
        self._broker_history = History()
        self.stop: Callable[[int], None] = lambda node: None
        """Kills a broker."""
        self.faults_are_over: Callable[[], bool] = lambda: False

    # ---- parts of the run ----

    def topics(
        self, configs: Sequence[tuple[str, str]], tiered: Sequence[tuple[str, str]], *, has_offsets: bool
    ) -> Iterator[NewTopic]:
        """`tiered`: configs of tiered topics, in a tiered run. `has_offsets`: whether the run creates the
        topic of the groups' offsets without this."""
        self.configs = configs
        compacted = (("cleanup.policy", "compact"), *configs)
        names = [*TOPICS] if self.is_on else [TRANSACTIONS_TOPIC] if self._of_members else []
        for name, count in ((name, TOPICS[name]) for name in names):
            own = compacted if name == TRANSACTIONS_TOPIC else (*configs, *tiered)
            yield NewTopic(name=name, partitions=count, replication_factor=3, configs=own)
        if self.is_on and not has_offsets:
            yield NewTopic(name=OFFSETS_TOPIC, partitions=1, replication_factor=3, configs=compacted)

    def start(self, clients: Process, failures: list[BaseException]) -> None:
        if not self.is_on:
            return
        self._clients, self._failures = clients, failures
        forgets = random.Random(f"forgotten batches {self._seed}")
        rare = random.Random(f"rare transactions {self._seed}")
        same = random.Random(f"transactions after late batches {self._seed}")
        applications = Applications(
            self, self.history, self._done, self._versions, self._timeout_ms, forgets, rare, same
        )
        applications.start()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._clients is not None
        self._clients.watch(work, self._failures)

    @property
    def counts(self) -> list[int]:
        """Counts that grow in a healthy cluster."""
        return [self.history.committed, self.history.acknowledged_offset] if self.is_on else []

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Kill some coordinators that have decided an outcome, before their markers or among them. Some
        markers arrive late: those of a killed coordinator, after its successor's, or copies, which can do no
        harm from transaction version 2 on."""
        write = MarkerSender.write

        def write_or_die(sender: MarkerSender, job: Job) -> None:
            if self._kills.random() < KILLED and not self.faults_are_over():
                self._done["coordinators killed before their markers"] += 1
                self._kill_within(KILLED_S, sender._node_id)
                if self._kills.random() < 0.5:
                    self.spawn(self._write_late(job))
                    return
            elif job.markers.client_version >= EPOCH_BUMP_VERSION and self._kills.random() < LATE_MARKERS:
                self.spawn(self._write_late(job))
            write(sender, job)

        if not self.is_on:
            yield
            return
        with patch.object(MarkerSender, "write", write_or_die):
            yield

    async def _write_late(self, job: Job) -> None:
        client = self.client("late markers")
        for partition in sorted(job.markers.partitions):
            if partition.topic == OUTPUTS:
                await asyncio.sleep(client.rng.uniform(0, LATE_S))
                request = WriteTxnMarkersRequest(markers=[marker_of(job, [partition])])
                response = await client.call_leader(partition.partition, MARKERS, MARKERS_VERSION, request)
                self._done["late markers"] += response is not None

    def kill_coordinator(self, producer: Producer, share: float) -> None:
        node = producer.coordinator
        if self._kills.random() < share and node is not None and not self.faults_are_over():
            self._kill_within(KILLED_S, node)

    def doomed_client(self) -> Client | None:
        rng = self._dooms
        if not self._has_doomed or self.faults_are_over() or rng.random() >= DOOMED:
            return None
        self._doomed_topics += 1
        topic = f"doomed-{self._doomed_topics}"
        assert self._clients is not None
        self._network.listen(topic, self._clients)
        draws = random.Random(rng.random())
        return Client(topic, self._network, dict(self._brokers), self._broker_history, draws, topic)

    def delay_answers(self, producer: Producer, topic: str, partition: int) -> None:
        coordinator = producer.coordinator
        known = None if coordinator is None else self._brokers[coordinator].metadata
        found = None if known is None else known.image.topic(topic)
        if found is None or coordinator is None or self.faults_are_over():
            return
        leader = self._brokers.get(found.partitions[partition].leader)
        if leader is not None and leader.node_id != coordinator:
            self._network.clog(self._brokers[coordinator].name, leader.name)

    def _kill_within(self, most_s: float, node: int) -> None:
        assert self._clients is not None
        self._loop.call_later(self._kills.uniform(0, most_s), self.stop, node, context=self._clients.context)

    def client(self, name: str, topic: str = OUTPUTS) -> Client:
        """A client with connections of its own."""
        assert self._clients is not None
        self._network.listen(name, self._clients)
        rng = random.Random(self._rng.random())
        return Client(name, self._network, dict(self._brokers), self._broker_history, rng, topic)

    # ---- what must hold ----

    def check(self) -> None:
        """No transaction holds a last stable offset for much longer than its timeout. Raises Violation.

        Time counts once faults are over, while all brokers live: then a quorum and all leaders do."""
        if not self.is_on or not self.faults_are_over():
            return
        now_s, is_up = self._loop.time(), all(broker.is_up for broker in self._brokers.values())
        held = {}
        for leader in self._leaders() if is_up else ():
            unstable = leader.last_stable_offset
            if unstable < leader.high_watermark:
                offset, since_s = self._held.get(leader.name, (unstable, now_s))
                held[leader.name] = (unstable, since_s if offset == unstable else now_s)
                if now_s - held[leader.name][1] > self._timeout_ms / 1000 + ENDS_S:
                    raise Violation(
                        f"the last stable offset of {leader.name} stays at {unstable},"
                        f" the high watermark is {leader.high_watermark}"
                    )
        self._held = held

    def _leaders(self) -> Iterator[Replica]:
        for broker in self._brokers.values():
            for replica in broker.replicas or ():
                if replica.is_leader and replica.name.topic in (OUTPUTS, OFFSETS_TOPIC):
                    yield replica

    async def end(self, raise_violation: Callable[[], None]) -> None:
        """Wait until the transactions of the clients, which have died, are aborted. Then read everything."""
        if not self.is_on:
            return
        deadline = self._loop.time() + self._timeout_ms / 1000 + ENDS_S
        while held := [one.name for one in self._leaders() if one.last_stable_offset < one.high_watermark]:
            raise_violation()
            if self._loop.time() > deadline:
                raise Violation(f"transactions in {held} do not end")
            await asyncio.sleep(POLL_S)
        self._clients = Process(self._loop, "transactions reader")
        await self._clients.spawn(self._check_end())

    async def _check_end(self) -> None:
        client, found = self.client("last reader"), dict[int, list[tuple[int, bytes]]]()
        for partition in range(PARTITIONS):
            found[partition], offset, is_end = [], 0, False
            while not is_end:
                fetched = await fetch(client, partition, offset)
                if fetched is not None:
                    found[partition] += fetched.records
                    offset, is_end = fetched.next_offset, fetched.is_end
        loop_offset = await fetch_offset(self.client("last offset", INPUTS), is_stable=True)
        self.history.check(found, loop_offset)
