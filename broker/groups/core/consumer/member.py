"""Consumer member: one member of a consumer group, as its two records say. Members never change: group.py
replaces them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from tierlog.base.safeguards import safeguard
from tierlog.broker.groups.core.consumer.formats import (
    CurrentMemberAssignment,
    MemberMetadata,
    PartitionEpochs,
)
from tierlog.broker.groups.core.consumer.group_spec import Partitions
from tierlog.broker.groups.core.consumer.states import MemberState
from tierlog.broker.groups.core.events import STATIC_LEAVE_EPOCH

MEMBER_OVERHEAD_BYTES = 2_000
"""Memory of a member in addition to its strings and partitions: its objects, table entries and timers."""
NAME_OVERHEAD_BYTES = 150
"""Memory of a subscribed name or a protocol in addition to its characters."""
PARTITION_BYTES = 200
"""Memory of a partition in a member's current assignment: its epoch, and its entry among the owners."""
TARGET_PARTITION_BYTES = 80

NO_PARTITIONS: PartitionEpochs = {}
NEW_MEMBER = CurrentMemberAssignment(
    member_epoch=0,
    previous_member_epoch=0,
    state=MemberState.STABLE,
    assigned_partitions=NO_PARTITIONS,
    partitions_pending_revocation=NO_PARTITIONS,
)
NO_METADATA = MemberMetadata(client_id="", client_host="")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    member_id: str
    metadata: MemberMetadata = NO_METADATA
    current: CurrentMemberAssignment = NEW_MEMBER
    size: int = field(init=False, compare=False)
    """Approximate memory in bytes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _size(self))

    @property
    def epoch(self) -> int:
        return self.current.member_epoch

    @property
    def previous_epoch(self) -> int:
        return self.current.previous_member_epoch

    @property
    def state(self) -> MemberState:
        return MemberState(self.current.state)

    @property
    def assigned(self) -> PartitionEpochs:
        return self.current.assigned_partitions

    @property
    def pending_revocation(self) -> PartitionEpochs:
        return self.current.partitions_pending_revocation

    @property
    def instance_id(self) -> str | None:
        return self.metadata.instance_id

    @property
    def names(self) -> tuple[str, ...]:
        """The subscribed topic names, sorted."""
        return self.metadata.subscribed_topic_names

    @property
    def regex(self) -> str:
        """Empty if it has no regular expression."""
        return self.metadata.subscribed_topic_regex

    @property
    def is_classic(self) -> bool:
        """Whether it uses the classic protocol."""
        return self.metadata.classic_member_metadata is not None

    @property
    def is_away(self) -> bool:
        """Whether it is a static member that left and may return."""
        return self.epoch == STATIC_LEAVE_EPOCH

    def is_reconciled(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch

    @property
    def assigned_partitions(self) -> Partitions:
        return {topic_id: frozenset(partitions) for topic_id, partitions in self.assigned.items()}

    @safeguard("commits of an old epoch are refused")
    def accepts_commit(self, epoch: int, topic_id: UUID | None, partition: int) -> bool:
        """Whether an offset may be committed that was read in `epoch`. A partition which the member has had
        since then accepts it: the response with the next epoch is on its way (KIP-1251)."""
        if epoch == self.epoch:
            return True
        if epoch > self.epoch or topic_id is None:
            return False
        assigned_in = _epoch_of(self.assigned, topic_id, partition)
        if assigned_in is None:
            assigned_in = _epoch_of(self.pending_revocation, topic_id, partition)
        return assigned_in is not None and assigned_in <= epoch


def count_partitions(partitions: Mapping[UUID, Mapping[int, int] | frozenset[int]]) -> int:
    return sum(map(len, partitions.values()))


def metadata_size(metadata: MemberMetadata) -> int:
    """Memory of what a client may choose."""
    strings = metadata.client_id, metadata.instance_id or "", metadata.rack_id or ""
    names = metadata.subscribed_topic_names
    size = sum(map(len, strings)) + len(metadata.subscribed_topic_regex)
    size += sum(map(len, names)) + NAME_OVERHEAD_BYTES * len(names)
    if metadata.classic_member_metadata is not None:
        protocols = metadata.classic_member_metadata.supported_protocols
        size += sum(NAME_OVERHEAD_BYTES + len(each.name) + len(each.metadata) for each in protocols)
    return size


def _size(member: ConsumerMember) -> int:
    partitions = count_partitions(member.assigned) + count_partitions(member.pending_revocation)
    own = MEMBER_OVERHEAD_BYTES + len(member.member_id) + metadata_size(member.metadata)
    return own + PARTITION_BYTES * partitions


def _epoch_of(partitions: PartitionEpochs, topic_id: UUID, partition: int) -> int | None:
    return partitions.get(topic_id, {}).get(partition)
