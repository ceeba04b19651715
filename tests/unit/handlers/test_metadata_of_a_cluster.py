"""Metadata and DescribeCluster with fenced, dead and unregistered brokers."""

import asyncio
import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from admin_cluster import AdminCluster
from awaited_image import image_when

from tierlog.broker.handlers.auto_creation import IN_FLIGHT_MAX, TOPICS_PER_COMMAND, AutoTopicCreation
from tierlog.broker.handlers.recently_fenced import LISTED_FOR_MS
from tierlog.config.topic import INTERNAL_TOPICS
from tierlog.metadata.controller.commands import CreateTopics
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.protocol.errors import ErrorCode as E


async def partition(cluster: AdminCluster, version: int) -> Any:
    answer = await cluster.ask("Metadata", version, topics=[{"name": "t"}])
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize("version", range(14))
async def test_replicas_on_fenced_brokers_are_offline(cluster: AdminCluster, version: int) -> None:
    await cluster.create("t", (2, 3, 4))
    await cluster.fence(2)
    reported = await partition(cluster, version)
    assert reported.leader_id == 3
    assert reported.isr_nodes == [3, 4]
    if version == 0:  # offline replicas are omitted: clients look up each replica among the brokers
        assert (reported.error_code, reported.replica_nodes) == (E.REPLICA_NOT_AVAILABLE, [3, 4])
    else:
        assert (reported.error_code, reported.replica_nodes) == (E.NONE, [2, 3, 4])
    assert reported.offline_replicas == ([2] if version >= 5 else [])


@pytest.mark.parametrize("version", range(14))
async def test_partition_without_a_leader_gets_leader_not_available(
    cluster: AdminCluster, version: int
) -> None:
    await cluster.create("t", (2,))
    await cluster.fence(2)
    reported = await partition(cluster, version)
    assert (reported.error_code, reported.leader_id) == (E.LEADER_NOT_AVAILABLE, -1)
    assert reported.leader_epoch == (cluster.partition("t").leader_epoch if version >= 7 else -1)
    assert reported.isr_nodes == ([2] if version else [])  # it may come back and lead


async def test_replicas_on_unregistered_brokers_are_offline(cluster: AdminCluster) -> None:
    await cluster.create("t", (2, 3))
    await cluster.fence(2)
    assert (await cluster.ask("UnregisterBroker", 0, broker_id=2)).error_code == E.NONE
    reported = await partition(cluster, 12)
    assert (reported.leader_id, reported.replica_nodes, reported.offline_replicas) == (3, [2, 3], [2])


async def test_dead_leader_is_not_returned(cluster: AdminCluster) -> None:
    await cluster.create("t", (2, 3))
    cluster.peers.on_death(2)
    reported = await partition(cluster, 12)
    assert (reported.error_code, reported.leader_id, reported.offline_replicas) == (
        E.LEADER_NOT_AVAILABLE,
        -1,
        [2],
    )
    await cluster.fence(2)
    reported = await partition(cluster, 12)
    assert (reported.error_code, reported.leader_id, reported.offline_replicas) == (E.NONE, 3, [2])


async def test_dead_broker_that_registers_again_is_live(cluster: AdminCluster) -> None:
    await cluster.create("t", (2,))
    cluster.peers.on_death(2)
    await cluster.register(2, incarnation=uuid.UUID(int=99))
    reported = await partition(cluster, 12)
    assert (reported.error_code, reported.leader_id) == (E.NONE, 2)


async def test_suspected_broker_is_listed_again_after_a_connection(cluster: AdminCluster) -> None:
    await cluster.create("t", (2, 3))
    cluster.peers.on_death(2)
    assert (await partition(cluster, 12)).leader_id == -1
    cluster.peers.on_connected(2)
    assert (await partition(cluster, 12)).leader_id == 2


