"""One run of a whole cluster by seed: three to five nodes, a replicated topic, clients, faults and checks."""

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from operator import lt
from pathlib import Path
from typing import Any

from simulator import compacted, end_offsets, late_cancels
from simulator import planned_operations as planned
from simulator.access import Guests
from simulator.batches_in_flight import Producer, has_batches_in_flight
from simulator.bit_rot import BitRot, short_segments
from simulator.broker import SimBroker
from simulator.consumer_groups import ConsumerGroups, consumer_settings
from simulator.disk import Disk
from simulator.faults import KINDS, SKEW_TIMES, ClusterFaults, producer_expiration_ms
from simulator.groups import OFFSETS_TOPIC, GroupHistory, run_member
from simulator.identities import RESTORED, TWINS, DirectoryRestore, Twins
from simulator.late_leases import LATE_LEASES, delay_heartbeat_replies
from simulator.loop import Process, SimLoop
from simulator.loss_budget import LossBudget
from simulator.many_producers import SHARE_WITH_MANY, produce_and_retry
from simulator.network import Network, Responses
from simulator.operators import move_partitions, recreate_topics, remove_brokers
from simulator.partitions import PartitionWitness
from simulator.peers import address
from simulator.splits import split
from simulator.tiering import Tiering
from simulator.transactions import Transactions
from simulator.witness import QuorumWitness, Violation
from simulator.workload import TOPIC, Client, History, Timestamps, check_order, consume, produce, values_of
from tierlog.base.types import InvariantViolation
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.segment import Segment
from tierlog.config.node import NodeSettings
from tierlog.config.sources import settings_from
from tierlog.metadata.controller.commands import (
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    ConfigsAltered,
    CreateTopics,
    NewTopic,
    TopicsChanged,
)
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.node import MetadataNode
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.records import ConfigScope
from tierlog.protocol.errors import ErrorCode

FAULTS_S = (5.0,) * 8 + (10.0, 20.0)
FAULTS_A_SECOND = 2.0
HEAL_S = 30.0
"""Virtual seconds within which the cluster must recover after the last fault."""

LATE_S = 1.0
"""Virtual seconds for requests still under way when the cluster is healthy and all clients have stopped."""

UNANSWERED_S = 5.0
"""A leader without responses from a majority for this long must have stepped down: check-quorum takes one to
two times controller.quorum.fetch.timeout.ms.
"""

CLUSTER_ID = "simulated"
PARTITIONS = 3
MIN_IN_SYNC = 2
CHECK_S = 0.05

MOVED, RECREATED, REMOVED, BIT_ROT = 0.4, 0.25, 0.15, 0.3
"""Shares of the runs in which partitions move, topics are recreated, brokers are removed, bits flip."""

MISCONFIGURED = 0.4
"""Share of the runs in which brokers are sometimes started with other settings than the rest."""

SHARE_WITH_GROUP, MEMBERS = 0.3, 3
"""Share of the runs with a consumer group, and its members."""

VOTERS, APART, NO_VOTERS = 3, 0.2, (1, 1, 2)
"""APART is the share of the runs with VOTERS voters and NO_VOTERS brokers without a vote."""

RESERVE_BYTES = 1 << 16
"""Enough for the short logs of a run, and cheap to write at each start."""

TIMESTAMPS_AHEAD_MS = 5 * 86_400_000
"""How far a record's timestamp may be ahead of the broker's clock, which may be three days behind."""

LAGS_MS = (400, 2000, 2000)
SPLIT, SPLITS_A_SECOND = 0.25, 0.5
"""SPLIT is the share of the runs in which the nodes sometimes split into two groups."""


@dataclass(slots=True)
class Outcome:
    seed: int
    acknowledged: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    """Completed operations beside records, by kind."""
    trace: str = ""
    virtual_s: float = 0.0


