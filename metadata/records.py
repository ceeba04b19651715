"""Records of the metadata log, each with a number that never changes.

A record is a frozen msgspec struct with its number as the tag; on disk and on the wire it is a msgpack array.
New fields go to the end and have defaults, so that older logs stay readable. Replay reads no clock and draws
no random number: the proposer writes both into the record. `at_ms` and `expires_ms` are in the quorum's time
(`ClusterImage.time_ms`).
"""

import uuid
from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec
from msgspec.structs import force_setattr, replace

from tierlog.base.types import NO_LEADER
from tierlog.metadata.acls import AccessControlEntry
from tierlog.metadata.delegation_tokens import DelegationToken
from tierlog.metadata.scram import ScramMechanism, ScramVerifier


class ConfigScope(StrEnum):
    TOPIC = "topic"
    BROKER = "broker"
    CLUSTER = "cluster"
    GROUP = "group"  # a group by its id
    CLIENT_METRICS = "client-metrics"  # a subscription by its name (KIP-714)


QuotaEntity = tuple[tuple[str, str | None], ...]
"""Entity of a quota (KIP-546): (type, name) pairs in the order of `QUOTA_ENTITY_TYPES`, at most one per type.
The name None is the default, for all names without a quota of their own."""

CLIENT_ID, USER, IP = "client-id", "user", "ip"
QUOTA_ENTITY_TYPES = (CLIENT_ID, USER, IP)
QUOTA_NAME_MAX = 255
"""Maximum length in characters. The protocol allows 32,767 bytes, which every node would keep in memory."""


