"""Cluster image: the immutable state that all committed records add up to. Only `evolve` creates new images.

Maps are persistent (library `immutables`), so holding an old image is cheap and readers need no lock. Brokers
see only images of committed records. The parts are arrays in a snapshot (image_codec): new fields go to the
end and have defaults. The structs never form reference cycles, so the garbage collector ignores them
(gc=False): with 100,000 partitions it would otherwise take most of the CPU time.
"""

from uuid import UUID

import msgspec
from immutables import Map

from tierlog.base.safeguards import safeguard
from tierlog.base.types import TopicIdPartition
from tierlog.metadata.acl_index import (
    AclIndex,
)
from tierlog.metadata.delegation_tokens import DelegationToken
from tierlog.metadata.delete_queue import DeleteQueue
from tierlog.metadata.records import (
    BrokerRegistration,
    ConfigScope,
    Endpoint,
    ManifestNode,
    PageRef,
    PartitionRecord,
    QuotaEntity,
    RemoteSegment,
)
from tierlog.metadata.scram_users import (
    ScramUsers,
)


class BrokerImage(BrokerRegistration, frozen=True, array_like=True, kw_only=True, gc=False):
    """A broker: its last registration, and its state since then. `image_codec` stores it in an order of its
    own."""

    fenced: bool
    stopping: bool = False  # controlled shutdown: it is not elected and joins no ISR
    served_epoch: int = -1
    """The last broker epoch in which it was unfenced. -1: it was never unfenced, or did not record the epoch
    in its directories then (`keeps_epochs`)."""
    endpoints: tuple[Endpoint, ...] = ()
    """Addresses of its listeners; empty if it registered below format version 3, or by an older version of
    tierlog with PLAINTEXT alone. Clients of all listeners then get the address for other brokers."""

    def address_of(self, listener: str) -> tuple[str, int] | None:
        """Host and port of the listener of this name; None if the broker has none."""
        if not self.endpoints:
            return self.host, self.port
        return next(((one.host, one.port) for one in self.endpoints if one.name == listener), None)

    @property
    def may_lead(self) -> bool:
        """Whether the broker is active: it may be elected and join ISRs."""
        return not self.fenced and not self.stopping

    @property
    def zone(self) -> str:
        """Zone of the rack, which is `zone` or `zone/host`; empty without a rack."""
        return zone_of(self.rack or "")


class TopicImage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    topic_id: UUID
    name: str
    partitions: tuple[PartitionRecord, ...]


