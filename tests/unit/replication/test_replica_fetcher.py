"""Replica fetchers, over a network whose responses the test gives."""

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from connection_harness import until
from opened_replica import opened_replica

from tierlog.base.clock import SystemClock
from tierlog.base.files import OsFiles
from tierlog.base.network import Peer, Unreachable
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicPartition
from tierlog.broker.quotas.replication import Throttle
from tierlog.broker.replication.fetcher_partitions import FetcherDependencies
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_fetcher import ReplicaFetchers
from tierlog.config.node import NodeSettings
from tierlog.config.sources import settings_from
from tierlog.config.topic import TopicConfig
from tierlog.metadata import records as r
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tierlog.records.batch import assign
from tierlog.records.writer import NewRecord, encode_batch

TOPIC, SESSION = uuid.UUID(int=6), 7
HERE, LEADER, EPOCH = 1, 2, 4
IN_SYNC = {1, 3}


class Connection:
    """To the leader: requests wait in `requests` until the test responds."""

    def __init__(self) -> None:
        self.is_open = True
        self.requests: list[tuple[FetchRequest, asyncio.Future[FetchResponse]]] = []

    async def call(
        self, api_key: int, version: int, request: Any, timeout_s: float, again: Callable[[Any], Any]
    ) -> Any:
        while True:
            future: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()
            self.requests.append((request, future))
            response = await future
            request = again(response)
            if request is None:
                return response

    def close(self) -> None:
        self.is_open = False
        for _, future in self.requests:
            if not future.done():
                future.set_exception(Unreachable("closed"))

    async def request(self) -> FetchRequest:
        """The request that waits for a response."""
        await until(lambda: bool(self.requests) and not self.requests[-1][1].done())
        return self.requests[-1][0]

    def respond(self, *partitions: PartitionData) -> None:
        topics = [FetchableTopicResponse(topic_id=TOPIC, partitions=list(partitions))] if partitions else []
        self.requests[-1][1].set_result(FetchResponse(session_id=SESSION, responses=topics))


