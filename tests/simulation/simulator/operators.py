"""Operators of a simulated cluster: move partitions, remove brokers, and recreate topics.

They send requests to any node over the wire, and do not retry those with an unknown outcome. Completed
operations are counted, so that tests can require them. The operator that recreates a topic writes to it by
topic id, reads everything back, and deletes it: the next topic of the name must have nothing of the earlier
one.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from uuid import UUID

from simulator.groups import commit_to_new_topic, coordinator_of_recreated_topics
from simulator.network import Broken
from simulator.witness import Violation
from simulator.workload import (
    FETCH,
    PRODUCE,
    RETRY_S,
    TOPIC,
    Client,
    new_producer_id,
    values_of,
)
from tierlog.base.network import Unreachable
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tierlog.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from tierlog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tierlog.protocol.messages.elect_leaders import ElectLeadersRequest
from tierlog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tierlog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tierlog.protocol.messages.unregister_broker import UnregisterBrokerRequest
from tierlog.records.writer import NewRecord, encode_batch

REASSIGN, ELECT, UNREGISTER, CREATE, DELETE = (
    BY_NAME[name].key
    for name in (
        "AlterPartitionReassignments",
        "ElectLeaders",
        "UnregisterBroker",
        "CreateTopics",
        "DeleteTopics",
    )
)
ACTIONS_A_SECOND = 3.0
ACTIONS = ("move", "move", "cancel", "elect")
CANCELLED_WITHIN_S = 0.1
"""A move may be cancelled within this time."""

FACTORS = (2, 3, 3)
"""Replicas of a partition after a move: never fewer than min.insync.replicas, which would weaken
guarantees."""

DEPARTURES_A_SECOND = 0.4
DRAINED_S = (0.1, 1.0)
UNREGISTERED_TRIES = 10
RECREATIONS_A_SECOND = 2.0
COORDINATOR_STOPPED = 0.5
"""Share of topic deletions before which the coordinator of the topic's group is stopped."""

BATCHES = 3
"""Batches written to each recreated topic."""


async def move_partitions(client: Client, partitions: int) -> None:
    """Runs until cancelled."""
    rng = client.rng
    while True:
        await asyncio.sleep(rng.expovariate(ACTIONS_A_SECOND))
        act, partition = rng.choice(ACTIONS), rng.randrange(partitions)
        if act == "elect":
            await _elect_preferred(client)
            continue
        if await reassign(client, partition, rng.sample(client.nodes, rng.choice(FACTORS))):
            client.history.done["moves"] += 1
        if act == "cancel":
            await asyncio.sleep(rng.uniform(0, CANCELLED_WITHIN_S))
            if await reassign(client, partition, None):
                client.history.done["moves cancelled"] += 1


async def remove_brokers(
    client: Client, partitions: int, stop: Callable[[int], None], may_leave: Callable[[int], bool]
) -> None:
    """Drain brokers, stop them, and remove them from the cluster. Runs until cancelled.

    A stopped broker is started again later, and is then a new one. `may_leave`: whether its replicas may be
    lost.
    """
    rng = client.rng
    while True:
        await asyncio.sleep(rng.expovariate(DEPARTURES_A_SECOND))
        leaving = rng.choice(client.nodes)
        others = [node for node in client.nodes if node != leaving]
        for partition in range(partitions):
            await reassign(client, partition, rng.sample(others, min(len(others), rng.choice(FACTORS))))
        await asyncio.sleep(rng.uniform(*DRAINED_S))
        stop(leaving)
        for _ in range(UNREGISTERED_TRIES):
            if may_leave(leaving):
                answer = await call_any(client, UNREGISTER, 0, UnregisterBrokerRequest(broker_id=leaving))
                if answer is not None and answer.error_code == ErrorCode.NONE:  # type: ignore[attr-defined]
                    client.history.done["brokers removed"] += 1
                    break
            await asyncio.sleep(rng.uniform(*RETRY_S))


async def _elect_preferred(client: Client) -> None:
    """Elect the preferred leader of every partition that has another one."""
    request = ElectLeadersRequest(election_type=0, topic_partitions=None)
    answer = await call_any(client, ELECT, 2, request)
    topics = () if answer is None else answer.replica_election_results  # type: ignore[attr-defined]
    results = [one for topic in topics for one in topic.partition_result]
    client.history.done["elections"] += sum(one.error_code == ErrorCode.NONE for one in results)


async def reassign(client: Client, partition: int, target: list[int] | None) -> bool:
    """Returns whether the reassignment was accepted."""
    change = ReassignablePartition(partition_index=partition, replicas=target)
    topics = [ReassignableTopic(name=TOPIC, partitions=[change])]
    answer = await call_any(client, REASSIGN, 1, AlterPartitionReassignmentsRequest(topics=topics))
    if answer is None or answer.error_code:  # type: ignore[attr-defined]
        return False
    result = answer.responses[0].partitions[0]  # type: ignore[attr-defined]
    return bool(result.error_code == ErrorCode.NONE)


