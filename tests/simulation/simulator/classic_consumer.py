"""Member of the classic protocol in a group whose other members may use the consumer protocol (KIP-848).

It cannot tell which kind its group is, and follows JoinGroup, SyncGroup and Heartbeat. If the group is
classic, one of its members assigns. An eager member gives everything up before it joins. A cooperative one
keeps its partitions and names them, and a leader gives none of them to another member before that (KIP-429).
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from simulator.consumer_member import GROUP, SLOW, Consumer
from simulator.consumer_witness import Place
from simulator.transaction_producer import call
from simulator.workload import TOPIC
from tierlog.broker.coordinators.core.stored import encode_stored
from tierlog.broker.groups.core.consumer.embedded_protocol import (
    PROTOCOL_TYPE,
    Subscription,
    TopicPartition,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.heartbeat import HeartbeatRequest
from tierlog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tierlog.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tierlog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

JOIN, SYNC, BEAT, LEAVE = (
    (BY_NAME[name].key, version)
    for name, version in (("JoinGroup", 5), ("SyncGroup", 3), ("Heartbeat", 3), ("LeaveGroup", 3))
)
SUBSCRIPTION_VERSION = 3
ASSIGNMENT = SUBSCRIPTION_VERSION.to_bytes(2, "big")
EAGER, COOPERATIVE = "range", "cooperative-sticky"
LOST = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.ILLEGAL_GENERATION)
"""Errors after which a member has no partitions. With the last one it keeps its id."""

Owned = dict[str, set[int]]
"""Member id -> the partitions of the topic that it owns."""


class ClassicConsumer(Consumer):
    """The client of one member. Its generation is the epoch of the checks."""

    FATES = ("die", "rejoin", "leave", "pause")
    FETCHES_AS_MEMBER = False

    _id = ""
    _must_join = True

    # ---- joining ----

    async def _heartbeat(self, node: int) -> None:
        """Join, or send a heartbeat. Afterwards the member may use its partitions if it is in the group."""
        member = self._member
        if member.held and self._rng.random() >= SLOW:
            member.held, self._must_join = frozenset(), True
            self._witness.sends(member, member.assigned)
        if self._must_join:
            await self._join(node)
            return
        sent_s = asyncio.get_running_loop().time()
        request = HeartbeatRequest(
            group_id=GROUP,
            generation_id=member.epoch,
            member_id=self._id,
            group_instance_id=member.instance_id,
        )
        answer = await call(self._client, node, *BEAT, request)
        if self._is_well(answer):
            self._witness.answered(member, member.epoch, member.assigned, sent_s, node)

    async def _join(self, node: int) -> None:
        member = self._member
        member.held = frozenset()
        if self._group.classic_protocol == EAGER:
            member.assigned = frozenset()
        self._witness.sends(member, member.assigned)
        self._positions = {n: offset for n, offset in self._positions.items() if n in self._numbers()}
        timeout_ms = int(1000 * self._group.session_s)
        protocol = JoinGroupRequestProtocol(name=self._group.classic_protocol, metadata=self._subscription())
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=timeout_ms,
            rebalance_timeout_ms=timeout_ms,
            member_id=self._id,
            group_instance_id=member.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[protocol],
        )
        joined = await call(self._client, node, *JOIN, request)
        if joined is not None and joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._id = joined.member_id
            return
        if not self._is_well(joined):
            return
        self._id = member.member_id = joined.member_id
        leads = joined.leader == self._id
        sync = SyncGroupRequest(
            group_id=GROUP,
            generation_id=joined.generation_id,
            member_id=self._id,
            group_instance_id=member.instance_id,
            assignments=self._assignments(joined.members) if leads else [],
        )
        self._done["classic leaders of mixed groups"] += leads
        sent_s = asyncio.get_running_loop().time()
        synced = await call(self._client, node, *SYNC, sync)
        if self._is_well(synced):
            self._done["classic members of mixed groups"] += 1
            self._must_join = False
            assigned = self._places(bytes(synced.assignment))
            self._witness.answered(member, joined.generation_id, assigned, sent_s, node)

    def _is_well(self, answer: Any) -> bool:
        """Follow the error of an answer, if it has one."""
        if answer is None:
            self._coordinator = None
            return False
        if answer.error_code in LOST:
            self._done["consumer members fenced"] += 1
            if answer.error_code != ErrorCode.ILLEGAL_GENERATION:
                self._id = ""
            self._give_up()
        elif answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._must_join = True
        elif answer.error_code:
            self._coordinator = None
        return answer.error_code == ErrorCode.NONE

    def _subscription(self) -> bytes:
        owned = sorted(self._numbers())
        topics = [TopicPartition(topic=TOPIC, partitions=owned)] if owned else []
        subscription = Subscription(
            topics=[TOPIC], owned_partitions=topics, generation_id=self._member.epoch or -1
        )
        return encode_stored(subscription, SUBSCRIPTION_VERSION)

    def _places(self, assignment: bytes) -> frozenset[Place]:
        topic_id, assigned = self._witness.topic_id(), decode_assignment(assignment).assigned_partitions
        assert topic_id is not None
        return frozenset(
            (topic_id, number) for each in assigned if each.topic == TOPIC for number in each.partitions
        )

    def _assignments(self, members: Iterable[Any]) -> list[SyncGroupRequestAssignment]:
        """The assignment of the group, which its leader computes."""
        subscriptions = {one.member_id: decode_subscription(bytes(one.metadata)) for one in members}
        shares = assign(_owned(subscriptions), self._witness.partitions())
        return [
            SyncGroupRequestAssignment(
                member_id=member_id,
                assignment=encode_assignment({TOPIC: sorted(share)} if share else {}, ASSIGNMENT),
            )
            for member_id, share in shares.items()
        ]

    # ---- the rest ----

    def _give_up(self) -> None:
        super()._give_up()
        self._must_join = True

    async def _leave(self) -> None:
        """A static member does not say that it leaves."""
        self._give_up()
        if self._coordinator is not None and self._member.instance_id is None:
            leaver = MemberIdentity(member_id=self._id)
            request = LeaveGroupRequest(group_id=GROUP, members=[leaver])
            await call(self._client, self._coordinator, *LEAVE, request)

    async def _repeat_previous(self, node: int) -> None:
        """A late heartbeat of the classic protocol changes nothing."""

    async def _repeat_old(self, node: int) -> None:
        """Send commits from before another member got the partition. They must be refused."""
        await self._commit_late(node)


def _owned(subscriptions: dict[str, Subscription]) -> Owned:
    """If several members name a partition, those of the newest generation own it."""
    claims: dict[int, list[tuple[int, str]]] = {}
    for member_id, subscription in subscriptions.items():
        for each in subscription.owned_partitions:
            for number in each.partitions if each.topic == TOPIC else ():
                claims.setdefault(number, []).append((subscription.generation_id, member_id))
    owned: Owned = {member_id: set() for member_id in subscriptions}
    for number, named in claims.items():
        newest = max(generation for generation, _ in named)
        for generation, member_id in named:
            if generation == newest:
                owned[member_id].add(number)
    return owned


def assign(owned: Owned, partitions: int) -> Owned:
    """Shares that differ by one at most, without what another member still owns."""
    least, more = divmod(partitions, len(owned))
    shares: Owned = {}
    left = set(range(partitions))
    for member_id in sorted(owned, key=lambda one: (-len(owned[one]), one)):
        quota = least + (more > 0 and len(owned[member_id] & left) > least)
        shares[member_id] = set(sorted(owned[member_id] & left)[:quota])
        more -= len(shares[member_id]) > least
        left -= shares[member_id]
    for member_id in sorted(owned):
        while left and len(shares[member_id]) < least + (more > 0):
            shares[member_id].add(min(left))
            left.remove(min(left))
            more -= len(shares[member_id]) > least
    for member_id, share in shares.items():
        share.difference_update(*(owned[other] for other in owned if other != member_id))
    return shares
