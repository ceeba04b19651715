"""The leader of the quorum elects preferred leaders automatically."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from awaited_image import image_when
from metadata_quorum import Quorum, register

from tierlog.metadata.controller import commands as c
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.balancing import BalanceSettings
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.quorum.publisher import Publisher
from tierlog.metadata.records import PartitionRecord
from tierlog.protocol.errors import ErrorCode

PARTITIONS = 20


@pytest.fixture
async def quorum(tmp_path: Path) -> AsyncIterator[Quorum]:
    quorum = Quorum(tmp_path)
    quorum.balance = BalanceSettings(interval_ms=100, percent=10)
    try:
        yield quorum
    finally:
        await quorum.close()
    assert quorum.failures == []


def partitions(image: ClusterImage) -> tuple[PartitionRecord, ...]:
    found = image.topic("orders")
    assert found is not None
    return found.partitions


async def fence(client: MetadataClient, broker_id: int, *, fenced: bool) -> None:
    epoch = client.image.brokers[broker_id].broker_epoch
    command = c.FenceBroker(broker_id=broker_id, broker_epoch=epoch, fenced=fenced)
    assert (await client.submit(command)).error is ErrorCode.NONE


async def rejoin(client: MetadataClient, numbers: range) -> None:
    """Broker 2, the leader of these partitions, adds broker 1 to their ISR."""
    topic, brokers = client.image.topic("orders"), client.image.brokers
    assert topic is not None
    in_sync = tuple(c.InSync(n, brokers[n].broker_epoch) for n in (1, 2))
    changes = tuple(
        c.IsrChange(
            topic_id=topic.topic_id,
            partition=number,
            leader_epoch=topic.partitions[number].leader_epoch,
            partition_epoch=topic.partitions[number].partition_epoch,
            in_sync=in_sync,
        )
        for number in numbers
    )
    epoch = brokers[2].broker_epoch
    reply = await client.submit(c.AlterPartitions(broker_id=2, broker_epoch=epoch, changes=changes))
    assert {one.error for one in reply.partitions} == {ErrorCode.NONE}


async def led_by_broker_2(client: MetadataClient) -> None:
    """Broker 1 is the preferred leader of all partitions; it was down, and is in no ISR."""
    for broker_id in (1, 2):
        await client.submit(register(broker_id))
    placed = tuple((number, (1, 2)) for number in range(PARTITIONS))
    await client.submit(c.CreateTopics(topics=(c.NewTopic(name="orders", assignments=placed),)))
    await fence(client, 1, fenced=True)
    await fence(client, 1, fenced=False)
    assert {(p.leader, p.in_sync) for p in partitions(client.image)} == {(2, (2,))}


async def test_returned_broker_gets_its_preferred_leaderships_back(quorum: Quorum) -> None:
    for n in (1, 2, 3):
        await quorum.start(n)
    client = quorum.running[await quorum.leader()].client
    await led_by_broker_2(client)
    await rejoin(client, range(PARTITIONS))
    image = await image_when(client, lambda image: {p.leader for p in partitions(image)} == {1})
    assert {p.in_sync for p in partitions(image)} == {(1, 2)}


async def test_next_leader_of_the_quorum_rebalances_too(quorum: Quorum) -> None:
    for n in (1, 2, 3):
        await quorum.start(n)
    first = await quorum.leader()
    await led_by_broker_2(quorum.running[first].client)
    await quorum.kill(first)
    client = quorum.running[await quorum.leader()].client
    await rejoin(client, range(PARTITIONS))
    await image_when(client, lambda image: {p.leader for p in partitions(image)} == {1})


async def test_imbalance_below_the_threshold_is_kept(quorum: Quorum) -> None:
    """Two of twenty are 10 %, which does not exceed the threshold. With a third, all three are elected."""
    for n in (1, 2, 3):
        await quorum.start(n)
    leader = quorum.running[await quorum.leader()]
    client = leader.client
    await led_by_broker_2(client)
    led_by_broker_1: list[int] = []
    count = lambda _, new: led_by_broker_1.append(sum(p.leader == 1 for p in partitions(new)))  # noqa: E731
    leader.node.publish_to([Publisher("test", count)])
    await rejoin(client, range(2))
    await rejoin(client, range(2, 3))
    await image_when(client, lambda image: sum(p.leader == 1 for p in partitions(image)) == 3)
    assert set(led_by_broker_1) == {0, 3}
