"""Lag metrics of groups: what is exported, the bound, and the work between two turns of the event loop."""

import asyncio

import pytest
from group_broker import METADATA, Lease, OneBroker
from loop_steps import LoopSteps
from structlog.testing import capture_logs

from tierlog.base.network import Peer
from tierlog.base.types import TopicPartition
from tierlog.broker.coordinators.shards import Host
from tierlog.broker.gateway.exposition import exposition
from tierlog.broker.gateway.metrics import group_lag_families
from tierlog.broker.groups import group_lag
from tierlog.broker.groups.group_lag import REFRESH_INTERVAL_MS, GroupLag
from tierlog.metadata.controller.commands import CreateTopics, NewTopic
from tierlog.protocol.messages import offset_commit
from tierlog.protocol.messages.list_offsets import ListOffsetsRequest
from tierlog.records.writer import NewRecord, encode_batch

PARTITIONS = 3
CALLS_PER_TURN = 800
"""Three for each of the partitions of a turn: less than a millisecond."""


class Clock:
    at_ms = 0

    def monotonic_ms(self) -> int:
        return self.at_ms

    def now_ms(self) -> int:
        return self.at_ms


@pytest.fixture
async def broker(tmp_path):
    async with OneBroker(tmp_path) as running:
        await running.service.shards.create_topic()
        topics = NewTopic(name="t", partitions=PARTITIONS), NewTopic(name="u", partitions=1)
        await running.metadata.submit(CreateTopics(topics=topics))
        yield running


def lag_of(broker: OneBroker, max_partitions: int = 100, clock: Clock | None = None) -> GroupLag:
    host = Host(1, broker.metadata, broker, clock or Clock(), broker.tasks)
    return GroupLag(broker.service.shards, host, None, max_partitions)


async def commit(broker: OneBroker, group: str, *offsets: int, topic: str = "t") -> None:
    """Commit an offset of each partition, from 0 on."""
    partitions = [
        offset_commit.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
        for index, offset in enumerate(offsets)
    ]
    named = offset_commit.OffsetCommitRequestTopic(name=topic, partitions=partitions)
    response = await broker.call(
        "OffsetCommit", 8, offset_commit.OffsetCommitRequest(group_id=group, topics=[named])
    )
    assert not any(each.error_code for found in response.topics for each in found.partitions)


def produce(broker: OneBroker, partition: int, count: int, topic: str = "t") -> None:
    replica = broker.replicas[TopicPartition(topic, partition)]
    batch = encode_batch([NewRecord(0, b"k", METADATA)] * count)
    replica.as_leader.append(memoryview(batch), 0, acks=1, from_client=False)


async def samples(lag: GroupLag) -> dict[str, str]:
    await lag.refresh()
    lines = (await exposition(group_lag_families(lag))).decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


async def test_lag_has_the_names_and_labels_of_kafka_exporter(broker: OneBroker) -> None:
    produce(broker, 0, 10)
    produce(broker, 1, 5)
    await commit(broker, "g", 4, 5)
    found = await samples(lag_of(broker))
    assert found == {
        "tierlog_group_lag_partitions_left_out": "0",
        'kafka_consumergroup_current_offset{consumergroup="g",topic="t",partition="0"}': "4",
        'kafka_consumergroup_current_offset{consumergroup="g",topic="t",partition="1"}': "5",
        'kafka_consumergroup_lag{consumergroup="g",topic="t",partition="0"}': "6",
        'kafka_consumergroup_lag{consumergroup="g",topic="t",partition="1"}': "0",
        'kafka_consumergroup_lag_sum{consumergroup="g",topic="t"}': "6",
    }


async def test_offset_beyond_the_end_has_no_negative_lag(broker: OneBroker) -> None:
    await commit(broker, "g", 7)
    lag = lag_of(broker)
    await lag.refresh()
    assert [row.lag for row in lag.partitions] == [0]


async def test_partition_whose_leader_is_unknown_has_an_offset_and_no_lag(broker: OneBroker) -> None:
    produce(broker, 0, 10)
    await commit(broker, "g", 4, 0)
    broker.replicas.pop(TopicPartition("t", 1)).close(clean=False)
    lag = lag_of(broker)
    await lag.refresh()
    assert [(row.partition.partition, row.lag) for row in lag.partitions] == [(0, 6), (1, None)]
    assert list(lag.topics) == []


