"""Member of a consumer group of KIP-848, as a client plays it.

It gives partitions up, at once or after a while, commits offsets, also in transactions, and may die, pause
for longer than its session, rejoin with epoch 0, or leave and return as a static member. Late heartbeats and
commits of it arrive. A forgetful member does not notice what a late response assigns, and says only what it
has to, as librdkafka 2.16 does.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol
from uuid import UUID

from simulator.consumer_transactions import MemberTransactions
from simulator.consumer_witness import ConsumerWitness, Member, Place
from simulator.transaction_producer import call, find_coordinator
from simulator.workload import TOPIC, Client
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from tierlog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tierlog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

GROUP, OTHER_TOPIC = "consumers", "passing"
"""Operators create and delete the other topic in some runs."""

STEP_S = 0.06
LATE, SLOW = 0.1, 0.3
"""Shares of the steps with which a late request of the member arrives, and in which it still uses what it
must give up."""

COPIED = 0.3
"""Share of the steps in which a copy of a heartbeat of the previous epoch arrives before the next one."""

REGEX = 0.3
"""Share of the members that subscribe by a regular expression."""

FORGETFUL, MISSED, MISSED_CHANGES = 0.7, 0.05, 0.5
"""Shares of the members that are forgetful, in runs that have some, and of the responses which such a member
gets too late: of all, and of those with another assignment."""

LEFT_S = 1.0
"""Time without the member that leaves last: the others get its partitions, and must give them up again."""

IN_TRANSACTION = 0.5
"""Share of the commits in a transaction, in runs that have some."""

JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2
FENCED = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)
BEAT, COMMIT, FETCH = (
    BY_NAME[name].key for name in ("ConsumerGroupHeartbeat", "OffsetCommit", "OffsetFetch")
)
BEAT_VERSION, OFFSETS_VERSION = 1, 9


class Host(Protocol):
    """The run of the members."""

    witness: ConsumerWitness
    done: Counter[str]
    seed: int
    session_s: float
    faults_last: Callable[[], bool]
    has_forgetful: bool
    has_transactions: bool
    classic_protocol: str
    fate: float

    def must_leave_last(self, name: str) -> bool:
        """Whether the member of this client leaves after the last fault, once."""


class Consumer:
    """The client of one member, until it dies or leaves."""

    FATES: tuple[str, ...] = ("die", "rejoin", "leave", "pause", "subscribe")
    FETCHES_AS_MEMBER = True

    def __init__(self, group: Host, client: Client, member: Member) -> None:
        self._group, self._client, self._member = group, client, member
        self._witness, self._done, self._rng = group.witness, group.done, client.rng
        self._names = [TOPIC]
        self._positions: dict[int, int] = {}
        self._coordinator: int | None = None
        self._must_say_all = True
        expressions = random.Random(f"regular expressions {group.seed} {client.name}")
        self._has_regex = expressions.random() < REGEX
        self._copies = random.Random(f"copies of heartbeats {group.seed} {member.member_id}")
        self._said: dict[int, frozenset[Place]] = {}
        """By epoch, the partitions that its heartbeats named first."""
        self._forgets = random.Random(f"forgetful members {group.seed} {member.member_id}")
        self._is_forgetful = group.has_forgetful and self._forgets.random() < FORGETFUL
        self._confirmed: frozenset[Place] | None = None
        """The partitions that a forgetful member named last."""
        self._transactions: MemberTransactions | None = None
        if group.has_transactions:
            draws = random.Random(f"transactions of members {group.seed} {member.member_id}")
            self._transactions = MemberTransactions(client, client.name, group.done, draws)

    async def run(self) -> None:
        self._witness.members.append(self._member)
        while not await self._ends():
            if self._coordinator is None:
                self._coordinator = await find_coordinator(self._client, GROUP)
            if self._copies.random() < COPIED:
                await self._repeat_previous(self._coordinator)
            await self._heartbeat(self._coordinator)
            if self._rng.random() < LATE and self._coordinator is not None:
                await self._repeat_old(self._coordinator)
            for number in sorted(self._numbers()):
                if self._coordinator is not None:
                    await self._use(self._coordinator, number)
            await asyncio.sleep(self._rng.expovariate(1 / STEP_S))
        self._witness.died(self._member)

    def _numbers(self) -> set[int]:
        """The partitions of the topic which it uses."""
        topic_id, member = self._witness.topic_id(), self._member
        return {number for place, number in member.assigned | member.held if place == topic_id}

    async def _ends(self) -> bool:
        """Draw what happens to the member. Returns True if it ends."""
        if not self._group.faults_last():
            self._must_say_all = self._must_say_all or len(self._names) > 1
            self._names = [TOPIC]
            if self._member.epoch != JOIN_EPOCH and self._group.must_leave_last(self._client.name):
                await self._leave()
                await asyncio.sleep(LEFT_S)
                return True
            return False
        if self._member.epoch == JOIN_EPOCH or self._rng.random() >= self._group.fate:
            return False
        fate = self._rng.choice(self.FATES)
        self._done[f"consumers: {fate}"] += 1
        match fate:
            case "leave":
                await self._leave()
            case "rejoin":
                self._give_up()
            case "pause":
                await asyncio.sleep(self._rng.uniform(0.5, 2 * self._group.session_s))
            case "subscribe":
                self._names = [TOPIC, OTHER_TOPIC] if len(self._names) == 1 else [TOPIC]
                self._must_say_all = True
        return fate in ("die", "leave")

    def _give_up(self) -> None:
        self._witness.gave_up(self._member)
        self._positions.clear()
        self._must_say_all = True

    async def _leave(self) -> None:
        epoch = LEAVE_EPOCH if self._member.instance_id is None else STATIC_LEAVE_EPOCH
        self._done["static members that left"] += epoch == STATIC_LEAVE_EPOCH
        self._give_up()
        if self._coordinator is not None:
            await self._ask(self._coordinator, self._request(epoch, None))

    # ---- heartbeats ----

    async def _heartbeat(self, node: int) -> None:
        member = self._member
        if member.held and self._rng.random() >= SLOW:
            member.held, self._must_say_all = frozenset(), not self._is_forgetful or self._must_say_all
        says, is_full = member.assigned | member.held, self._must_say_all or self._rng.random() < 0.3
        if self._is_forgetful:
            is_full = self._must_say_all
        says_partitions = is_full or (self._is_forgetful and says != self._confirmed)
        if says_partitions:
            self._witness.sends(member, says)
            self._said.setdefault(member.epoch, says)
            self._positions = {n: offset for n, offset in self._positions.items() if n in self._numbers()}
        sent_s = asyncio.get_running_loop().time()
        request = self._request(member.epoch, says if says_partitions else None, is_full=is_full)
        answer = await self._ask(node, request)
        if answer is None or answer.error_code:
            self._coordinator, self._must_say_all = None, True
            if answer is not None and answer.error_code in FENCED:
                self._done["consumer members fenced"] += 1
                self._give_up()
            return
        assigned = member.assigned if answer.assignment is None else _places(answer.assignment)
        missed = MISSED if assigned == member.assigned else MISSED_CHANGES
        if self._is_forgetful and self._forgets.random() < missed:
            self._done["late responses to consumers"] += 1
            return
        self._must_say_all = False
        if says_partitions:
            self._confirmed = says
        self._witness.answered(member, answer.member_epoch, assigned, sent_s, node)

    def _request(
        self, epoch: int, says: frozenset[Place] | None, *, is_full: bool = True
    ) -> ConsumerGroupHeartbeatRequest:
        """`says`: the partitions that it names, if any. `is_full`: whether it has all fields."""
        owned: dict[UUID, list[int]] = {}
        for topic_id, number in sorted(says or ()):
            owned.setdefault(topic_id, []).append(number)
        return ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self._member.member_id,
            member_epoch=epoch,
            instance_id=self._member.instance_id,
            rebalance_timeout_ms=int(1000 * self._group.session_s) if is_full else -1,
            subscribed_topic_names=([] if self._has_regex else self._names) if is_full else None,
            subscribed_topic_regex="|".join(self._names) if is_full and self._has_regex else None,
            topic_partitions=[
                TopicPartitions(topic_id=topic, partitions=each) for topic, each in owned.items()
            ]
            if says is not None
            else None,
        )

    async def _ask(self, node: int, request: ConsumerGroupHeartbeatRequest) -> Any:
        return await call(self._client, node, BEAT, BEAT_VERSION, request)

    async def _repeat_old(self, node: int) -> None:
        """Send a heartbeat from before the last two epochs, and a commit from before another member got the
        partition. Both must be refused."""
        member = self._member
        if len(member.epochs) > 2:
            epoch = self._rng.choice(member.epochs[:-2])
            answer = await self._ask(node, self._request(epoch, frozenset()))
            if answer is not None and answer.error_code == ErrorCode.NONE:
                self._witness.accepted_late(member, epoch, node)
            self._done["late heartbeats of consumers"] += answer is not None
        await self._commit_late(node)

    async def _commit_late(self, node: int) -> None:
        """Send commits from before another member got the partition."""
        for number, (epoch, turn) in sorted(self._member.had.items()):
            if turn != self._witness.turns[number]:
                await self._commit(node, number, 0, epoch)
                self._done["late commits of consumers"] += 1
                if self._transactions is not None:
                    await self._commit_in_transaction(number, 0, epoch, ends=False)

    async def _repeat_previous(self, node: int) -> None:
        """A copy of a heartbeat of the previous epoch arrives. It may be accepted, but must not give away
        what the member got since."""
        epochs = self._member.epochs[-2:]
        if len(epochs) == 2 and self._member.epoch == epochs[1] and epochs[0] in self._said:
            request = self._request(epochs[0], self._said[epochs[0]])
            self._done["late heartbeats of the previous epoch"] += await self._ask(node, request) is not None

    # ---- offsets ----

    async def _use(self, node: int, number: int) -> None:
        """Continue above the committed offset."""
        if number not in self._positions:
            await self._fetch(node, number)
            return
        offset, epoch = self._positions[number] + 1, self._member.epoch
        if self._transactions is not None and self._transactions.draws.random() < IN_TRANSACTION:
            is_committed = await self._commit_in_transaction(number, offset, epoch)
        else:
            is_committed = await self._commit(node, number, offset, epoch)
        if is_committed:
            self._positions[number] = offset

    async def _fetch(self, node: int, number: int) -> None:
        before, member = self._witness.committed.get(number, -1), self._member
        topic = OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[number])
        wanted = OffsetFetchRequestGroup(group_id=GROUP, topics=[topic])
        if self.FETCHES_AS_MEMBER:
            wanted.member_id, wanted.member_epoch = member.member_id, member.epoch
        fetch = OffsetFetchRequest(groups=[wanted], require_stable=self._transactions is not None)
        answer = await call(self._client, node, FETCH, OFFSETS_VERSION, fetch)
        if answer is None or answer.groups[0].error_code:
            return
        [found] = answer.groups[0].topics[0].partitions
        if not found.error_code:
            self._witness.fetched(member, number, found.committed_offset, before)
            self._positions[number] = found.committed_offset

    async def _commit(self, node: int, number: int, offset: int, epoch: int) -> bool:
        """Returns whether it was acknowledged."""
        turn = self._witness.turns[number]
        commit = OffsetCommitRequestPartition(partition_index=number, committed_offset=offset)
        request = OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=epoch,
            member_id=self._member.member_id,
            topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[commit])],
        )
        answer = await call(self._client, node, COMMIT, OFFSETS_VERSION, request)
        if answer is None or answer.topics[0].partitions[0].error_code:
            return False
        self._witness.acknowledged(self._member, epoch, number, offset, turn)
        return True

    async def _commit_in_transaction(
        self, number: int, offset: int, epoch: int, *, ends: bool = True
    ) -> bool:
        """Returns whether the transaction was committed. A member may only have an offset in it while it
        owns the partition. `ends`: whether the transaction may be committed."""
        assert self._transactions is not None
        member, turn = self._member, self._witness.turns[number]
        if not await self._transactions.add_offset(member, number, offset, epoch):
            return False
        self._witness.accepted(member, epoch, number, turn)
        if not await self._transactions.end(may_commit=ends):
            return False
        self._witness.committed_at(number, offset)
        return True


def _places(assignment: Any) -> frozenset[Place]:
    return frozenset(
        (one.topic_id, number) for one in assignment.topic_partitions for number in one.partitions
    )
