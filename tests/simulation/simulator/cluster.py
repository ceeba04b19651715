"""A run of a whole cluster by seed: three or five nodes, a replicated topic, clients, faults, and the checks.

What may be lost at once depends on the promise that the seed tests. With flush.messages=1 the power of any
nodes may go, all of them too (guarantee 2). Without, one disk at a time may lose what it had not synced, and
the next one only once all are in sync again (guarantee 1); processes are killed at will in both.
"""

import asyncio
import hashlib
import random
from collections import Counter
from dataclasses import dataclass, field
from operator import lt
from pathlib import Path

from simulator.broker import SimBroker
from simulator.disk import Disk
from simulator.loop import Process, SimLoop
from simulator.network import Network
from simulator.peers import address
from simulator.workload import TOPIC, Client, History, Violation, consume, produce, values_of
from tierlog.broker.ports.types import InvariantViolation
from tierlog.broker.runtime.replica import Replica
from tierlog.broker.settings.node import settings_from
from tierlog.broker.wire.errors import ErrorCode
from tierlog.metadata.controller.commands import CreateTopics, NewTopic, TopicsChanged
from tierlog.metadata.node import MetadataUnavailable

FAULTS_S = 20.0
HEAL_S = 30.0
"""Virtual seconds within which all is as it should be, once nothing fails any more."""

PARTITIONS = 3
CHECK_S = 0.05
FAULTS = (
    "kill",
    "kill leader",
    "power",
    "pause",
    "isolate",
    "one way",
    "clog",
    "heal",
    "sync",
    "write",
    "directory",
    "wipe",
    "skew",
)


@dataclass(slots=True)
class Outcome:
    seed: int
    acknowledged: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    trace: str = ""
    virtual_s: float = 0.0