async def recreate_topics(
    client: Client,
    configs: Sequence[tuple[str, str]],
    wanted: Callable[[], bool],
    stop_coordinator: Callable[[int], None] | None,
) -> None:
    """Create, check and delete topics of one name while `wanted`. Ends only when the last one is checked.

    With `stop_coordinator`, a group commits to each of them, and its coordinator is stopped before some
    deletions. The next topic is created at once then: before the next coordinator has loaded the offset.
    """
    for life in count():
        if not wanted():
            return
        topic_id = await create_topic(client, configs)
        if topic_id is not None:
            written = await _write(client, topic_id, life)
            if stop_coordinator is not None:
                await commit_to_new_topic(client, topic_id, offset=1 + life)
            tiered = ("remote.storage.enable", "true") in configs
            await _check_content(client, topic_id, written, may_be_late=tiered)
            client.history.done["topics recreated"] += 1
        is_at_once = stop_coordinator is not None and client.rng.random() < COORDINATOR_STOPPED
        if stop_coordinator is not None and is_at_once:
            node = await coordinator_of_recreated_topics(client)
            if node is not None:
                stop_coordinator(node)
        topic_id = topic_id or client.topic_id()
        if topic_id is not None:
            await delete_topic(client, topic_id)
        pause_s = client.rng.expovariate(RECREATIONS_A_SECOND)
        await asyncio.sleep(0 if is_at_once else pause_s)


async def create_topic(client: Client, configs: Sequence[tuple[str, str]]) -> UUID | None:
    """The id of the new topic; None if an earlier attempt without a response created it."""
    settings = [CreatableTopicConfig(name=name, value=value) for name, value in configs]
    wanted = CreatableTopic(name=client.topic, num_partitions=1, replication_factor=3, configs=settings)
    while True:
        answer = await call_any(client, CREATE, 7, CreateTopicsRequest(topics=[wanted], timeout_ms=1000))
        if answer is not None:
            result = answer.topics[0]  # type: ignore[attr-defined]
            if result.error_code == ErrorCode.NONE:
                return UUID(int=result.topic_id.int)
            if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
                return None


async def delete_topic(client: Client, topic_id: UUID) -> None:
    """Retries until the outcome is known. Deletes by id: a late request by name would delete the next
    topic."""
    topics = [DeleteTopicState(name=None, topic_id=topic_id)]
    while True:
        answer = await call_any(client, DELETE, 6, DeleteTopicsRequest(topics=topics, timeout_ms=1000))
        if answer is not None and answer.responses[0].error_code in (  # type: ignore[attr-defined]
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_ID,
        ):
            return


async def _write(client: Client, topic_id: UUID, life: int) -> dict[int, bytes]:
    """Returns the acknowledged values by offset."""
    producer_id, written = await new_producer_id(client), dict[int, bytes]()
    for number in range(BATCHES):
        value = b"%d-%d" % (life, number)
        batch = encode_batch(
            [NewRecord(1_750_000_000_000, None, value, ())],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=number,
        )
        data = PartitionProduceData(index=0, records=bytes(batch))
        topic = TopicProduceData(topic_id=topic_id, partition_data=[data])
        request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])
        while True:
            answer = await client.call_leader(0, PRODUCE, 13, request)
            if answer is None:
                continue
            result = answer.responses[0].partition_responses[0]  # type: ignore[attr-defined]
            if result.error_code == ErrorCode.NONE:
                written[result.base_offset] = value
                break
            await client.lost(0)
    return written


async def _check_content(
    client: Client, topic_id: UUID, written: dict[int, bytes], *, may_be_late: bool
) -> None:
    """`may_be_late`: a response without records may mean that the object store is slow."""
    found: dict[int, bytes] = {}
    while found != written:
        wanted = FetchPartition(fetch_offset=max(found, default=-1) + 1, partition_max_bytes=1 << 16)
        topic = FetchTopic(topic_id=topic_id, partitions=[wanted])
        answer = await client.call_leader(
            0, FETCH, 13, FetchRequest(max_wait_ms=100, min_bytes=1, topics=[topic])
        )
        if answer is None:
            continue
        if answer.error_code == ErrorCode.NONE and answer.responses:  # type: ignore[attr-defined]
            result = answer.responses[0].partitions[0]  # type: ignore[attr-defined]
            more = dict(values_of(bytes(result.records or b"")))
            found |= more
            ends_early = not more and result.high_watermark > max(written) > max(found, default=-1)
            if found.items() - written.items() or (ends_early and not may_be_late):
                where = f"topic {client.topic} {topic_id}"
                raise Violation(f"{where} holds {found}, but {written} was acknowledged to it")
            if more:
                continue
        await client.lost(0)


async def call_any(client: Client, api_key: int, version: int, request: object) -> object | None:
    """Send a request to any node. Returns None, after a pause, if there is no response."""
    try:
        return await client.ask(client.rng.choice(client.nodes), api_key, version, request)
    except (Unreachable, Broken):
        await asyncio.sleep(client.rng.uniform(*RETRY_S))
        return None
