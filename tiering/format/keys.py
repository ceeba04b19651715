"""Object keys of a cluster, below the store's prefix (docs/formats/remote.md).

Keys contain the UUID of the upload attempt, so objects are never overwritten, except manifest roots and the
two kinds of JSON documents. No key is a folder of another, and no component exceeds 255 bytes. Two hex digits
spread the partitions over the bucket's index. Called by the manager, Spark and tests.
"""

import re
import uuid
from dataclasses import dataclass
from functools import lru_cache

import crc32c
import msgspec

from tierlog.base.types import TopicIdPartition
from tierlog.metadata.records import PageRef, RemoteSegment

_CLUSTER_ID = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_SNAPSHOT = re.compile(r"[A-Za-z0-9_-]{1,100}")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ATTEMPT = re.compile(rf"(\d{{20}})-(\d{{20}})-(\d+)-({_UUID.pattern})\.(log|idx)")
_OBJECT = re.compile(rf"(\d{{20}})-(\d{{20}})-(?:\d+-)?({_UUID.pattern})\.(?:log|idx|page)")
_PLACE = re.compile(rf"(?:data|manifests)/[0-9a-f]{{2}}/({_UUID.pattern})/(\d{{1,10}})")
_PAGE = re.compile(rf"(\d{{20}})-(\d{{20}})-({_UUID.pattern})\.page")
_OFFSET_DIGITS = 20  # as in Kafka's file names, so that keys of a partition sort by offset


class InvalidKey(ValueError):
    """An invalid key, or an identifier that cannot be part of a key."""


@dataclass(frozen=True, slots=True)
class AttemptKey:
    """Parsed name of a segment's object. Offsets are inclusive."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    uuid: uuid.UUID
    suffix: str


@dataclass(frozen=True, slots=True)
class PageKey:
    """Parsed name of a page. Offsets are inclusive."""

    base_offset: int
    last_offset: int
    uuid: uuid.UUID


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one cluster, relative to the store's prefix."""

    cluster_id: str

    def __post_init__(self) -> None:
        if not _CLUSTER_ID.fullmatch(self.cluster_id) or set(self.cluster_id) == {"."}:
            raise InvalidKey(f"invalid cluster id {self.cluster_id!r}: it cannot be part of an object key")

    def everything(self) -> str:
        """Prefix of all objects of the cluster."""
        return f"{self.cluster_id}/"

    def partition_of(self, key: str) -> TopicIdPartition | None:
        """The partition of a segment, page or root; None for any other key."""
        match = _PLACE.fullmatch(key.removeprefix(self.everything()).rpartition("/")[0])
        return None if match is None else TopicIdPartition(uuid.UUID(match[1]), int(match[2]))

    def topic_of(self, key: str) -> uuid.UUID | None:
        """The topic of a topic document or of a name's key; None for any other key."""
        named = self.named(key)
        if named is not None:
            return named[0]
        name = key.removeprefix(self.topics()).removesuffix(".json")
        return uuid.UUID(name) if _UUID.fullmatch(name) else None

    def cluster(self) -> str:
        return f"{self.cluster_id}/cluster.json"

    def probes(self) -> str:
        """Prefix of the objects with which brokers check the store."""
        return f"{self.cluster_id}/probe/"

    def probe(self, node_id: int) -> str:
        """Prefix of the objects with which one node checks the store."""
        return f"{self.probes()}{node_id}"

    def topics(self) -> str:
        """Prefix of the topic documents."""
        return f"{self.cluster_id}/topics/"

    def topic(self, topic_id: uuid.UUID) -> str:
        return f"{self.topics()}{topic_id}.json"

    def names(self) -> str:
        """Prefix of the keys of topics by name."""
        return f"{self.cluster_id}/names/"

    def topics_named(self, name: str) -> str:
        """Prefix of the keys of all topics with a name: an earlier one may not be deleted yet."""
        return f"{self.names()}{name}/"

    def topic_name(self, name: str, topic_id: uuid.UUID) -> str:
        """An empty object, which exists as long as the document of the topic with this name."""
        return f"{self.topics_named(name)}{topic_id}"

    def named(self, key: str) -> tuple[uuid.UUID, str] | None:
        """The id and the name of a topic, from its `topic_name`; None for any other key."""
        name, _, topic_id = key.removeprefix(self.names()).partition("/")
        is_name = key.startswith(self.names()) and _UUID.fullmatch(topic_id)
        return (uuid.UUID(topic_id), name) if is_name else None

    def snapshots(self) -> str:
        """Prefix of everything of snapshots."""
        return f"{self.cluster_id}/snapshots/"

    def snapshot_leases(self) -> str:
        """Prefix of the leases of snapshots."""
        return f"{self.snapshots()}leases/"

    def snapshot_lease(self, snapshot_id: uuid.UUID) -> str:
        return f"{self.snapshot_leases()}{snapshot_id}.json"

    def lease_id(self, key: str) -> uuid.UUID | None:
        """The snapshot of a lease; None for any other key."""
        name = key.removeprefix(self.snapshot_leases())
        return uuid.UUID(name[:-5]) if name.endswith(".json") and _UUID.fullmatch(name[:-5]) else None

    def snapshot_name(self, name: str) -> str:
        """The object that says which snapshot has a name. Raises InvalidKey."""
        if not _SNAPSHOT.fullmatch(name):
            raise InvalidKey(
                f"invalid snapshot name {name!r}: use 1 to 100 letters, digits, underscores and hyphens"
            )
        return f"{self.snapshots()}names/{name}.json"

    def all_snapshot_roots(self) -> str:
        """Prefix of the roots that snapshots have copied."""
        return f"{self.snapshots()}roots/"

    def root_owner(self, key: str) -> uuid.UUID | None:
        """The snapshot that has copied a root; None for any other key."""
        name = key.removeprefix(self.all_snapshot_roots()).partition("/")[0]
        return uuid.UUID(name) if _UUID.fullmatch(name) else None

    def snapshot_roots(self, snapshot_id: uuid.UUID) -> str:
        """Prefix of the roots that a snapshot has copied."""
        return f"{self.all_snapshot_roots()}{snapshot_id}/"

    def snapshot_root(self, snapshot_id: uuid.UUID, partition: TopicIdPartition) -> str:
        return f"{self.snapshot_roots(snapshot_id)}{partition.topic_id}-{partition.partition}"

    def data(self, partition: TopicIdPartition) -> str:
        """Prefix of a partition's segments."""
        return f"{self.cluster_id}/data/{_place(partition)}/"

    def manifests(self, partition: TopicIdPartition) -> str:
        """Prefix of a partition's manifest root and pages."""
        return f"{self.cluster_id}/manifests/{_place(partition)}/"

    def root(self, partition: TopicIdPartition) -> str:
        return self.manifests(partition) + "root"

    def page(self, partition: TopicIdPartition, page: PageRef) -> str:
        return self.page_of(partition, page.base_offset, page.last_offset, page.uuid)

    def page_of(self, partition: TopicIdPartition, base: int, last: int, page_id: uuid.UUID) -> str:
        return f"{self.manifests(partition)}{base:0{_OFFSET_DIGITS}}-{last:0{_OFFSET_DIGITS}}-{page_id}.page"

    def log(self, partition: TopicIdPartition, segment: RemoteSegment) -> str:
        """The segment, byte for byte as on the leader's disk."""
        return self.data(partition) + log_name(segment)

    def index(self, partition: TopicIdPartition, segment: RemoteSegment) -> str:
        """The segment's index bundle."""
        return self.attempt(
            partition, segment.base_offset, segment.last_offset, segment.leader_epoch, segment.uuid
        )[1]

    def attempt(
        self, partition: TopicIdPartition, base: int, last: int, leader_epoch: int, attempt_id: uuid.UUID
    ) -> tuple[str, str]:
        """The `.log` and `.idx` keys of one attempt to upload offsets [base, last]."""
        offsets = f"{base:0{_OFFSET_DIGITS}}-{last:0{_OFFSET_DIGITS}}"
        stem = f"{self.data(partition)}{offsets}-{leader_epoch}-{attempt_id}"
        return stem + ".log", stem + ".idx"


