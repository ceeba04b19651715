"""Two brokers with replicas of one tiered partition, in a real quorum with a real store."""

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from opened_replica import opened_replica
from tier_node import START_MS, TierNode, take_role

from tierlog.base.files import FileSlice, OsFiles, Space
from tierlog.base.leader_epochs import UNKNOWN_END
from tierlog.base.network import Peer
from tierlog.base.types import TopicPartition
from tierlog.broker.remote.remote_log_manager import RemoteLogManager
from tierlog.broker.remote.tier_state_machine import LIST_OFFSETS, TierStateMachine
from tierlog.broker.replication.core.follower import Append, Fetched, StartFromTier, Step
from tierlog.broker.replication.leader_role import AppendResult
from tierlog.broker.replication.replica import ReadResult, Replica
from tierlog.config.topic import TopicConfig
from tierlog.metadata.controller import commands as c
from tierlog.metadata.image import RemotePartition
from tierlog.metadata.quorum.publisher import Publisher
from tierlog.metadata.records import PartitionRecord
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.tiering.manager import TierManager
from tierlog.tiering.object_store import ObjectStore

PRODUCER = 5


class Disk(OsFiles):
    """Files of broker 2: records the operations on the event loop's thread, and sets the free space."""

    def __init__(self) -> None:
        super().__init__()
        self.usable: int | None = None
        self.done: list[tuple[str, bool]] = []
        """Each operation, and whether a thread did it."""

    def _note(self, what: str) -> None:
        self.done.append((what, threading.current_thread() is not threading.main_thread()))

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        if path.name.endswith(".log") and not path.exists():
            self._note("create log")
        return super().open(path, create=create, exclusive=exclusive)

    def sync(self, fd: int) -> None:  # type: ignore[override]
        self._note("sync")
        OsFiles.sync(fd)

    def sync_directory(self, path: Path) -> None:
        self._note("sync directory")
        super().sync_directory(path)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        if path.name.endswith(".log.tmp"):
            self._note("unlink copy")
        super().unlink(path, missing_ok=missing_ok)

    def space(self, path: Path) -> Space:
        total, usable = super().space(path)
        return Space(total, usable if self.usable is None else self.usable)


class Other:
    """Broker 2: a replica and a remote log manager, in the cluster of broker 1."""

    def __init__(self, node: TierNode, directory: Path) -> None:
        self.node, self.emit = node, node.emit
        self.replicas: dict[TopicPartition, Replica] = {}
        self.directory = directory
        self.files = Disk()
        self.log_manager = RemoteLogManager(
            broker_id=2,
            metadata=node.metadata,
            replicas=self,
            manager=TierManager(node.store, node.keys),
            remote_log=node.remote_log,
            files=self.files,
            clock=node.clock,
            rng=node.rng,
            tasks=node.tasks,
            interval_ms=3_600_000,
            metadata_cache_bytes=256 << 20,
            first_backoff_s=0.001,
        )
        node.node.publish_to([Publisher("test", lambda old, new: self.follow())])
        node.node.publish_to([Publisher("test", self.log_manager.follow)])

    def __iter__(self) -> Iterator[Replica]:
        return iter(list(self.replicas.values()))

    def get(self, topic: "str | uuid.UUID", partition: int) -> Replica | None:
        return self.replicas.get(TopicPartition(str(topic), partition))

    def open(self, like: Replica) -> Replica:
        directory = self.directory / str(like.name)
        arguments = (like.name, like.topic_id, 2, directory, like.config, self.files, START_MS)
        self.replicas[like.name] = opened_replica(
            *arguments, clean=False, rng=self.node.rng, has_been_tiered=like.log.has_been_tiered
        )
        self.follow()
        return self.replicas[like.name]

    def follow(self) -> None:
        image = self.node.metadata.image
        for name, replica in self.replicas.items():
            replica.update_config(TopicConfig.parse(image.topic_overrides(name.topic)))
            take_role(replica, 2, image.topic(name.topic).partitions[name.partition])


