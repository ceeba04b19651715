"""The immutable cluster image: what all committed records add up to. Only `evolve` changes it.

Maps are persistent (library `immutables`), so holding an image costs nothing and readers need no lock.
Brokers only ever see images made of committed records. The parts are arrays in a snapshot (image_codec):
new fields go to the end and have defaults. They hold values only, never each other in a circle, so the
garbage collector need not look at them (gc=False): with 100,000 partitions it would be most of the work.
"""

from uuid import UUID

import msgspec
from immutables import Map

from tierlog.base.types import TopicIdPartition
from tierlog.metadata.delete_queue import DeleteQueue
from tierlog.metadata.records import ConfigScope, PageRef, QuotaEntity, RemoteSegment


class BrokerImage(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    broker_id: int
    broker_epoch: int
    incarnation: UUID
    host: str
    port: int
    admin_url: str
    rack: str | None
    fenced: bool
    stopping: bool = False  # asked to stop: it leads nothing new and joins no in-sync set
    directories: tuple[UUID, ...] = ()
    min_in_sync: int = 1  # its own default of min.insync.replicas
    unclean_election: bool = False  # its own default of unclean.leader.election.enable
    formats: tuple[int, int] = (1, 1)  # the least and the greatest that it understands
    served_epoch: int = -1  # the last one in which it was unfenced; -1: none that its directories know
    keeps_epochs: bool = False  # the registered process notes its broker epoch in its directories

    @property
    def may_lead(self) -> bool:
        """Whether an election may choose it, and whether it may join an in-sync set."""
        return not self.fenced and not self.stopping

    @property
    def zone(self) -> str:
        """Of its rack, which is `zone` or `zone/host`; empty if it has none."""
        return zone_of(self.rack or "")


class PartitionImage(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """`in_sync` is never empty: its last member stays, dead or alive. `eligible` (KIP-966) left it while it
    was below min.insync.replicas, so they hold all that is committed too.
    """

    replicas: tuple[int, ...]  # the preferred leader first
    in_sync: tuple[int, ...]
    leader: int  # -1: nobody
    leader_epoch: int
    partition_epoch: int
    eligible: tuple[int, ...] = ()
    last_leader: int = -1  # who led, while nobody leads
    adding: tuple[int, ...] = ()  # a reassignment under way (KIP-455): these join,
    removing: tuple[int, ...] = ()  # and these leave once all others are in sync
    offline: tuple[int, ...] = ()  # their disk failed (KIP-858); until their broker registers anew
    emptied: tuple[int, ...] = ()  # they began with an empty log, and have not been in sync since
    full: tuple[int, ...] = ()  # their disk has no room: they take no records for now

    @property
    def is_reassigned(self) -> bool:
        return bool(self.adding or self.removing)


class TopicImage(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    topic_id: UUID
    name: str
    partitions: tuple[PartitionImage, ...]


class StartedCopy(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    uuid: UUID
    base_offset: int
    last_offset: int
    leader_epoch: int
    at_ms: int


class RemotePartition(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """What is remote of one partition: pages (oldest), entries (newest, at most 512), copies under way."""

    log_start_offset: int = 0
    pages: tuple[PageRef, ...] = ()
    entries: tuple[RemoteSegment, ...] = ()
    started: tuple[StartedCopy, ...] = ()
    copied_end_offset: int | None = (
        None  # one past the newest offset ever finished, kept after its entry is gone
    )

    @property
    def first_offset(self) -> int | None:
        """First offset held remotely; may lie a part of a segment below the log start. None if nothing."""
        if self.pages:
            return self.pages[0].base_offset
        return self.entries[0].base_offset if self.entries else None

    @property
    def end_offset(self) -> int | None:
        """One past the last offset held remotely; the next copy must start here. None if nothing yet."""
        if self.entries:
            return self.entries[-1].last_offset + 1
        return self.pages[-1].last_offset + 1 if self.pages else None


class ClusterImage(msgspec.Struct, frozen=True, kw_only=True):
    cluster_id: str
    index: int = 0  # of the last log entry applied
    brokers: Map[int, BrokerImage] = Map()
    topics: Map[UUID, TopicImage] = Map()
    topic_ids: Map[str, UUID] = Map()
    configs: Map[tuple[ConfigScope, str], Map[str, str]] = Map()
    quotas: Map[QuotaEntity, Map[str, float]] = Map()
    next_producer_id: int = 0
    remote: Map[TopicIdPartition, RemotePartition] = Map()
    delete_queue: DeleteQueue = DeleteQueue()
    format_version: int = 1
    deleting: frozenset[UUID] = frozenset()
    """Lines of the delete queue whose objects may be gone already: no manifest may name them again."""
    time_ms: int = 0
    """The quorum's time as of the newest record that has one, while something is queued; else 0. It moves on
    with the monotonic clock of whichever controller leads, and stands still between two leaders; only its
    origin is a wall clock's."""

    def topic(self, name: str) -> TopicImage | None:
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def topic_overrides(self, name: str) -> Map[str, str]:
        return self.overrides(ConfigScope.TOPIC, name)

    def overrides(self, scope: ConfigScope, name: str) -> Map[str, str]:
        return self.configs.get((scope, name), Map())

    def partition(self, topic_id: UUID, partition: int) -> PartitionImage | None:
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


def changed_topics(old: ClusterImage, new: ClusterImage) -> tuple[list[TopicImage], list[TopicImage]]:
    """Topics that went, and those that came or changed (as the new image has them). Every commit asks, and
    there may be 10,000 topics, so it compares identities: looking an id up takes ten times as long.
    """
    if old.topics is new.topics:
        return [], []
    before, now = set(map(id, old.topics.values())), set(map(id, new.topics.values()))
    other = [topic for topic in old.topics.values() if id(topic) not in now]
    gone = [topic for topic in other if topic.topic_id not in new.topics]
    return gone, [topic for topic in new.topics.values() if id(topic) not in before]


_NOTHING_REMOTE = RemotePartition()


def zone_of(rack: str) -> str:
    return rack.partition("/")[0]
