"""Fetchers of followers, over a network whose answers the test gives."""

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from pump import until

from tierlog.base.clock import SystemClock
from tierlog.base.files import OsFiles
from tierlog.base.network import Unreachable
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicPartition
from tierlog.broker.quotas.replication import Throttle
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_fetcher import FollowerDependencies, ReplicaFetchers
from tierlog.config.node import NodeSettings, settings_from
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
    """To the leader: requests wait in `asked` until the test answers them."""

    def __init__(self) -> None:
        self.is_open = True
        self.asked: list[tuple[FetchRequest, asyncio.Future[FetchResponse]]] = []

    async def call(
        self, api_key: int, version: int, request: Any, timeout_s: float, again: Callable[[Any], Any]
    ) -> Any:
        while True:
            answer: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()
            self.asked.append((request, answer))
            response = await answer
            request = again(response)
            if request is None:
                return response

    def close(self) -> None:
        self.is_open = False
        for _, answer in self.asked:
            if not answer.done():
                answer.set_exception(Unreachable("closed"))

    async def request(self) -> FetchRequest:
        """The one that waits for an answer."""
        await until(lambda: bool(self.asked) and not self.asked[-1][1].done())
        return self.asked[-1][0]

    def answer(self, *partitions: PartitionData) -> None:
        topics = [FetchableTopicResponse(topic_id=TOPIC, partitions=list(partitions))] if partitions else []
        self.asked[-1][1].set_result(FetchResponse(session_id=SESSION, responses=topics))