class ClusterRun:
    def __init__(self, seed: int, directory: Path) -> None:
        self.rng = random.Random(seed)
        self.loop = SimLoop(self._fork())
        self.network = Network(self.loop, self._fork())
        self.outcome = Outcome(seed)
        self.history = History()
        self.flushes = self.rng.random() < 0.5
        nodes = range(1, self.rng.choice((3, 3, 5)) + 1)
        self.brokers: dict[int, SimBroker] = {}
        for number in nodes:
            path = directory / str(number)
            path.mkdir()
            self.brokers[number] = SimBroker(
                number, self._settings(number, nodes), Disk(path), self.loop, self.network,
                self.brokers, self._fork(), self._failed,
            )  # fmt: skip
        self._violations: list[BaseException] = []
        self._high_watermarks: dict[int, tuple[int, int]] = {}
        self._leaders: dict[tuple[int, int], int] = {}
        self._trace = hashlib.sha256()

    def play(self) -> Outcome:
        try:
            self.loop.run_for(self._main())
        finally:
            self.outcome.virtual_s = self.loop.time()
            for broker in self.brokers.values():
                broker.kill()
        self.outcome.acknowledged = self.history.count
        self.outcome.trace = self._trace.hexdigest()
        return self.outcome

    def _fork(self) -> random.Random:
        return random.Random(self.rng.getrandbits(64))

    def _settings(self, number: int, nodes: range) -> "object":
        return settings_from(
            {
                "node.id": str(number),
                "cluster.id": "simulated",
                "controller.quorum.voters": ",".join(f"{n}@{address(n)}:9644" for n in nodes),
                "controller.quorum.secret": "simulated",
                "log.flush.offset.checkpoint.interval.ms": "3000",
                "log.segment.bytes": str(self.rng.choice((700, 4000, 1 << 20))),
                "log.index.interval.bytes": "200",
                "replica.lag.time.max.ms": "4000",
                "min.insync.replicas": "2",
            }
        )

    async def _main(self) -> None:
        for broker in self.brokers.values():
            broker.start()
        clients = Process(self.loop, "clients")
        for name in [f"producer-{n}" for n in range(4)] + [f"consumer-{n}" for n in range(3)] + ["admin"]:
            self.network.listen(name, clients)
        await self._create_topic()
        for n in range(4):
            client = Client(f"producer-{n}", self.network, self.brokers, self.history, self._fork())
            self._watch(clients, produce(client, n, n % PARTITIONS, self.rng.uniform(0.01, 0.2)))
        for n in range(3):
            client = Client(f"consumer-{n}", self.network, self.brokers, self.history, self._fork())
            self._watch(clients, consume(client, n % PARTITIONS, 0.05))
        checking = asyncio.ensure_future(self._check_again())
        weather = self.network.weather
        weather.loss = self.rng.choice((0.0, 0.0, 0.05, 0.3))
        weather.repetition = self.rng.choice((0.0, 0.1, 0.5))
        weather.overtaking = self.rng.choice((0.0, 0.1, 0.5))
        await self._faults()
        self._heal()
        await self._settle()
        clients.kill()
        checking.cancel()
        self._check_end()

    def _watch(self, process: Process, work: "object") -> None:
        def ended(task: "asyncio.Task[None]") -> None:
            if not task.cancelled() and (failure := task.exception()) is not None:
                self._violations.append(failure)

        process.spawn(work).add_done_callback(ended)  # type: ignore[arg-type]

    def _failed(self, broker: SimBroker, failure: BaseException) -> None:
        self._violations.append(failure)

    async def _create_topic(self) -> None:
        configs = (("flush.messages", "1"),) if self.flushes else ()
        command = CreateTopics(
            topics=(NewTopic(name=TOPIC, partitions=PARTITIONS, replication_factor=3, configs=configs),)
        )
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

    # --- faults

    async def _faults(self) -> None:
        until = self.loop.time() + FAULTS_S
        while self.loop.time() < until:
            await asyncio.sleep(self.rng.expovariate(1.2))
            self._raise_violation()
            self._fault(self.rng.choice(FAULTS))

    def _fault(self, fault: str) -> None:
        rng = self.rng
        broker = self.brokers[rng.choice(sorted(self.brokers))]
        other = self.brokers[rng.choice(sorted(self.brokers))]
        self.outcome.faults[fault] += 1
        match fault:
            case "kill":
                broker.kill()
                self._start_later(broker)
            case "kill leader":
                leading = [
                    b for b in self.brokers.values() if b.metadata is not None and b.metadata.is_leader
                ]
                for one in leading:
                    one.kill()
                    self._start_later(one)
            case "power":
                if self.flushes and rng.random() < 0.2:
                    for one in self.brokers.values():
                        one.lose_power()
                        self._start_later(one)
                elif self.flushes or self._all_in_sync():
                    broker.lose_power()
                    self._start_later(broker)
            case "pause":
                if broker.process is not None:
                    broker.process.pause()
                    self.loop.call_later(rng.uniform(0, 6), broker.process.go_on)
            case "isolate":
                self.network.isolate(broker.name)
            case "one way":
                self.network.cut(broker.name, other.name)
            case "clog":
                self.network.clog(broker.name, other.name)
            case "heal":
                weather = self.network.weather
                self.network.heal()
                self.network.weather = weather
            case "sync" | "write":
                broker.disk.fails_at[fault] = 5  # EIO
                self._start_later(broker)
            case "directory":
                broker.lose_directory(rng)
                self._restart_later(broker)
            case "wipe":
                if self._all_in_sync():
                    broker.wipe_directory(rng)
                    self._start_later(broker)
            case "skew":
                broker.clock.skew_ms = rng.randrange(-600_000, 600_000)

    def _start_later(self, broker: SimBroker) -> None:
        self.loop.call_later(self.rng.uniform(0, 4), broker.start)

    def _restart_later(self, broker: SimBroker) -> None:
        self.loop.call_later(self.rng.uniform(1, 6), broker.kill)
        self._start_later(broker)

    def _heal(self) -> None:
        self.network.heal()
        for broker in self.brokers.values():
            broker.disk.fails_at.clear()
            if broker.lacks_directories:
                broker.kill()
            if broker.process is not None and broker.process.paused:
                broker.process.go_on()
            broker.start()

    async def _settle(self) -> None:
        """All in sync, and every partition takes records, within HEAL_S. Nodes that end are started again."""
        deadline = self.loop.time() + HEAL_S
        before = self._counts()
        while not (self._all_in_sync() and all(map(lt, before, self._counts()))):
            self._raise_violation()
            if self.loop.time() > deadline:
                what = f"no progress {HEAL_S} s after everything was healed, {before} -> {self._counts()}"
                raise Violation(f"{what}: {self._standing()}")
            for broker in self.brokers.values():
                broker.start()
            await asyncio.sleep(0.2)
        await asyncio.sleep(1.0)
        self._raise_violation()

    def _counts(self) -> list[int]:
        return [len(self.history.acknowledged.get(partition, ())) for partition in range(PARTITIONS)]

    # --- what must hold

    async def _check_again(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                self._check()
            except (Violation, InvariantViolation) as failure:
                self._violations.append(failure)
                return

    def _check(self) -> None:
        for number, broker in sorted(self.brokers.items()):
            if broker.metadata is None or broker.replicas is None:
                continue
            broker.metadata.core.check()
            for partition in range(PARTITIONS):
                replica = broker.replicas.get(TOPIC, partition)
                if replica is None or replica.failed is not None:
                    continue
                replica.check()
                self._trace.update(
                    f"{self.loop.time():.6f} {number} {partition} {replica.leader_epoch} "
                    f"{replica.log_end_offset} {replica.high_watermark}\n".encode()
                )
                if replica.leads:
                    self._check_leader(number, partition, replica)

    def _check_leader(self, number: int, partition: int, replica: Replica) -> None:
        epoch = (partition, replica.leader_epoch)
        if self._leaders.setdefault(epoch, number) != number:
            raise Violation(f"two leaders of partition {partition} in epoch {replica.leader_epoch}")
        known_epoch, known = self._high_watermarks.get(partition, (-1, 0))
        if replica.leader_epoch == known_epoch and replica.high_watermark < known:
            raise Violation(f"the high watermark of partition {partition} went back from {known}")
        if replica.leader_epoch >= known_epoch:
            self._high_watermarks[partition] = (replica.leader_epoch, replica.high_watermark)

    def _all_in_sync(self) -> bool:
        for partition in range(PARTITIONS):
            led = 0
            for broker in self.brokers.values():
                replica = None if broker.replicas is None else broker.replicas.get(TOPIC, partition)
                if replica is not None and replica.leads:
                    image = broker.metadata.image.topic(TOPIC) if broker.metadata is not None else None
                    if (
                        image is None
                        or len(image.partitions[partition].in_sync) < 3
                        or len(replica.in_sync) < 3
                    ):
                        return False
                    led += 1
            if led != 1:
                return False
        return True

    def _check_end(self) -> None:
        """The logs of all replicas agree, and hold what was acknowledged and seen, once, in order."""
        self._raise_violation()
        for partition in range(PARTITIONS):
            contents = self._contents(partition)
            whole = contents[0]
            committed = min(len(content) for content in contents)
            if any(content[:committed] != whole[:committed] for content in contents):
                raise Violation(f"the replicas of partition {partition} differ")
            by_offset = dict(whole)
            for kind, told in (("acknowledged", self.history.acknowledged), ("seen", self.history.seen)):
                for offset, value in sorted(told.get(partition, {}).items()):
                    if by_offset.get(offset) != value:
                        raise Violation(
                            f"{kind} record {value!r} at {offset} of partition {partition} is lost: "
                            f"{by_offset.get(offset)!r} is there"
                        )
            self._check_order(partition, [value for _, value in whole])

    def _contents(self, partition: int) -> list[list[tuple[int, bytes]]]:
        found = []
        for broker in self.brokers.values():
            replica = None if broker.replicas is None else broker.replicas.get(TOPIC, partition)
            if replica is not None:
                batches = b"".join(data for _, data in replica.log.batches(0))
                found.append(values_of(batches))
        return found

    def _check_order(self, partition: int, values: list[bytes]) -> None:
        last: dict[bytes, int] = {}
        for value in values:
            producer, _, number = value.partition(b"-")
            if int(number) != last.get(producer, -1) + 1:
                raise Violation(f"partition {partition}: {value!r} follows {last.get(producer)}")
            last[producer] = int(number)

    def _raise_violation(self) -> None:
        for failure in self._violations:
            raise failure
        for what in self.loop.unhandled:
            raise InvariantViolation(str(what)) from what.get("exception")

    def _standing(self) -> str:
        told = []
        for number, broker in sorted(self.brokers.items()):
            replicas = broker.replicas
            rows = [] if replicas is None else [
                (r.leads, r.leader_epoch, r.log_end_offset, r.high_watermark, sorted(r.in_sync))
                for r in (replicas.get(TOPIC, n) for n in range(PARTITIONS)) if r is not None
            ]  # fmt: skip
            fenced = None if broker.lifecycle is None else broker.lifecycle.fenced
            told.append(f"node {number}: up {broker.is_up}, fenced {fenced}, {rows}")
        return "; ".join(told)
