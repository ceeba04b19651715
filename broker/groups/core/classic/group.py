"""Group: one classic group's members, generation and state. The protocol is in protocol.py and rebalance.py.

Invariants, tested by `check()`: a group in Empty or Dead has no members; the leader and every static member
are members; a JoinGroup waits only in PreparingRebalance, or in Stable while the new id of a restarted static
member is stored; a SyncGroup waits only in CompletingRebalance.
"""

from collections import Counter
from dataclasses import dataclass, field

from tierlog.base.types import require
from tierlog.broker.coordinators.core.effects import Token
from tierlog.broker.coordinators.core.stored import FormatError, StoredRecord
from tierlog.broker.groups.core.classic.states import Cause, GroupState, next_state
from tierlog.broker.groups.core.events import (
    NO_MEMBER_ID,
    JoinResponse,
    Protocol,
)
from tierlog.broker.groups.core.formats import (
    GroupKey,
    StoredGroup,
    StoredMember,
    encode_group,
    encode_key,
)
from tierlog.protocol.codec import decode_from
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.primitives import MalformedFrame
from tierlog.protocol.schema import Message, String, struct, versions

PROTOCOL_TYPE = "consumer"
GENERATION_MAX = 2**31 - 1  # an int32 in requests and records
MEMBER_OVERHEAD_BYTES = 1_000
"""Memory of a member in addition to its strings and bytes: its objects, table entries and timer."""
PROTOCOL_OVERHEAD_BYTES = 250
"""Memory of a member's protocol in addition to its name and metadata. A member may send 65,000 protocols with
short names."""


