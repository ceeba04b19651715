"""Consumer group: the members, epochs and assignments of one group of the consumer protocol (KIP-848).

The state in memory is the newest. Each change marks the keys of its records in `changed`, and writes.py
appends their present values. Invariants, tested by `check()`: no partition has two members, also not one that
its member has to give up; no member's epoch is above the epoch of the target, and that is not above the
group's; no partition is in two targets; memory is counted right. The protocol is in heartbeat.py.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from tierlog.base.types import InvariantViolation, require
from tierlog.broker.coordinators.core.stored import StoredRecord
from tierlog.broker.groups.core.classic.group import MemberMemory
from tierlog.broker.groups.core.consumer.formats import (
    ConsumerGroupMetadataKey,
    ConsumerKey,
    CurrentMemberAssignmentKey,
    MemberMetadataKey,
    PartitionEpochs,
    RegularExpression,
    RegularExpressionKey,
    TargetAssignmentMemberKey,
    TargetAssignmentMetadataKey,
)
from tierlog.broker.groups.core.consumer.group_spec import Partitions
from tierlog.broker.groups.core.consumer.member import (
    NAME_OVERHEAD_BYTES,
    TARGET_PARTITION_BYTES,
    ConsumerMember,
    count_partitions,
)
from tierlog.broker.groups.core.consumer.states import ConsumerGroupState, MemberState, check_transition
from tierlog.broker.groups.core.consumer.writes import GroupWrite, Waiting
from tierlog.broker.groups.core.events import ComputeAssignment, ResolveRegexes
from tierlog.broker.groups.core.formats import GroupKey
from tierlog.broker.groups.core.topic_view import TopicView

INITIAL_EPOCH = 1
"""As in Kafka 4.3: the first member makes it 2, and may join before there is a target assignment."""
NO_TARGET: Partitions = {}
SUBSCRIPTIONS_REMEMBERED = 4
"""Different subscriptions of a group whose topics are remembered: memory that is not counted."""
NEW_IDS_REMEMBERED = 64
"""Memory that is not counted. A client whose id is forgotten before it joins asks for another one."""


@dataclass(slots=True)
class ConsumerGroup:
    group_id: str
    memory: MemberMemory = field(default_factory=MemberMemory)
    state: ConsumerGroupState = ConsumerGroupState.EMPTY
    epoch: int = INITIAL_EPOCH
    metadata_hash: int = 0
    assignment_epoch: int = INITIAL_EPOCH
    assigned_at_ms: int = 0  # when the target assignment was computed; 0: not known
    members: dict[str, ConsumerMember] = field(default_factory=dict)  # in the order of joining
    targets: dict[str, Partitions] = field(default_factory=dict)  # by member id
    regexes: dict[str, RegularExpression] = field(default_factory=dict)  # resolved
    # ---- derived from the members ----
    static_members: dict[str, str] = field(default_factory=dict)  # group.instance.id -> member id
    owners: dict[UUID, dict[int, str]] = field(default_factory=dict)  # also of partitions pending revocation
    subscribers: Counter[str] = field(default_factory=Counter)  # topic name -> members
    regex_subscribers: Counter[str] = field(default_factory=Counter)
    assignors: Counter[str] = field(default_factory=Counter)
    classic_protocols: Counter[str] = field(default_factory=Counter)  # name -> classic members
    classic_members: int = 0
    stable_in: Counter[int] = field(default_factory=Counter)  # epoch -> members that are Stable in it
    # ---- not stored ----
    emptied_ms: int = 0  # when the last member left; 0: not known to this coordinator
    changed: dict[ConsumerKey | GroupKey, None] = field(default_factory=dict)  # records to append
    encoded: dict[str, tuple[Partitions, StoredRecord]] = field(default_factory=dict)
    """Records of targets in `changed` that are encoded, by member id. Each counts as long as the member has
    this target."""
    writes: deque[GroupWrite] = field(default_factory=deque)  # not durable yet, oldest first
    computing: ComputeAssignment | None = None  # the target assignment that is being computed
    computing_since_ms: int = 0
    renamed: dict[str, str] = field(default_factory=dict)  # static members replaced during the computation
    retry_timer_is_set: bool = False  # the next computation waits for the assignment timer
    waiting: dict[str, Waiting] = field(default_factory=dict)  # member id -> its request for the next target
    resolving: ResolveRegexes | None = None  # the regular expressions that are being resolved
    regex_version: int = 0
    topics_changed: bool = True  # since the metadata hash was computed
    subscription_changed: bool = True  # since the metadata hash was computed
    hash_has_racks: bool = False
    _topic_ids: dict[tuple[tuple[str, ...], str], frozenset[UUID]] = field(default_factory=dict)
    """The topics of a subscription. Most members share theirs, and ten thousand look-ups take 30 ms."""
    names_changed: bool = False  # since the regular expressions were resolved
    unconfirmed: set[str] = field(default_factory=set)  # members that may not know their assignment
    rejoining: set[str] = field(default_factory=set)  # classic members whose join timer runs
    new_ids: deque[str] = field(default_factory=lambda: deque(maxlen=NEW_IDS_REMEMBERED))
    """Ids that MEMBER_ID_REQUIRED gave to clients which name partitions, until they join with them (KIP-394):
    franz-go and kafka-python drop their id after UNKNOWN_MEMBER_ID, and still name what they had."""

    # ---- changes ----

    def put(self, member: ConsumerMember) -> None:
        """Add a member, or replace it with its next version."""
        old = self.members.get(member.member_id)
        if old is member:
            return
        if old is None or old.metadata != member.metadata:
            self.changed[MemberMetadataKey(self.group_id, member.member_id)] = None
        if old is None or old.current != member.current:
            self.changed[CurrentMemberAssignmentKey(self.group_id, member.member_id)] = None
        has_other_names = old is None or old.names != member.names
        if has_other_names:
            self._note_names_without_subscribers(member.names)
        if old is not None:
            self._discount(old)
        self.members[member.member_id] = member
        self._count(member)
        if old is not None and has_other_names:
            self._note_names_without_subscribers(old.names)
        if old is not None:
            self._forget_regex(old.regex)

    def remove(self, member_id: str) -> ConsumerMember:
        member = self.members.pop(member_id)
        self._discount(member)
        self._note_names_without_subscribers(member.names)
        self._set_target(member_id, None)
        self._forget_regex(member.regex)
        self.rejoining.discard(member_id)
        self.unconfirmed.discard(member_id)
        self.changed[CurrentMemberAssignmentKey(self.group_id, member_id)] = None
        self.changed[MemberMetadataKey(self.group_id, member_id)] = None
        return member

    def replace_static(self, old_id: str, new: ConsumerMember) -> None:
        """A static member has returned with another member id: it gets the place and target of the old
        one."""
        target = self.targets.get(old_id)
        self.remove(old_id)
        self.put(new)
        self._set_target(new.member_id, target)
        if self.computing is not None:
            self.renamed = {
                **{each: new.member_id if name == old_id else name for each, name in self.renamed.items()},
                old_id: new.member_id,
            }

    def bump_epoch(self) -> None:
        self.epoch += 1
        self.changed[ConsumerGroupMetadataKey(self.group_id)] = None

    def set_hash(self, metadata_hash: int) -> None:
        if metadata_hash != self.metadata_hash:
            self.metadata_hash = metadata_hash
            self.changed[ConsumerGroupMetadataKey(self.group_id)] = None

    def set_targets(
        self,
        epoch: int,
        targets: Mapping[str, Partitions],
        now_ms: int,
        records: Mapping[str, StoredRecord] | None = None,
    ) -> None:
        """A new target assignment. Members without an entry joined later: they get no partitions yet."""
        for member_id in self.members:
            self._set_target(member_id, targets.get(member_id))
        for member_id, record in (records or {}).items():
            if member_id in targets:
                self.encoded[member_id] = targets[member_id], record
        self.assignment_epoch = epoch
        self.assigned_at_ms = now_ms
        self.changed[TargetAssignmentMetadataKey(self.group_id)] = None

    def _set_target(self, member_id: str, target: Partitions | None) -> None:
        old = self.targets.get(member_id)
        if old == target:
            return
        self.memory.used_bytes += TARGET_PARTITION_BYTES * (
            count_partitions(target or NO_TARGET) - count_partitions(old or NO_TARGET)
        )
        if target is None:
            del self.targets[member_id]
        else:
            self.targets[member_id] = target
        self.changed[TargetAssignmentMemberKey(self.group_id, member_id)] = None

    def set_regex(self, pattern: str, resolved: RegularExpression | None) -> None:
        old = self.regexes.pop(pattern, None)
        if resolved is not None:
            self.regexes[pattern] = resolved
        self.memory.used_bytes += _regex_size(resolved) - _regex_size(old)
        self.changed[RegularExpressionKey(self.group_id, pattern)] = None
        self.subscription_changed = True
        self._topic_ids.clear()

    def follow_topics(self) -> None:
        """The cluster has other topics. The group looks at them with the next heartbeat of a member."""
        self.topics_changed = self.names_changed = True
        self._topic_ids.clear()

    def follow_state(self) -> None:
        """Move to the state that follows from members and epochs."""
        state = self.state_now()
        check_transition(self.state, state)
        self.state = state

    def _note_names_without_subscribers(self, names: Iterable[str]) -> None:
        """Before these names are subscribed to, or after."""
        if not self.subscription_changed:
            self.subscription_changed = any(name not in self.subscribers for name in names)

    def _forget_regex(self, pattern: str) -> None:
        if pattern in self.regexes and not self.regex_subscribers[pattern]:
            self.set_regex(pattern, None)

    def _count(self, member: ConsumerMember) -> None:
        self.memory.used_bytes += member.size + len(self.group_id)
        self._add_owner(member.member_id, member.assigned)
        self._add_owner(member.member_id, member.pending_revocation)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self._count_state(member, 1)

    def _discount(self, member: ConsumerMember) -> None:
        self.memory.used_bytes -= member.size + len(self.group_id)
        self._remove_owner(member.assigned)
        self._remove_owner(member.pending_revocation)
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member.member_id:
            del self.static_members[member.instance_id]
        self._count_state(member, -1)

    def _count_state(self, member: ConsumerMember, by: int) -> None:
        if member.state is MemberState.STABLE:
            self.stable_in[member.epoch] += by
            if not self.stable_in[member.epoch]:
                del self.stable_in[member.epoch]
        counted = [(self.subscribers, member.names)]
        if member.regex:
            counted.append((self.regex_subscribers, (member.regex,)))
        if member.metadata.server_assignor is not None:
            counted.append((self.assignors, (member.metadata.server_assignor,)))
        if (classic := member.metadata.classic_member_metadata) is not None:
            self.classic_members += by
            names = tuple({each.name for each in classic.supported_protocols})
            counted.append((self.classic_protocols, names))
        for counter, keys in counted:
            for key in keys:
                counter[key] += by
                if not counter[key]:
                    del counter[key]

    def _add_owner(self, member_id: str, partitions: PartitionEpochs) -> None:
        for topic_id, numbers in partitions.items():
            owners = self.owners.setdefault(topic_id, {})
            for number in numbers:
                owner = owners.setdefault(number, member_id)
                if owner != member_id:  # not require(): to format ten thousand messages takes 20 ms
                    raise InvariantViolation(
                        f"{self.group_id}: {topic_id}-{number} is of {owner}, {member_id}"
                    )

    def _remove_owner(self, partitions: PartitionEpochs) -> None:
        for topic_id, numbers in partitions.items():
            owners = self.owners[topic_id]
            for number in numbers:
                owners.pop(number, None)
            if not owners:
                del self.owners[topic_id]

    # ---- queries ----

    def state_now(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if self.stable_in[self.assignment_epoch] == len(self.members):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def is_empty(self) -> bool:
        return not self.members

    def is_free(self, member: ConsumerMember, topic_id: UUID, partition: int) -> bool:
        """Whether no other member has the partition."""
        return self.owners.get(topic_id, {}).get(partition, member.member_id) == member.member_id

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        member_id = self.static_members.get(instance_id) if instance_id is not None else None
        return None if member_id is None else self.members[member_id]

    def subscribed_names(self) -> set[str]:
        """The topics that members subscribe to, by name or by a resolved regular expression."""
        return set(self.subscribers).union(*(each.topics for each in self.regexes.values()))

    def names_of(self, member: ConsumerMember) -> frozenset[str]:
        """The topics that one member subscribes to."""
        resolved = self.regexes.get(member.regex) if member.regex else None
        return frozenset(member.names).union(resolved.topics if resolved is not None else ())

    def topic_ids(self, member: ConsumerMember, topics: TopicView) -> frozenset[UUID]:
        """The existing topics that one member subscribes to."""
        subscription = member.names, member.regex
        found = self._topic_ids.get(subscription)
        if found is None:
            ids = (topics.id_of(name) for name in self.names_of(member))
            found = frozenset(topic_id for topic_id in ids if topic_id is not None)
            if len(self._topic_ids) == SUBSCRIPTIONS_REMEMBERED:
                self._topic_ids.pop(next(iter(self._topic_ids)))
            self._topic_ids[subscription] = found
        return found

    def assignor_name(self, supported: tuple[str, ...]) -> str:
        """The assignor that most members ask for. The order of group.consumer.assignors decides between
        equals, and its first is the default."""
        known = [name for name in supported if self.assignors[name]]
        return max(known, key=lambda name: self.assignors[name]) if known else supported[0]

    @property
    def size(self) -> int:
        """Memory used by members, targets and regular expressions, in bytes."""
        members = sum(member.size + len(self.group_id) for member in self.members.values())
        targets = sum(TARGET_PARTITION_BYTES * count_partitions(each) for each in self.targets.values())
        return members + targets + sum(map(_regex_size, self.regexes.values()))

    def check(self) -> None:
        where = f"group {self.group_id} in {self.state}"
        require(self.state is self.state_now(), f"{where}: should be in {self.state_now()}")
        require(self.assignment_epoch <= self.epoch, f"{where}: the target is newer than the group")
        owners: dict[UUID, dict[int, str]] = {}
        for member_id, member in self.members.items():
            require(member_id == member.member_id, f"{where}: the key {member_id} is not the member's id")
            require(
                member.epoch <= self.assignment_epoch,
                f"{where}: {member_id} is in epoch {member.epoch}, the target in {self.assignment_epoch}",
            )
            for partitions in (member.assigned, member.pending_revocation):
                for topic_id, numbers in partitions.items():
                    for number in numbers:
                        owner = owners.setdefault(topic_id, {}).setdefault(number, member_id)
                        require(
                            owner == member_id, f"{where}: {owner} and {member_id} have {topic_id}-{number}"
                        )
        require(owners == self.owners, f"{where}: the table of owners is wrong")
        self._check_targets(where)
        self._check_counts(where)

    def _check_targets(self, where: str) -> None:
        targets: set[tuple[UUID, int]] = set()
        for member_id, target in self.targets.items():
            require(member_id in self.members, f"{where}: target of {member_id}, which is no member")
            mine = {(topic_id, number) for topic_id, numbers in target.items() for number in numbers}
            require(targets.isdisjoint(mine), f"{where}: a partition in two targets")
            targets |= mine

    def _check_counts(self, where: str) -> None:
        members = self.members.values()
        statics = {member.instance_id: name for name, member in self.members.items() if member.instance_id}
        require(statics == self.static_members, f"{where}: static members differ from members")
        named = Counter(name for member in members for name in member.names)
        stable_in = Counter(member.epoch for member in members if member.state is MemberState.STABLE)
        require(stable_in == self.stable_in, f"{where}: stable members are counted wrongly")
        require(named == self.subscribers, f"{where}: subscriptions are counted wrongly")
        patterns = Counter(member.regex for member in members if member.regex)
        require(patterns == self.regex_subscribers, f"{where}: regular expressions are counted wrongly")
        require(self.regexes.keys() <= patterns.keys(), f"{where}: a regular expression without members")
        classic = sum(member.is_classic for member in members)
        require(classic == self.classic_members, f"{where}: classic members are counted wrongly")
        require(self.waiting.keys() <= self.members.keys(), f"{where}: a removed member waits")


def _regex_size(resolved: RegularExpression | None) -> int:
    return 0 if resolved is None else sum(NAME_OVERHEAD_BYTES + len(name) for name in resolved.topics)
