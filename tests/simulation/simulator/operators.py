"""Operators of a simulated cluster: partitions move while they are written to, brokers leave, topics pass.

They ask as any client does, over the wire, of whichever node, and leave what they do not know the outcome of.
What they know to have got done is counted, for the tests to see that it happens at all.
Who makes topics also writes to them, by topic id, reads all of it back, and deletes them: a name that is used
again must show nothing of what stood there before.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from uuid import UUID

from simulator.groups import commit_to_passing_topic, coordinator_of_passing_topics
from simulator.network import Broken
from simulator.witness import Violation
from simulator.workload import (
    FETCH,
    PRODUCE,
    RETRY_S,
    TOPIC,
    Client,
    fresh_producer_id,
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
ACTS_A_SECOND = 3.0
ACTS = ("move", "move", "call off", "elect")
CALLED_OFF_S = 0.1
"""An operator thinks better of it within that time, now and then."""

FACTORS = (2, 3, 3)
"""Replicas of a partition after a move; never fewer than min.insync.replicas, which would promise less."""

DEPARTURES_A_SECOND = 0.4
DRAINED_S = (0.1, 1.0)
UNREGISTERED_TRIES = 10
LIVES_A_SECOND = 2.0
AWAY = 0.5
"""Share of the deletions of a topic during which the coordinator of its group is away."""

BATCHES = 3
"""Written to a topic in its life."""


async def move_partitions(client: Client, partitions: int) -> None:
    """For ever, as the seed draws it."""
    rng = client.rng
    while True:
        await asyncio.sleep(rng.expovariate(ACTS_A_SECOND))
        act, partition = rng.choice(ACTS), rng.randrange(partitions)
        if act == "elect":
            await _elect_preferred(client)
            continue
        if await _reassign(client, partition, rng.sample(client.nodes, rng.choice(FACTORS))):
            client.history.done["moves"] += 1
        if act == "call off":
            await asyncio.sleep(rng.uniform(0, CALLED_OFF_S))
            if await _reassign(client, partition, None):
                client.history.done["moves called off"] += 1


async def retire(
    client: Client, partitions: int, stop: Callable[[int], None], may_leave: Callable[[int], bool]
) -> None:
    """Brokers leave for good: drained, or nearly, stopped, and removed from the cluster. Whoever stops one
    starts it again later, and then it is a new one. `may_leave`: whether nobody needs what it holds."""
    rng = client.rng
    while True:
        await asyncio.sleep(rng.expovariate(DEPARTURES_A_SECOND))
        leaving = rng.choice(client.nodes)
        others = [node for node in client.nodes if node != leaving]
        for partition in range(partitions):
            await _reassign(client, partition, rng.sample(others, min(len(others), rng.choice(FACTORS))))
        await asyncio.sleep(rng.uniform(*DRAINED_S))
        stop(leaving)
        for _ in range(UNREGISTERED_TRIES):
            if may_leave(leaving):
                answer = await _ask_any(client, UNREGISTER, 0, UnregisterBrokerRequest(broker_id=leaving))
                if answer is not None and answer.error_code == ErrorCode.NONE:  # type: ignore[attr-defined]
                    client.history.done["brokers removed"] += 1
                    break
            await asyncio.sleep(rng.uniform(*RETRY_S))


async def _elect_preferred(client: Client) -> None:
    """Wherever another one leads."""
    request = ElectLeadersRequest(election_type=0, topic_partitions=None)
    answer = await _ask_any(client, ELECT, 2, request)
    told = () if answer is None else answer.replica_election_results  # type: ignore[attr-defined]
    results = [one for topic in told for one in topic.partition_result]
    client.history.done["elections"] += sum(one.error_code == ErrorCode.NONE for one in results)


async def _reassign(client: Client, partition: int, target: list[int] | None) -> bool:
    """Whether it was accepted."""
    change = ReassignablePartition(partition_index=partition, replicas=target)
    topics = [ReassignableTopic(name=TOPIC, partitions=[change])]
    answer = await _ask_any(client, REASSIGN, 1, AlterPartitionReassignmentsRequest(topics=topics))
    if answer is None or answer.error_code:  # type: ignore[attr-defined]
        return False
    told = answer.responses[0].partitions[0]  # type: ignore[attr-defined]
    return bool(told.error_code == ErrorCode.NONE)


async def pass_topics(
    client: Client,
    configs: Sequence[tuple[str, str]],
    wanted: Callable[[], bool],
    stop_coordinator: Callable[[int], None] | None,
) -> None:
    """Topics of one name, one after the other, as long as they are wanted; what was written to the last one
    is read back too, else this does not end. With `stop_coordinator`, a group commits to each
    of them, and its coordinator is stopped before some of the deletions."""
    for life in count():
        if not wanted():
            return
        topic_id = await _make(client, configs)
        if topic_id is not None:
            written = await _write(client, topic_id, life)
            if stop_coordinator is not None:
                await commit_to_passing_topic(client, topic_id, offset=1 + life)
            tiered = ("remote.storage.enable", "true") in configs
            await _check_content(client, topic_id, written, may_be_late=tiered)
            client.history.done["topics passed"] += 1
        if stop_coordinator is not None and client.rng.random() < AWAY:
            node = await coordinator_of_passing_topics(client)
            if node is not None:
                stop_coordinator(node)
        topic_id = topic_id or client.topic_id()
        if topic_id is not None:
            await _delete(client, topic_id)
        await asyncio.sleep(client.rng.expovariate(LIVES_A_SECOND))


async def _make(client: Client, configs: Sequence[tuple[str, str]]) -> UUID | None:
    """Its id; None if an earlier attempt made it, and nobody told."""
    settings = [CreatableTopicConfig(name=name, value=value) for name, value in configs]
    wanted = CreatableTopic(name=client.topic, num_partitions=1, replication_factor=3, configs=settings)
    while True:
        answer = await _ask_any(client, CREATE, 7, CreateTopicsRequest(topics=[wanted], timeout_ms=1000))
        if answer is not None:
            told = answer.topics[0]  # type: ignore[attr-defined]
            if told.error_code == ErrorCode.NONE:
                return UUID(int=told.topic_id.int)
            if told.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
                return None


async def _delete(client: Client, topic_id: UUID) -> None:
    """Until it is certain. By id: an attempt by name that comes late takes the next topic of that name."""
    topics = [DeleteTopicState(name=None, topic_id=topic_id)]
    while True:
        answer = await _ask_any(client, DELETE, 6, DeleteTopicsRequest(topics=topics, timeout_ms=1000))
        if answer is not None and answer.responses[0].error_code in (  # type: ignore[attr-defined]
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_ID,
        ):
            return


async def _write(client: Client, topic_id: UUID, life: int) -> dict[int, bytes]:
    """What was acknowledged, by offset."""
    producer_id, written = await fresh_producer_id(client), dict[int, bytes]()
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
            answer = await client.ask_leader(0, PRODUCE, 13, request)
            if answer is None:
                continue
            told = answer.responses[0].partition_responses[0]  # type: ignore[attr-defined]
            if told.error_code == ErrorCode.NONE:
                written[told.base_offset] = value
                break
            await client.lost(0)
    return written


async def _check_content(
    client: Client, topic_id: UUID, written: dict[int, bytes], *, may_be_late: bool
) -> None:
    """`may_be_late`: an answer without records may mean that the store is slow."""
    found: dict[int, bytes] = {}
    while found != written:
        asked = FetchPartition(fetch_offset=max(found, default=-1) + 1, partition_max_bytes=1 << 16)
        topic = FetchTopic(topic_id=topic_id, partitions=[asked])
        answer = await client.ask_leader(
            0, FETCH, 13, FetchRequest(max_wait_ms=100, min_bytes=1, topics=[topic])
        )
        if answer is None:
            continue
        if answer.error_code == ErrorCode.NONE and answer.responses:  # type: ignore[attr-defined]
            told = answer.responses[0].partitions[0]  # type: ignore[attr-defined]
            more = dict(values_of(bytes(told.records or b"")))
            found |= more
            ends_early = not more and told.high_watermark > max(written) > max(found, default=-1)
            if found.items() - written.items() or (ends_early and not may_be_late):
                where = f"topic {client.topic} {topic_id}"
                raise Violation(f"{where} holds {found}, but {written} was acknowledged to it")
            if more:
                continue
        await client.lost(0)


async def _ask_any(client: Client, api_key: int, version: int, request: object) -> object | None:
    """Of whichever node; None, after a pause, if it does not answer."""
    try:
        return await client.ask(client.rng.choice(client.nodes), api_key, version, request)
    except (Unreachable, Broken):
        await asyncio.sleep(client.rng.uniform(*RETRY_S))
        return None