class QuotaKey(StrEnum):
    """Names of quotas in the protocol."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    REQUEST_PERCENTAGE = "request_percentage"
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    CONNECTION_CREATION_RATE = "connection_creation_rate"


COMPACTED_TO = "compacted.to"
"""Tag of a remote segment: compaction has applied the segment's keys below this offset to all earlier
records. It does not read these records again to learn their keys."""

COMPACTED_AT = "compacted.at"
"""Tag of a remote segment: when compaction last replaced it, in milliseconds since 1970."""

CODEC = "codec"
"""Tag of a remote segment: all of its compressible batches have this codec, by Kafka's name. A job has
written it with this codec, and need not read it again to know."""

GROUPED_BYTES = "grouped.bytes"
"""Tag of a remote segment: a job has put as many segments into it as fit into one of this size."""


def compaction_tags(compacted_to: int, compacted_at_ms: int) -> tuple[tuple[str, str], ...]:
    """Tags of a segment. A negative value leaves its tag out."""
    tags = (COMPACTED_TO, compacted_to), (COMPACTED_AT, compacted_at_ms)
    return tuple((name, str(value)) for name, value in tags if value >= 0)


def codec_tags(old: Sequence["RemoteSegment"]) -> tuple[tuple[str, str], ...]:
    """The tag CODEC of a segment with batches of these, if all of them have the same."""
    codecs = {entry.codec for entry in old}
    return tuple((CODEC, codec) for codec in codecs if codec is not None and len(codecs) == 1)


def merged_tags(old: Sequence["RemoteSegment"]) -> tuple[tuple[str, str], ...]:
    """Tags of a segment with the batches of successive ones: how far it is compacted, up to the first one
    that is not, or not completely; and their codec."""
    compacted_to = -1
    for entry in old:
        compacted_to = max(compacted_to, entry.compacted_to)
        if entry.compacted_to < entry.end_offset:
            break
    return compaction_tags(compacted_to, max(entry.compacted_at for entry in old)) + codec_tags(old)


class RemoteSegment(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """Manifest entry: the records of a range of offsets, in one object. Offsets are inclusive, as in its key.

    The range is logical: offsets within it may be missing. Timestamps are in milliseconds, -1 if unknown. The
    fields after `leader_epoch` were added in format version 2; entries of version 1 have their defaults.
    """

    uuid: uuid.UUID
    base_offset: int
    last_offset: int
    leader_epochs: tuple[tuple[int, int], ...]  # (epoch, its first offset within or before the segment)
    log_bytes: int
    index_bytes: int
    records: int
    first_timestamp: int
    max_timestamp: int
    has_transactions: bool
    has_aborts: bool
    log_crc32c: int
    index_crc32c: int
    leader_epoch: int  # epoch of the leader that uploaded the segment; part of the key
    control_records: int = -1  # how many of `records` are transaction markers; -1: unknown
    min_timestamp: int = -1  # smallest timestamp with which one of its batches begins
    key_id: str | None = None  # key that encrypts the objects; None: they are not encrypted
    tags: tuple[tuple[str, str], ...] = ()  # names and values, as of `compaction_tags`

    @property
    def end_offset(self) -> int:
        return self.last_offset + 1

    @property
    def compacted_to(self) -> int:
        """End of the records whose keys compaction has applied (COMPACTED_TO); -1 if there are none."""
        return self._number(COMPACTED_TO)

    @property
    def compacted_at(self) -> int:
        """When compaction last replaced it, in milliseconds since 1970; -1: never."""
        return self._number(COMPACTED_AT)

    @property
    def codec(self) -> str | None:
        """The codec of all batches (CODEC); None if it is not known."""
        return next((value for name, value in self.tags if name == CODEC), None)

    @property
    def grouped_bytes(self) -> int:
        """The size of segments for which a job has filled this one (GROUPED_BYTES); -1: none has."""
        return self._number(GROUPED_BYTES)

    def _number(self, tag: str) -> int:
        return next((int(value) for name, value in self.tags if name == tag), -1) if self.tags else -1

    @property
    def fits_format_1(self) -> bool:
        """Whether format version 1 can represent the entry."""
        later = self.control_records != -1 or self.min_timestamp != -1 or self.key_id is not None
        return not (later or self.tags)

    def in_format_1(self) -> "RemoteSegment":
        """The entry without the fields of later format versions."""
        return replace(self, control_records=-1, min_timestamp=-1, key_id=None, tags=())


class PageRef(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """Reference to a manifest page in the bucket. Offsets are inclusive.

    A page of level 0 contains entries, and one of level n references to pages of level n - 1.
    """

    uuid: uuid.UUID
    base_offset: int
    last_offset: int
    entries: int  # segments below it
    log_bytes: int  # sum of `log_bytes` of these segments
    max_timestamp: int
    crc32c: int
    level: int = 0
    children: int = 0  # references in a page of a higher level

    @property
    def end_offset(self) -> int:
        return self.last_offset + 1

    @property
    def width(self) -> int:
        """Number of entries or references in the page."""
        return self.children if self.level else self.entries


ManifestNode = PageRef | RemoteSegment


def share_epochs(segments: Iterable[RemoteSegment]) -> None:
    """Make equal `leader_epochs` share one object. Successive segments usually have equal epochs, and
    separate copies would take a quarter of an entry's memory."""
    known: dict[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]] = {}
    for segment in segments:
        epochs = segment.leader_epochs
        if known.setdefault(epochs, epochs) is not epochs:
            force_setattr(segment, "leader_epochs", known[epochs])


