"""Thread counts and rates of a running broker: `num.replica.fetchers`, `remote.log.reader.threads` and the
rates of `remote.log.manager.*` apply at once."""

import asyncio
import uuid
from array import array
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from controller_and_broker import controller_and_broker
from wire_client import Client

from tierlog.base.types import TopicIdPartition
from tierlog.broker.app import Broker
from tierlog.metadata.controller import commands as c
from tierlog.metadata.records import ConfigScope
from tierlog.metadata.versions import SUPPORTED_FORMATS
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import incremental_alter_configs
from tierlog.tiering.chunk_cache import BatchMarks, ChunkKey

LEADER, HERE = 3, 2
HUGE = 1 << 61  # more than any rate pays off during a test
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
            formats=SUPPORTED_FORMATS,
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


@pytest.mark.parametrize("transfer", ["copy", "fetch"])
async def test_rate_that_a_client_changes_is_that_of_the_running_transfers(
    broker: Broker, transfer: str
) -> None:
    """KIP-956, through IncrementalAlterConfigs."""
    name = f"remote.log.manager.{transfer}.max.bytes.per.second"
    rate = {"copy": broker.tier.manager.copy_rate, "fetch": broker.tier.store.fetch_rate}[transfer]
    await rate.take(HUGE)  # there is no limit
    await asyncio.to_thread(alter, broker.bootstrap, name, "1")
    await rate.take(HUGE)
    waiting = asyncio.ensure_future(rate.take(1))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    await asyncio.to_thread(alter, broker.bootstrap, name, str((1 << 63) - 1))
    await waiting


def alter(bootstrap: str, name: str, value: str) -> None:
    """Set a setting of all brokers, as kafka-configs does."""
    config = incremental_alter_configs.AlterableConfig(name=name, config_operation=0, value=value)
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=4, resource_name="", configs=[config]
    )
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])
    client = Client(bootstrap)
    [answer] = client.send("IncrementalAlterConfigs", 1, request).responses
    client.close()
    assert answer.error_code == ErrorCode.NONE, answer
