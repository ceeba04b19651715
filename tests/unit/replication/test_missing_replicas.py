"""Logs that could not be created on a full disk are created later, unless the topic or the disk is gone."""

import asyncio
import random
import threading
import uuid
from pathlib import Path

import pytest
from manual_clock import ManualClock

from tierlog.base.files import OsFiles
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicPartition
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.storage.log_dirs import LogDirectories
from tierlog.config.sources import settings_from
from tierlog.metadata import records as r
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import ClusterImage
from tierlog.records.writer import NewRecord, encode_batch

EMPTY = ClusterImage(cluster_id="c")
NAME = TopicPartition("t", 0)
TIMEOUT_S = 30


def image_with(topic_id: int) -> ClusterImage:
    led = {"replicas": (1,), "in_sync": (1,), "leader": 1, "leader_epoch": 0, "partition_epoch": 0}
    made = [
        r.TopicCreated(topic_id=uuid.UUID(int=topic_id), name="t"),
        r.PartitionRecord(topic_id=uuid.UUID(int=topic_id), partition=0, **led),  # type: ignore[arg-type]
    ]
    return evolve_all(EMPTY, made)


class Gate(OsFiles):
    """The disk is full while `full`; after that the creation of a partition waits for `go_on`."""

    def __init__(self) -> None:
        self.full = True
        self.creations = 0
        self.entered, self.go_on = threading.Event(), threading.Event()

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        if exclusive and path.name == "partition.metadata":
            if self.full:
                raise OSError(28, "No space left on device")
            self.creations += 1
            self.entered.set()
            assert self.go_on.wait(TIMEOUT_S)
        return super().open(path, create=create, exclusive=exclusive)


class Node:
    """A broker whose disk was full when a topic was created, and has space now."""

    def __init__(self, path: Path) -> None:
        self.disk, rng = Gate(), random.Random(1)
        self.fatal: list[str] = []
        self.tasks = TaskGroup(lambda *_: None)
        self.directories = LogDirectories([path], self.disk, rng)
        self.directory = self.directories.all[0]
        self.manager = ReplicaManager(
            settings_from({"log.dirs": str(path), "metadata.log.dir": f"{path}-metadata"}),
            self.directories,
            ManualClock(),
            self.tasks,
            rng,
            on_change=lambda _: None,
            fatal=lambda what, failure: self.fatal.append(what),
        )

    async def start(self) -> "Node":
        self.directories.claim(1, "c")
        await self.manager.open_all(EMPTY)
        self.manager.follow(EMPTY, image_with(1))
        assert self.manager.is_offline(NAME)
        self.disk.full = False
        self.directory.mark_not_full()
        return self

    async def begin(self) -> "asyncio.Task[None]":
        creating = self.tasks.spawn("create", self.manager.retry_missing())
        assert await asyncio.to_thread(self.disk.entered.wait, TIMEOUT_S)
        return creating

    async def stop(self) -> None:
        await self.tasks.close()
        await self.manager.close(clean=False)
        self.directories.release()


@pytest.fixture
async def node(tmp_path: Path) -> Node:
    return await Node(tmp_path / "data").start()


async def test_concurrent_retries_create_a_log_once(node: Node) -> None:
    first = await node.begin()
    await asyncio.wait_for(node.manager.retry_missing(), TIMEOUT_S)  # has nothing to do
    assert node.manager.get("t", 0) is None
    node.disk.go_on.set()
    await first
    assert node.disk.creations == 1
    replica = node.manager.get("t", 0)
    assert replica is not None and replica.is_leader and not node.manager.is_offline(NAME)
    assert not replica.as_leader.append(memoryview(encode_batch([NewRecord(0, None, b"v")])), 0).error
    await node.stop()


async def test_log_is_not_added_if_its_directory_fails_while_it_opens(node: Node) -> None:
    creating = await node.begin()
    node.directory.fail("broken")
    await asyncio.sleep(0)
    assert node.manager.is_offline(NAME)
    node.disk.go_on.set()
    await creating
    assert (node.manager.get("t", 0), len(node.manager)) == (None, 0)
    assert node.manager.is_offline(NAME)
    assert node.fatal == ["the last log directory"]
    await node.manager.retry_missing()
    assert node.disk.creations == 1  # not retried
    await node.stop()


async def test_log_is_not_added_if_its_topic_is_deleted_while_it_opens(node: Node) -> None:
    creating = await node.begin()
    node.manager.follow(image_with(1), EMPTY)
    node.disk.go_on.set()
    await creating
    assert (node.manager.get("t", 0), len(node.manager)) == (None, 0)
    assert not node.manager.is_offline(NAME)
    await node.stop()