async def test_broker_unfenced_with_the_same_epoch_was_not_dead(cluster: AdminCluster) -> None:
    await cluster.create("t", (2,))
    cluster.peers.on_death(2)
    await cluster.fence(2)
    assert (await partition(cluster, 12)).leader_id == -1
    await cluster.fence(2, fenced=False)
    assert (await partition(cluster, 12)).leader_id == 2


async def test_leader_with_a_broken_connection_is_not_returned_while_suspected(cluster: AdminCluster) -> None:
    await cluster.create("t", (2, 3))
    cluster.peers.doubtful = frozenset({2})
    assert (await partition(cluster, 12)).leader_id == -1
    cluster.peers.doubtful = frozenset()
    assert (await partition(cluster, 12)).leader_id == 2


async def test_recently_fenced_broker_stays_in_metadata(cluster: AdminCluster) -> None:
    await cluster.create("t", (3, 4))
    await cluster.fence(3)
    answer = await cluster.ask("Metadata", 12, topics=[{"name": "t"}])
    assert [broker.node_id for broker in answer.brokers] == [1, 2, 3, 4]
    assert answer.topics[0].partitions[0].leader_id == 4
    cluster.clock.ahead_ms += LISTED_FOR_MS
    answer = await cluster.ask("Metadata", 12, topics=[])
    assert [broker.node_id for broker in answer.brokers] == [1, 2, 4]


async def test_only_live_brokers_are_in_metadata_and_the_controller_is_one(cluster: AdminCluster) -> None:
    await cluster.fence(3)
    cluster.clock.ahead_ms += LISTED_FOR_MS
    answer = await cluster.ask("Metadata", 12, topics=[])
    assert ([broker.node_id for broker in answer.brokers], answer.controller_id) == ([1, 2, 4], 1)
    await cluster.fence(1)
    cluster.clock.ahead_ms += LISTED_FOR_MS
    answer = await cluster.ask("Metadata", 12, topics=[])
    assert ([broker.node_id for broker in answer.brokers], answer.controller_id) == ([2, 4], 2)


@pytest.mark.parametrize("passed_ms", [0, LISTED_FOR_MS])
async def test_broker_lists_itself_if_all_brokers_are_fenced(cluster: AdminCluster, passed_ms: int) -> None:
    """It may be unfenced already, with stale metadata, and librdkafka may not retry."""
    for broker_id in (1, 2, 3, 4):
        await cluster.fence(broker_id)
        cluster.clock.ahead_ms += passed_ms
    answer = await cluster.ask("Metadata", 12, topics=[])
    assert answer.controller_id == 1
    assert 1 in [broker.node_id for broker in answer.brokers]
    answer = await cluster.ask("DescribeCluster", 2)
    reported = [(broker.broker_id, broker.is_fenced) for broker in answer.brokers]
    assert (answer.controller_id, reported) == (1, [(1, True)])


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_fenced_brokers_are_described_on_request(cluster: AdminCluster, version: int) -> None:
    await cluster.fence(3)
    answer = await cluster.ask("DescribeCluster", version)
    assert [broker.broker_id for broker in answer.brokers] == [1, 2, 4]
    if version == 2:
        answer = await cluster.ask("DescribeCluster", version, include_fenced_brokers=True)
        assert {broker.broker_id: broker.is_fenced for broker in answer.brokers} == {
            1: False,
            2: False,
            3: True,
            4: False,
        }


async def test_live_or_unknown_broker_cannot_be_unregistered(cluster: AdminCluster) -> None:
    answer = await cluster.ask("UnregisterBroker", 0, broker_id=2)
    assert (answer.error_code, 2 in cluster.metadata.image.brokers) == (E.INVALID_REQUEST, True)
    answer = await cluster.ask("UnregisterBroker", 0, broker_id=9)
    assert answer.error_code == E.BROKER_ID_NOT_REGISTERED
    assert "9" in answer.error_message


