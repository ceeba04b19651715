"""A tiered partition moves between log directories of a complete broker during uploads and remote reads."""

import asyncio
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from connection_harness import until
from faulty_store import FaultyStore
from tier_node import produce
from wire_client import Client

from tierlog.base.types import TopicPartition
from tierlog.broker.app import Broker
from tierlog.broker.maintenance.directory_moves import RATE
from tierlog.broker.platform import production_platform
from tierlog.broker.replication.replica import Replica
from tierlog.config.sources import settings_from
from tierlog.metadata.controller import commands as c
from tierlog.metadata.records import ConfigScope
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import iter_batches
from tierlog.records.record import iter_records
from tierlog.tiering.local_store import LocalStore

pytestmark = pytest.mark.timeout(90)

TIMEOUT_S = 90.0


async def start(path: Path) -> tuple[Broker, FaultyStore]:
    store = FaultyStore(LocalStore(path / "objects"))
    settings = settings_from(
        {
            "log.dirs": f"{path / 'a'},{path / 'b'}",
            "metadata.log.dir": str(path / "metadata"),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "admin.listener": "127.0.0.1:0",
            "remote.log.manager.task.interval.ms": "200",
            "remote.log.delete.grace.ms": "0",
        }
    )
    broker = Broker(settings, replace(production_platform(settings), objects=store))
    await broker.start()
    return broker, store


async def set_rate(broker: Broker, bytes_a_second: int) -> None:
    """Set the rate at which logs are copied."""
    change = c.ConfigChange(key=RATE, operation=c.ConfigOperation.SET, value=str(bytes_a_second))
    resource = c.ConfigResource(scope=ConfigScope.BROKER, name="1", changes=(change,))
    reply = await broker.metadata.submit(c.AlterConfigs(resources=(resource,)))
    assert reply.resources[0].error is ErrorCode.NONE


def make_topic(broker: Broker) -> str:
    client = Client(broker.bootstrap)
    name = client.create(
        remote_storage_enable="true",
        segment_bytes="4000",
        local_retention_bytes="8000",
        retention_ms="-1",
        file_delete_delay_ms="0",
    )
    client.close()
    return name


def read(bootstrap: str, topic: str, offset: int, end: int) -> None:
    """Check that every record is readable from either tier."""
    client, deadline = Client(bootstrap), time.monotonic() + TIMEOUT_S
    while offset < end:
        assert time.monotonic() < deadline, f"nothing at {offset}"
        answer = client.fetch(topic, offset).responses[0].partitions[0]
        assert answer.error_code == ErrorCode.NONE, f"at {offset}"
        records = bytes(answer.records or b"")
        for at, _ in iter_batches(records):
            for record in iter_records(records, at, max_bytes=1 << 20):
                assert int(record.value or b"") == record.offset
                if record.offset >= offset:
                    assert record.offset == offset
                    offset += 1
    client.close()


async def read_all(broker: Broker, replica: Replica, offset: int = 0) -> None:
    reading = partial(read, broker.bootstrap, replica.name.topic, offset, replica.log_end_offset)
    await asyncio.to_thread(reading)


def is_tiered(broker: Broker, replica: Replica) -> bool:
    """Whether all rolled segments are remote and no upload is pending."""
    remote = broker.metadata.image.remote_partition(replica.topic_id, replica.name.partition)
    return remote.end_offset == replica.log.active_base_offset and not broker.tiering.log_manager.jobs()


async def test_tiered_partition_moves_during_uploads_and_reads(tmp_path: Path) -> None:
    broker, store = await start(tmp_path)
    topic = await asyncio.to_thread(make_topic, broker)
    replica = broker.replicas.get(topic, 0)
    assert replica is not None
    produce(replica, 60)
    await until(lambda: is_tiered(broker, replica) and replica.local_log_start_offset > 0)
    source = replica.log.directory.parent
    target = tmp_path / ("b" if source.name == "a" else "a")

    store.arm("hold", 0, "put")
    while not store.fired.is_set():
        produce(replica, 1)
        await asyncio.sleep(0)
    await set_rate(broker, 1)
    name = TopicPartition(topic, 0)
    assert broker.moves.move(name, str(target)) is ErrorCode.NONE
    (move,) = broker.moves.under_way
    await until(lambda: move.copied_bytes > 0)
    await read_all(broker, replica)
    produce(replica, 10)
    await set_rate(broker, 100_000_000)
    await until(lambda: not broker.moves.under_way)
    assert replica.log.directory == target / str(name)

    tail = replica.local_log_start_offset
    await read_all(broker, replica, tail)
    produce(replica, 10)
    await read_all(broker, replica, tail)
    store.gate.set()
    await until(lambda: is_tiered(broker, replica) and replica.local_log_start_offset > tail)
    await read_all(broker, replica)
    await until(lambda: not (source / str(name)).exists())
    remote = broker.metadata.image.remote_partition(replica.topic_id, 0)
    ends = [0, *(entry.last_offset + 1 for entry in remote.entries)]
    assert [entry.base_offset for entry in remote.entries] == ends[:-1], "gaps or duplicates"
    await broker.stop()

    broker, _ = await start(tmp_path)
    again = broker.replicas.get(topic, 0)
    assert again is not None and again.log.directory.parent == target
    produce(again, 30)
    await until(lambda: is_tiered(broker, again))
    await read_all(broker, again)
    await broker.stop()