class DroppedObject(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """An object that leaves the manifest. `leader_epoch`, `log_bytes`, `segments`: as in
    `delete_queue.QueuedDelete`."""

    uuid: uuid.UUID
    is_page: bool
    base_offset: int
    last_offset: int
    leader_epoch: int
    log_bytes: int = 0
    segments: int = 1


class Record(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag_field="type", gc=False):
    """Base of all records. The first element of the array is the record's number, `tag`. Never reuse one; a
    retired record keeps its class."""


class NoOp(Record, frozen=True, array_like=True, kw_only=True, tag=0):
    """The first entry of a new leader (Raft paper, section 8)."""


class Endpoint(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The address of a broker's listener for clients. `protocol`: its security protocol."""

    name: str
    host: str
    port: int
    protocol: str


class BrokerRegistration(Record, frozen=True, array_like=True, kw_only=True, tag=1):
    """A broker as the command RegisterBroker named it, and its epoch; the base of its state in the image.
    `host`, `port`: of the listener for other brokers."""

    broker_id: int
    broker_epoch: int
    incarnation: uuid.UUID
    host: str
    port: int
    admin_url: str
    rack: str | None = None
    directories: tuple[uuid.UUID, ...] = ()
    min_in_sync: int = 1  # min.insync.replicas of its configuration file
    unclean_election: bool = False  # unclean.leader.election.enable of its configuration file
    formats: tuple[int, int] = (1, 1)  # lowest and highest format version that it supports
    keeps_epochs: bool = False  # it records broker epochs in its directories (KIP-966)


class BrokerUnregistered(Record, frozen=True, array_like=True, kw_only=True, tag=2):
    broker_id: int


class BrokerFencing(Record, frozen=True, array_like=True, kw_only=True, tag=3):
    broker_id: int
    broker_epoch: int
    fenced: bool


class ControlledShutdownStarted(Record, frozen=True, array_like=True, kw_only=True, tag=4):
    """Controlled shutdown (KIP-631): the broker leads no partition and is in no in-sync set until it
    registers again."""

    broker_id: int
    broker_epoch: int


class TopicCreated(Record, frozen=True, array_like=True, kw_only=True, tag=10):
    topic_id: uuid.UUID
    name: str


class TopicDeleted(Record, frozen=True, array_like=True, kw_only=True, tag=11):
    """Removes a topic, its settings and its manifests."""

    topic_id: uuid.UUID
    at_ms: int
    whole: bool = False
    """Whether the topic enters the delete queue as one entry. Records of earlier versions queued one entry
    for each object, and snapshots may still contain these."""


class PartitionRecord(Record, frozen=True, array_like=True, tag=12):
    """The complete state of one partition, which replaces the previous one; the image keeps it as it is.

    `in_sync` is never empty: its last member stays even if it is down. The `eligible` leader replicas
    (KIP-966) left it while it was below min.insync.replicas, so they have all committed records too.
    """

    topic_id: uuid.UUID
    partition: int
    replicas: tuple[int, ...]  # the preferred leader first
    in_sync: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    eligible: tuple[int, ...] = ()
    last_known_leader: int = NO_LEADER  # the last leader, if the partition has no leader now
    adding: tuple[int, ...] = ()  # replicas that a reassignment (KIP-455) adds
    removing: tuple[int, ...] = ()  # replicas that it removes once all others are in sync
    offline: tuple[int, ...] = ()  # their disk has failed (KIP-858), until their broker registers again
    emptied: tuple[int, ...] = ()  # they restarted with an empty log and have not been in sync since
    full: tuple[int, ...] = ()  # their disk is full: they accept no records

    @property
    def is_reassigned(self) -> bool:
        return bool(self.adding or self.removing)


class ConfigRecord(Record, frozen=True, array_like=True, kw_only=True, tag=20):
    """Sets one setting, or removes it (value None).

    `name`: topic, broker id, group id or client metrics subscription; for the cluster scope "", or the name
    under which `balance_plan` keeps its state.
    """

    scope: ConfigScope
    name: str
    key: str
    value: str | None


class QuotaRecord(Record, frozen=True, array_like=True, kw_only=True, tag=21):
    """Sets one quota of an entity, or removes it (value None)."""

    entity: QuotaEntity
    key: str
    value: float | None


class ProducerIdsRecord(Record, frozen=True, array_like=True, kw_only=True, tag=30):
    """Ids below `next_id` are allocated; the block that ends there went to `broker_id`."""

    broker_id: int
    next_id: int


class CopyStarted(Record, frozen=True, array_like=True, kw_only=True, tag=40):
    """Committed before the first PUT, so that no object can be an orphan. Offsets are inclusive."""

    topic_id: uuid.UUID
    partition: int
    uuid: uuid.UUID
    base_offset: int
    last_offset: int
    leader_epoch: int
    at_ms: int
    replaces: bool = False  # it will replace segments of these offsets
    loads: bool = False  # a bulk load may add it (SegmentsLoaded)


class CopyFinished(Record, frozen=True, array_like=True, kw_only=True, tag=41):
    topic_id: uuid.UUID
    partition: int
    segment: RemoteSegment


class CopyAbandoned(Record, frozen=True, array_like=True, kw_only=True, tag=42):
    """The copy will not finish. Its objects go to the delete queue."""

    topic_id: uuid.UUID
    partition: int
    uuid: uuid.UUID
    at_ms: int


class LogStartMoved(Record, frozen=True, array_like=True, kw_only=True, tag=43):
    """Retention or DeleteRecords: entries completely below the offset move to the delete queue."""

    topic_id: uuid.UUID
    partition: int
    log_start_offset: int
    at_ms: int


class RemoteDeleted(Record, frozen=True, array_like=True, kw_only=True, tag=44):
    """The objects of these queued deletions are gone from the object store; they leave the queue."""

    uuids: tuple[uuid.UUID, ...]


class EntriesSpilled(Record, frozen=True, array_like=True, kw_only=True, tag=45):
    """The oldest entries are now in a page in the bucket; the quorum keeps only a reference to it."""

    topic_id: uuid.UUID
    partition: int
    page: PageRef


class SpillStarted(Record, frozen=True, array_like=True, kw_only=True, tag=46):
    """Committed before a page is put, so that it cannot be an orphan: the page is in the delete queue, with
    `expires_ms` as its time, until EntriesSpilled names it. Offsets are inclusive."""

    topic_id: uuid.UUID
    partition: int
    uuid: uuid.UUID
    base_offset: int
    last_offset: int
    leader_epoch: int
    expires_ms: int


class RemoteDeletesStarted(Record, frozen=True, array_like=True, kw_only=True, tag=47):
    """The objects of these queued deletions may be deleted from now on, so no manifest may name them again.
    Without ids, the record only advances the quorum's time."""

    uuids: tuple[uuid.UUID, ...]
    at_ms: int


class RemoteLogDropped(Record, frozen=True, array_like=True, kw_only=True, tag=48):
    """Tiering was switched off (KIP-950): everything remote moves to the delete queue, and the log starts at
    the offset, where the leader's local log starts."""

    topic_id: uuid.UUID
    partition: int
    log_start_offset: int
    at_ms: int


class RemoteLogDiverged(Record, frozen=True, array_like=True, kw_only=True, tag=53):
    """After an unclean election, the new leader's log has other records than the manifest entries from this
    base offset on. They move to the delete queue, and the next copy starts there."""

    topic_id: uuid.UUID
    partition: int
    from_offset: int
    at_ms: int


class ManifestAdopted(Record, frozen=True, array_like=True, kw_only=True, tag=54):
    """After the quorum was recovered, the elected leader has read the manifest in the bucket: the partition's
    manifest now consists of these nodes (docs/adr/0035). Objects that drop out enter the delete queue, unless
    a page may still name them."""

    topic_id: uuid.UUID
    partition: int
    log_start_offset: int
    pages: tuple[PageRef, ...]
    entries: tuple[RemoteSegment, ...]
    at_ms: int


class RemoteLogSpliced(Record, frozen=True, array_like=True, kw_only=True, tag=60):
    """New pages and entries replace successive ones of the manifest, with the same range of offsets, except
    that offsets below the log start may drop out. `dropped` objects enter the delete queue. `finished`: ids
    of announced objects that the manifest now lists. Since format version 2."""

    topic_id: uuid.UUID
    partition: int
    replaced: tuple[uuid.UUID, ...]
    pages: tuple[PageRef, ...]
    entries: tuple[RemoteSegment, ...]
    finished: tuple[uuid.UUID, ...]
    dropped: tuple[DroppedObject, ...]
    at_ms: int


class SegmentsLoaded(Record, frozen=True, array_like=True, kw_only=True, tag=61):
    """A bulk load adds segments at the end of the manifest. All other copies that loads have started enter
    the delete queue. The same log entry has the PartitionRecord of the next leader epoch: each leader of it
    moves its log end to the end of the last segment first. Since format version 2."""

    topic_id: uuid.UUID
    partition: int
    load_id: uuid.UUID
    segments: tuple[RemoteSegment, ...]
    at_ms: int


class ScramCredential(Record, frozen=True, array_like=True, kw_only=True, tag=62):
    """Sets one credential of a user, or removes it (verifier None). Since format version 3."""

    user: str
    mechanism: ScramMechanism
    verifier: ScramVerifier | None


class AclAdded(Record, frozen=True, array_like=True, kw_only=True, tag=63):
    """Since format version 3."""

    entry: AccessControlEntry


class AclRemoved(Record, frozen=True, array_like=True, kw_only=True, tag=64):
    """Since format version 3."""

    entry: AccessControlEntry


class BrokerEndpoints(Record, frozen=True, array_like=True, kw_only=True, tag=65):
    """All listeners of the broker that has just registered, if it has others than PLAINTEXT. Since format
    version 3."""

    broker_id: int
    endpoints: tuple[Endpoint, ...]


class TokenRecord(Record, frozen=True, array_like=True, kw_only=True, tag=66):
    """Adds a delegation token, or changes when it expires. Since format version 3."""

    token: DelegationToken


class TokenRemoved(Record, frozen=True, array_like=True, kw_only=True, tag=67):
    """Since format version 3."""

    token_id: str


class FormatVersion(Record, frozen=True, array_like=True, kw_only=True, tag=50):
    """Later records and snapshots may use the features of this format version (KIP-584)."""

    version: int


class FeatureLevel(Record, frozen=True, array_like=True, kw_only=True, tag=55):
    """Sets the level of one of Kafka's features (KIP-584). None: that of a cluster which never set one."""

    name: str
    level: int | None


AnyRecord = (
    NoOp
    | BrokerRegistration
    | BrokerUnregistered
    | BrokerFencing
    | ControlledShutdownStarted
    | TopicCreated
    | TopicDeleted
    | PartitionRecord
    | ConfigRecord
    | QuotaRecord
    | ProducerIdsRecord
    | CopyStarted
    | CopyFinished
    | CopyAbandoned
    | LogStartMoved
    | RemoteDeleted
    | EntriesSpilled
    | SpillStarted
    | RemoteDeletesStarted
    | RemoteLogDropped
    | RemoteLogDiverged
    | ManifestAdopted
    | RemoteLogSpliced
    | SegmentsLoaded
    | ScramCredential
    | AclAdded
    | AclRemoved
    | BrokerEndpoints
    | TokenRecord
    | TokenRemoved
    | FormatVersion
    | FeatureLevel
)

TIMESTAMPED_RECORDS = (
    TopicDeleted,
    CopyStarted,
    CopyAbandoned,
    LogStartMoved,
    RemoteDeletesStarted,
    RemoteLogDropped,
    RemoteLogDiverged,
    ManifestAdopted,
    RemoteLogSpliced,
    SegmentsLoaded,
)
"""Records with the quorum's time in `at_ms`."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[AnyRecord, ...])


def encode_records(records: tuple[AnyRecord, ...]) -> bytes:
    """One log entry's payload: a msgpack array of records."""
    return _encoder.encode(records)


def decode_records(payload: bytes | memoryview) -> tuple[AnyRecord, ...]:
    """Raises msgspec.ValidationError or DecodeError for an invalid payload."""
    return _decoder.decode(payload)