class Leader:
    """A network with one other broker, the leader."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []

    async def connect(self, peer: Peer, client_id: str) -> Connection:
        self.connections.append(Connection())
        return self.connections[-1]


class Follower:
    """A broker with replicas of one topic, and its fetchers."""

    def __init__(self, directory: Path, tasks: TaskGroup, **settings: str) -> None:
        self.leader, self.throttle = Leader(), Throttle()
        self.lowered: list[Replica] = []
        self.when_lowered: Callable[[], None] = lambda: None
        registered = r.BrokerRegistration(
            broker_id=LEADER,
            incarnation=uuid.UUID(int=2),
            broker_epoch=1,
            host="localhost",
            port=9_000,
            admin_url="",
            rack=None,
        )
        partitions = [
            r.PartitionRecord(
                topic_id=TOPIC,
                partition=number,
                replicas=(LEADER, HERE),
                in_sync=(LEADER, HERE) if number in IN_SYNC else (LEADER,),
                leader=LEADER,
                leader_epoch=EPOCH,
                partition_epoch=0,
            )
            for number in range(4)
        ]
        made = r.TopicCreated(topic_id=TOPIC, name="t")
        image = evolve_all(ClusterImage(cluster_id="c"), [registered, made, *partitions])
        self.fetchers = ReplicaFetchers(
            FetcherDependencies(
                settings=settings_from({"node.id": str(HERE), "replica.fetch.backoff.ms": "1", **settings}),
                network=self.leader,
                clock=SystemClock(),
                tasks=tasks,
                rng=random.Random(1),
                broker_epoch=lambda: 1,
                image=lambda: image,
                throttle=self.throttle,
            )
        )
        self._directory = directory

    def follow(self, partition: int, **options: int) -> Replica:
        replica = opened_replica(
            TopicPartition("t", partition),
            TOPIC,
            HERE,
            self._directory / f"t-{partition}",
            TopicConfig(),
            OsFiles(),
            0,
            clean=False,
            rng=random.Random(1),
            **options,
        )

        def lower() -> None:
            self.lowered.append(replica)
            self.when_lowered()

        replica.lower_checkpoint = lower
        replica.become_follower(LEADER, EPOCH, 0)
        self.fetchers.follow(replica)
        return replica

    async def connection(self, number: int = 0) -> Connection:
        await until(lambda: len(self.leader.connections) > number)
        return self.leader.connections[number]


Make = Callable[..., Follower]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    failures: list[BaseException] = []
    tasks = TaskGroup(lambda _, failure: failures.append(failure))
    made: list[Follower] = []

    def make(**settings: str) -> Follower:
        made.append(Follower(tmp_path, tasks, **settings))
        return made[-1]

    yield make
    for follower in made:
        follower.fetchers.close()
    await tasks.close()
    assert failures == []


def partitions_of(request: FetchRequest) -> set[int]:
    return {partition.partition for topic in request.topics for partition in topic.partitions}


def error(partition: int, code: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> PartitionData:
    return PartitionData(partition_index=partition, error_code=code, high_watermark=-1)


def records(partition: int, offset: int) -> PartitionData:
    batch = encode_batch([NewRecord(0, None, b"v")])
    assign(batch, 0, offset, EPOCH)
    return PartitionData(partition_index=partition, high_watermark=offset, log_start_offset=0, records=batch)


def now(fetchers: int) -> NodeSettings:
    return settings_from({"node.id": str(HERE), "num.replica.fetchers": str(fetchers)})


async def test_num_replica_fetchers_can_change_while_fetching(make: Make) -> None:
    follower = make()
    replicas = [follower.follow(number) for number in range(4)]
    only = await follower.connection()
    assert partitions_of(await only.request()) == {0, 1, 2, 3}
    follower.fetchers.configure(now(2))
    moved = await follower.connection(1)
    taken = partitions_of(await moved.request())
    assert len(taken) == 2
    stays = min({0, 1, 2, 3} - taken)
    only.respond(records(min(taken), 0), records(stays, 0))  # the first has another fetcher now
    await until(lambda: replicas[stays].log_end_offset == 1)
    assert replicas[min(taken)].log_end_offset == 0
    moved.respond(records(min(taken), 0))
    await until(lambda: replicas[min(taken)].log_end_offset == 1)

    follower.fetchers.configure(now(1))
    await until(lambda: not moved.is_open or not only.is_open)
    await until(lambda: follower.leader.connections[-1].is_open)

    def is_complete() -> bool:
        """The remaining fetcher has every partition in its session."""
        named = {number for request, _ in only.requests for number in partitions_of(request)}
        last = follower.leader.connections[-1].requests
        return named == {0, 1, 2, 3} or bool(last and partitions_of(last[-1][0]) == {0, 1, 2, 3})

    await until(is_complete)


async def test_connection_and_session_stay_while_all_partitions_back_off(make: Make) -> None:
    follower = make()
    replica = follower.follow(0)
    leader = await follower.connection()
    first = await leader.request()
    assert (first.session_id, first.session_epoch, partitions_of(first)) == (0, 0, {0})
    for epoch in (1, 2, 3):
        leader.respond(error(0))
        request = await leader.request()  # after the backoff, over the same connection
        assert (request.session_id, request.session_epoch) == (SESSION, epoch)
        assert (partitions_of(request), request.forgotten_topics_data) == (
            set(),
            [],
        )  # the leader knows it all
    leader.respond(records(0, 0))
    assert partitions_of(await leader.request()) == {0}
    assert replica.log_end_offset == 1
    assert len(follower.leader.connections) == 1


async def test_partition_leaves_the_session_during_its_backoff(make: Make) -> None:
    follower = make(**{"replica.fetch.backoff.ms": "100"})
    follower.follow(0)
    leader = await follower.connection()
    await leader.request()
    follower.follow(1)  # aborts the request in flight, which the leader may hold
    leader = await follower.connection(1)
    assert partitions_of(await leader.request()) == {0, 1}
    leader.respond(error(0), records(1, 0))
    request = await leader.request()
    assert partitions_of(request) == {1}
    assert [topic.partitions for topic in request.forgotten_topics_data] == [[0]]
    while 0 not in partitions_of(request):
        leader.respond()
        request = await leader.request()
    assert len(follower.leader.connections) == 2


async def test_fetching_waits_until_the_checkpoint_is_lowered_after_a_truncation(make: Make) -> None:
    follower = make()
    follower.follow(0)
    leader = await follower.connection()
    await leader.request()
    replica = follower.follow(1, recovery_point=5)  # the log has lost its end
    leader = await follower.connection(1)
    assert partitions_of(await leader.request()) == {0}
    assert follower.lowered == [replica]
    leader.respond(records(0, 0))
    assert partitions_of(await leader.request()) == {0}
    replica.on_checkpoint_written(truncations=replica.log.flusher.truncations)
    leader.respond()
    request = await leader.request()
    while partitions_of(request) != {1}:
        leader.respond()
        request = await leader.request()


async def test_partition_removed_during_a_disk_wait_is_not_fetched(make: Make) -> None:
    follower = make()
    going = follower.follow(0)
    follower.follow(2)
    loop = asyncio.get_running_loop()
    # while the fetcher waits for the flush
    follower.when_lowered = lambda: loop.call_soon(follower.fetchers.remove, going)
    follower.follow(1, recovery_point=5)
    leader = await follower.connection()
    assert partitions_of(await leader.request()) == {2}


async def test_fetcher_without_partitions_closes_its_connection(make: Make) -> None:
    follower = make()
    replica = follower.follow(0)
    leader = await follower.connection()
    await leader.request()
    leader.respond(error(0))
    await until(leader.requests[-1][1].done)
    follower.fetchers.remove(replica)
    await until(lambda: not leader.is_open)


async def test_partitions_of_a_topic_are_spread_over_the_fetchers(make: Make) -> None:
    follower = make(**{"num.replica.fetchers": "2"})
    for partition in range(4):
        follower.follow(partition)
    connections = [await follower.connection(number) for number in (0, 1)]
    assert [partitions_of(await one.request()) for one in connections] == [{0, 2}, {1, 3}]


async def test_first_request_after_a_reconnect_names_all_partitions(make: Make) -> None:
    follower = make()
    follower.follow(0)
    leader = await follower.connection()
    await leader.request()
    leader.close()
    leader = await follower.connection(1)
    request = await leader.request()
    assert (request.session_id, request.session_epoch, partitions_of(request)) == (0, 0, {0})


async def test_throttle_delays_only_named_partitions_that_are_not_in_sync(make: Make) -> None:
    follower = make()
    follower.throttle.configure(0, {"t": frozenset({0, 1})})
    throttled = follower.follow(0)
    others = [follower.follow(number) for number in (1, 2)]
    leader = await follower.connection()
    request = await leader.request()
    assert partitions_of(request) == {1, 2}
    leader.respond(records(1, 0), records(2, 0))
    assert partitions_of(await leader.request()) == {1, 2}
    assert [replica.log_end_offset for replica in (throttled, *others)] == [0, 1, 1]


async def test_fetched_bytes_of_a_throttled_partition_delay_its_next_fetch(make: Make) -> None:
    follower = make()
    follower.throttle.configure(10, {"t": None})  # a batch is some 70 bytes
    follower.follow(0)
    leader = await follower.connection()
    assert partitions_of(await leader.request()) == {0}
    follower.follow(1)
    leader = await follower.connection(1)
    assert partitions_of(await leader.request()) == {0, 1}
    leader.respond(records(0, 0), records(1, 0))
    request = await leader.request()
    assert partitions_of(request) == {1}
    assert [topic.partitions for topic in request.forgotten_topics_data] == [[0]]


def out_of_range(partition: int, log_start_offset: int) -> PartitionData:
    error = ErrorCode.OFFSET_OUT_OF_RANGE
    return PartitionData(
        partition_index=partition, error_code=error, high_watermark=-1, log_start_offset=log_start_offset
    )


async def test_partitions_that_start_at_another_offset_take_one_turn_each(make: Make) -> None:
    follower = make()
    replicas = [follower.follow(number) for number in range(4)]
    leader = await follower.connection()
    assert partitions_of(await leader.request()) == {0, 1, 2, 3}
    leader.respond(*[out_of_range(number, 7) for number in range(4)])
    started = {0}
    while max(started) < 4:
        await asyncio.sleep(0)
        started.add(sum(replica.log_end_offset == 7 for replica in replicas))
    assert started == {0, 1, 2, 3, 4}
    assert partitions_of(await leader.request()) == {0, 1, 2, 3}


async def test_failing_log_does_not_delay_other_partitions(make: Make) -> None:
    follower = make()
    broken, other = follower.follow(0), follower.follow(1)
    leader = await follower.connection()
    await leader.request()
    leader.respond(records(0, 0), records(1, 0))
    await leader.request()
    broken.log._bases.clear()
    leader.respond(records(0, 1), records(1, 1))
    for offset in range(2, 20):  # long enough for its backoff to end
        await leader.request()
        leader.respond(records(1, offset))
    await leader.request()
    assert other.log_end_offset == 20
    assert len(follower.leader.connections) == 1
    broken.log._bases.append(0)
    leader.respond()
    while 0 not in partitions_of(await leader.request()):
        leader.respond()
