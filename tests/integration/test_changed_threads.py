"""Thread counts of a running broker: `num.replica.fetchers` and `remote.log.reader.threads` apply at once."""

import asyncio
import uuid
from array import array
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from controller_and_broker import controller_and_broker

from tierlog.base.types import TopicIdPartition
from tierlog.broker.app import Broker
from tierlog.metadata.controller import commands as c
from tierlog.metadata.records import ConfigScope
from tierlog.tiering.chunk_cache import BatchMarks, ChunkKey

LEADER, HERE = 3, 2
PARTITION = TopicIdPartition(uuid.UUID(int=2), 0)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    voter, broker = controller_and_broker(tmp_path)
    await voter.start()
    try:
        await broker.start()
        yield broker
        await broker.stop()
    finally:
        await voter.stop()


async def change(broker: Broker, name: str, value: str) -> None:
    changes = (c.ConfigChange(key=name, operation=c.ConfigOperation.SET, value=value),)
    resource = c.ConfigResource(scope=ConfigScope.CLUSTER, name="", changes=changes)
    await broker.metadata.submit(c.AlterConfigs(resources=(resource,)))


async def test_replica_fetchers_change_in_a_running_broker(broker: Broker) -> None:
    """Each fetcher has a connection to the leader, which here only accepts connections."""
    connected: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    server = await asyncio.start_server(lambda _, writer: connected.put_nowait(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    url = "http://127.0.0.1:1"
    await broker.metadata.submit(
        c.RegisterBroker(
            broker_id=LEADER,
            incarnation=uuid.UUID(int=9),
            host="127.0.0.1",
            port=port,
            admin_url=url,
            formats=(1, 2),
        )
    )
    both = tuple((number, (LEADER, HERE)) for number in range(2))
    await broker.metadata.submit(c.CreateTopics(topics=(c.NewTopic(name="t", assignments=both),)))
    writers = [await connected.get()]
    assert connected.empty()
    await change(broker, "num.replica.fetchers", "2")
    writers.append(await connected.get())
    for writer in writers:
        writer.close()
    server.close()


async def test_reader_threads_change_in_a_running_broker(broker: Broker) -> None:
    gate, started = asyncio.Event(), 0

    async def download(buffer: memoryview) -> BatchMarks:
        nonlocal started
        started += 1
        await gate.wait()
        return BatchMarks(array("I", [0]), array("q", [0]), end_offset=1)

    await change(broker, "remote.log.reader.threads", "2")
    chunks = [ChunkKey(PARTITION, uuid.UUID(int=1), number, number + 1) for number in range(4)]
    waiting = [asyncio.ensure_future(broker.tier.cache.get(chunk, download)) for chunk in chunks]
    for _ in range(5):
        await asyncio.sleep(0)
    assert started == 2
    gate.set()
    await asyncio.gather(*waiting)