class ClusterRun:
    def __init__(self, seed: int, directory: Path) -> None:
        self.rng = random.Random(seed)
        self.loop = SimLoop(self._fork())
        self.network = Network(self.loop, self._fork())
        self.outcome = Outcome(seed)
        self.network.responses = Responses(seed, self.outcome.done)
        self.history = History()
        self.flushes = self.rng.random() < 0.5
        self._configs = (*((("flush.messages", "1"),) if self.flushes else ()), *short_segments(seed))
        drawn = random.Random(f"settings {seed}").random()  # a generator of its own
        self._misconfigured = float(drawn < MISCONFIGURED)
        if self._misconfigured:
            self._configs += planned.TOPIC_CONFIGS_KEPT
        self.session_ms = self.rng.choice((1000, 3000))
        self.fetch_bytes = self.rng.choice((200, 1 << 20))
        nodes = voters = range(1, self.rng.choice((3, 3, 3, 3, 5)) + 1)
        apart = random.Random(f"brokers {seed}")  # a generator of its own
        if apart.random() < APART:
            voters = range(1, VOTERS + 1)
            nodes = range(1, VOTERS + apart.choice(NO_VOTERS) + 1)
        self.lag_ms = apart.choice(LAGS_MS)
        self.outcome.done["brokers without a vote"] = len(nodes) - len(voters)
        self._violations: list[BaseException] = []
        self.quorum = QuorumWitness(
            self.loop.time, lambda _: len(voters), self._violations, lambda node: None, UNANSWERED_S
        )
        self.brokers: dict[int, SimBroker] = {}
        self.partitions = PartitionWitness(TOPIC, PARTITIONS, MIN_IN_SYNC, self.brokers)
        self.history.check_durable = self.partitions.check_durable
        self.tiering = Tiering(
            seed,
            CLUSTER_ID,
            self.loop,
            self.brokers,
            self.outcome.done,
            self._check_tiered,
            self._violations.append,
        )
        self.bit_rot = BitRot(TOPIC, self.brokers, self.outcome.faults)
        self._losses = LossBudget(
            self.brokers, self.partitions, self.bit_rot, self.rng, synced_is_safe=self.flushes
        )
        self._group_rng = random.Random(f"group {seed}")  # a generator of its own
        self.group = GroupHistory(PARTITIONS) if self._group_rng.random() < SHARE_WITH_GROUP else None
        self._operators: list[asyncio.Task[None]] = []
        self._directory_restore: DirectoryRestore | None = None
        self._recreating: list[asyncio.Task[None]] = []  # tasks that must end before the run does
        self.guests = Guests(seed, self.network, self.brokers, self.history, self.outcome.done)
        self._make_brokers(directory, nodes, voters)
        self.faults_s = self.rng.choice(FAULTS_S)
        self.faults = ClusterFaults(
            self._fork(),
            self.loop,
            self.network,
            self.brokers,
            self._losses.power_victims,
            self.outcome.faults,
            (*KINDS, "directory", "wipe", "read", "reset"),
            self._losses.may_fail,
        )
        self.faults.may_wipe = self._losses.may_wipe
        clocks = random.Random(f"clocks {seed}")  # a generator of its own
        self.faults.skew_times = clocks.choice(SKEW_TIMES)
        self._has_many_producers = clocks.random() < SHARE_WITH_MANY
        self.transactions = Transactions(seed, self.loop, self.network, self.brokers, self.outcome.done)
        self.transactions.faults_are_over = lambda: self.faults.over
        self.transactions.stop = self._stop("coordinator of a decided transaction")
        context = self.loop, self.network, self.brokers, self.outcome.done
        self.consumers = ConsumerGroups(seed, *context, self.session_ms, self.partitions, self._faults_last)
        self._trace = hashlib.sha256()

    def _make_brokers(self, directory: Path, nodes: range, voters: range) -> None:
        for number in nodes:
            path = directory / str(number)
            path.mkdir()
            broker = self.brokers[number] = SimBroker(
                number, self._settings(number, voters), Disk(path), self.loop, self.network,
                self.brokers, self._fork(), self, self.tiering.store(address(number)),
            )  # fmt: skip
            broker.epochs.is_damaged = partial(self.bit_rot.is_pending, broker)

    def play(self) -> Outcome:
        try:
            with self.tiering.patched_limits(), self.transactions.patched():
                self.loop.run_for(self._main())
        finally:
            self.outcome.virtual_s = self.loop.time()
        for broker in self.brokers.values():
            broker.kill()
        self.outcome.acknowledged = self.history.count
        self.outcome.done.update(self.history.done)
        self.outcome.faults.update(self.tiering.faults)
        self.outcome.done["bits flipped"] = self.bit_rot.count
        self.outcome.done["group commits"] = 0 if self.group is None else self.group.count
        self.outcome.trace = self._trace.hexdigest()
        return self.outcome

    def _fork(self) -> random.Random:
        return random.Random(self.rng.getrandbits(64))

    def _settings(self, number: int, voters: range) -> NodeSettings:
        return settings_from(
            {
                "node.id": str(number),
                "cluster.id": CLUSTER_ID,
                "process.roles": "broker,controller" if number in voters else "broker",
                "controller.quorum.voters": ",".join(f"{n}@{address(n)}:9644" for n in voters),
                "controller.quorum.secret": "simulated",
                "log.flush.offset.checkpoint.interval.ms": "3000",
                "log.retention.check.interval.ms": "1000",
                "log.segment.bytes": str(self.rng.choice((700, 4000, 1 << 20))),
                "log.index.interval.bytes": "200",
                "replica.lag.time.max.ms": str(self.lag_ms),
                "replica.fetch.max.bytes": str(self.fetch_bytes),
                "broker.session.timeout.ms": str(self.session_ms),
                "broker.heartbeat.interval.ms": "250",
                "min.insync.replicas": str(MIN_IN_SYNC),
                "group.initial.rebalance.delay.ms": "100",
                "group.min.session.timeout.ms": "500",
                "log.message.timestamp.after.max.ms": str(TIMESTAMPS_AHEAD_MS),
                "metadata.reserve.bytes": str(RESERVE_BYTES),
                "producer.id.expiration.ms": str(producer_expiration_ms(self.outcome.seed)),
                **self.tiering.settings(number),
                **consumer_settings(self.session_ms),
                **self.guests.settings,
            }
        )

    async def _main(self) -> None:
        self._start_ended()
        clients, seed = Process(self.loop, "clients"), self.outcome.seed
        await self._create_topic()
        for n in range(4):
            client = self._client(f"producer-{n}", clients, self._fork())
            pause_s, stamps = self.rng.uniform(0.03, 0.3), Timestamps.of_producer(seed, n)
            clients.watch(produce(client, n, n % PARTITIONS, pause_s, stamps), self._violations)
        for n in range(3):
            client = self._client(f"consumer-{n}", clients, self._fork())
            clients.watch(consume(client, n % PARTITIONS, 0.1), self._violations)
        for n in range(PARTITIONS) if self._has_many_producers else ():
            draws = random.Random(f"producers {n} {self.outcome.seed}")
            client = self._client(f"producers-{n}", clients, draws)
            clients.watch(produce_and_retry(client, 1000 * (n + 1), n, self.outcome.done), self._violations)
        is_pipelined = has_batches_in_flight(seed) and not self.tiering.moves_log_start
        for n in range(PARTITIONS) if is_pipelined else ():
            client = self._client(f"pipeline-{n}", clients, random.Random(f"in flight {n} {seed}"))
            producer = Producer(client, self.network, self.brokers, n, self.outcome.done)
            clients.watch(producer.play(), self._violations)
        self._start_operators(clients)
        for history in self.tiering.histories:
            for name, play in compacted.clients_of(history):
                draws = random.Random(f"{name} {self.outcome.seed}")
                client = self._client(name, clients, draws, history.topic)
                clients.watch(play(client, history), self._violations)
        for n in range(MEMBERS) if self.group is not None else ():
            client = self._client(f"member-{n}", clients, random.Random(self._group_rng.random()))
            clients.watch(run_member(client, self.group), self._violations)
        self.transactions.start(clients, self._violations)
        self.consumers.start(clients, self._violations)
        checking = asyncio.ensure_future(self._check_periodically())
        self.faults.draw_message_faults()
        await self._faults()
        self.faults.end()
        for operator in self._operators:
            operator.cancel()
        await self.tiering.end_faults(self._start_ended)
        await self._await_recovery()
        if self._directory_restore is not None:
            for damage in (self._directory_restore.restore, self._directory_restore.shorten_one):
                async with asyncio.timeout(HEAL_S):
                    await damage(self.partitions)
                await self._await_recovery()
        flips = random.Random(f"flip {self.outcome.seed}")
        if self.history.bits_flip and self.bit_rot.flip_when_all_is_well(flips):
            await self._await_recovery()
        clients.kill()
        await asyncio.sleep(LATE_S)
        await self.transactions.end(self._raise_violation)
        await self._end_tiering()
        await self._await_newest_image()
        checking.cancel()
        self.bit_rot.undo_pending()
        self._check_end()

    async def _await_newest_image(self) -> None:
        """Wait for nodes whose metadata disk still hangs: they have the replicas of an older image."""
        before, deadline = self._counts(), self.loop.time() + HEAL_S
        while any(
            one.metadata is None or one.metadata.image.index < self.partitions.image.index
            for one in self.brokers.values()
        ):
            await self._restart_ended(before, deadline)

    async def _end_tiering(self) -> None:
        """Wait for uploads and deletions, then read all partitions from the log start."""
        if not self.tiering.is_on:
            return
        await self.tiering.await_completion(self._raise_violation)
        reader = Process(self.loop, "reader")
        self.network.listen("reader", reader)
        client = Client("reader", self.network, self.brokers, self.history, self._fork())
        ends = [max(self.history.acknowledged.get(number, {-1: b""})) + 1 for number in range(PARTITIONS)]
        await reader.spawn(self.tiering.read_back_all(client, ends))

    def _client(self, name: str, clients: Process, draws: random.Random, topic: str = TOPIC) -> Client:
        self.network.listen(name, clients)
        return Client(name, self.network, self.brokers, self.history, draws, topic)

    def _start_operators(self, clients: Process) -> None:
        """Start the operators and special faults of this run. Each draws from its own generator."""
        rng = random.Random(f"operators {self.outcome.seed}")
        around = lambda client: (self.brokers, client.rng, self.outcome.done)  # noqa: E731
        size, links = (self.outcome.seed, len(self.brokers)), (self.brokers, self.network)
        for name, (share, work) in {
            "mover": (MOVED, lambda client: move_partitions(client, PARTITIONS)),
            "passing": (RECREATED, self._recreate_topics),
            "retiring": (REMOVED, self._remove_brokers),
            "decay": (BIT_ROT, self._rot_bits),
            "splits": (SPLIT, self._split),
            "misconfigured": (self._misconfigured, self._misconfigure),
            "twins": (TWINS, self._start_twins),
            "restores": (RESTORED, self._copy_disk),
            "stops": (planned.STOPPED, lambda client: planned.restart_brokers(*around(client))),
            "directories": (planned.REHOUSED, lambda client: planned.rehouse_replicas(*around(client))),
            "late leases": (LATE_LEASES, self._delay_heartbeat_replies),
            "guests": (self.guests.share, lambda client: self.guests.play(client, clients, self._configs)),
            "cancels": (late_cancels.share(*size), lambda client: late_cancels.play(client, *links)),
            "ends": (end_offsets.SHARE, lambda client: end_offsets.play(client, PARTITIONS)),
        }.items():
            draws = random.Random(rng.random())
            if draws.random() < share:
                client = self._client(name, clients, draws, name)
                at_work = self._recreating if name == "passing" else self._operators
                at_work.append(clients.watch(work(client), self._violations))
        if self.tiering.is_on:
            self._operators.append(clients.watch(self.tiering.store_outages(), self._violations))
            merges = self.tiering.merges(self.history, PARTITIONS)
            for work in (merges, self.tiering.snapshots()):
                self.tiering.until_completion.append(clients.watch(work, self._violations))
            self._operators += [clients.watch(work, self._violations) for work in self.tiering.operators()]

    def _faults_last(self) -> bool:
        return not self.faults.over

    def _recreate_topics(self, client: Client) -> Coroutine[Any, Any, None]:
        tiered = self.tiering.configs
        rolled = (("segment.bytes", "100"),) if tiered else ()  # each batch rolls a segment, to be uploaded
        stop = self._stop("coordinator away") if self.group is not None else None
        return recreate_topics(client, (*self._configs, *tiered, *rolled), self._faults_last, stop)

    def _remove_brokers(self, client: Client) -> Coroutine[Any, Any, None]:
        return remove_brokers(
            client,
            PARTITIONS,
            self._stop("retired"),
            lambda leaving: self._losses.may_fail(self.brokers[leaving]),
        )

    def _rot_bits(self, client: Client) -> Coroutine[Any, Any, None]:
        self.history.bits_flip, self.tiering.witness.is_damaged = True, self.bit_rot.is_pending
        return self.bit_rot.flip_bits(client.rng, self._losses.may_wipe, self._stop("flipped bit"))

    def _misconfigure(self, client: Client) -> Coroutine[Any, Any, None]:
        return planned.misconfigure(self.brokers, client.rng, self._stop("other settings"))

    def _split(self, client: Client) -> Coroutine[Any, Any, None]:
        names = [broker.name for broker in self.brokers.values()]
        return split(names, self.network, client.rng, SPLITS_A_SECOND, self.outcome.faults)

    def _delay_heartbeat_replies(self, client: Client) -> Coroutine[Any, Any, None]:
        return delay_heartbeat_replies(TOPIC, self.brokers, self.network, client.rng, self.outcome.faults)

    def _start_twins(self, client: Client) -> Coroutine[Any, Any, None]:
        """Twins of brokers that keep running, are killed, or are isolated when the twin starts."""
        self._losses.twins = Twins(self.brokers, client.rng, self.partitions, self.outcome.faults)
        isolate = lambda real: self.network.isolate(real.name)  # noqa: E731
        return self._losses.twins.play(self._losses.may_wipe, (lambda real: None, self.faults.kill, isolate))

    def _copy_disk(self, client: Client) -> Coroutine[Any, Any, None]:
        self._directory_restore = DirectoryRestore(self.brokers, client.rng, self.outcome.faults)
        return self._directory_restore.copy(self._losses.may_wipe)

    def _stop(self, why: str) -> Callable[[int], None]:
        def stop(node_id: int) -> None:
            self.outcome.faults[why] += 1
            self.faults.kill(self.brokers[node_id])

        return stop

    # --- reports of the brokers

    def on_damage_found(self, broker: SimBroker, segment: Segment, cause: str) -> None:
        if not self.bit_rot.was_in(broker, segment.path()):
            self._violations.append(
                Violation(f"{cause}: {segment.path()} is reported damaged, but is intact")
            )

    def on_failure(self, broker: SimBroker, failure: BaseException) -> None:
        self._violations.append(failure)

    def on_published(self, image: ClusterImage) -> None:
        """Collects violations: the calling broker would treat an exception as its own failure."""
        try:
            self.partitions.on_published(image)
            self.tiering.on_published(image)
        except Violation as failure:
            self._violations.append(failure)

    def _check_tiered(self, topic: str, partition: int, offset: int, kind: str) -> None:
        if topic == TOPIC:
            self.partitions.check_durable(partition, offset, kind)

    def on_serving(self, broker: SimBroker) -> None:
        try:
            self.partitions.on_serving(broker)
        except Violation as failure:
            self._violations.append(failure)

    def on_remote_request(self, broker: SimBroker, replica: Replica, command: Any) -> None:
        try:
            self.tiering.witness.on_remote_request(broker, replica, command)
        except Violation as failure:
            self._violations.append(failure)

    # --- the topic

    async def _create_topic(self) -> None:
        if self.tiering.moves_log_start:
            self.history.log_start = self.tiering.log_start
        own = tuple({**dict(self._configs), **dict(self.tiering.configs), **self.tiering.retention}.items())
        topic = NewTopic(name=TOPIC, partitions=PARTITIONS, replication_factor=3, configs=own)
        configs = (("cleanup.policy", "compact"), *self._configs)
        offsets = NewTopic(name=OFFSETS_TOPIC, partitions=1, replication_factor=3, configs=configs)
        has_offsets = self.group is not None or self.consumers.is_on
        topics = (topic, offsets) if has_offsets else (topic,)
        transactional = self.transactions.topics(self._configs, self.tiering.configs, has_offsets=has_offsets)
        command = CreateTopics(topics=(*topics, *self.tiering.more_topics(self._configs), *transactional))
        while True:
            await asyncio.sleep(0.2)
            self._raise_violation()
            up = [broker.metadata for broker in self.brokers.values() if broker.metadata is not None]
            if not up or len(up[0].image.live_brokers()) < len(self.brokers):
                continue
            try:
                reply = await up[0].submit(command)
            except MetadataUnavailable:
                continue
            if isinstance(reply, TopicsChanged) and reply.topics[0].error is ErrorCode.NONE:
                return

    async def _faults(self) -> None:
        until = self.loop.time() + self.faults_s
        while self.loop.time() < until:
            await asyncio.sleep(self.rng.expovariate(FAULTS_A_SECOND))
            self._raise_violation()
            self.faults.inject()

    # --- recovery

    async def _await_recovery(self) -> None:
        """Within HEAL_S all brokers serve, none is suspected, all replicas are in sync, every partition
        accepts and returns records, and the last recreated topic is checked."""
        before, deadline = self._counts(), self.loop.time() + HEAL_S
        while not self._is_recovered(before):
            await self._restart_ended(before, deadline)
            if topics := self.partitions.needs_unclean_election():
                await self._allow_unclean_election(topics, before, deadline)

    def _is_recovered(self, before: list[int]) -> bool:
        is_damaged = self.bit_rot.start_scrubs()  # always: a consumer may wait for a damaged batch
        return (
            not is_damaged
            and self.partitions.all_serve()
            and self.partitions.all_in_sync()
            and self.consumers.is_balanced
            and all(task.done() for task in self._recreating)
            and all(map(lt, before, self._counts()))
            and not any(
                one.metadata.dead_brokers for one in self.brokers.values() if one.metadata is not None
            )
        )

    async def _restart_ended(self, before: list[int], deadline: float) -> None:
        """Wait a moment, and start nodes that ended. Raises Violation after the deadline."""
        self._raise_violation()
        if self.loop.time() > deadline:
            what = f"no progress {HEAL_S} s after everything was healed, {before} -> {self._counts()}"
            raise Violation(f"{what}: {self.partitions.status()}{self.consumers.status()}")
        self._start_ended()
        await asyncio.sleep(CHECK_S)

    def _start_ended(self) -> None:
        """Start nodes that ended, and restart those that lack a log directory."""
        for broker in self.brokers.values():
            if broker.lacks_directories:
                broker.kill()
            broker.start()

    async def _allow_unclean_election(self, topics: list[str], before: list[int], deadline: float) -> None:
        """Allow unclean election for a moment, as an operator does, and confirm that it is disabled again. No
        record may be lost, because nothing was committed in these partitions."""
        self.outcome.done["left to an operator"] += 1
        for operation, value in ((ConfigOperation.SET, "true"), (ConfigOperation.DELETE, None)):
            change = ConfigChange(key="unclean.leader.election.enable", operation=operation, value=value)
            resources = tuple(
                ConfigResource(scope=ConfigScope.TOPIC, name=name, changes=(change,)) for name in topics
            )
            while not await self._is_accepted(AlterConfigs(resources=resources)):
                await self._restart_ended(before, deadline)

    async def _is_accepted(self, command: AlterConfigs) -> bool:
        """Send the command to any node. A topic that no longer exists counts as accepted."""
        for broker in self.brokers.values():
            if broker.metadata is not None:
                with suppress(MetadataUnavailable):
                    reply = await broker.metadata.submit(command)
                    well = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                    return isinstance(reply, ConfigsAltered) and all(
                        one.error in well for one in reply.resources
                    )
        return False

    def _counts(self) -> list[int]:
        """Counts that grow in a healthy cluster: records written and read per partition, and commits."""
        kinds = (self.history.acknowledged, self.history.seen)
        counts = [len(kind.get(partition, ())) for kind in kinds for partition in range(PARTITIONS)]
        counts += self.transactions.counts + self.consumers.counts
        return counts if self.group is None else [*counts, self.group.count]

    # --- what must hold

    async def _check_periodically(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                self._check()
            except (Violation, InvariantViolation) as failure:
                self._violations.append(failure)
                return

    def _check(self) -> None:
        self._losses.forget_recovered()
        self.transactions.check()
        for line in (*self.partitions.check(), *self.tiering.check()):
            self._trace.update(f"{self.loop.time():.6f} {line}\n".encode())
        for broker in self.brokers.values():
            if isinstance(broker.metadata, MetadataNode) and broker.process is not None:
                self.quorum.check(broker.metadata.core, paused=broker.process.paused)

    def _check_end(self) -> None:
        """All replicas have the same log, with every acknowledged or consumed record once and in order."""
        self._raise_violation()
        self.partitions.check_placement()
        self.guests.check_end(self._logs)
        for partition in range(PARTITIONS):
            logs = self._logs(TOPIC, partition)
            committed = min(map(len, logs))
            if any(log[:committed] != logs[0][:committed] for log in logs):
                raise Violation(f"the replicas of partition {partition} differ")
            start = self.tiering.log_start(partition)
            by_offset = dict(values_of(logs[0]))
            for kind, known in (("acknowledged", self.history.acknowledged), ("seen", self.history.seen)):
                for offset, value in sorted(known.get(partition, {}).items()):
                    if offset >= start and by_offset.get(offset) != value:
                        raise Violation(
                            f"{kind} record {value!r} at {offset} of partition {partition} is lost: "
                            f"{by_offset.get(offset)!r} is there"
                        )
            acknowledged = self.history.acknowledged.get(partition, {})
            deleted = {offset: value for offset, value in acknowledged.items() if offset < start}
            # a retry of a deleted batch counts as new (guarantee 10), even one whose answer is never seen
            gone = set(deleted.values())
            kept = {offset: value for offset, value in by_offset.items() if value not in gone}
            check_order(partition, [value for _, value in sorted({**kept, **deleted}.items())])

    def _logs(self, topic: str, partition: int) -> list[bytes]:
        """The batches of each replica, local and remote."""
        running = [broker.replicas for broker in self.brokers.values() if broker.replicas is not None]
        replicas = [each.get(topic, partition) for each in running]
        return [log for one in replicas if one is not None for log in self.tiering.complete_logs(one)]

    def _raise_violation(self) -> None:
        for failure in self._violations:
            raise failure
        for what in self.loop.unhandled:
            raise InvariantViolation(str(what)) from what.get("exception")