def log_name(segment: RemoteSegment) -> str:
    """The last component of the key of a segment."""
    base, last = segment.base_offset, segment.last_offset
    segment_id = msgspec.to_builtins(segment.uuid)  # its text, four times as fast as `str`
    return f"{base:0{_OFFSET_DIGITS}}-{last:0{_OFFSET_DIGITS}}-{segment.leader_epoch}-{segment_id}.log"


def parse_attempt(key: str) -> AttemptKey:
    """Parse a `.log` or `.idx` key. Raises InvalidKey for any other key."""
    match = _ATTEMPT.fullmatch(key.rpartition("/")[2])
    if match is None:
        raise InvalidKey(f"{key!r} is not a segment key")
    base, last, epoch, attempt_id, suffix = match.groups()
    return AttemptKey(int(base), int(last), int(epoch), uuid.UUID(attempt_id), suffix)


def parse_object(key: str) -> tuple[int, int, uuid.UUID]:
    """First and last offset and id of a segment's object or a page. Raises InvalidKey for any other key."""
    match = _OBJECT.fullmatch(key.rpartition("/")[2])
    if match is None:
        raise InvalidKey(f"{key!r} is not the key of a segment or page")
    return int(match[1]), int(match[2]), uuid.UUID(match[3])


_KINDS = {"log": "segment", "idx": "index", "page": "page", "root": "root", "json": "document"}


def kind_of(key: str) -> str:
    """Kind of object that a key names: `segment`, `index`, `page`, `root` or `document`; `other` for any
    other key, or a prefix."""
    return _KINDS.get(key.rpartition("/")[2].rpartition(".")[2], "other")


def parse_page(key: str) -> PageKey:
    """Parse a `.page` key. Raises InvalidKey for any other key."""
    match = _PAGE.fullmatch(key.rpartition("/")[2])
    if match is None:
        raise InvalidKey(f"{key!r} is not a page's key")
    base, last, page_id = match.groups()
    return PageKey(int(base), int(last), uuid.UUID(page_id))


@lru_cache(maxsize=8)  # a plan asks for the keys of one partition after another
def _place(partition: TopicIdPartition) -> str:
    name = f"{partition.topic_id}/{partition.partition}"
    spread = f"{crc32c.crc32c(name.encode()):08x}"[:2]
    return f"{spread}/{name}"
