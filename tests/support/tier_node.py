"""The parts of a broker that tiering needs: quorum of one, replicas, remote log manager, storage cleaner."""

import asyncio
import random
import struct
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from opened_metadata import opened_metadata
from opened_replica import opened_replica

from tierlog.base.clock import SystemClock
from tierlog.base.files import FileSlice, OsFiles
from tierlog.base.slices import LogSlice
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicIdPartition, TopicPartition
from tierlog.broker.maintenance.log_repair import LogRepair
from tierlog.broker.remote.loads import Loads
from tierlog.broker.remote.remote_compactor import RemoteCompactor
from tierlog.broker.remote.remote_log_manager import RemoteLogManager
from tierlog.broker.remote.remote_repair import RemoteRepair
from tierlog.broker.remote.remote_storage_cleaner import RemoteStorageCleaner
from tierlog.broker.remote.segment_merger import SegmentMerger
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_events import DamageFound, ReplicaEvent
from tierlog.broker.replication.replica_loader import advance_to_remote_end
from tierlog.config.node import NodeSettings
from tierlog.config.topic import TopicConfig
from tierlog.metadata.controller import commands as c
from tierlog.metadata.image import RemotePartition
from tierlog.metadata.quorum.publisher import Publisher
from tierlog.metadata.records import PartitionRecord
from tierlog.metadata.versions import SUPPORTED_FORMATS
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import HEADER_SIZE, assign, read_header
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.tiering.chunk_cache import ChunkCache
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.manager import TierLimits, TierManager
from tierlog.tiering.object_store import ObjectStore
from tierlog.tiering.quarantine import Quarantine
from tierlog.tiering.rate_limit import RateLimit
from tierlog.tiering.remote_log import RemoteLog
from tierlog.tiering.store_health import HealthyStore

CLUSTER = "cluster-1"
TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "4000",
    "index.interval.bytes": "500",
    "local.retention.ms": "0",
    "retention.ms": "-1",
    "file.delete.delay.ms": "0",
}
START_MS = 1_700_000_000_000
PRODUCER = 7
ABORT = [NewRecord(START_MS, struct.pack(">hh", 0, 0), struct.pack(">hi", 0, 5), ())]


class Clock(SystemClock):
    """A test sets the wall clock through `wall_ms`. The monotonic clock runs; `pass_time` advances both."""

    def __init__(self) -> None:
        self.wall_ms = START_MS + 10_000_000
        self._passed_ms = 0

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self._passed_ms

    def pass_time(self, ms: int) -> None:
        self.wall_ms += ms
        self._passed_ms += ms