@pytest.mark.parametrize("version", range(14))
async def test_requested_topic_is_created_after_the_response(cluster: AdminCluster, version: int) -> None:
    """A client that describes a topic it has just deleted must not see it again."""
    await cluster.create("t", (2,))
    await cluster.ask("DeleteTopics", 6, topics=[{"name": "t"}])
    created = image_when(cluster.metadata, lambda image: "t" in image.topic_ids)
    answer = await cluster.ask("Metadata", version, topics=[{"name": "t"}, {"name": "a b"}])
    reported = [(topic.error_code, topic.partitions) for topic in answer.topics]
    assert reported == [(E.UNKNOWN_TOPIC_OR_PARTITION, []), (E.INVALID_TOPIC_EXCEPTION, [])]
    await created
    again = await cluster.ask("Metadata", version, topics=[{"name": "t"}])
    assert [(topic.error_code, len(topic.partitions)) for topic in again.topics] == [(E.NONE, 1)]


@pytest.mark.parametrize("name", [*sorted(INTERNAL_TOPICS), "t"])
async def test_internal_topics_are_not_created_automatically(cluster: AdminCluster, name: str) -> None:
    for _ in range(2):
        allowed = name != "t"
        answer = await cluster.ask("Metadata", 12, topics=[{"name": name}], allow_auto_topic_creation=allowed)
        assert answer.topics[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION
        assert answer.topics[0].is_internal == allowed
    assert name not in (await cluster.metadata.current()).topic_ids


async def test_failed_automatic_creation_is_retried(cluster: AdminCluster) -> None:
    for broker_id in range(1, 5):
        await cluster.fence(broker_id)
    for _ in range(2):
        answer = await cluster.ask("Metadata", 12, topics=[{"name": "t"}])
        assert answer.topics[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION
        await cluster.metadata.current()
    await cluster.fence(1, fenced=False)
    created = image_when(cluster.metadata, lambda image: "t" in image.topic_ids)
    await cluster.ask("Metadata", 12, topics=[{"name": "t"}])
    await created


async def test_concurrent_automatic_creations_are_limited(cluster: AdminCluster) -> None:
    names = [f"t{n}" for n in range(IN_FLIGHT_MAX + 10)]
    created = image_when(cluster.metadata, lambda image: len(image.topic_ids) == IN_FLIGHT_MAX)
    answer = await cluster.ask("Metadata", 12, topics=[{"name": name} for name in names])
    assert len(answer.topics) == len(names)
    await created
    await cluster.ask("Metadata", 12, topics=[{"name": name} for name in names])
    await image_when(cluster.metadata, lambda image: len(image.topic_ids) == len(names))


class FailsOnce:
    """Metadata whose first command fails with an unexpected error."""

    def __init__(self, metadata: MetadataClient) -> None:
        self._metadata = metadata
        self._failure: Exception | None = ZeroDivisionError()

    @property
    def image(self) -> ClusterImage:
        return self._metadata.image

    async def submit(self, command: CreateTopics) -> Any:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return await self._metadata.submit(command)


async def test_topics_can_be_requested_again_after_an_unexpected_failure(
    cluster: AdminCluster,
) -> None:
    metadata: Any = FailsOnce(cluster.metadata)
    creation = AutoTopicCreation(replace(cluster.dependencies, metadata=metadata))
    context: Any = SimpleNamespace(connection=SimpleNamespace(user="ANONYMOUS"), client_id="c", version=12)
    names = [f"t{n}" for n in range(3 * TOPICS_PER_COMMAND)]
    creation.start(context, names)
    while not cluster.failures:  # noqa: ASYNC110 - nothing tells when a task has failed
        await asyncio.sleep(0)
    assert [type(failure) for failure in cluster.failures] == [ZeroDivisionError]
    cluster.failures.clear()
    creation.start(context, names)
    await image_when(cluster.metadata, lambda image: len(image.topic_ids) == len(names), timeout_s=10)