class StartedCopy(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    uuid: UUID
    base_offset: int
    last_offset: int
    leader_epoch: int
    at_ms: int
    replaces: bool = False  # it will replace segments that have these offsets
    loads: bool = False  # a bulk load may add it


class Load(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """A bulk load that was committed: its offsets, and the leader epoch of its records."""

    load_id: UUID
    base_offset: int
    end_offset: int
    leader_epoch: int


class RemotePartition(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """Remote log of one partition: pages (oldest, their levels never ascend), entries (newest, at most 512),
    and unfinished copies. Pages and entries, the nodes, have no gaps between their ranges."""

    log_start_offset: int = 0
    pages: tuple[PageRef, ...] = ()
    entries: tuple[RemoteSegment, ...] = ()
    started: tuple[StartedCopy, ...] = ()
    copied_end_offset: int | None = None  # end of the newest finished copy, kept after its entry is gone
    loads: tuple[Load, ...] = ()  # the newest bulk loads, so that a repeated one is not added again

    @property
    def nodes(self) -> tuple[ManifestNode, ...]:
        return *self.pages, *self.entries

    @property
    def used_end_offset(self) -> int:
        """End of the offsets that remote segments have or had. No leader appends below it."""
        return self.end_offset or self.copied_end_offset or 0

    @property
    def next_load_offset(self) -> int:
        """The offset at which a bulk load begins: the end of the manifest. If that lists nothing, the log may
        begin later than what it listed before."""
        return (
            max(self.used_end_offset, self.log_start_offset) if self.end_offset is None else self.end_offset
        )

    def load_of(self, load_id: UUID) -> Load | None:
        return next((one for one in self.loads if one.load_id == load_id), None)

    @property
    def first_offset(self) -> int | None:
        """First remote offset, which may be inside a segment below the log start. None without any."""
        if self.pages:
            return self.pages[0].base_offset
        return self.entries[0].base_offset if self.entries else None

    @property
    def end_offset(self) -> int | None:
        """End of the last remote segment, where the next copy must start. None without any."""
        if self.entries:
            return self.entries[-1].last_offset + 1
        return self.pages[-1].last_offset + 1 if self.pages else None


class ClusterImage(msgspec.Struct, frozen=True, kw_only=True):
    cluster_id: str
    index: int = 0  # the last log entry applied
    brokers: Map[int, BrokerImage] = Map()
    topics: Map[UUID, TopicImage] = Map()
    topic_ids: Map[str, UUID] = Map()
    configs: Map[tuple[ConfigScope, str], Map[str, str]] = Map()
    quotas: Map[QuotaEntity, Map[str, float]] = Map()
    next_producer_id: int = 0
    remote: Map[TopicIdPartition, RemotePartition] = Map()
    delete_queue: DeleteQueue = DeleteQueue()
    format_version: int = 1
    feature_levels: Map[str, int] = Map()
    """Levels of Kafka's features that were set; all others have the highest (`controller.features`)."""
    first_leader_epoch: int = 0
    """The leader epoch in which new partitions begin: the highest of all deleted topics. A client that still
    knows a deleted topic of the same name would ignore an older epoch (librdkafka issue 4898)."""
    deleting: frozenset[UUID] = frozenset()
    """Queued deletions that have begun: their objects may be gone, so no manifest may list them again."""
    unread_manifests: Map[TopicIdPartition, int] = Map()
    """Since the quorum was recovered, no leader of these partitions has read the manifest in the bucket. It
    may be newer than the recovered one if its metadata index is above this one. Until then no replica leads
    the partition, and nothing of it is deleted."""
    acls: AclIndex = AclIndex()
    scram_users: ScramUsers = Map()
    tokens: Map[str, DelegationToken] = Map()
    """Delegation tokens by id."""
    time_ms: int = 0
    """The quorum's time, from the newest record with a time, while deletions are queued; otherwise 0. It
    starts at a controller's wall clock time, advances with the monotonic clock of the active controller, and
    stops while there is none."""

    def topic(self, name: str) -> TopicImage | None:
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def find_topic(self, name_or_id: str | UUID) -> TopicImage | None:
        return self.topic(name_or_id) if isinstance(name_or_id, str) else self.topics.get(name_or_id)

    def topic_overrides(self, name: str) -> Map[str, str]:
        return self.overrides(ConfigScope.TOPIC, name)

    def overrides(self, scope: ConfigScope, name: str) -> Map[str, str]:
        return self.configs.get((scope, name), Map())

    def partition(self, topic_id: UUID, partition: int) -> PartitionRecord | None:
        topic = self.topics.get(topic_id)
        if topic is None or not 0 <= partition < len(topic.partitions):
            return None
        return topic.partitions[partition]

    def live_brokers(self) -> list[BrokerImage]:
        """Registered and not fenced, by id."""
        return [
            self.brokers[broker_id]
            for broker_id in sorted(self.brokers)
            if not self.brokers[broker_id].fenced
        ]

    def remote_partition(self, topic_id: UUID, partition: int) -> RemotePartition:
        return self.remote.get(TopicIdPartition(topic_id, partition), _NOTHING_REMOTE)

    @safeguard("a manifest cannot list a page whose deletion has begun")
    def is_being_deleted(self, uuid: UUID) -> bool:
        return uuid in self.deleting


def changed_topics(old: ClusterImage, new: ClusterImage) -> tuple[list[TopicImage], list[TopicImage]]:
    """Topics that were deleted, and topics that were created or changed (as in the new image).

    Called after every commit with up to 10,000 topics, so it compares identities: a lookup by id takes ten
    times as long.
    """
    if old.topics is new.topics:
        return [], []
    before, now = set(map(id, old.topics.values())), set(map(id, new.topics.values()))
    other = [topic for topic in old.topics.values() if id(topic) not in now]
    deleted = [topic for topic in other if topic.topic_id not in new.topics]
    return deleted, [topic for topic in new.topics.values() if id(topic) not in before]


_NOTHING_REMOTE = RemotePartition()


def zone_of(rack: str) -> str:
    return rack.partition("/")[0]
