"""KIP-392 at one broker, over a socket: whom a leader names, and what a follower serves to consumers."""

import random
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pump import Client, until

from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.errors import error_reply
from tierlog.broker.handlers.fetch import fetch_handler
from tierlog.broker.net.listener import Listener
from tierlog.broker.partition.follower import Fetched
from tierlog.broker.ports.clock import SystemClock
from tierlog.broker.ports.files import OsFiles
from tierlog.broker.ports.tasks import TaskGroup
from tierlog.broker.records.batch import assign
from tierlog.broker.records.writer import NewRecord, encode_batch
from tierlog.broker.runtime.data_directories import DataDirectories
from tierlog.broker.runtime.fetch_sessions import FetchSessions
from tierlog.broker.runtime.purgatory import Purgatory
from tierlog.broker.runtime.replica import Replica
from tierlog.broker.runtime.replica_manager import ReplicaManager
from tierlog.broker.settings.node import RACK_AWARE_SELECTOR, settings_from
from tierlog.broker.wire.api import FETCH_KEY
from tierlog.broker.wire.errors import ErrorCode
from tierlog.broker.wire.messages import fetch
from tierlog.metadata import records as r
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import ClusterImage

TOPIC = uuid.UUID(int=5)
LED, FOLLOWED = 0, 1
EPOCH = 4
RACKS = {1: "a", 2: "b", 3: "b", 4: "c"}
NEWEST = 18