@dataclass(slots=True, kw_only=True)
class Member:
    """One member of a classic group.

    `joining` and `syncing`: its waiting JoinGroup and SyncGroup. `is_new`: its first JoinGroup has not been
    answered yet. `epoch`: its epoch in the consumer group that became this group. Until the next generation
    begins, the client knows it as its generation.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    is_new: bool = False
    epoch: int | None = None
    joining: Token | None = None
    syncing: Token | None = None

    @property
    def size(self) -> int:
        """Approximate memory in bytes."""
        strings = len(self.member_id) + len(self.client_id) + len(self.group_instance_id or "")
        return MEMBER_OVERHEAD_BYTES + strings + len(self.assignment) + protocols_size(self.protocols)

    def metadata(self, protocol_name: str | None) -> bytes:
        """The metadata that it sent for this protocol; empty if it sent none."""
        return dict(self.protocols).get(protocol_name or "", b"")

    @property
    def is_waiting(self) -> bool:
        """Whether a waiting request keeps it alive: the client may be unable to send heartbeats during it."""
        return self.syncing is not None or (self.joining is not None and not self.is_new)


@dataclass(slots=True)
class MemberMemory:
    """Memory used by the members of all groups of a shard."""

    used_bytes: int = 0


@dataclass(slots=True)
class Group:
    group_id: str
    memory: MemberMemory = field(default_factory=MemberMemory)
    state: GroupState = GroupState.EMPTY
    state_timestamp_ms: int = -1
    generation: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str | None = None
    members: dict[str, Member] = field(default_factory=dict)  # in the order of joining
    static_members: dict[str, str] = field(default_factory=dict)  # group.instance.id -> member id
    pending_members: set[str] = field(default_factory=set)  # have a member id (KIP-394), but have not joined
    pending_sync: set[str] = field(default_factory=set)  # know the generation, but have not sent SyncGroup
    initial_join_left_ms: int | None = None
    """How much longer the initial join phase may be extended, in ms (KIP-134); None outside that phase."""
    new_member_added: bool = False  # since the initial join phase was last extended
    subscribed_topics: frozenset[str] | None = None  # None: unknown
    joining_count: int = 0  # members whose JoinGroup waits
    supported_protocols: Counter[str] = field(default_factory=Counter)
    """Protocol name -> number of members that support it. It is updated with each member, so that a JoinGroup
    costs the same in a group of any size."""
    storing: bool = False  # the leader's assignment is being appended, or was: another must not change it

    # ---- changes ----

    def move(self, cause: Cause, now_ms: int) -> None:
        self.state = next_state(self.state, cause)
        self.state_timestamp_ms = now_ms

    def add(self, member: Member, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self.memory.used_bytes += member.size + self._names_size
        self.joining_count += member.joining is not None
        self._count_protocols(member.protocols, 1)
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        self.drop_pending(member.member_id)

    def add_pending(self, member_id: str) -> None:
        self.pending_members.add(member_id)
        self.memory.used_bytes += self._pending_size(member_id)

    def drop_pending(self, member_id: str) -> None:
        if member_id in self.pending_members:
            self.pending_members.discard(member_id)
            self.memory.used_bytes -= self._pending_size(member_id)

    def update_protocols(self, member: Member, protocols: tuple[Protocol, ...]) -> None:
        self._count_protocols(member.protocols, -1)
        self._count_protocols(protocols, 1)
        self.memory.used_bytes += protocols_size(protocols) - protocols_size(member.protocols)
        member.protocols = protocols

    def assign(self, member: Member, assignment: bytes) -> None:
        self.memory.used_bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def remove(self, member_id: str) -> Member:
        member = self.members.pop(member_id)
        self.memory.used_bytes -= member.size + self._names_size
        self.joining_count -= member.joining is not None
        self._count_protocols(member.protocols, -1)
        if member.group_instance_id is not None:
            del self.static_members[member.group_instance_id]
        self.pending_sync.discard(member_id)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        return member

    def rename_static(self, instance_id: str, new_member_id: str) -> Member:
        """Give a static member that has restarted a new member id; the old id is fenced."""
        old_id = self.static_members[instance_id]
        member = self.members[old_id]
        member.member_id = new_member_id
        self.memory.used_bytes += len(new_member_id) - len(old_id)
        self.members = {member.member_id: member for member in self.members.values()}
        self.static_members[instance_id] = new_member_id
        self.pending_sync = {new_member_id if waiting == old_id else waiting for waiting in self.pending_sync}
        if self.leader_id == old_id:
            self.leader_id = new_member_id
        return member

    def next_generation(self, now_ms: int) -> None:
        """End the join phase with the current members."""
        # After the largest int32, generations start again at 1.
        self.generation = self.generation % GENERATION_MAX + 1
        self.initial_join_left_ms = None
        self.new_member_added = False
        self.storing = False
        for member in self.members.values():
            member.epoch = None
        if self.members:
            self.protocol_name = self.select_protocol()
            self.subscribed_topics = self.compute_subscribed_topics()
            self.move(Cause.JOIN_COMPLETED, now_ms)
        else:
            self.protocol_name = None
            self.subscribed_topics = frozenset()
            self.move(Cause.NO_MEMBER_JOINED, now_ms)

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it has joined, otherwise take the first member that has. False if no member
        has."""
        leader = self.members.get(self.leader_id or NO_MEMBER_ID)
        if leader is not None and leader.joining is not None:
            return True
        joined = next((member for member in self.members.values() if member.joining is not None), None)
        if joined is not None:
            self.leader_id = joined.member_id
        return joined is not None

    # ---- queries ----

    def adds_member(self, member_id: str, group_instance_id: str | None) -> bool:
        """Whether a JoinGroup with these ids would add a member."""
        return member_id not in self.members and group_instance_id not in self.static_members

    def validate(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """NONE if it is a member. The instance id of a static member is checked first (KIP-345)."""
        if group_instance_id is not None:
            current = self.static_members.get(group_instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def has_generation(self, member_id: str, generation: int) -> bool:
        """Whether a member's request is of the generation that its client knows if it has all responses."""
        epoch = self.members[member_id].epoch
        return generation == (self.generation if epoch is None else epoch)

    def supports(self, protocol_type: str, protocols: tuple[Protocol, ...]) -> bool:
        """Whether a member with these protocols may join: all members support at least one of them."""
        if not protocols or not protocol_type:
            return False
        if not self.members:
            return True
        count = len(self.members)
        return protocol_type == self.protocol_type and any(
            self.supported_protocols[name] == count for name, _ in protocols
        )

    def common_protocols(self) -> set[str]:
        """The protocols that every member supports."""
        return {name for name, count in self.supported_protocols.items() if count == len(self.members)}

    def _count_protocols(self, protocols: tuple[Protocol, ...], by: int) -> None:
        for name in {name for name, _ in protocols}:
            self.supported_protocols[name] += by
            if not self.supported_protocols[name]:
                del self.supported_protocols[name]

    def select_protocol(self) -> str:
        """Each member votes for the first of its protocols that all support; the earliest vote wins a tie."""
        common = self.common_protocols()
        require(bool(common), f"group {self.group_id}: no protocol is common to all members")
        votes = Counter(
            next(name for name, _ in member.protocols if name in common) for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def compute_subscribed_topics(self) -> frozenset[str] | None:
        """Topics that the members subscribe to; None if unknown."""
        if self.protocol_type != PROTOCOL_TYPE:
            return None
        found = [_subscribed_topics(member.metadata(self.protocol_name)) for member in self.members.values()]
        return None if None in found else frozenset().union(*(topics for topics in found if topics))

    @property
    def is_empty(self) -> bool:
        """Whether it has no members, and none is about to join."""
        return self.state is GroupState.EMPTY and not self.pending_members

    @property
    def is_stored(self) -> bool:
        """Whether the log may have a record of the group: not if only simple consumers used it."""
        return self.generation > 0 or self.protocol_type is not None

    @property
    def awaits_assignment(self) -> bool:
        """Whether the leader of this generation has not sent its assignment yet. As in Kafka, the assignment
        counts for later commits as soon as it is appended: they follow it in the log."""
        return self.state is GroupState.COMPLETING_REBALANCE and not self.storing

    @property
    def size(self) -> int:
        """Memory used by members and pending members, in bytes."""
        pending = sum(map(self._pending_size, self.pending_members))
        return pending + sum(member.size + self._names_size for member in self.members.values())

    @property
    def _names_size(self) -> int:
        """The group's own strings. Each member counts them, so that they are released with the last one."""
        return len(self.group_id) + len(self.protocol_type or "")

    def _pending_size(self, member_id: str) -> int:
        return MEMBER_OVERHEAD_BYTES + len(self.group_id) + len(member_id)

    @property
    def assignments_size(self) -> int:
        return sum(len(member.assignment) for member in self.members.values())

    @property
    def all_joined(self) -> bool:
        return not self.pending_members and self.joining_count == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def join_response(self, member: Member) -> JoinResponse:
        """The JoinGroup response for one member of the current generation."""
        leads = member.member_id == self.leader_id
        return JoinResponse(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader_id or NO_MEMBER_ID,
            members=self.member_list() if leads else (),
        )

    def member_list(self) -> tuple[tuple[str, str | None, bytes], ...]:
        return tuple(
            (member.member_id, member.group_instance_id, member.metadata(self.protocol_name))
            for member in self.members.values()
        )

    def record(self, assignments: dict[str, bytes]) -> StoredRecord:
        """The group's record. Members without an entry in `assignments` get an empty assignment."""
        stored = StoredGroup(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol_name,
            leader=self.leader_id,
            state_timestamp_ms=self.state_timestamp_ms,
            members=[
                StoredMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    session_timeout_ms=member.session_timeout_ms,
                    subscription=member.metadata(self.protocol_name),
                    assignment=assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ],
        )
        return StoredRecord(encode_key(GroupKey(self.group_id)), encode_group(stored))

    def check(self) -> None:
        where = f"group {self.group_id} in {self.state}"
        if self.state in (GroupState.EMPTY, GroupState.DEAD):
            require(not self.members, f"{where} has members")
        require(
            self.leader_id is None or self.leader_id in self.members,
            f"{where}: leader {self.leader_id} is not a member",
        )
        require(
            (self.leader_id is None) == (not self.members),
            f"{where}: leader {self.leader_id}, {len(self.members)} members",
        )
        require(self.pending_members.isdisjoint(self.members), f"{where}: a pending member is a member")
        require(self.pending_sync <= self.members.keys(), f"{where}: waits for SyncGroup of a removed member")
        joining = sum(member.joining is not None for member in self.members.values())
        require(
            joining == self.joining_count,
            f"{where}: {joining} members wait to join, {self.joining_count} are counted",
        )
        named = Counter(name for member in self.members.values() for name in dict(member.protocols))
        require(named == self.supported_protocols, f"{where}: protocols are counted wrongly")
        statics = {
            member.group_instance_id: name
            for name, member in self.members.items()
            if member.group_instance_id is not None
        }
        require(statics == self.static_members, f"{where}: static members differ from members")
        for name, member in self.members.items():
            require(name == member.member_id, f"{where}: the key {name} is not the member's id")
            require(
                member.syncing is None or self.state is GroupState.COMPLETING_REBALANCE,
                f"{where}: {name} waits to sync",
            )
            is_static = member.group_instance_id is not None
            require(
                member.joining is None
                or self.state is GroupState.PREPARING_REBALANCE
                or (is_static and self.state is GroupState.STABLE),
                f"{where}: {name} waits to join",
            )


def protocols_size(protocols: tuple[Protocol, ...]) -> int:
    return sum(PROTOCOL_OVERHEAD_BYTES + len(name) + len(metadata) for name, metadata in protocols)


def group_from_record(group_id: str, stored: StoredGroup, memory: MemberMemory) -> Group:
    """A group as it is after a coordinator's restart: Stable with its members, or Empty. Raises FormatError
    for an impossible group.
    """
    _check_stored(stored)
    group = Group(group_id, memory)
    for member in stored.members:
        group.add(
            Member(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.session_timeout_ms,
                protocols=((stored.protocol or "", bytes(member.subscription or b"")),),
                assignment=bytes(member.assignment or b""),
            ),
            stored.protocol_type,
        )
    group.state = GroupState.STABLE if stored.members else GroupState.EMPTY
    group.state_timestamp_ms = stored.state_timestamp_ms
    group.generation = stored.generation
    group.protocol_type = stored.protocol_type or None
    group.protocol_name = stored.protocol
    if stored.leader in group.members:
        group.leader_id = stored.leader
    group.subscribed_topics = group.compute_subscribed_topics() if stored.members else frozenset()
    return group


def _check_stored(stored: StoredGroup) -> None:
    members = stored.members
    instances = [each.group_instance_id for each in members if each.group_instance_id is not None]
    if len({each.member_id for each in members}) < len(members) or len(set(instances)) < len(instances):
        raise FormatError("a group with two members of the same id")
    if any(each.member_id == NO_MEMBER_ID for each in members):
        raise FormatError("a group with a member that has no id")
    if members and (stored.protocol is None or not stored.protocol_type):
        raise FormatError("a group with members that has no protocol")
    if stored.generation < 0 or any(_least_timeout_ms(each) < 0 for each in members):
        raise FormatError("a group with a negative generation or timeout")


def _least_timeout_ms(member: StoredMember) -> int:
    return min(member.session_timeout_ms, member.rebalance_timeout_ms)


@struct
class _Subscription(Message):
    """The beginning of ConsumerProtocolSubscription, after the version."""

    VERSIONS = (0, 0)

    topics: list[String] = versions(0, 0)


def _subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics in the metadata that a consumer sends with JoinGroup. None if the bytes are not a
    subscription: any client may name its own protocol `consumer`.

    The coordinator needs them only because OffsetDelete and expiry must keep offsets of topics that members
    consume. Every version of ConsumerProtocolSubscription begins with an int16 version and the array of topic
    names.
    """
    try:
        return frozenset(decode_from(_Subscription, 0, metadata, 2, elements_max=len(metadata))[0].topics)
    except MalformedFrame:
        return None
