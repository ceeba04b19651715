"""Consumer group of a simulated cluster: members join, commit and leave while their coordinator moves.

Committed offsets only grow, because a member continues above the offset that it fetched. An offset that
goes back therefore shows a lost commit or one of an older generation. A member with an unknown commit
outcome joins as a new member: in the same generation the commit could still arrive after the next one.
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
RECREATED_GROUP = "passing"
SESSION_MS = 1000
STEPS_A_SECOND = 5.0
LEAVES = 0.05
"""Share of the steps after which a member leaves without a LeaveGroup request."""

ABSENT = 0.1
ABSENT_S = (0.5, 3.0)
"""Share of the steps before which a member pauses, maybe longer than its session, and then commits."""

STAYS = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)
"""Errors after which a member rejoins with the same id."""

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
    """Acknowledged commits: the highest offset of each partition, and the newest generation."""

    partitions: int
    offsets: dict[int, int] = field(default_factory=dict)
    generation: int = -1
    count: int = 0
    answers: Counter[str] = field(default_factory=Counter)

    def acknowledged(self, partition: int, offset: int, generation: int, newest: int) -> None:
        """`newest`: newest generation with an acknowledged commit when this commit was sent."""
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


async def run_member(client: Client, history: GroupHistory) -> None:
    """One member. Runs until cancelled."""
    member_id = ""
    while True:
        joined = await _join(client, history, member_id)
        member_id = "" if joined is None else await _consume(client, history, joined)
        await asyncio.sleep(client.rng.uniform(*RETRY_S))


async def _join(client: Client, history: GroupHistory, member_id: str) -> _Joined | None:
    found = await _call(client, client.rng.choice(client.nodes), FIND, FindCoordinatorRequest(key=GROUP))
    if found is None or found.error_code:
        return None
    newest, joined = history.generation, None
    for _ in range(2):  # a new member first gets its id (KIP-394)
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="simulated")],
        )
        joined = await _call(client, found.node_id, JOIN, request)
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
    synced = await _call(client, found.node_id, SYNC, request)
    if synced is None or synced.error_code:
        return None
    return _Joined(found.node_id, joined.member_id, joined.generation_id, bytes(synced.assignment))


def _assigned(joined: Any, partitions: int) -> list[SyncGroupRequestAssignment]:
    """The group leader's assignment: one byte for each partition."""
    members = sorted(member.member_id for member in joined.members)
    return [
        SyncGroupRequestAssignment(member_id=member, assignment=bytes(range(partitions)[at :: len(members)]))
        for at, member in enumerate(members)
    ]


async def _consume(client: Client, history: GroupHistory, joined: _Joined) -> str:
    """Commit until an error. Returns the member's id, or "" if it must join as a new member."""
    before = dict(history.offsets)
    topic = OffsetFetchRequestTopic(name=TOPIC, partition_indexes=list(joined.partitions))
    answer = await _call(
        client, joined.coordinator, FETCHED, OffsetFetchRequest(group_id=GROUP, topics=[topic])
    )
    if answer is None or answer.error_code:
        return joined.member_id
    positions = {}
    for part in answer.topics[0].partitions if answer.topics else ():
        if part.error_code:
            return joined.member_id
        history.fetched(part.partition_index, part.committed_offset, before)
        positions[part.partition_index] = part.committed_offset
    while client.rng.random() >= LEAVES:
        await asyncio.sleep(client.rng.expovariate(STEPS_A_SECOND))
        if client.rng.random() < ABSENT:
            await asyncio.sleep(client.rng.uniform(*ABSENT_S))
        elif error := await _heartbeat(client, joined):
            return joined.member_id if error in STAYS else ""
        for partition in positions:
            positions[partition] += 1
            error = await _commit(client, history, joined, partition, positions[partition])
            if error != ErrorCode.NONE:
                return joined.member_id if error in STAYS else ""
    return ""


async def _heartbeat(client: Client, joined: _Joined) -> int:
    """Send a heartbeat. Returns its error code."""
    request = HeartbeatRequest(group_id=GROUP, generation_id=joined.generation, member_id=joined.member_id)
    answer = await _call(client, joined.coordinator, BEAT, request)
    return int(ErrorCode.REQUEST_TIMED_OUT if answer is None else answer.error_code)


async def _commit(
    client: Client, history: GroupHistory, joined: _Joined, partition: int, offset: int
) -> int | None:
    """Commit an offset. Returns its error code, or None if the outcome is unknown."""
    newest = history.generation
    commit = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
    request = OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=joined.generation,
        member_id=joined.member_id,
        topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[commit])],
    )
    answer = await _call(client, joined.coordinator, COMMIT, request)
    if answer is None:
        return None
    error = answer.topics[0].partitions[0].error_code
    history.answers[ErrorCode(error).name] += 1
    if error == ErrorCode.NONE:
        history.acknowledged(partition, offset, joined.generation, newest)
    return int(error)


async def commit_to_new_topic(client: Client, topic_id: UUID, offset: int) -> None:
    """Commit once to a new topic, which must not have an offset of an earlier topic of its name."""
    if (found := await _committed_offset(client, topic_id)) != -1:
        raise Violation(f"topic {client.topic} {topic_id} is new, but its committed offset is {found}")
    commit = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topics = [OffsetCommitRequestTopic(topic_id=topic_id, partitions=[commit])]
    request = OffsetCommitRequest(group_id=RECREATED_GROUP, topics=topics)
    while True:
        answer = await _call_coordinator(client, COMMIT_BY_ID, request)
        if answer is not None and not answer.topics[0].partitions[0].error_code:
            break
        await asyncio.sleep(client.rng.uniform(*RETRY_S))
    if (found := await _committed_offset(client, topic_id)) != offset:
        raise Violation(f"topic {client.topic} {topic_id}: offset {offset} was committed, {found} is fetched")
    client.history.done["offsets of recreated topics"] += 1


async def _committed_offset(client: Client, topic_id: UUID) -> int:
    topic = OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0])
    group = OffsetFetchRequestGroup(group_id=RECREATED_GROUP, topics=[topic])
    while True:
        answer = await _call_coordinator(client, FETCHED_BY_ID, OffsetFetchRequest(groups=[group]))
        if answer is not None and not answer.groups[0].error_code:
            [partition] = answer.groups[0].topics[0].partitions
            if not partition.error_code:  # else it does not know the topic yet
                return int(partition.committed_offset)
        await asyncio.sleep(client.rng.uniform(*RETRY_S))


async def _call_coordinator(client: Client, api: tuple[int, int], request: object) -> Any:
    """Returns None if there is no response or no coordinator."""
    node = await coordinator_of_recreated_topics(client)
    return None if node is None else await _call(client, node, api, request)


async def coordinator_of_recreated_topics(client: Client) -> int | None:
    node = client.rng.choice(client.nodes)
    found = await _call(client, node, FIND, FindCoordinatorRequest(key=RECREATED_GROUP))
    return None if found is None or found.error_code else int(found.node_id)


async def _call(client: Client, node: int, api: tuple[int, int], request: object) -> Any:
    """Returns None if there is no response."""
    try:
        return await client.ask(node, *api, request)
    except (Unreachable, Broken):
        return None
