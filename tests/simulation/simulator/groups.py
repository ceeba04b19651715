"""A consumer group of a simulated cluster: members join, commit and fall out while their coordinator moves.

What they commit are numbers that grow: whoever gets a partition goes on behind what it fetched. So an offset
that goes back shows, be it that an acknowledged commit was lost, or that one of an older generation came in
between. A member that does not know whether its commit was taken joins as another one: in the same generation
the commit could still arrive behind the next one.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from simulator.network import Broken
from simulator.witness import Violation
from simulator.workload import RETRY_S, TOPIC, Client
from tierlog.base.network import Unreachable
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.find_coordinator import FindCoordinatorRequest
from tierlog.protocol.messages.heartbeat import HeartbeatRequest
from tierlog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tierlog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tierlog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tierlog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

OFFSETS_TOPIC = "__consumer_offsets"
GROUP = "group"
PASSING_GROUP = "passing"
SESSION_MS = 1000
STEPS_A_SECOND = 5.0
TIRED = 0.05
"""Of the steps: after so many a member gives its place up without a word."""

ABSENT = 0.1
ABSENT_S = (0.5, 3.0)
"""Of the steps: before so many a member is away, maybe for longer than its session, and then commits."""

STAYS = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)
"""Answers after which a member joins again as the one that it was."""

FIND, JOIN, SYNC, BEAT, COMMIT, FETCHED, COMMIT_BY_ID, FETCHED_BY_ID = (
    (BY_NAME[name].key, version)
    for name, version in (
        ("FindCoordinator", 2),
        ("JoinGroup", 5),
        ("SyncGroup", 3),
        ("Heartbeat", 3),
        ("OffsetCommit", 7),
        ("OffsetFetch", 5),
        ("OffsetCommit", 10),
        ("OffsetFetch", 10),
    )
)


@dataclass(slots=True)
class GroupHistory:
    """What was acknowledged: the greatest offset of each partition, and the newest generation of a commit."""

    partitions: int
    offsets: dict[int, int] = field(default_factory=dict)
    generation: int = -1
    count: int = 0
    answers: Counter[str] = field(default_factory=Counter)

    def acknowledged(self, partition: int, offset: int, generation: int, newest: int) -> None:
        """`newest`: generation of which a commit was acknowledged before this one was sent."""
        if generation < newest:
            raise Violation(f"generation {generation} commits after one of generation {newest}")
        self.offsets[partition] = max(self.offsets.get(partition, -1), offset)
        self.generation = max(self.generation, generation)
        self.count += 1

    def fetched(self, partition: int, offset: int, before: dict[int, int]) -> None:
        if offset < before.get(partition, -1):
            went = f"from {before[partition]} back to {offset}"
            raise Violation(f"the committed offset of partition {partition} went {went}")


class _Joined(NamedTuple):
    coordinator: int
    member_id: str
    generation: int
    partitions: bytes


async def take_part(client: Client, history: GroupHistory) -> None:
    """One member, for ever."""
    member_id = ""
    while True:
        joined = await _join(client, history, member_id)
        member_id = "" if joined is None else await _work(client, history, joined)
        await asyncio.sleep(client.rng.uniform(*RETRY_S))


async def _join(client: Client, history: GroupHistory, member_id: str) -> _Joined | None:
    found = await _ask(client, client.rng.choice(client.nodes), FIND, FindCoordinatorRequest(key=GROUP))
    if found is None or found.error_code:
        return None
    newest, joined = history.generation, None
    for _ in range(2):  # a new member is told its id first (KIP-394)
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="simulated")],
        )
        joined = await _ask(client, found.node_id, JOIN, request)
        if joined is None or joined.error_code != ErrorCode.MEMBER_ID_REQUIRED:
            break
        member_id = joined.member_id
    if joined is None or joined.error_code:
        return None
    if joined.generation_id < newest:
        raise Violation(f"generation {joined.generation_id} comes after generation {newest}")
    request = SyncGroupRequest(
        group_id=GROUP,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=_assigned(joined, history.partitions),
    )
    synced = await _ask(client, found.node_id, SYNC, request)
    if synced is None or synced.error_code:
        return None
    return _Joined(found.node_id, joined.member_id, joined.generation_id, bytes(synced.assignment))


def _assigned(joined: Any, partitions: int) -> list[SyncGroupRequestAssignment]:
    """By the leader of the group: a byte for each partition."""
    members = sorted(member.member_id for member in joined.members)
    return [
        SyncGroupRequestAssignment(member_id=member, assignment=bytes(range(partitions)[at :: len(members)]))
        for at, member in enumerate(members)
    ]


async def _work(client: Client, history: GroupHistory, joined: _Joined) -> str:
    """Until something is odd. Returns the member's id, or "" if it is to join as a new one."""
    before = dict(history.offsets)
    topic = OffsetFetchRequestTopic(name=TOPIC, partition_indexes=list(joined.partitions))
    answer = await _ask(
        client, joined.coordinator, FETCHED, OffsetFetchRequest(group_id=GROUP, topics=[topic])
    )
    if answer is None or answer.error_code:
        return joined.member_id
    positions = {}
    for told in answer.topics[0].partitions if answer.topics else ():
        if told.error_code:
            return joined.member_id
        history.fetched(told.partition_index, told.committed_offset, before)
        positions[told.partition_index] = told.committed_offset
    while client.rng.random() >= TIRED:
        await asyncio.sleep(client.rng.expovariate(STEPS_A_SECOND))
        if client.rng.random() < ABSENT:
            await asyncio.sleep(client.rng.uniform(*ABSENT_S))
        elif error := await _beat(client, joined):
            return joined.member_id if error in STAYS else ""
        for partition in positions:
            positions[partition] += 1
            error = await _commit(client, history, joined, partition, positions[partition])
            if error != ErrorCode.NONE:
                return joined.member_id if error in STAYS else ""
    return ""