class Pair:
    def __init__(self, node: TierNode, other: Other, leader: Replica) -> None:
        self.node, self.other, self.leader = node, other, leader
        self.follower = other.open(leader)
        self.sequence = 0

    @property
    def remote(self) -> RemotePartition:
        return self.node.remote(self.leader)

    @property
    def partition(self) -> PartitionRecord:
        return self.node.metadata.image.topic("t").partitions[0]

    def produce(self, batches: int) -> AppendResult:
        for _ in range(batches):
            result = send(self.leader, self.sequence)
            assert result.error == ErrorCode.NONE
            self.sequence += 5
        return result

    async def tier(self) -> None:
        """All rolled segments are remote, and deleted locally by the leader."""
        await self.finish_tiering()
        assert self.leader.local_log_start_offset == self.leader.log.active_base_offset > 0

    async def finish_tiering(self) -> None:
        for driver in (self.node.log_manager, self.other.log_manager):
            driver.wake_all()
            while jobs := driver.jobs():
                await asyncio.wait(jobs)

    async def fence(self, broker_id: int, fenced: bool = True) -> None:
        epoch = self.node.metadata.image.brokers[broker_id].broker_epoch
        await self.node.metadata.submit(c.FenceBroker(broker_id=broker_id, broker_epoch=epoch, fenced=fenced))

    async def elect(self, broker_id: int) -> None:
        """Let the broker catch up and rejoin the in-sync set, then fence the other one."""
        await self.fence(broker_id, False)
        brokers, partition = self.node.metadata.image.brokers, self.partition
        change = c.IsrChange(
            topic_id=self.leader.topic_id,
            partition=0,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            in_sync=tuple(c.InSync(one, brokers[one].broker_epoch) for one in (1, 2)),
        )
        epoch = brokers[partition.leader].broker_epoch
        command = c.AlterPartitions(broker_id=partition.leader, broker_epoch=epoch, changes=(change,))
        assert (await self.node.metadata.submit(command)).partitions[0].error == ErrorCode.NONE
        await self.fence(3 - broker_id)
        assert self.partition.leader == broker_id

    async def configure(self, key: str, value: str) -> None:
        change = c.ConfigChange(key=key, operation=c.ConfigOperation.SET, value=value)
        resource = c.ConfigResource(scope=c.ConfigScope.TOPIC, name="t", changes=(change,))
        await self.node.metadata.submit(c.AlterConfigs(resources=(resource,)))

    async def remote_bytes(self) -> bytes:
        where, store = self.node.where(self.leader), self.node.store
        keys = [self.node.keys.log(where, entry) for entry in self.remote.entries]
        return b"".join([await store.get(key) for key in keys])

    def start(self, leader: "Caller", *, skip_tiered: bool = False) -> TierStateMachine:
        node = self.node
        image = lambda: node.metadata.image  # noqa: E731
        return TierStateMachine(2, leader, image, node.remote_log, node.clock, skip_tiered=skip_tiered)

    async def begin(self) -> bool:
        step = fetch(self.follower, self.leader)
        assert isinstance(step, StartFromTier)
        return await self.start(Caller(self.leader)).start(self.follower, step)


class Caller:
    """A network with a connection to the leader."""

    is_open = True

    def __init__(self, leader: Replica, *, pending_upload: int = -1) -> None:
        self.leader, self.pending_upload = leader, pending_upload

    async def connect(self, peer: Peer, client_id: str) -> "Caller":
        assert (peer.host, peer.port) == ("h", 1)
        return self

    async def call(self, api_key: int, version: int, request: ListOffsetsRequest, timeout_s: float) -> Any:
        wanted = request.topics[0].partitions[0].timestamp
        assert api_key == LIST_OFFSETS and wanted in (-4, -6)
        offset = self.leader.local_log_start_offset if wanted == -4 else self.pending_upload
        found = ListOffsetsPartitionResponse(offset=offset)
        if not self.leader.is_leader:
            found = ListOffsetsPartitionResponse(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(partitions=[found])])

    def close(self) -> None:
        self.is_open = False


def send(replica: Replica, sequence: int) -> AppendResult:
    """A batch of five records of one idempotent producer."""
    base = replica.log_end_offset
    new = [NewRecord(START_MS + base + n, b"k", b"%060d" % (sequence + n), ()) for n in range(5)]
    data = encode_batch(new, producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence)
    return replica.as_leader.append(memoryview(data), START_MS, acks=1)


def content(result: ReadResult) -> memoryview:
    parts = result.slice.parts if result.slice is not None else ()
    return memoryview(
        bytearray().join(part.read() if isinstance(part, FileSlice) else bytes(part) for part in parts)
    )


def fetch(follower: Replica, leader: Replica) -> Step:
    position = follower.as_follower.fetch_position()
    assert position is not None
    found = leader.read_for_follower(position.offset, 1 << 20, last_fetched_epoch=position.last_fetched_epoch)
    if not found.error and found.diverging == UNKNOWN_END:
        leader.as_leader.follower_fetched(follower._core.broker_id, 1, position.offset, START_MS)
    answer = Fetched(found.error, leader.high_watermark, found.log_start_offset, found.diverging)
    return follower.as_follower.take_fetched(position, answer, content(found), START_MS)


def catch_up(follower: Replica, leader: Replica) -> None:
    while fetch(follower, leader) != Append() or follower.high_watermark < leader.log_end_offset:
        follower.check()


@asynccontextmanager
async def opened_pair(directory: Path, store: ObjectStore, **settings: str) -> AsyncIterator[Pair]:
    """Broker 2 has an empty replica, and is not in sync. `settings` of the topic in keyword form."""
    async with TierNode(directory, store) as node:
        register = c.RegisterBroker(
            broker_id=2, incarnation=uuid.UUID(int=2), host="h", port=2, admin_url="", formats=node.formats
        )
        epoch = (await node.metadata.submit(register)).broker_epoch
        await node.metadata.submit(c.FenceBroker(broker_id=2, broker_epoch=epoch, fenced=False))
        other = Other(node, directory / "2")
        pair = Pair(node, other, await node.create("t", replicas=(1, 2), **settings))
        other.log_manager.start()
        await pair.fence(2)
        yield pair
        for replica in other:
            replica.close(clean=True)


def whole(one: Replica) -> bytes:
    return b"".join(data for _, data in one.log.batches(one.local_log_start_offset))
