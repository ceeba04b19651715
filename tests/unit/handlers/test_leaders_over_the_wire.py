"""Error responses name the current leader (KIP-951), in the versions that have a field for it."""

import random
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from connection_harness import Client

from tierlog.base.clock import SystemClock
from tierlog.base.files import OsFiles
from tierlog.base.tasks import TaskGroup
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.fetch import fetch_handler
from tierlog.broker.handlers.fetch_sessions import FetchSessions
from tierlog.broker.handlers.produce import produce_handler
from tierlog.broker.handlers.purgatory import Purgatory
from tierlog.broker.handlers.recently_fenced import RecentlyFencedBrokers
from tierlog.broker.net.listener import Listener
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.storage.log_dirs import LogDirectories
from tierlog.config.sources import settings_from
from tierlog.metadata import records as r
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.api import FETCH_KEY, PRODUCE_KEY
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import fetch, produce
from tierlog.records.writer import NewRecord, encode_batch

TOPIC = uuid.UUID(int=5)
OURS, THEIRS = 0, 1
BATCH = bytes(encode_batch([NewRecord(0, None, b"v")]))


class Metadata:
    """An image that does not change."""

    def __init__(self) -> None:
        changes: list[Any] = [
            r.BrokerRegistration(
                broker_id=broker_id,
                incarnation=uuid.UUID(int=broker_id),
                broker_epoch=broker_id,
                host=f"broker-{broker_id}",
                port=9_000 + broker_id,
                admin_url="",
                rack=f"rack-{broker_id}",
            )
            for broker_id in (1, 2)
        ]
        changes.append(r.TopicCreated(topic_id=TOPIC, name="t"))
        changes += [
            r.PartitionRecord(
                topic_id=TOPIC,
                partition=number,
                replicas=(leader,),
                in_sync=(leader,),
                leader=leader,
                leader_epoch=4,
                partition_epoch=0,
            )
            for number, leader in ((OURS, 1), (THEIRS, 2))
        ]
        self.image = evolve_all(ClusterImage(cluster_id="c"), changes)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    failures: list[BaseException] = []
    tasks, rng, metadata = (
        TaskGroup(lambda _, failure: failures.append(failure)),
        random.Random(1),
        Metadata(),
    )
    settings = settings_from({"log.dirs": str(tmp_path)})
    directories = LogDirectories([tmp_path], OsFiles(), rng)
    replicas = ReplicaManager(settings, directories, SystemClock(), tasks, rng, on_change=lambda name: None)
    await replicas.open_all(metadata.image)
    deps = Dependencies(
        settings=settings,
        metadata=metadata,  # type: ignore[arg-type]
        replicas=replicas,
        purgatory=Purgatory(10),
        fetch_sessions=FetchSessions(10, rng),
        clock=SystemClock(),
        tasks=tasks,
        recently_fenced=RecentlyFencedBrokers(SystemClock()),
    )
    handlers = {PRODUCE_KEY: produce_handler(deps), FETCH_KEY: fetch_handler(deps)}
    listener = Listener(handlers, tasks, lambda _, failure: failures.append(failure))
    client = await Client.connect(*(await listener.start())["PLAINTEXT"])
    yield client
    client.close()
    await listener.close()
    await replicas.close(clean=False)
    assert failures == []


def node_two(answer: Any) -> bool:
    [node] = answer.node_endpoints
    return (node.node_id, node.host, node.port, node.rack) == (2, "broker-2", 9_002, "rack-2")


async def send(client: Client, version: int, *partitions: int) -> Any:
    data = [produce.PartitionProduceData(index=number, records=BATCH) for number in partitions]
    topic = produce.TopicProduceData(name="t", topic_id=TOPIC, partition_data=data)
    request = produce.ProduceRequest(acks=1, timeout_ms=1_000, topic_data=[topic])
    return await client.ask(PRODUCE_KEY, version, request)


async def read(client: Client, version: int, partition: int, leader_epoch: int = -1) -> Any:
    requested = fetch.FetchPartition(
        partition=partition, partition_max_bytes=1_000, current_leader_epoch=leader_epoch
    )
    topic = fetch.FetchTopic(topic="t", topic_id=TOPIC, partitions=[requested])
    return await client.ask(FETCH_KEY, version, fetch.FetchRequest(max_wait_ms=0, topics=[topic]))


@pytest.mark.parametrize("version", [10, 11, 12, 13])
async def test_produce_error_names_the_current_leader(client: Client, version: int) -> None:
    answer = await send(client, version, OURS, THEIRS)
    ours, theirs = answer.responses[0].partition_responses
    assert (ours.error_code, ours.current_leader.leader_id) == (0, -1)
    assert theirs.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (theirs.current_leader.leader_id, theirs.current_leader.leader_epoch) == (2, 4)
    assert node_two(answer)


@pytest.mark.parametrize("version", [16, 17, 18])
async def test_fetch_error_names_the_current_leader(client: Client, version: int) -> None:
    answer = await read(client, version, THEIRS)
    [reported] = answer.responses[0].partitions
    assert reported.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (reported.current_leader.leader_id, reported.current_leader.leader_epoch) == (2, 4)
    assert node_two(answer)
    answer = await read(client, version, OURS)
    assert (answer.responses[0].partitions[0].current_leader.leader_id, answer.node_endpoints) == (-1, [])


async def test_fetch_with_an_older_epoch_gets_the_current_one(client: Client) -> None:
    answer = await read(client, 16, OURS, leader_epoch=3)
    [reported] = answer.responses[0].partitions
    assert reported.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert (reported.current_leader.leader_id, reported.current_leader.leader_epoch) == (1, 4)
    assert [node.node_id for node in answer.node_endpoints] == [1]


@pytest.mark.parametrize("version", [3, 9])
async def test_older_versions_name_no_leader(client: Client, version: int) -> None:
    answer = await send(client, version, THEIRS)
    [reported] = answer.responses[0].partition_responses
    assert reported.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (reported.current_leader.leader_id, answer.node_endpoints) == (-1, [])