class TierNode:
    """All parts are real except the network. A failed background task fails the test."""

    def __init__(
        self,
        directory: Path,
        store: ObjectStore,
        *,
        grace_ms: int = 0,
        limits: TierLimits | None = None,
        cleaner_clock: Clock | None = None,
        formats: tuple[int, int] = SUPPORTED_FORMATS,
    ) -> None:
        """`cleaner_clock`: the storage cleaner's, as on another machine; by default the controller's.
        `formats`: the format versions that the broker supports."""
        self.formats = formats
        self.directory = directory
        self.store = store
        self.clock = Clock()
        self._fresh = 0
        self.failures: list[BaseException] = []
        self.tasks = TaskGroup(lambda name, failure: self.failures.append(failure))
        rng, files = random.Random(7), OsFiles()
        self.rng = rng
        self.node = opened_metadata(
            1, {}, directory / "metadata", files, self.clock, rng, self.tasks, CLUSTER
        )
        self.metadata = self.node
        self.replicas: dict[TopicPartition, Replica] = {}
        self.keys = Keys(CLUSTER)
        self.manager = TierManager(store, self.keys, limits)
        self.cache = ChunkCache(directory / "cache", 64 << 20, files, self.tasks)
        self.remote_log = RemoteLog(
            store,
            self.keys,
            self.cache,
            self.tasks,
            lambda where: self.metadata.image.remote_partition(*where),
            self._quarantine(),
        )
        self.causes: list[str] = []
        """The cause of each reported damage."""
        self.repair = LogRepair(1, lambda: self.metadata.image, self, self.clock, self.tasks, None, None)
        self.log_manager = RemoteLogManager(
            broker_id=1,
            metadata=self.metadata,
            replicas=self,
            manager=self.manager,
            remote_log=self.remote_log,
            files=files,
            clock=self.clock,
            rng=rng,
            tasks=self.tasks,
            interval_ms=3_600_000,
            metadata_cache_bytes=256 << 20,
            first_backoff_s=0.001,
            store_health=store.health if isinstance(store, HealthyStore) else None,
        )
        self.loads = Loads(1, self.metadata, self.log_manager, store, self.keys, self.clock, self.tasks)
        self.merger = self._merger()
        self.remote_repair = self._remote_repair()
        self.storage_cleaner = RemoteStorageCleaner(
            broker_id=1,
            metadata=self.metadata,
            manager=self.manager,
            clock=cleaner_clock or self.clock,
            tasks=self.tasks,
            delete_grace_ms=grace_ms,
            first_backoff_s=0.001,
        )

    def _merger(self) -> SegmentMerger:
        settings, rate = NodeSettings(node_id=1), RateLimit()
        parts = self.metadata, self.log_manager, self.manager, self.remote_log, self.store, self.keys
        scratch = self.directory / "scratch"
        self.compactor = RemoteCompactor(settings, *parts, OsFiles(), self.clock, scratch, rate)
        return SegmentMerger(settings, *parts, self.tasks, rate, self.compactor)

    def _remote_repair(self) -> RemoteRepair:
        return RemoteRepair(
            self.metadata,
            self,
            self.log_manager,
            self.manager,
            self.remote_log,
            self.store,
            self.keys,
            self.clock,
            self.tasks,
            self.repair,
            3_600_000,
        )

    def __iter__(self) -> Iterator[Replica]:
        return iter(list(self.replicas.values()))

    def get(self, topic: "str | uuid.UUID", partition: int) -> Replica | None:
        return self.replicas.get(TopicPartition(str(topic), partition))

    def holds(self, replica: Replica) -> bool:
        return self.replicas.get(replica.name) is replica

    def emit(self, event: ReplicaEvent) -> None:
        assert isinstance(event, DamageFound)
        self.causes.append(event.cause)
        self.repair.on_replica_event(event)

    async def move_log_start(self, replica: Replica, offset: int) -> None:
        """Submit the command that a leader sends."""
        await self.metadata.submit(
            c.MoveLogStart(
                topic_id=replica.topic_id,
                partition=replica.name.partition,
                leader_epoch=replica.leader_epoch,
                log_start_offset=offset,
            )
        )

    async def finish_tiering(self) -> None:
        """Wait until the remote log manager has nothing left to do for any partition."""
        self.log_manager.wake_all()
        while jobs := self.log_manager.jobs():
            await asyncio.wait(jobs)

    async def __aenter__(self) -> "TierNode":
        await self.node.start()
        registered = await self.metadata.submit(
            c.RegisterBroker(
                broker_id=1,
                incarnation=uuid.UUID(int=9),
                host="h",
                port=1,
                admin_url="http://h:1",
                formats=self.formats,
            )
        )
        await self.metadata.submit(
            c.FenceBroker(broker_id=1, broker_epoch=registered.broker_epoch, fenced=False)
        )
        parts = (self.remote_log, self.log_manager, self.loads, self.storage_cleaner)
        followers = [lambda old, new: self.follow(), *(part.follow for part in parts)]
        self.node.publish_to([Publisher("part", follow) for follow in followers])
        self.log_manager.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.tasks.close()
        await self.node.stop()
        for replica in self.replicas.values():
            replica.close(clean=True)
        self.cache.check()
        assert not self.failures, self.failures

    def fresh_remote_log(self, *states: RemotePartition) -> RemoteLog:
        """A remote log with an empty cache. It sees these remote states first, then those of the image."""
        first = iter(states)
        self._fresh += 1
        cache = ChunkCache(self.directory / f"cache-{self._fresh}", 64 << 20, OsFiles(), self.tasks)
        return RemoteLog(
            self.store,
            self.keys,
            cache,
            self.tasks,
            lambda where: next(first, None) or self.metadata.image.remote_partition(*where),
            self._quarantine(),
        )

    def _quarantine(self) -> Quarantine:
        topics = lambda: self.metadata.image.topics  # noqa: E731
        return Quarantine(
            self.clock, lambda where: TopicPartition(topics()[where.topic_id].name, where.partition)
        )

    def follow(self) -> None:
        image = self.metadata.image
        for name in [name for name in self.replicas if image.topic(name.topic) is None]:
            self.replicas.pop(name).close(clean=False)
        for topic in image.topics.values():
            config = TopicConfig.parse(image.topic_overrides(topic.name))
            for number, partition in enumerate(topic.partitions):
                name = TopicPartition(topic.name, number)
                if name not in self.replicas:
                    self.replicas[name] = self._open(name, topic.topic_id, config)
                replica = self.replicas[name]
                replica.update_config(config)
                if partition.leader == 1 and partition.leader_epoch > replica.leader_epoch:
                    advance_to_remote_end(image, replica, self.clock.now_ms())
                take_role(self.replicas[name], 1, partition)

    def _open(self, name: TopicPartition, topic_id: uuid.UUID, config: TopicConfig) -> Replica:
        directory = self.directory / str(name)
        return opened_replica(
            name,
            topic_id,
            1,
            directory,
            config,
            OsFiles(),
            self.clock.now_ms(),
            log_start_offset=self.metadata.image.remote_partition(topic_id, name.partition).log_start_offset,
            clean=not directory.exists(),
            has_been_tiered=TopicIdPartition(topic_id, name.partition) in self.metadata.image.remote,
            rng=self.rng,
        )

    async def create(
        self, name: str, partitions: int = 1, *, replicas: tuple[int, ...] = (), **changes: str
    ) -> Replica:
        """Create a tiered topic of small segments; settings in keyword form (`retention_ms="1"`). `replicas`:
        those of its one partition.
        """
        configs = {**TIERED, **{key.replace("_", "."): value for key, value in changes.items()}}
        topic = c.NewTopic(name=name, partitions=partitions, configs=tuple(configs.items()))
        if replicas:
            topic = c.NewTopic(name=name, assignments=((0, replicas),), configs=tuple(configs.items()))
        reply = await self.metadata.submit(c.CreateTopics(topics=(topic,)))
        assert reply.topics[0].error == ErrorCode.NONE, reply
        return self.replicas[TopicPartition(name, 0)]

    def where(self, replica: Replica) -> TopicIdPartition:
        return TopicIdPartition(replica.topic_id, replica.name.partition)

    def remote(self, replica: Replica):
        return self.metadata.image.remote_partition(*self.where(replica))

    async def alter(self, topic: str, settings: Mapping[str, str]) -> ErrorCode:
        """Set settings of a topic, in one change."""
        changes = tuple(
            c.ConfigChange(key=key, operation=c.ConfigOperation.SET, value=value)
            for key, value in settings.items()
        )
        resource = c.ConfigResource(scope=c.ConfigScope.TOPIC, name=topic, changes=changes)
        reply = await self.metadata.submit(c.AlterConfigs(resources=(resource,)))
        return reply.resources[0].error

    async def objects(self, prefix: str = "") -> list[str]:
        return [info.key async for info in self.store.list(prefix)]

    async def fetch(self, replica: Replica, offset: int, max_bytes: int = 1 << 20) -> bytes:
        """Fetch as the handler does: from the local log, or remotely where the replica says so."""
        result = replica.read(offset, max_bytes)
        assert result.error == ErrorCode.NONE, result
        found = result.slice
        if result.remote:
            found = await self.remote_log.read(replica.id, offset, max_bytes, min_one=True)
        assert found is not None
        return content(found)