class Leader:
    """The network, in which there is but one other broker."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []

    async def connect(self, host: str, port: int, client_id: str) -> Connection:
        self.connections.append(Connection())
        return self.connections[-1]


class Follower:
    """A broker with replicas of one topic, and its fetchers."""

    def __init__(self, directory: Path, tasks: TaskGroup, **settings: str) -> None:
        self.leader, self.throttle = Leader(), Throttle()
        self.lowered: list[Replica] = []
        self.when_lowered: Callable[[], None] = lambda: None
        registered = r.RegisterBroker(
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
        made = r.CreateTopic(topic_id=TOPIC, name="t")
        image = evolve_all(ClusterImage(cluster_id="c"), [registered, made, *partitions])
        self.fetchers = ReplicaFetchers(
            FollowerDependencies(
                settings=settings_from({"node.id": str(HERE), "replica.fetch.backoff.ms": "1", **settings}),
                network=self.leader,
                clock=SystemClock(),
                tasks=tasks,
                rng=random.Random(1),
                broker_epoch=lambda: 1,
                image=lambda: image,
                lower_checkpoint=self._lower,
                throttle=self.throttle,
            )
        )
        self._directory = directory

    def follow(self, partition: int, **options: int) -> Replica:
        replica = Replica.open(
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
        replica.become_follower(LEADER, EPOCH, 0)
        self.fetchers.follow(replica)
        return replica

    def _lower(self, replica: Replica) -> None:
        self.lowered.append(replica)
        self.when_lowered()

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


def asked_for(request: FetchRequest) -> set[int]:
    return {partition.partition for topic in request.topics for partition in topic.partitions}


def refusal(partition: int, error: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> PartitionData:
    return PartitionData(partition_index=partition, error_code=error, high_watermark=-1)


def records(partition: int, offset: int) -> PartitionData:
    batch = encode_batch([NewRecord(0, None, b"v")])
    assign(batch, 0, offset, EPOCH)
    return PartitionData(partition_index=partition, high_watermark=offset, log_start_offset=0, records=batch)


def now(fetchers: int) -> NodeSettings:
    return settings_from({"node.id": str(HERE), "num.replica.fetchers": str(fetchers)})


async def test_the_number_of_fetchers_changes_while_they_fetch(make: Make) -> None:
    follower = make()
    replicas = [follower.follow(number) for number in range(4)]
    only = await follower.connection()
    assert asked_for(await only.request()) == {0, 1, 2, 3}
    follower.fetchers.configure(now(2))
    moved = await follower.connection(1)
    taken = asked_for(await moved.request())
    assert len(taken) == 2
    stays = min({0, 1, 2, 3} - taken)
    only.answer(records(min(taken), 0), records(stays, 0))  # the first is another fetcher's by now
    await until(lambda: replicas[stays].log_end_offset == 1)
    assert replicas[min(taken)].log_end_offset == 0
    moved.answer(records(min(taken), 0))
    await until(lambda: replicas[min(taken)].log_end_offset == 1)

    follower.fetchers.configure(now(1))
    await until(lambda: not moved.is_open or not only.is_open)
    await until(lambda: follower.leader.connections[-1].is_open)

    def is_whole() -> bool:
        """Every partition is in the session of the fetcher that is left."""
        named = {number for asked, _ in only.asked for number in asked_for(asked)}
        last = follower.leader.connections[-1].asked
        return named == {0, 1, 2, 3} or bool(last and asked_for(last[-1][0]) == {0, 1, 2, 3})

    await until(is_whole)


async def test_while_all_partitions_rest_connection_and_session_stay(make: Make) -> None:
    follower = make()
    replica = follower.follow(0)
    leader = await follower.connection()
    first = await leader.request()
    assert (first.session_id, first.session_epoch, asked_for(first)) == (0, 0, {0})
    for epoch in (1, 2, 3):
        leader.answer(refusal(0))
        request = await leader.request()  # not before the rest is over, and then over the same connection
        assert (request.session_id, request.session_epoch) == (SESSION, epoch)
        assert (asked_for(request), request.forgotten_topics_data) == (set(), [])  # the leader knows it all
    leader.answer(records(0, 0))
    assert asked_for(await leader.request()) == {0}
    assert replica.log_end_offset == 1
    assert len(follower.leader.connections) == 1


async def test_one_that_rests_leaves_the_session_of_the_others_and_comes_back(make: Make) -> None:
    follower = make(**{"replica.fetch.backoff.ms": "100"})
    follower.follow(0)
    leader = await follower.connection()
    await leader.request()
    follower.follow(1)  # gives the request that is under way up, as nobody knows how long it is held
    leader = await follower.connection(1)
    assert asked_for(await leader.request()) == {0, 1}
    leader.answer(refusal(0), records(1, 0))
    request = await leader.request()
    assert asked_for(request) == {1}
    assert [topic.partitions for topic in request.forgotten_topics_data] == [[0]]
    while 0 not in asked_for(request):
        leader.answer()
        request = await leader.request()
    assert len(follower.leader.connections) == 2


async def test_nothing_is_fetched_as_long_as_the_checkpoint_calls_durable_what_was_cut(make: Make) -> None:
    follower = make()
    follower.follow(0)
    leader = await follower.connection()
    await leader.request()
    replica = follower.follow(1, recovery_point=5)  # of a log that lost its end
    leader = await follower.connection(1)
    assert asked_for(await leader.request()) == {0}
    assert follower.lowered == [replica]
    leader.answer(records(0, 0))
    assert asked_for(await leader.request()) == {0}
    replica.checkpointed(cuts=replica.log.flusher.truncations)
    leader.answer()
    request = await leader.request()
    while asked_for(request) != {1}:
        leader.answer()
        request = await leader.request()


async def test_what_goes_while_others_wait_for_their_disk_is_not_asked_for(make: Make) -> None:
    follower = make()
    going = follower.follow(0)
    follower.follow(2)
    loop = asyncio.get_running_loop()
    # once the fetcher has looked where all stand, and waits
    follower.when_lowered = lambda: loop.call_soon(follower.fetchers.forget, going)
    follower.follow(1, recovery_point=5)
    leader = await follower.connection()
    assert asked_for(await leader.request()) == {2}


async def test_a_fetcher_that_follows_nothing_any_more_closes_its_connection(make: Make) -> None:
    follower = make()
    replica = follower.follow(0)
    leader = await follower.connection()
    await leader.request()
    leader.answer(refusal(0))
    await until(leader.asked[-1][1].done)
    follower.fetchers.forget(replica)
    await until(lambda: not leader.is_open)


async def test_the_partitions_of_a_topic_are_shared_among_the_fetchers(make: Make) -> None:
    follower = make(**{"num.replica.fetchers": "2"})
    for partition in range(4):
        follower.follow(partition)
    connections = [await follower.connection(number) for number in (0, 1)]
    assert [asked_for(await one.request()) for one in connections] == [{0, 2}, {1, 3}]


async def test_a_broken_connection_is_replaced_and_everything_asked_for_anew(make: Make) -> None:
    follower = make()
    follower.follow(0)
    leader = await follower.connection()
    await leader.request()
    leader.close()
    leader = await follower.connection(1)
    request = await leader.request()
    assert (request.session_id, request.session_epoch, asked_for(request)) == (0, 0, {0})


async def test_a_throttled_partition_waits_and_those_in_sync_or_not_named_do_not(make: Make) -> None:
    follower = make()
    follower.throttle.configure(0, {"t": frozenset({0, 1})})
    throttled = follower.follow(0)
    others = [follower.follow(number) for number in (1, 2)]
    leader = await follower.connection()
    request = await leader.request()
    assert asked_for(request) == {1, 2}
    leader.answer(records(1, 0), records(2, 0))
    assert asked_for(await leader.request()) == {1, 2}
    assert [replica.log_end_offset for replica in (throttled, *others)] == [0, 1, 1]


async def test_what_a_throttled_partition_fetched_delays_its_next_fetch(make: Make) -> None:
    follower = make()
    follower.throttle.configure(10, {"t": None})  # a batch is some 70 bytes
    follower.follow(0)
    leader = await follower.connection()
    assert asked_for(await leader.request()) == {0}
    follower.follow(1)
    leader = await follower.connection(1)
    assert asked_for(await leader.request()) == {0, 1}
    leader.answer(records(0, 0), records(1, 0))
    request = await leader.request()
    assert asked_for(request) == {1}
    assert [topic.partitions for topic in request.forgotten_topics_data] == [[0]]


def elsewhere(partition: int, log_start_offset: int) -> PartitionData:
    error = ErrorCode.OFFSET_OUT_OF_RANGE
    return PartitionData(
        partition_index=partition, error_code=error, high_watermark=-1, log_start_offset=log_start_offset
    )


async def test_those_that_begin_anew_do_so_a_turn_each(make: Make) -> None:
    follower = make()
    replicas = [follower.follow(number) for number in range(4)]
    leader = await follower.connection()
    assert asked_for(await leader.request()) == {0, 1, 2, 3}
    leader.answer(*[elsewhere(number, 7) for number in range(4)])
    begun = {0}
    while max(begun) < 4:
        await asyncio.sleep(0)
        begun.add(sum(replica.log_end_offset == 7 for replica in replicas))
    assert begun == {0, 1, 2, 3, 4}
    assert asked_for(await leader.request()) == {0, 1, 2, 3}


async def test_a_log_that_cannot_say_where_it_stands_holds_up_no_other(make: Make) -> None:
    follower = make()
    broken, other = follower.follow(0), follower.follow(1)
    leader = await follower.connection()
    await leader.request()
    leader.answer(records(0, 0), records(1, 0))
    await leader.request()
    broken.log._bases.clear()
    leader.answer(records(0, 1), records(1, 1))
    for offset in range(2, 20):  # its rest is over meanwhile
        await leader.request()
        leader.answer(records(1, offset))
    await leader.request()
    assert other.log_end_offset == 20
    assert len(follower.leader.connections) == 1
    broken.log._bases.append(0)
    leader.answer()
    while 0 not in asked_for(await leader.request()):
        leader.answer()