async def test_partition_has_no_lag_while_its_new_leader_does_not_know_the_end(broker: OneBroker) -> None:
    await commit(broker, "g", 0, 0)
    replica, replicas = broker.replicas[TopicPartition("t", 1)], [1, 2]
    replica.become_leader(replica.leader_epoch + 1, 10, replicas, replicas, 0)
    produce(broker, 1, 5)
    replica.become_leader(replica.leader_epoch + 1, 11, replicas, replicas, 0)
    lag = lag_of(broker)
    await lag.refresh()
    assert [(row.partition.partition, row.lag) for row in lag.partitions] == [(0, 0), (1, None)]


async def test_groups_above_the_bound_are_left_out_whole_and_loudly(broker: OneBroker) -> None:
    for group in ("a", "b", "c"):
        await commit(broker, group, 0, 0, 0)
    await commit(broker, "small", 0)
    lag = lag_of(broker, max_partitions=7)
    with capture_logs() as logs:
        await lag.refresh()
    exported = {row.group for row in lag.partitions}
    assert len(exported & {"a", "b", "c"}) == 2 and len(list(lag.partitions)) <= 7
    assert lag.left_out + len(list(lag.partitions)) == 10
    [line] = [each for each in logs if each["event"] == "group.lag.incomplete"]
    assert line["limit"] == 7 and line["partitions"] == lag.left_out


async def test_nothing_is_collected_if_the_bound_is_zero(broker: OneBroker) -> None:
    await commit(broker, "g", 0)
    lag = lag_of(broker, max_partitions=0)
    await lag.refresh()
    assert list(lag.partitions) == [] and lag.left_out == 0


async def test_values_are_collected_again_after_the_interval(broker: OneBroker) -> None:
    clock = Clock()
    lag = lag_of(broker, clock=clock)
    await commit(broker, "g", 0)
    await lag.refresh()
    produce(broker, 0, 3)
    clock.at_ms = REFRESH_INTERVAL_MS - 1
    await lag.refresh()
    assert [row.lag for row in lag.partitions] == [0]
    clock.at_ms = REFRESH_INTERVAL_MS
    await lag.refresh()
    assert [row.lag for row in lag.partitions] == [3]


async def test_groups_that_another_broker_coordinates_by_now_are_not_exported(tmp_path) -> None:
    lease = Lease()
    async with OneBroker(tmp_path, lease=lease) as broker:
        await broker.service.shards.create_topic()
        await broker.create("t")
        await commit(broker, "g", 0)
        lag = lag_of(broker)
        await lag.refresh()
        assert [row.group for row in lag.partitions] == ["g"]
        lease.held = False
        assert list(lag.partitions) == list(lag.topics) == []
        lease.held = True


async def test_many_groups_are_collected_in_portions(broker: OneBroker) -> None:
    for number in range(400):
        await commit(broker, f"g{number}", 0, 0, 0)
    for max_partitions in (2_000, 1):
        lag = lag_of(broker, max_partitions)
        with LoopSteps() as steps:
            await lag.refresh()
        assert steps.most <= CALLS_PER_TURN < steps.total
    assert lag.left_out == 1_200


class SilentLeader:
    """A network whose brokers accept connections and requests, and never answer."""

    is_open = True

    def __init__(self) -> None:
        self.requests: list[ListOffsetsRequest] = []
        self.closed = 0

    async def connect(self, peer: Peer, client_id: str) -> "SilentLeader":
        return self

    async def call(self, api_key: int, version: int, request: ListOffsetsRequest, *_: object) -> None:
        self.requests.append(request)
        await asyncio.get_running_loop().create_future()

    def close(self) -> None:
        self.closed += 1


async def test_leader_that_does_not_answer_costs_only_the_lag_of_its_partitions(
    broker: OneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_lag, "LEADER_TIMEOUT_S", 0.01)
    await broker.register(2)
    await broker.metadata.submit(CreateTopics(topics=(NewTopic(name="wide", partitions=8),)))
    leaders = [each.leader for each in broker.metadata.image.topic("wide").partitions]
    assert set(leaders) == {1, 2}
    for partition in range(8):
        produce(broker, partition, 10, topic="wide")
    await commit(broker, "g", *[4] * 8, topic="wide")
    network = SilentLeader()
    host = Host(1, broker.metadata, broker, Clock(), broker.tasks)
    lag = GroupLag(broker.service.shards, host, network, max_partitions=100)
    await lag.refresh()
    assert [row.lag for row in lag.partitions] == [6 if leader == 1 else None for leader in leaders]
    [wanted] = network.requests[0].topics
    elsewhere = [number for number, leader in enumerate(leaders) if leader == 2]
    assert (wanted.name, [each.partition_index for each in wanted.partitions]) == ("wide", elsewhere)
    assert network.closed == 1  # a late response must not answer a later request
