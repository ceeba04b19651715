"""Encodes a cluster image as the bytes of a snapshot, and back. Equal images give equal bytes.

An image is written in the oldest version that can represent it, so that a downgraded node reads it unless it
would lose information. The format (msgpack arrays) is in docs/formats/metadata.md; tests/golden keeps a file
of every version. Storage and transport add the checksums.
"""

import uuid
from collections.abc import Iterable, Mapping

import msgspec
from immutables import Map
from msgspec.structs import asdict, astuple, fields, replace

from tierlog.base.types import TopicIdPartition
from tierlog.metadata.acl_index import (
    index_of,
)
from tierlog.metadata.acls import (
    AccessControlEntry,
)
from tierlog.metadata.delegation_tokens import DelegationToken
from tierlog.metadata.delete_queue import DeletedTopic, DeleteQueue, QueuedDelete
from tierlog.metadata.image import BrokerImage, ClusterImage, RemotePartition, TopicImage
from tierlog.metadata.records import ConfigScope, Endpoint, PartitionRecord, QuotaEntity, share_epochs
from tierlog.metadata.scram import ScramMechanism, ScramVerifier

VERSION = 12


_SINCE_6 = frozenset({ConfigScope.GROUP, ConfigScope.CLIENT_METRICS})


class UnknownSnapshotVersion(ValueError):
    """A newer tierlog wrote this snapshot; this one cannot read it."""


class _RemoteLine(msgspec.Struct, frozen=True, array_like=True):
    topic_id: uuid.UUID
    partition: int
    remote: RemotePartition


class _UnreadLine(msgspec.Struct, frozen=True, array_like=True):
    topic_id: uuid.UUID
    partition: int
    known_index: int


class _ConfigLine(msgspec.Struct, frozen=True, array_like=True):
    scope: ConfigScope
    name: str
    settings: dict[str, str]


class _QuotaLine(msgspec.Struct, frozen=True, array_like=True):
    entity: QuotaEntity
    values: dict[str, float]


class _ScramLine(msgspec.Struct, frozen=True, array_like=True):
    user: str
    credentials: list[tuple[ScramMechanism, ScramVerifier]]


BROKER_FIELDS = (
    "broker_id",
    "broker_epoch",
    "incarnation",
    "host",
    "port",
    "admin_url",
    "rack",
    "fenced",
    "stopping",
    "directories",
    "min_in_sync",
    "unclean_election",
    "formats",
    "served_epoch",
    "keeps_epochs",
)
"""Fields of a broker in a snapshot, in order: those that an older version did not have come last."""

_IMPLIED = 2
"""A PartitionRecord begins with topic id and partition number, which a snapshot does not repeat."""


def _line_type(name: str, struct: type[msgspec.Struct], names: Iterable[str]) -> type[msgspec.Struct]:
    """A struct that is stored as an array of these fields of `struct`, in this order."""
    known = {field.name: field for field in fields(struct)}
    lines = [(one, known[one].type, known[one].default) for one in names]
    return msgspec.defstruct(name, lines, frozen=True, array_like=True, kw_only=True, gc=False)


_BrokerLine = _line_type("_BrokerLine", BrokerImage, BROKER_FIELDS)
_PartitionLine = _line_type(
    "_PartitionLine", PartitionRecord, [field.name for field in fields(PartitionRecord)[_IMPLIED:]]
)


class _TopicLine(msgspec.Struct, frozen=True, array_like=True):
    topic_id: uuid.UUID
    name: str
    partitions: list[_PartitionLine]  # type: ignore[valid-type]


class _Snapshot(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    version: int
    cluster_id: str
    index: int
    next_producer_id: int
    brokers: list[_BrokerLine]  # type: ignore[valid-type]
    topics: list[_TopicLine]
    configs: list[_ConfigLine]
    remote: list[_RemoteLine]
    delete_queue: list[QueuedDelete]


class _SnapshotSince2(_Snapshot, frozen=True, array_like=True, kw_only=True):
    quotas: list[_QuotaLine] = []
    format_version: int = 1


class _SnapshotSince7(_SnapshotSince2, frozen=True, array_like=True, kw_only=True):
    deleting: list[uuid.UUID] = []
    time_ms: int = 0


class _SnapshotSince8(_SnapshotSince7, frozen=True, array_like=True, kw_only=True):
    deleted_topics: list[DeletedTopic] = []


class _SnapshotSince10(_SnapshotSince8, frozen=True, array_like=True, kw_only=True):
    unread_manifests: list[_UnreadLine] = []


class _SnapshotSince11(_SnapshotSince10, frozen=True, array_like=True, kw_only=True):
    feature_levels: list[tuple[str, int]] = []


class _SnapshotWithFirstEpoch(_SnapshotSince11, frozen=True, array_like=True, kw_only=True):
    """It has no version of its own. A node of an earlier version ignores the field, and loses only where new
    partitions begin."""

    first_leader_epoch: int = 0


class _SnapshotSince12(_SnapshotWithFirstEpoch, frozen=True, array_like=True, kw_only=True):
    acls: list[AccessControlEntry] = []
    scram_users: list[_ScramLine] = []
    endpoints: list[tuple[int, tuple[Endpoint, ...]]] = []
    tokens: list[DelegationToken] = []


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_SnapshotSince12)