def take_role(replica: Replica, broker_id: int, partition: PartitionRecord) -> None:
    """Assign the role as the replica manager does."""
    epochs = partition.leader_epoch, partition.partition_epoch
    if partition.leader == broker_id:
        replica.become_leader(*epochs, partition.in_sync, partition.replicas)
    else:
        replica.become_follower(partition.leader, *epochs)


def content(found: LogSlice) -> bytes:
    data = b"".join(part.read() if isinstance(part, FileSlice) else bytes(part) for part in found.parts)
    assert len(data) == found.size
    return data


def flip_a_bit(replica: Replica, offset: int, byte: int = HEADER_SIZE + 5) -> None:
    """Flip a bit on disk in a byte of the batch that holds this offset."""
    found = replica.read(offset, 1).slice
    assert found is not None
    part = found.parts[0]
    assert isinstance(part, FileSlice)
    with open(part.file.path, "r+b") as file:
        file.seek(part.position + byte)
        [byte] = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 0x40]))


def write_transactional(replica: Replica, records: list[NewRecord], **fields: Any) -> int:
    """Append a transactional batch, without a coordinator. Returns the first offset."""
    data = encode_batch(records, producer_id=PRODUCER, producer_epoch=0, transactional=True, **fields)
    offset = replica.log_end_offset
    assign(data, 0, offset, replica.leader_epoch)
    replica.log.append(memoryview(data), read_header(data), offset, replica.leader_epoch, START_MS)
    return offset


def produce(replica: Replica, batches: int, *, records: int = 5, size: int = 60) -> None:
    """Append batches of records whose value and timestamp derive from their offset."""
    for _ in range(batches):
        base = replica.log_end_offset
        new = [
            NewRecord(START_MS + base + n, b"key-%d" % (base + n), b"%0*d" % (size, base + n), ())
            for n in range(records)
        ]
        result = replica.as_leader.append(memoryview(encode_batch(new)), START_MS)
        assert result.error == ErrorCode.NONE, result
