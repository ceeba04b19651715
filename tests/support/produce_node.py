"""A node of one broker that only answers Produce, over sockets, with two partitions of topic `t`."""

import random
import uuid
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from connection_harness import Client

from tierlog.base.clock import Clock, SystemClock
from tierlog.base.files import OsFiles
from tierlog.base.tasks import TaskGroup
from tierlog.broker.handlers.batch_validator import BatchValidator
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.fetch_sessions import FetchSessions
from tierlog.broker.handlers.produce import produce_handler
from tierlog.broker.handlers.purgatory import Purgatory
from tierlog.broker.handlers.recently_fenced import RecentlyFencedBrokers
from tierlog.broker.net.listener import Listener
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.storage.log_dirs import LogDirectories
from tierlog.config.sources import settings_from
from tierlog.metadata import records as r
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.api import PRODUCE_KEY
from tierlog.protocol.messages import produce
from tierlog.records.codecs import Codec
from tierlog.records.writer import NewRecord, encode_batch

TOPIC = uuid.UUID(int=5)
ALL, LEADER, NONE = -1, 1, 0


class HeldThreads(Executor):
    """Work waits until the test says so; then it is done in the event loop's thread."""

    def __init__(self) -> None:
        self.held: list[tuple[Future[Any], Callable[[], Any]]] | None = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        if self.held is not None:
            self.held.append((future, partial(fn, *args, **kwargs)))
        else:
            future.set_result(fn(*args, **kwargs))
        return future

    def run_one(self) -> None:
        future, work = self.held.pop(0)  # type: ignore[union-attr]
        future.set_result(work())

    def release(self) -> None:
        held, self.held = self.held or [], None
        for future, work in held:
            if future.set_running_or_notify_cancel():
                future.set_result(work())


class Metadata:
    """Two partitions led here."""

    def __init__(self) -> None:
        changes: list[Any] = [
            r.BrokerRegistration(
                broker_id=1,
                incarnation=uuid.UUID(int=1),
                broker_epoch=1,
                host="a",
                port=9000,
                admin_url="",
                rack=None,
            ),
            r.TopicCreated(topic_id=TOPIC, name="t"),
        ]
        changes += [
            r.PartitionRecord(
                topic_id=TOPIC,
                partition=number,
                replicas=(1,),
                in_sync=(1,),
                leader=1,
                leader_epoch=0,
                partition_epoch=0,
            )
            for number in (0, 1)
        ]
        self.image = evolve_all(ClusterImage(cluster_id="c"), changes)


class Node:
    def __init__(self, directory: Path, threads: Executor | None = None, clock: Clock | None = None) -> None:
        self.failures: list[BaseException] = []
        self.tasks = TaskGroup(lambda _, failure: self.failures.append(failure))
        self.threads = HeldThreads()
        self.validator = BatchValidator(threads or self.threads)
        self.purgatory = Purgatory(10)
        rng = random.Random(1)
        self.metadata = Metadata()
        settings = settings_from({"log.dirs": str(directory)})
        self.log_directories = LogDirectories([directory], OsFiles(), rng)
        self.replicas = ReplicaManager(
            settings,
            self.log_directories,
            SystemClock(),
            self.tasks,
            rng,
            on_change=self.purgatory.check_and_complete,
        )
        deps = Dependencies(
            settings=settings,
            metadata=self.metadata,  # type: ignore[arg-type]
            replicas=self.replicas,
            purgatory=self.purgatory,
            fetch_sessions=FetchSessions(10, rng),
            clock=clock or SystemClock(),
            tasks=self.tasks,
            recently_fenced=RecentlyFencedBrokers(SystemClock()),
            batch_validator=self.validator,
        )
        self.errors = deps.stats.for_api(PRODUCE_KEY).errors
        report = lambda _, failure: self.failures.append(failure)  # noqa: E731
        self.listener = Listener({PRODUCE_KEY: produce_handler(deps)}, self.tasks, report)

    async def start(self) -> None:
        await self.replicas.open_all(self.metadata.image)
        self.address = (await self.listener.start())["PLAINTEXT"]

    def replica(self, partition: int = 0) -> Replica:
        found = self.replicas.get("t", partition)
        assert found is not None
        return found

    async def connect(self) -> Client:
        return await Client.connect(*self.address)

    @property
    def is_idle(self) -> bool:
        memory_pool = self.listener.memory_pool
        return (self.validator.pending_batches, len(self.tasks), memory_pool.used, memory_pool.held) == (
            0,
            0,
            0,
            0,
        )


def batch(count: int = 1, codec: Codec = Codec.NONE, key: bytes | None = b"k", **fields: Any) -> bytes:
    now_ms = SystemClock().now_ms()  # what is not plausible is looked at whole
    return bytes(encode_batch([NewRecord(now_ms, key, b"v")] * count, codec=codec, **fields))


def request(*batches: bytes, acks: int = LEADER, partition: int = 0) -> produce.ProduceRequest:
    data = [
        produce.PartitionProduceData(index=partition + number, records=records)
        for number, records in enumerate(batches)
    ]
    return produce.ProduceRequest(
        acks=acks, timeout_ms=60_000, topic_data=[produce.TopicProduceData(name="t", partition_data=data)]
    )


def results(answer: Any) -> list[tuple[int, int]]:
    return [(each.error_code, each.base_offset) for each in answer.responses[0].partition_responses]


async def receive(client: Client) -> list[tuple[int, int]]:
    return results((await client.receive(PRODUCE_KEY, 9))[1])


@asynccontextmanager
async def produce_node(directory: Path, clock: Clock | None = None) -> AsyncIterator[Node]:
    node = Node(directory, clock=clock)
    await node.start()
    yield node
    await node.listener.close()
    await node.tasks.close()
    node.purgatory.close()
    await node.replicas.close(clean=False)
    assert node.failures == []