def encode_image(image: ClusterImage) -> bytes:
    queue = sorted(image.delete_queue.values(), key=lambda line: line.uuid.int)
    deleted_topics = [line for line in queue if isinstance(line, DeletedTopic)]
    first = _Snapshot(
        version=1,
        cluster_id=image.cluster_id,
        index=image.index,
        next_producer_id=image.next_producer_id,
        brokers=[_broker_line(image.brokers[broker_id]) for broker_id in sorted(image.brokers)],
        topics=[_topic_line(one) for one in sorted(image.topics.values(), key=lambda one: one.topic_id.int)],
        configs=[
            _ConfigLine(*key, dict(sorted(image.configs[key].items()))) for key in sorted(image.configs)
        ],
        remote=[_RemoteLine(*key, image.remote[key]) for key in sorted(image.remote, key=_partition_order)],
        delete_queue=[line for line in queue if isinstance(line, QueuedDelete)],
    )
    version = 9 if _has_format_2(image) else 8 if deleted_topics else _oldest_version(image)
    version = 11 if image.feature_levels else 10 if image.unread_manifests else version
    version = VERSION if _has_format_3(image) else version
    fields_of = max(version, 11) if image.first_leader_epoch else version
    if fields_of == 1:
        return _encoder.encode(first)
    quotas = [
        _QuotaLine(entity, dict(sorted(image.quotas[entity].items())))
        for entity in sorted(image.quotas, key=_quota_order)
    ]
    since_2 = _SnapshotSince2(
        **{**asdict(first), "version": version}, quotas=quotas, format_version=image.format_version
    )
    if fields_of < 7:
        return _encoder.encode(since_2)
    since_7 = _SnapshotSince7(**asdict(since_2), deleting=sorted(image.deleting), time_ms=image.time_ms)
    if fields_of < 8:
        return _encoder.encode(since_7)
    since_8 = _SnapshotSince8(**asdict(since_7), deleted_topics=deleted_topics)
    if fields_of < 10:
        return _encoder.encode(since_8)
    unread = sorted(image.unread_manifests, key=_partition_order)
    lines = [_UnreadLine(*key, image.unread_manifests[key]) for key in unread]
    since_10 = _SnapshotSince10(**asdict(since_8), unread_manifests=lines)
    if fields_of < 11:
        return _encoder.encode(since_10)
    levels = sorted(image.feature_levels.items())
    since_11 = _SnapshotSince11(**asdict(since_10), feature_levels=levels)
    if fields_of < 12 and not image.first_leader_epoch:
        return _encoder.encode(since_11)
    with_epoch = _SnapshotWithFirstEpoch(**asdict(since_11), first_leader_epoch=image.first_leader_epoch)
    if fields_of < 12:
        return _encoder.encode(with_epoch)
    acls = sorted(image.acls, key=lambda entry: entry.order)
    users = [_ScramLine(user, sorted(one.items())) for user, one in sorted(image.scram_users.items())]
    endpoints = [(one, broker.endpoints) for one, broker in sorted(image.brokers.items()) if broker.endpoints]
    tokens = [image.tokens[token_id] for token_id in sorted(image.tokens)]
    return _encoder.encode(
        _SnapshotSince12(
            **asdict(with_epoch), acls=acls, scram_users=users, endpoints=endpoints, tokens=tokens
        )
    )


def _has_format_3(image: ClusterImage) -> bool:
    """Whether a node that supports only format version 2 would lose ACLs, users, tokens or
    addresses."""
    return bool(image.acls or image.scram_users or image.tokens) or any(
        one.endpoints for one in image.brokers.values()
    )


