"""A broker that is the leader of one partition and a follower of another, with its Fetch handler behind a
socket.
"""

import random
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from connection_harness import Client
from msgspec.structs import replace

from tierlog.base.clock import SystemClock
from tierlog.base.files import OsFiles
from tierlog.base.tasks import TaskGroup
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.fetch import fetch_handler
from tierlog.broker.handlers.fetch_sessions import FetchSessions
from tierlog.broker.handlers.guard import guarded_handlers
from tierlog.broker.handlers.offsets import list_offsets_handler
from tierlog.broker.handlers.purgatory import Purgatory
from tierlog.broker.handlers.recently_fenced import RecentlyFencedBrokers
from tierlog.broker.net.listener import Listener
from tierlog.broker.replication.core.follower import Fetched
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.security.authorizer import Authorizer
from tierlog.broker.storage.log_dirs import LogDirectories
from tierlog.config.sources import settings_from
from tierlog.metadata import records as r
from tierlog.metadata.acl_index import index_of
from tierlog.metadata.acls import AccessControlEntry
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.api import BY_NAME, FETCH_KEY
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import fetch
from tierlog.records.batch import assign
from tierlog.records.writer import NewRecord, encode_batch

TOPIC = uuid.UUID(int=5)
LED, FOLLOWED = 0, 1
EPOCH = 4
RACKS = {1: "a", 2: "b", 3: "b", 4: "c"}
NEWEST = 18
LIST_OFFSETS_KEY = BY_NAME["ListOffsets"].key


class Metadata:
    """Brokers 1 to 4 and two partitions: broker 1, the one under test, leads the first. Broker 4 is not in
    sync.
    """

    def __init__(self) -> None:
        changes: list[Any] = [
            r.BrokerRegistration(
                broker_id=broker_id,
                incarnation=uuid.UUID(int=broker_id),
                broker_epoch=broker_id,
                host="localhost",
                port=9_000 + broker_id,
                admin_url="",
                rack=rack,
            )
            for broker_id, rack in RACKS.items()
        ]
        changes += [
            r.BrokerFencing(broker_id=broker_id, broker_epoch=broker_id, fenced=False) for broker_id in RACKS
        ]
        changes.append(r.TopicCreated(topic_id=TOPIC, name="t"))
        changes += [_partition(number, leader, EPOCH) for number, leader in ((LED, 1), (FOLLOWED, 2))]
        self.image = evolve_all(ClusterImage(cluster_id="c"), changes)


def _partition(number: int, leader: int, epoch: int) -> r.PartitionRecord:
    return r.PartitionRecord(
        topic_id=TOPIC,
        partition=number,
        replicas=(1, 2, 3, 4),
        in_sync=(1, 2, 3),
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=epoch - EPOCH,
    )


class Node:
    """Broker 1, and operations on its replicas."""

    def __init__(self, client: Client, deps: Dependencies) -> None:
        self.client = client
        self.purgatory = deps.purgatory
        self.throttles = deps.throttles
        self.deps = deps

    async def ask(self, request: fetch.FetchRequest) -> Any:
        return await self.client.ask(FETCH_KEY, NEWEST, request)

    @property
    def image(self) -> ClusterImage:
        return self.deps.metadata.image

    def replica(self, partition: int) -> Replica:
        found = self.deps.replicas.get(TOPIC, partition)
        assert found is not None
        return found

    def lead(self, records: int, partition: int = LED) -> None:
        """Append this many one-byte records as the leader."""
        written = memoryview(encode_batch([NewRecord(0, None, b"v")] * records))
        assert self.replica(partition).as_leader.append(written, 0).error == ErrorCode.NONE

    def take_lead(self, partition: int, epoch: int) -> None:
        """Make this broker the partition's leader in that epoch."""
        old = self.image
        new = evolve_all(old, [_partition(partition, 1, epoch)])
        self.deps.metadata.image = new  # type: ignore[misc]
        self.deps.replicas.follow(old, new)

    def hear(self, follower: int, offset: int, log_start_offset: int = 0) -> None:
        now_ms = SystemClock().monotonic_ms()
        self.replica(LED).as_leader.follower_fetched(follower, follower, offset, now_ms, log_start_offset)

    def follow(self, records: int, committed: int) -> None:
        """Append `records` from the leader of the other partition, of which `committed` are committed."""
        replica = self.replica(FOLLOWED)
        requested = replica.as_follower.fetch_position()
        assert requested is not None
        batches = b""
        for number in range(records):
            one = encode_batch([NewRecord(0, None, b"v")])
            assign(one, 0, requested.offset + number, EPOCH)
            batches += one
        replica.as_follower.take_fetched(
            requested, Fetched(ErrorCode.NONE, committed, 0), memoryview(batches), 0
        )

    async def read(self, partition: int, offset: int, *, version: int = NEWEST, **fields: Any) -> Any:
        requested = fetch.FetchPartition(
            partition=partition,
            fetch_offset=offset,
            partition_max_bytes=1_000_000,
            current_leader_epoch=fields.pop("epoch", EPOCH),
        )
        topic = fetch.FetchTopic(topic="t", topic_id=TOPIC, partitions=[requested])
        request = fetch.FetchRequest(**{"max_wait_ms": 0, "min_bytes": 1, "topics": [topic], **fields})
        answer = await self.client.ask(FETCH_KEY, version, request)
        return answer.responses[0].partitions[0]


@asynccontextmanager
async def fetch_node(
    directory: Path, acls: Iterable[AccessControlEntry] | None = None, **texts: str
) -> AsyncIterator[Node]:
    """`acls`: those of an authorizer. `texts` are settings that replace the defaults of a test."""
    failures: list[BaseException] = []
    tasks = TaskGroup(lambda _, failure: failures.append(failure))
    rng, metadata = random.Random(1), Metadata()
    settings = settings_from({"log.dirs": str(directory), **texts})
    directories = LogDirectories([directory], OsFiles(), rng)
    purgatory = Purgatory(10)
    replicas = ReplicaManager(
        settings, directories, SystemClock(), tasks, rng, on_change=purgatory.check_and_complete
    )
    await replicas.open_all(metadata.image)
    deps = Dependencies(
        settings=settings,
        metadata=metadata,  # type: ignore[arg-type]
        replicas=replicas,
        purgatory=purgatory,
        fetch_sessions=FetchSessions(10, rng),
        clock=SystemClock(),
        tasks=tasks,
        recently_fenced=RecentlyFencedBrokers(SystemClock()),
    )
    handlers = {FETCH_KEY: fetch_handler(deps), LIST_OFFSETS_KEY: list_offsets_handler(deps)}
    if acls is not None:
        metadata.image = replace(metadata.image, acls=index_of(acls))
        handlers = guarded_handlers(handlers, deps, Authorizer(metadata))
    listener = Listener(handlers, tasks, lambda _, failure: failures.append(failure))
    client = await Client.connect(*(await listener.start())["PLAINTEXT"])
    yield Node(client, deps)
    client.close()
    await listener.close()
    purgatory.close()
    await replicas.close(clean=False)
    assert failures == []
