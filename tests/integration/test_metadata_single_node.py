"""A quorum of one, which uses the same Raft core and write-ahead log as a cluster."""

import asyncio
import random
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from opened_metadata import opened_metadata

from tierlog.base.clock import SystemClock
from tierlog.base.files import OsFiles
from tierlog.base.tasks import TaskGroup
from tierlog.metadata.controller import commands as c
from tierlog.metadata.quorum.node import MetadataNode
from tierlog.metadata.quorum.node_snapshots import SNAPSHOT_MIN_BYTES
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.quorum.publisher import Publisher
from tierlog.metadata.quorum.storage import ForeignDirectory
from tierlog.protocol.errors import ErrorCode


class OneNode:
    """Starts and stops a node on a directory. A failed task fails the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.failures: list[BaseException] = []

    @asynccontextmanager
    async def running(self, cluster_id: str = "c1", **options: int) -> AsyncIterator[MetadataNode]:
        tasks = TaskGroup(lambda name, failure: self.failures.append(failure))
        node = opened_metadata(
            1, {}, self.directory, OsFiles(), SystemClock(), random.Random(7), tasks, cluster_id, **options
        )
        try:
            await node.start()
            yield node
        finally:
            await node.stop()
            await tasks.close()
        assert self.failures == []


@pytest.fixture
def one_node(tmp_path: Path) -> OneNode:
    return OneNode(tmp_path / "metadata")


def register() -> c.RegisterBroker:
    return c.RegisterBroker(
        broker_id=1, incarnation=uuid.UUID(int=5), host="h", port=9092, admin_url="http://h:1"
    )


async def test_single_node_is_leader_at_once_and_commits_commands(one_node: OneNode) -> None:
    async with one_node.running() as node:
        assert node.is_leader
        registered = await node.submit(register())
        assert registered.broker_epoch > 0
        created = await node.submit(c.CreateTopics(topics=(c.NewTopic(name="t", partitions=3),)))
        assert created.topics[0].error == ErrorCode.NONE
        assert [p.leader for p in node.image.topic("t").partitions] == [1, 1, 1]
        again = await node.submit(c.CreateTopics(topics=(c.NewTopic(name="t", partitions=3),)))
        assert again.topics[0].error == ErrorCode.TOPIC_ALREADY_EXISTS


async def test_metadata_survives_a_restart(one_node: OneNode) -> None:
    async with one_node.running() as node:
        await node.submit(register())
        for name in ("a", "b"):
            await node.submit(c.CreateTopics(topics=(c.NewTopic(name=name),)))
        before = node.image
    async with one_node.running() as node:
        assert node.image.topics == before.topics
        assert node.image.brokers == before.brokers
        assert node.image.index > before.index  # a new leader commits an entry of its own


async def test_metadata_survives_a_restart_from_a_snapshot(one_node: OneNode) -> None:
    async with one_node.running(snapshot_entries=5, keep_entries=2) as node:
        await node.submit(register())
        for number in range(20):
            await node.submit(c.CreateTopics(topics=(c.NewTopic(name=f"t{number}"),)))
        before = node.image
    assert list(one_node.directory.glob("*.snapshot"))
    async with one_node.running() as node:
        assert node.core.log.snapshot.index > 0
        assert node.image.topics == before.topics


async def test_created_and_deleted_topics_do_not_grow_the_log_in_memory(one_node: OneNode) -> None:
    async with one_node.running(keep_entries=2) as node:
        await node.submit(register())
        for number in range(40):
            topic = c.NewTopic(name=f"t{number}", partitions=300)
            made = await node.submit(c.CreateTopics(topics=(topic,)))
            assert made.topics[0].error == ErrorCode.NONE
            gone = await node.submit(c.DeleteTopics(topics=(c.TopicRef(name=topic.name),)))
            assert gone.topics[0].error == ErrorCode.NONE
        entries = node.core.log.between(node.core.log.snapshot.index + 1, node.core.log.last_index + 1)
        assert node.core.log.snapshot.index > 0
        assert sum(len(entry.payload) for entry in entries) < 2 * SNAPSHOT_MIN_BYTES


async def test_concurrent_commands_share_fsyncs_and_keep_their_order(one_node: OneNode) -> None:
    async with one_node.running() as node:
        await node.submit(register())
        images: list[int] = []
        node.publish_to([Publisher("test", lambda old, new: images.append(new.index))])
        submitted = [node.submit(c.CreateTopics(topics=(c.NewTopic(name=f"t{n}"),))) for n in range(50)]
        replies = await asyncio.gather(*submitted)
        assert [reply.topics[0].error for reply in replies] == [0] * 50
        assert images == sorted(images)
        assert len(images) < 50  # published once per committed batch


async def test_directory_of_another_cluster_is_rejected(one_node: OneNode) -> None:
    async with one_node.running():
        pass
    with pytest.raises(ForeignDirectory, match=r"cluster\.id=c1"):
        async with one_node.running(cluster_id="c2"):
            pass


async def test_commands_fail_after_stop(one_node: OneNode) -> None:
    async with one_node.running() as node:
        pass
    with pytest.raises(MetadataUnavailable):
        await node.submit(register(), timeout_s=0.01)


class FailingDisk(OsFiles):
    failing = False

    def sync(self, fd: int) -> None:
        if self.failing:
            raise OSError(5, "input/output error")
        super().sync(fd)


async def test_failed_fsync_stops_the_node_and_acknowledges_nothing(tmp_path: Path) -> None:
    failures: list[BaseException] = []
    tasks = TaskGroup(lambda name, failure: failures.append(failure))
    files = FailingDisk()
    node = opened_metadata(1, {}, tmp_path, files, SystemClock(), random.Random(7), tasks, "c1")
    await node.start()
    await node.submit(register())
    before = node.image
    files.failing = True
    with pytest.raises(MetadataUnavailable) as unknown:
        await node.submit(c.CreateTopics(topics=(c.NewTopic(name="t"),)))
    assert unknown.value.applied_unknown
    files.failing = False  # the kernel may have dropped the pages, so a later fsync proves nothing
    with pytest.raises(MetadataUnavailable) as refused:
        await node.submit(c.CreateTopics(topics=(c.NewTopic(name="t"),)))
    assert not refused.value.applied_unknown
    assert node.image is before
    assert not node.is_leader
    await node.stop()
    await tasks.close()
    assert [type(failure) for failure in failures] == [OSError]


async def test_failing_publisher_affects_neither_the_node_nor_other_publishers(one_node: OneNode) -> None:
    async with one_node.running() as node:
        indexes: list[int] = []

        def fail(old: object, new: object) -> None:
            raise KeyError("a bug of the publisher's own")

        node.publish_to(
            [Publisher("fails", fail), Publisher("test", lambda old, new: indexes.append(new.index))]
        )
        await node.submit(register())
        assert indexes[1:] == [node.image.index]