def _has_format_2(image: ClusterImage) -> bool:
    """Whether a node that supports only format version 1 would lose part of the remote state."""
    if image.format_version < 2:
        return False
    return any(
        any(page.level for page in remote.pages)
        or any(copy.replaces or copy.loads for copy in remote.started)
        or remote.loads
        or not all(entry.fits_format_1 for entry in remote.entries)
        for remote in image.remote.values()
    ) or any(
        isinstance(line, QueuedDelete) and line.is_alone and not line.is_unfinished_page
        for line in image.delete_queue.values()
    )


def _oldest_version(image: ClusterImage) -> int:
    """An older version ignores the fields that were added later, so it is used only if they have their
    defaults."""
    if image.deleting or image.time_ms:
        return 7
    if any(scope in _SINCE_6 for scope, _ in image.configs):
        return 6
    partitions = [partition for topic in image.topics.values() for partition in topic.partitions]
    if any(partition.full for partition in partitions):
        return 5
    if any(partition.offline or partition.emptied for partition in partitions):
        return 4
    clustered = (
        image.format_version != 1
        or any(broker.stopping for broker in image.brokers.values())
        or any(partition.eligible or partition.adding or partition.removing for partition in partitions)
    )
    return 3 if clustered else 2 if image.quotas else 1


def _broker_line(broker: BrokerImage) -> msgspec.Struct:
    values = asdict(broker)
    return _BrokerLine(**{name: values[name] for name in BROKER_FIELDS})


def _broker(line: msgspec.Struct, endpoints: Mapping[int, tuple[Endpoint, ...]]) -> BrokerImage:
    broker = BrokerImage(**asdict(line))
    found = endpoints.get(broker.broker_id)
    return broker if found is None else replace(broker, endpoints=found)


def _topic_line(topic: TopicImage) -> _TopicLine:
    partitions = [astuple(partition)[_IMPLIED:] for partition in topic.partitions]
    return _TopicLine(topic.topic_id, topic.name, partitions)


def _topic(line: _TopicLine) -> TopicImage:
    topic_id = line.topic_id
    partitions = (
        PartitionRecord(topic_id, number, *astuple(one)) for number, one in enumerate(line.partitions)
    )
    return TopicImage(topic_id=topic_id, name=line.name, partitions=tuple(partitions))


def _partition_order(key: TopicIdPartition) -> tuple[int, int]:
    """Sort key: topic id and partition. Comparing numbers is ten times faster than comparing UUIDs."""
    return key.topic_id.int, key.partition


def _quota_order(entity: QuotaEntity) -> list[tuple[str, bool, str]]:
    return [(kind, name is not None, name or "") for kind, name in entity]


def decode_image(data: bytes | memoryview) -> ClusterImage:
    """Raises UnknownSnapshotVersion, or msgspec.DecodeError for an invalid snapshot."""
    snapshot = _decoder.decode(data)
    if snapshot.version > VERSION:
        raise UnknownSnapshotVersion(
            f"metadata snapshot version {snapshot.version}; this node reads up to {VERSION}"
        )
    for line in snapshot.remote:
        share_epochs(line.remote.entries)
    endpoints = dict(snapshot.endpoints)
    brokers = [_broker(line, endpoints) for line in snapshot.brokers]
    return ClusterImage(
        cluster_id=snapshot.cluster_id,
        index=snapshot.index,
        next_producer_id=snapshot.next_producer_id,
        brokers=Map({broker.broker_id: broker for broker in brokers}),
        topics=Map({line.topic_id: _topic(line) for line in snapshot.topics}),
        topic_ids=Map({line.name: line.topic_id for line in snapshot.topics}),
        configs=Map({(line.scope, line.name): Map(line.settings) for line in snapshot.configs}),
        remote=Map(
            {TopicIdPartition(line.topic_id, line.partition): line.remote for line in snapshot.remote}
        ),
        delete_queue=DeleteQueue([*snapshot.delete_queue, *snapshot.deleted_topics]),
        quotas=Map({line.entity: Map(line.values) for line in snapshot.quotas}),
        format_version=snapshot.format_version,
        feature_levels=Map(dict(snapshot.feature_levels)),
        first_leader_epoch=snapshot.first_leader_epoch,
        acls=index_of(snapshot.acls),
        scram_users=Map({line.user: Map(line.credentials) for line in snapshot.scram_users}),
        tokens=Map({token.token_id: token for token in snapshot.tokens}),
        deleting=frozenset(snapshot.deleting),
        unread_manifests=Map(
            {
                TopicIdPartition(line.topic_id, line.partition): line.known_index
                for line in snapshot.unread_manifests
            }
        ),
        time_ms=snapshot.time_ms,
    )