class Metadata:
    """Brokers 1 to 4; of the two partitions one is led here, on broker 1, and 4 is not in sync."""

    def __init__(self) -> None:
        changes: list[Any] = [
            r.RegisterBroker(
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
            r.FenceBroker(broker_id=broker_id, broker_epoch=broker_id, fenced=False) for broker_id in RACKS
        ]
        changes.append(r.CreateTopic(topic_id=TOPIC, name="t"))
        changes += [
            r.PartitionRecord(
                topic_id=TOPIC,
                partition=number,
                replicas=(1, 2, 3, 4),
                in_sync=(1, 2, 3),
                leader=leader,
                leader_epoch=EPOCH,
                partition_epoch=0,
            )
            for number, leader in ((LED, 1), (FOLLOWED, 2))
        ]
        self.image = evolve_all(ClusterImage(cluster_id="c"), changes)


class Node:
    """Broker 1, and what its test does to its replicas."""

    def __init__(self, client: Client, replicas: ReplicaManager, purgatory: Purgatory) -> None:
        self.client = client
        self.purgatory = purgatory
        self._replicas = replicas

    def replica(self, partition: int) -> Replica:
        found = self._replicas.get(TOPIC, partition)
        assert found is not None
        return found

    def lead(self, records: int) -> None:
        """So many records of one byte are in the log that this broker leads."""
        written = memoryview(encode_batch([NewRecord(0, None, b"v")] * records))
        assert self.replica(LED).append(written, 0).error == 0

    def hear(self, follower: int, offset: int, log_start_offset: int = 0) -> None:
        now_ms = SystemClock().monotonic_ms()
        self.replica(LED).follower_fetched(follower, follower, offset, now_ms, log_start_offset)

    def follow(self, records: int, committed: int) -> None:
        """So many records come from the leader of the other partition, so many of them are committed."""
        replica = self.replica(FOLLOWED)
        asked = replica.fetch_position()
        assert asked is not None
        batches = b""
        for number in range(records):
            one = encode_batch([NewRecord(0, None, b"v")])
            assign(one, 0, asked.offset + number, EPOCH)
            batches += one
        replica.take_fetched(asked, Fetched(ErrorCode.NONE, committed, 0), memoryview(batches), 0)

    async def read(self, partition: int, offset: int, *, version: int = NEWEST, **fields: Any) -> Any:
        asked = fetch.FetchPartition(
            partition=partition,
            fetch_offset=offset,
            partition_max_bytes=1_000_000,
            current_leader_epoch=fields.pop("epoch", EPOCH),
        )
        topic = fetch.FetchTopic(topic="t", topic_id=TOPIC, partitions=[asked])
        request = fetch.FetchRequest(**{"max_wait_ms": 0, "min_bytes": 1, "topics": [topic], **fields})
        answer = await self.client.ask(FETCH_KEY, version, request)
        return answer.responses[0].partitions[0]


@pytest.fixture
async def node(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    failures: list[BaseException] = []
    tasks = TaskGroup(lambda _, failure: failures.append(failure))
    rng, metadata = random.Random(1), Metadata()
    selector = getattr(request, "param", RACK_AWARE_SELECTOR)
    settings = settings_from({"log.dirs": str(tmp_path), "replica.selector.class": selector})
    directories = DataDirectories([tmp_path], OsFiles(), rng)
    purgatory = Purgatory(10)
    replicas = ReplicaManager(settings, directories, SystemClock(), tasks, rng, moved=purgatory.touch)
    await replicas.open_all(metadata.image)
    deps = Dependencies(
        settings=settings,
        metadata=metadata,  # type: ignore[arg-type]
        replicas=replicas,
        purgatory=purgatory,
        sessions=FetchSessions(10, rng),
        producer_ids=None,  # type: ignore[arg-type]
        clock=SystemClock(),
        tasks=tasks,
    )
    handlers = {FETCH_KEY: fetch_handler(deps)}
    listener = Listener(handlers, tasks, error_reply, lambda _, failure: failures.append(failure))
    client = await Client.connect(*await listener.start())
    yield Node(client, replicas, purgatory)
    client.close()
    await listener.close()
    purgatory.close()
    await replicas.close(clean=False)
    assert failures == []


# ---- the leader -----------------------------------------------------------------------------------


async def test_a_consumer_is_sent_to_the_replica_of_its_rack_that_is_furthest(node: Node) -> None:
    node.lead(10)
    for follower, offset in ((2, 6), (3, 9), (4, 10)):
        node.hear(follower, offset)
    told = await node.read(LED, 5, rack_id="b")
    assert (told.error_code, told.preferred_read_replica, bytes(told.records)) == (0, 3, b"")


@pytest.mark.parametrize(
    ("rack", "offset", "why"),
    [
        ("a", 5, "it is the leader's own"),
        ("c", 5, "its replica is not in sync"),
        ("d", 5, "nobody is there"),
        ("", 5, "the consumer does not say where it is"),
        ("b", 10, "no follower there has that offset yet"),
        ("b", 1, "the followers there no longer have it"),
    ],
)
async def test_otherwise_the_leader_answers(node: Node, rack: str, offset: int, why: str) -> None:
    node.lead(12)
    for follower in (2, 3, 4):
        node.hear(follower, 9, log_start_offset=3)
    told = await node.read(LED, offset, rack_id=rack)
    assert (told.error_code, told.preferred_read_replica) == (0, -1), why


async def test_one_that_has_left_the_in_sync_set_is_not_named(node: Node) -> None:
    node.lead(10)
    node.hear(2, 10)
    node.hear(3, 9)
    assert (await node.read(LED, 5, rack_id="b")).preferred_read_replica == 2
    node.replica(LED).become_leader(EPOCH, 1, (1, 3), (1, 2, 3, 4), 0)
    assert (await node.read(LED, 5, rack_id="b")).preferred_read_replica == 3


@pytest.mark.parametrize("node", [""], indirect=True)
async def test_without_a_selector_the_leader_answers(node: Node) -> None:
    node.lead(10)
    for follower in (2, 3, 4):
        node.hear(follower, 10)
    assert (await node.read(LED, 5, rack_id="b")).preferred_read_replica == -1


async def test_who_is_sent_away_does_not_wait_and_hears_it_within_a_session_too(node: Node) -> None:
    node.lead(10)
    for follower in (2, 3):
        node.hear(follower, 10)
    topic = fetch.FetchTopic(
        topic_id=TOPIC, partitions=[fetch.FetchPartition(partition=LED, partition_max_bytes=1_000_000)]
    )
    asked = fetch.FetchRequest(session_epoch=0, min_bytes=1, max_wait_ms=600_000, topics=[topic], rack_id="b")
    first = await node.client.ask(FETCH_KEY, NEWEST, asked)
    again = fetch.FetchRequest(
        session_id=first.session_id, session_epoch=1, min_bytes=1, max_wait_ms=600_000, rack_id="b"
    )
    second = await node.client.ask(FETCH_KEY, NEWEST, again)
    assert [one.responses[0].partitions[0].preferred_read_replica for one in (first, second)] == [2, 2]


# ---- the follower ---------------------------------------------------------------------------------


async def test_a_follower_serves_what_it_knows_to_be_committed(node: Node) -> None:
    node.follow(records=5, committed=3)
    one = encode_batch([NewRecord(0, None, b"v")])
    told = await node.read(FOLLOWED, 0, version=11)
    assert (told.error_code, told.high_watermark, len(told.records)) == (0, 3, 3 * len(one))
    beyond = await node.read(FOLLOWED, 4)
    assert (beyond.error_code, bytes(beyond.records)) == (0, b"")  # in range, and not committed yet


async def test_what_a_follower_lacks_is_out_of_range_and_the_consumer_asks_the_leader(node: Node) -> None:
    node.follow(records=5, committed=5)
    assert (await node.read(FOLLOWED, 6)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_consumer_too_old_to_know_of_followers_is_sent_to_the_leader(node: Node) -> None:
    node.follow(records=1, committed=1)
    assert (await node.read(FOLLOWED, 0, version=10)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    told = await node.read(LED, 0, version=10)
    assert told.error_code == 0


@pytest.mark.parametrize(
    ("epoch", "error"),
    [(EPOCH - 1, ErrorCode.FENCED_LEADER_EPOCH), (EPOCH + 1, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
async def test_a_follower_of_another_epoch_than_the_consumers_serves_nothing(
    node: Node, epoch: int, error: ErrorCode
) -> None:
    node.follow(records=1, committed=1)
    assert (await node.read(FOLLOWED, 0, epoch=epoch)).error_code == error


async def test_a_consumer_waits_at_a_follower_until_more_is_committed(node: Node) -> None:
    node.follow(records=2, committed=1)
    asked = fetch.FetchPartition(partition=FOLLOWED, fetch_offset=1, partition_max_bytes=1_000_000)
    topic = fetch.FetchTopic(topic_id=TOPIC, partitions=[asked])
    request = fetch.FetchRequest(max_wait_ms=600_000, min_bytes=1, topics=[topic])
    node.client.send(FETCH_KEY, NEWEST, request)
    await until(lambda: len(node.purgatory) == 1)
    node.follow(records=0, committed=2)
    _, answer = await node.client.receive(FETCH_KEY, NEWEST)
    told = answer.responses[0].partitions[0]
    assert (told.high_watermark, len(told.records) > 0) == (2, True)