async def _beat(client: Client, joined: _Joined) -> int:
    """Its error."""
    request = HeartbeatRequest(group_id=GROUP, generation_id=joined.generation, member_id=joined.member_id)
    answer = await _ask(client, joined.coordinator, BEAT, request)
    return int(ErrorCode.REQUEST_TIMED_OUT if answer is None else answer.error_code)


async def _commit(
    client: Client, history: GroupHistory, joined: _Joined, partition: int, offset: int
) -> int | None:
    """Its error; None if nobody knows what became of it."""
    newest = history.generation
    told = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
    request = OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=joined.generation,
        member_id=joined.member_id,
        topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[told])],
    )
    answer = await _ask(client, joined.coordinator, COMMIT, request)
    if answer is None:
        return None
    error = answer.topics[0].partitions[0].error_code
    history.answers[ErrorCode(error).name] += 1
    if error == ErrorCode.NONE:
        history.acknowledged(partition, offset, joined.generation, newest)
    return int(error)


async def commit_to_passing_topic(client: Client, topic_id: UUID, offset: int) -> None:
    """Commits to a topic that was just made, once. An earlier topic of its name had other offsets."""
    if (found := await _fetched(client, topic_id)) != -1:
        raise Violation(f"topic {client.topic} {topic_id} is new, but its committed offset is {found}")
    told = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topics = [OffsetCommitRequestTopic(topic_id=topic_id, partitions=[told])]
    request = OffsetCommitRequest(group_id=PASSING_GROUP, topics=topics)
    while True:
        answer = await _ask_coordinator(client, COMMIT_BY_ID, request)
        if answer is not None and not answer.topics[0].partitions[0].error_code:
            break
        await asyncio.sleep(client.rng.uniform(*RETRY_S))
    if (found := await _fetched(client, topic_id)) != offset:
        raise Violation(f"topic {client.topic} {topic_id}: offset {offset} was committed, {found} is fetched")
    client.history.done["offsets of passing topics"] += 1


async def _fetched(client: Client, topic_id: UUID) -> int:
    topic = OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0])
    group = OffsetFetchRequestGroup(group_id=PASSING_GROUP, topics=[topic])
    while True:
        answer = await _ask_coordinator(client, FETCHED_BY_ID, OffsetFetchRequest(groups=[group]))
        if answer is not None and not answer.groups[0].error_code:
            [partition] = answer.groups[0].topics[0].partitions
            if not partition.error_code:  # else it does not know the topic yet
                return int(partition.committed_offset)
        await asyncio.sleep(client.rng.uniform(*RETRY_S))


async def _ask_coordinator(client: Client, api: tuple[int, int], request: object) -> Any:
    """None if there is no answer, or no coordinator."""
    node = await coordinator_of_passing_topics(client)
    return None if node is None else await _ask(client, node, api, request)


async def coordinator_of_passing_topics(client: Client) -> int | None:
    node = client.rng.choice(client.nodes)
    found = await _ask(client, node, FIND, FindCoordinatorRequest(key=PASSING_GROUP))
    return None if found is None or found.error_code else int(found.node_id)


async def _ask(client: Client, node: int, api: tuple[int, int], request: object) -> Any:
    """None if there is no answer."""
    try:
        return await client.ask(node, *api, request)
    except (Unreachable, Broken):
        return None
