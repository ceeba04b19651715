"""flush.messages=1 in a complete broker: which requests wait for an fsync, which do not, and what a stop
does.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import pytest
from watched_disk import WatchedDisk
from wire_client import Client

from tierlog.broker.app import Broker
from tierlog.broker.platform import production_platform
from tierlog.broker.replication.replica import Replica
from tierlog.config.sources import settings_from
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import describe_groups, list_groups, offset_commit
from tierlog.records.writer import NewRecord, encode_batch

PRODUCERS = 16
BATCHES = 10
T = TypeVar("T")


THREADS = ThreadPoolExecutor(2 * PRODUCERS, "client")


def in_thread(work: Callable[..., T], *args: Any, **options: Any) -> "asyncio.Future[T]":
    return asyncio.get_running_loop().run_in_executor(THREADS, partial(work, *args, **options))


class Node:
    """A broker on a watched disk, and clients in threads of their own."""

    def __init__(self, directory: Path) -> None:
        self.disk = WatchedDisk()
        texts = {
            "log.dirs": str(directory),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "admin.listener": "127.0.0.1:0",
            "offsets.topic.num.partitions": "1",
            "log.flush.interval.messages": "1",
        }
        settings = settings_from(texts)
        self.broker = Broker(settings, replace(production_platform(settings), files=self.disk))
        self.clients: list[Client] = []

    async def client(self) -> Client:
        self.clients.append(await in_thread(Client, self.broker.bootstrap))
        return self.clients[-1]

    async def topic(self) -> str:
        name = await in_thread((await self.client()).create)
        await in_thread((await self.client()).wait_for_leaders, name)
        return name

    async def produce(self, topic: str, number: int = 0, *, acks: int = -1) -> tuple[int, int]:
        client = await self.client()
        answer = await in_thread(client.produce, topic, batch(number), acks=acks)
        return answer.error_code, answer.base_offset


def batch(number: int) -> bytes:
    return bytes(encode_batch([NewRecord(0, None, b"%d" % number)]))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path / "data")
    await node.broker.start()
    yield node
    for client in node.clients:
        client.close()
    await node.broker.stop(clean=not node.disk.broken)


async def test_many_producers_share_fsyncs(node: Node) -> None:
    topic = await node.topic()
    replica = node.broker.replicas.get(topic, 0)
    assert replica is not None
    all_wait, request = asyncio.Event(), replica.flusher

    def note(replica: Replica) -> None:
        request(replica)
        if replica.log_end_offset == PRODUCERS:  # each producer's first batch, all without a response yet
            all_wait.set()

    replica.flusher = note
    entered = node.disk.hold(f"{topic}-0")

    def produce(client: Client, number: int) -> list[int]:
        return [
            client.produce(topic, batch(number), acks=(-1, 1)[number % 2]).base_offset for _ in range(BATCHES)
        ]

    clients = [await node.client() for _ in range(PRODUCERS)]
    work = [in_thread(produce, *pair[::-1]) for pair in enumerate(clients)]
    await in_thread(entered.wait)
    await all_wait.wait()
    assert replica.high_watermark == 0
    node.disk.release(f"{topic}-0")
    offsets = await asyncio.gather(*work)
    assert sorted(chain.from_iterable(offsets)) == list(range(PRODUCERS * BATCHES))
    assert all(mine == sorted(mine) for mine in offsets)
    assert node.disk.syncs[f"{topic}-0"] < PRODUCERS * BATCHES / 2


@pytest.mark.parametrize("acks", [1, -1])
async def test_hung_fsync_does_not_delay_other_partitions(node: Node, acks: int) -> None:
    hanging, other = await node.topic(), await node.topic()
    entered = node.disk.hold(f"{hanging}-0")
    waiting = asyncio.ensure_future(node.produce(hanging, acks=acks))
    await in_thread(entered.wait)
    assert await node.produce(other, acks=acks) == (0, 0)
    reader = await node.client()
    found = await in_thread(reader.fetch, other, 0)
    assert found.responses[0].partitions[0].high_watermark == 1
    unseen = (await in_thread(reader.fetch, hanging, 0)).responses[0].partitions[0]
    assert (unseen.error_code, unseen.high_watermark, unseen.records or b"") == (0, 0, b"")
    assert not waiting.done()
    node.disk.release(f"{hanging}-0")
    assert await waiting == (0, 0)


async def test_failed_fsync_fails_the_waiting_requests(node: Node) -> None:
    topic = await node.topic()
    entered = node.disk.hold(f"{topic}-0")
    waiting = [asyncio.ensure_future(node.produce(topic, acks=acks)) for acks in (1, -1)]
    await in_thread(entered.wait)
    node.disk.broken.add(f"{topic}-0")
    node.disk.release(f"{topic}-0")
    refused = (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    assert await asyncio.gather(*waiting) == [refused, refused]
    assert await node.produce(topic) == refused


def commit(topic: str) -> offset_commit.OffsetCommitRequest:
    partition = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    committed = offset_commit.OffsetCommitRequestTopic(name=topic, partitions=[partition])
    return offset_commit.OffsetCommitRequest(group_id="g", topics=[committed])


async def test_offset_commits_wait_for_the_fsync(node: Node) -> None:
    topic, client = await node.topic(), await node.client()
    await in_thread(client.coordinator, "g")
    request = commit(topic)
    entered = node.disk.hold("__consumer_offsets-0")
    waiting = in_thread(client.send, "OffsetCommit", 8, request)
    await in_thread(entered.wait)
    assert await node.produce(topic) == (0, 0)
    assert not waiting.done()
    node.disk.release("__consumer_offsets-0")
    assert (await waiting).topics[0].partitions[0].error_code == ErrorCode.NONE
    entered = node.disk.hold("__consumer_offsets-0")
    waiting = in_thread(client.send, "OffsetCommit", 8, request)
    await in_thread(entered.wait)
    node.disk.broken.add("__consumer_offsets-0")
    node.disk.release("__consumer_offsets-0")
    assert (await waiting).topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR


async def test_pipelined_requests_show_the_group_of_a_commit_before_them(node: Node) -> None:
    topic, client = await node.topic(), await node.client()
    await in_thread(client.coordinator, "g")
    entered = node.disk.hold("__consumer_offsets-0")
    waiting = in_thread(
        client.send_together,
        ("OffsetCommit", 8, commit(topic)),
        ("ListGroups", 4, list_groups.ListGroupsRequest()),
        ("DescribeGroups", 5, describe_groups.DescribeGroupsRequest(groups=["g"])),
    )
    await in_thread(entered.wait)
    node.disk.release("__consumer_offsets-0")
    _, listed, described = await waiting
    assert [group.group_id for group in listed.groups] == ["g"]
    assert [group.group_state for group in described.groups] == ["Empty"]


async def test_stop_waits_for_requests_that_wait_for_an_fsync(node: Node) -> None:
    topic = await node.topic()
    entered = node.disk.hold(f"{topic}-0")
    waiting = asyncio.ensure_future(node.produce(topic, acks=1))
    await in_thread(entered.wait)
    stopping = asyncio.ensure_future(node.broker.stop())
    await asyncio.sleep(0)
    assert not node.broker.admin_node.serves
    assert not waiting.done()
    node.disk.release(f"{topic}-0")
    assert await waiting == (0, 0)
    await stopping
