"""`evolve` applies a record to an image and returns the new image.

Called by every node for committed records, and by the leader for proposed ones on its draft image. A record
that does not fit the image cannot be the result of `decide`: it raises InvariantViolation, and the node
stops. An object that leaves a manifest enters the delete queue in the same step, so no object is ever
orphaned.
"""

from collections.abc import Iterable, Mapping
from itertools import groupby, pairwise
from typing import TypeVar
from uuid import UUID

from immutables import Map
from msgspec.structs import asdict, replace

from tierlog.base.safeguards import safeguard
from tierlog.base.types import InvariantViolation, TopicIdPartition, require
from tierlog.metadata import records as r
from tierlog.metadata.delete_queue import WITH_SEGMENTS, DeletedTopic, Deletion, QueuedDelete
from tierlog.metadata.image import (
    BrokerImage,
    ClusterImage,
    Load,
    RemotePartition,
    StartedCopy,
    TopicImage,
)
from tierlog.metadata.scram_users import (
    with_credential,
)

LOADS_KEPT = 16
"""The newest bulk loads of a partition whose ids are known."""

K = TypeVar("K")
V = TypeVar("V")


def apply_entry(image: ClusterImage, index: int, records: Iterable[r.AnyRecord]) -> ClusterImage:
    """Apply the records of one log entry."""
    require(index == image.index + 1, f"entry {index} applied to the image as of {image.index}")
    return replace(evolve_all(image, records), index=index)


def evolve_all(image: ClusterImage, records: Iterable[r.AnyRecord]) -> ClusterImage:
    """Apply records in order. Successive records of partitions or ACLs are applied together: one by one, each
    partition record would copy all partitions of its topic, and a lost broker changes thousands. Each ACL
    would copy all prefixes."""
    for kind, run in groupby(records, type):
        if kind is r.PartitionRecord:
            changes: dict[UUID, list[r.PartitionRecord]] = {}
            for record in run:
                if isinstance(record, r.PartitionRecord):
                    changes.setdefault(record.topic_id, []).append(record)
            image = _partitions(image, changes)
        elif kind is r.AclAdded:
            entries = [record.entry for record in run if isinstance(record, r.AclAdded)]
            image = replace(image, acls=image.acls.with_entries(entries))
        elif kind is r.AclRemoved:
            entries = [record.entry for record in run if isinstance(record, r.AclRemoved)]
            image = replace(image, acls=image.acls.without_entries(entries))
        else:
            for record in run:
                image = evolve(image, record)
    return image


def evolve(image: ClusterImage, record: r.AnyRecord) -> ClusterImage:
    image = _evolve(image, record)
    at_ms = record.at_ms if isinstance(record, r.TIMESTAMPED_RECORDS) else 0
    time_ms = max(image.time_ms, at_ms) if image.delete_queue else 0  # only the delete queue uses it
    return image if time_ms == image.time_ms else replace(image, time_ms=time_ms)


def _evolve(image: ClusterImage, record: r.AnyRecord) -> ClusterImage:
    match record:
        case r.NoOp():
            return image
        case r.BrokerRegistration():
            return _register_broker(image, record)
        case r.BrokerEndpoints():
            return _set_endpoints(image, record)
        case r.BrokerUnregistered():
            return replace(image, brokers=image.brokers.delete(record.broker_id))
        case r.BrokerFencing():
            return _fence_broker(image, record)
        case r.ControlledShutdownStarted():
            return _start_controlled_shutdown(image, record)
        case r.TopicCreated():
            return _create_topic(image, record)
        case r.TopicDeleted():
            return _delete_topic(image, record)
        case r.PartitionRecord():
            return _partitions(image, {record.topic_id: [record]})
        case r.ConfigRecord():
            owner = record.scope, record.name
            return replace(image, configs=_with_value(image.configs, owner, record.key, record.value))
        case r.QuotaRecord():
            return replace(image, quotas=_with_value(image.quotas, record.entity, record.key, record.value))
        case r.ProducerIdsRecord():
            return replace(image, next_producer_id=record.next_id)
        case r.CopyStarted():
            return _copy_started(image, record)
        case r.CopyFinished():
            return _copy_finished(image, record)
        case r.CopyAbandoned():
            return _copy_abandoned(image, record)
        case r.LogStartMoved():
            return _log_start_moved(image, record)
        case r.RemoteDeleted():
            return _remote_deleted(image, record)
        case r.EntriesSpilled():
            return _entries_spilled(image, record)
        case r.SpillStarted():
            return _spill_started(image, record)
        case r.RemoteDeletesStarted():
            return _remote_deletes_started(image, record)
        case r.RemoteLogDropped():
            return _remote_log_dropped(image, record)
        case r.RemoteLogDiverged():
            return _remote_log_diverged(image, record)
        case r.ManifestAdopted():
            return _manifest_adopted(image, record)
        case r.RemoteLogSpliced():
            return _remote_log_spliced(image, record)
        case r.SegmentsLoaded():
            return _segments_loaded(image, record)
        case r.ScramCredential():
            users = with_credential(image.scram_users, record.user, record.mechanism, record.verifier)
            return replace(image, scram_users=users)
        case r.AclAdded():
            return replace(image, acls=image.acls.with_entries([record.entry]))
        case r.AclRemoved():
            return replace(image, acls=image.acls.without_entries([record.entry]))
        case r.TokenRecord():
            return replace(image, tokens=image.tokens.set(record.token.token_id, record.token))
        case r.TokenRemoved():
            return replace(image, tokens=image.tokens.delete(record.token_id))
        case r.FormatVersion():
            return replace(image, format_version=record.version)
        case r.FeatureLevel():
            return _set_feature_level(image, record)


def _set_feature_level(image: ClusterImage, record: r.FeatureLevel) -> ClusterImage:
    levels = image.feature_levels
    if record.level is not None:
        levels = levels.set(record.name, record.level)
    elif record.name in levels:
        levels = levels.delete(record.name)
    return replace(image, feature_levels=levels)


def _register_broker(image: ClusterImage, record: r.BrokerRegistration) -> ClusterImage:
    """A broker starts fenced (KIP-631); a BrokerFencing record unfences it. A repeated registration of the
    same process does not end its controlled shutdown."""
    known = image.brokers.get(record.broker_id)
    broker = BrokerImage(
        **asdict(record),
        fenced=True,
        stopping=known is not None and known.stopping and known.broker_epoch == record.broker_epoch,
        served_epoch=-1 if known is None else known.served_epoch,
    )
    return replace(image, brokers=image.brokers.set(record.broker_id, broker))


def _set_endpoints(image: ClusterImage, record: r.BrokerEndpoints) -> ClusterImage:
    broker = image.brokers.get(record.broker_id)
    if broker is None:
        raise InvariantViolation(f"broker {record.broker_id} has endpoints but is not registered")
    broker = replace(broker, endpoints=record.endpoints)
    return replace(image, brokers=image.brokers.set(record.broker_id, broker))


def _fence_broker(image: ClusterImage, record: r.BrokerFencing) -> ClusterImage:
    broker = image.brokers.get(record.broker_id)
    if broker is None or broker.broker_epoch != record.broker_epoch:
        return image  # about an earlier registration
    served_epoch = broker.served_epoch
    if not record.fenced:  # an older tierlog, or a broker without a secret, records no epoch
        served_epoch = broker.broker_epoch if broker.keeps_epochs else -1
    broker = replace(broker, fenced=record.fenced, served_epoch=served_epoch)
    return replace(image, brokers=image.brokers.set(record.broker_id, broker))


def _start_controlled_shutdown(image: ClusterImage, record: r.ControlledShutdownStarted) -> ClusterImage:
    broker = image.brokers.get(record.broker_id)
    if broker is None or broker.broker_epoch != record.broker_epoch:
        return image  # about an earlier registration
    return replace(image, brokers=image.brokers.set(record.broker_id, replace(broker, stopping=True)))


def _create_topic(image: ClusterImage, record: r.TopicCreated) -> ClusterImage:
    require(record.name not in image.topic_ids, f"topic {record.name} created twice")
    topic = TopicImage(topic_id=record.topic_id, name=record.name, partitions=())
    return replace(
        image,
        topics=image.topics.set(record.topic_id, topic),
        topic_ids=image.topic_ids.set(record.name, record.topic_id),
    )


def _delete_topic(image: ClusterImage, record: r.TopicDeleted) -> ClusterImage:
    topic = image.topics.get(record.topic_id)
    require(topic is not None, f"deleted topic {record.topic_id} does not exist")
    if topic is None:
        return image
    configs = image.configs
    keys = [TopicIdPartition(topic.topic_id, number) for number in range(len(topic.partitions))]
    gone = {key: image.remote[key] for key in keys if key in image.remote}
    if (r.ConfigScope.TOPIC, topic.name) in configs:
        configs = configs.delete((r.ConfigScope.TOPIC, topic.name))
    leader_epochs = [partition.leader_epoch for partition in topic.partitions]
    return replace(
        image,
        first_leader_epoch=max([image.first_leader_epoch, *leader_epochs]),
        topics=image.topics.delete(topic.topic_id),
        topic_ids=image.topic_ids.delete(topic.name),
        configs=configs,
        remote=_without(image.remote, gone),
        unread_manifests=_without(
            image.unread_manifests, [key for key in keys if key in image.unread_manifests]
        ),
        delete_queue=image.delete_queue.with_deletes(_topic_deletions(topic, gone, record)),
    )


@safeguard("the objects of a deleted topic are deleted")
def _topic_deletions(
    topic: TopicImage, gone: Mapping[TopicIdPartition, RemotePartition], record: r.TopicDeleted
) -> list[Deletion]:
    if not gone:
        return []
    if record.whole:
        partitions = len(topic.partitions)
        return [DeletedTopic(uuid=topic.topic_id, partitions=partitions, queued_ms=record.at_ms)]
    return [
        line
        for key, one in gone.items()
        for line in _queued(key, (*one.pages, *one.entries, *one.started), record.at_ms)
    ]


def _without(owners: Map[K, V], keys: Iterable[K]) -> Map[K, V]:
    left = owners.mutate()
    for key in keys:
        del left[key]
    return left.finish()


def _partitions(image: ClusterImage, changes: Mapping[UUID, Iterable[r.PartitionRecord]]) -> ClusterImage:
    """Hot path of a lost broker, so messages are formatted only on a failure."""
    topics = image.topics.mutate()
    for topic_id, records in changes.items():
        topic = topics.get(topic_id)
        if topic is None:
            raise InvariantViolation(f"partition of unknown topic {topic_id}")
        partitions = list(topic.partitions)
        for record in records:
            _put(topic, partitions, record)
        topics[topic_id] = TopicImage(topic_id=topic_id, name=topic.name, partitions=tuple(partitions))
    return replace(image, topics=topics.finish())


def _put(topic: TopicImage, partitions: list[r.PartitionRecord], record: r.PartitionRecord) -> None:
    number = record.partition
    if record.topic_id is not topic.topic_id:  # one object for all partitions: a decoded record has its own
        record = replace(record, topic_id=topic.topic_id)
    if number == len(partitions):
        partitions.append(record)
        return
    if not 0 <= number < len(partitions):
        raise InvariantViolation(f"{topic.name}: partition {number} leaves a gap")
    before = partitions[number]
    if record.leader_epoch < before.leader_epoch or record.partition_epoch < before.partition_epoch:
        raise InvariantViolation(f"{topic.name}-{number}: an epoch decreased")
    partitions[number] = record


def _with_value(owners: Map[K, Map[str, V]], owner: K, key: str, value: V | None) -> Map[K, Map[str, V]]:
    """Set one value of an owner, or remove it (None). An owner without values has no entry."""
    values: Map[str, V] = owners.get(owner, Map())
    if value is not None:
        values = values.set(key, value)
    elif key in values:
        values = values.delete(key)
    if values:
        return owners.set(owner, values)
    return owners.delete(owner) if owner in owners else owners


def _copy_started(image: ClusterImage, record: r.CopyStarted) -> ClusterImage:
    key = TopicIdPartition(record.topic_id, record.partition)
    remote = image.remote.get(key, RemotePartition())
    copy = StartedCopy(
        uuid=record.uuid,
        base_offset=record.base_offset,
        last_offset=record.last_offset,
        leader_epoch=record.leader_epoch,
        at_ms=record.at_ms,
        replaces=record.replaces,
        loads=record.loads,
    )
    return _with_remote(image, key, replace(remote, started=(*remote.started, copy)))


def _copy_finished(image: ClusterImage, record: r.CopyFinished) -> ClusterImage:
    key, segment = TopicIdPartition(record.topic_id, record.partition), record.segment
    remote = image.remote.get(key, RemotePartition())
    require(
        remote.end_offset in (None, segment.base_offset),
        f"{key}: a finished copy at {segment.base_offset} leaves a gap",
    )
    r.share_epochs((*remote.entries[-1:], segment))
    return _with_remote(
        image,
        key,
        replace(
            remote,
            entries=(*remote.entries, segment),
            started=tuple(copy for copy in remote.started if copy.uuid != segment.uuid),
            copied_end_offset=segment.end_offset,
        ),
    )


@safeguard("abandoned uploads are deleted")
def _copy_abandoned(image: ClusterImage, record: r.CopyAbandoned) -> ClusterImage:
    key = TopicIdPartition(record.topic_id, record.partition)
    remote = image.remote.get(key, RemotePartition())
    dropped = [copy for copy in remote.started if copy.uuid == record.uuid]
    started = tuple(copy for copy in remote.started if copy.uuid != record.uuid)
    return _with_remote(image, key, replace(remote, started=started), _queued(key, dropped, record.at_ms))


@safeguard("segments below the log start are deleted")
def _log_start_moved(image: ClusterImage, record: r.LogStartMoved) -> ClusterImage:
    key, start = TopicIdPartition(record.topic_id, record.partition), record.log_start_offset
    remote = image.remote.get(key, RemotePartition())
    require(start >= remote.log_start_offset, f"{key}: the log start decreased to {start}")
    gone_pages = [page for page in remote.pages if page.last_offset < start]
    gone_entries = [entry for entry in remote.entries if entry.last_offset < start]
    kept = replace(
        remote,
        log_start_offset=start,
        pages=remote.pages[len(gone_pages) :],
        entries=remote.entries[len(gone_entries) :],
    )
    return _with_remote(image, key, kept, _queued(key, [*gone_pages, *gone_entries], record.at_ms))


@safeguard("objects of a dropped remote log are deleted")
def _remote_log_dropped(image: ClusterImage, record: r.RemoteLogDropped) -> ClusterImage:
    """The state is that of a partition whose remote segments all ended at the log start: copies continue
    there if tiering is switched on again."""
    key, start = TopicIdPartition(record.topic_id, record.partition), record.log_start_offset
    remote = image.remote.get(key, RemotePartition())
    require(start >= remote.log_start_offset, f"{key}: the log start decreased to {start}")
    kept = RemotePartition(log_start_offset=start, copied_end_offset=start, loads=remote.loads)
    gone = _queued(key, (*remote.pages, *remote.entries, *remote.started), record.at_ms)
    return _with_remote(image, key, kept, gone)


def _remote_log_diverged(image: ClusterImage, record: r.RemoteLogDiverged) -> ClusterImage:
    key, start = TopicIdPartition(record.topic_id, record.partition), record.from_offset
    remote = image.remote.get(key, RemotePartition())
    kept = tuple(entry for entry in remote.entries if entry.end_offset <= start)
    gone = remote.entries[len(kept) :]
    require(bool(gone) and gone[0].base_offset == start, f"{key}: no manifest entry begins at {start}")
    loads = tuple(load for load in remote.loads if load.end_offset <= start)
    left = replace(remote, entries=kept, copied_end_offset=start, loads=loads)
    return _with_remote(image, key, left, _queued(key, gone, record.at_ms))


def _manifest_adopted(image: ClusterImage, record: r.ManifestAdopted) -> ClusterImage:
    """Deletes nothing that may be in use: neither what the pages of the new manifest cover, nor a copy at its
    end that the lost majority may have finished. The bucket scrubber finds what is left over."""
    key, start = TopicIdPartition(record.topic_id, record.partition), record.log_start_offset
    remote = image.remote.get(key, RemotePartition())
    require(start >= remote.log_start_offset, f"{key}: the log start decreased to {start}")
    copied = remote.copied_end_offset
    adopted = RemotePartition(
        log_start_offset=start,
        pages=record.pages,
        entries=record.entries,
        copied_end_offset=None if copied is None else min(copied, start),
    )
    if adopted.end_offset is not None:
        adopted = replace(adopted, copied_end_offset=adopted.end_offset)
    loads = tuple(load for load in remote.loads if load.end_offset <= (adopted.end_offset or start))
    adopted = replace(adopted, loads=loads)
    r.share_epochs(adopted.entries)
    listed = {node.uuid for node in adopted.nodes}
    deleted = [one for one in listed if image.is_being_deleted(one)]
    require(not deleted, f"{key}: {deleted} are being deleted")
    first, end = record.pages[-1].end_offset if record.pages else 0, adopted.end_offset or 0
    before: tuple[r.PageRef | r.RemoteSegment | StartedCopy, ...] = (*remote.nodes, *remote.started)
    gone = [
        one
        for one in before
        if one.uuid not in listed
        and (one.last_offset < start or first <= one.base_offset <= one.last_offset < end)
    ]
    unread = image.unread_manifests
    image = replace(
        image,
        delete_queue=image.delete_queue.without(listed),
        unread_manifests=_without(unread, [key] if key in unread else []),
    )
    return _with_remote(image, key, adopted, _queued(key, gone, record.at_ms))


def _remote_deleted(image: ClusterImage, record: r.RemoteDeleted) -> ClusterImage:
    left = image.delete_queue.without(record.uuids)
    return replace(image, delete_queue=left, deleting=image.deleting.difference(record.uuids))


def _remote_deletes_started(image: ClusterImage, record: r.RemoteDeletesStarted) -> ClusterImage:
    """Ids that are not in the queue have no effect."""
    queued = [uuid for uuid in record.uuids if uuid in image.delete_queue]
    return replace(image, deleting=image.deleting.union(queued))


def _spill_started(image: ClusterImage, record: r.SpillStarted) -> ClusterImage:
    line = QueuedDelete(
        uuid=record.uuid,
        is_page=True,
        topic_id=record.topic_id,
        partition=record.partition,
        base_offset=record.base_offset,
        last_offset=record.last_offset,
        leader_epoch=record.leader_epoch,
        queued_ms=record.expires_ms,
        segments=0,
    )
    return replace(image, delete_queue=image.delete_queue.with_deletes([line]))


def _entries_spilled(image: ClusterImage, record: r.EntriesSpilled) -> ClusterImage:
    key, page = TopicIdPartition(record.topic_id, record.partition), record.page
    remote = image.remote.get(key, RemotePartition())
    spilled, kept = remote.entries[: page.entries], remote.entries[page.entries :]
    require(not image.is_being_deleted(page.uuid), f"{key}: page {page.uuid} is being deleted")
    fits = (
        bool(spilled)
        and spilled[0].base_offset == page.base_offset
        and spilled[-1].last_offset == page.last_offset
    )
    require(fits, f"{key}: page {page.uuid} does not hold the oldest entries")
    image = _with_remote(image, key, replace(remote, pages=(*remote.pages, page), entries=kept))
    return replace(image, delete_queue=image.delete_queue.without([page.uuid]))


def _remote_log_spliced(image: ClusterImage, record: r.RemoteLogSpliced) -> ClusterImage:
    key = TopicIdPartition(record.topic_id, record.partition)
    remote = image.remote.get(key, RemotePartition())
    deleted = [one for one in record.finished if image.is_being_deleted(one)]
    require(not deleted, f"{key}: {deleted} are being deleted")
    spliced = _spliced(key, remote, record)
    finished = set(record.finished)
    kept = replace(
        remote,
        pages=tuple(node for node in spliced if isinstance(node, r.PageRef)),
        entries=tuple(node for node in spliced if isinstance(node, r.RemoteSegment)),
        started=tuple(copy for copy in remote.started if copy.uuid not in finished),
    )
    ordered = kept.nodes == spliced and all(two.level <= one.level for one, two in pairwise(kept.pages))
    require(ordered, f"{key}: an entry would come before a page, or a page before one of a higher level")
    r.share_epochs(kept.entries)
    image = replace(image, delete_queue=image.delete_queue.without(record.finished))
    return _with_remote(image, key, kept, _queued_of(key, record))


def _segments_loaded(image: ClusterImage, record: r.SegmentsLoaded) -> ClusterImage:
    key, segments = TopicIdPartition(record.topic_id, record.partition), record.segments
    remote = image.remote.get(key, RemotePartition())
    base, end = segments[0].base_offset, segments[-1].end_offset
    gaps = any(two.base_offset != one.end_offset for one, two in pairwise(segments))
    require(remote.end_offset in (None, base) and not gaps, f"{key}: the load at {base} leaves a gap")
    r.share_epochs((*remote.entries[-1:], *segments))
    added = {segment.uuid for segment in segments}
    unused = [copy for copy in remote.started if copy.loads and copy.uuid not in added]
    load = Load(
        load_id=record.load_id, base_offset=base, end_offset=end, leader_epoch=segments[0].leader_epoch
    )
    loaded = replace(
        remote,
        entries=(*remote.entries, *segments),
        started=tuple(copy for copy in remote.started if not copy.loads),
        copied_end_offset=end,
        loads=(*remote.loads, load)[-LOADS_KEPT:],
    )
    return _with_remote(image, key, loaded, _queued(key, unused, record.at_ms))


@safeguard("replaced segments are deleted")
def _queued_of(key: TopicIdPartition, record: r.RemoteLogSpliced) -> list[QueuedDelete]:
    return [
        QueuedDelete(
            uuid=one.uuid,
            is_page=one.is_page,
            topic_id=key.topic_id,
            partition=key.partition,
            base_offset=one.base_offset,
            last_offset=one.last_offset,
            leader_epoch=one.leader_epoch,
            queued_ms=record.at_ms,
            log_bytes=one.log_bytes,
            segments=one.segments,
        )
        for one in record.dropped
    ]


def _spliced(
    key: TopicIdPartition, remote: RemotePartition, record: r.RemoteLogSpliced
) -> tuple[r.ManifestNode, ...]:
    nodes = remote.nodes
    new: tuple[r.ManifestNode, ...] = (*record.pages, *record.entries)
    ids = [node.uuid for node in nodes]
    first = ids.index(record.replaced[0]) if record.replaced and record.replaced[0] in ids else 0
    end = first + len(record.replaced)
    require(ids[first:end] == list(record.replaced), f"{key}: the manifest has no such run {record.replaced}")
    old = nodes[first:end]
    require(bool(old and new), f"{key}: nothing replaces {record.replaced}")
    base, is_first = old[0].base_offset, first == 0
    may_begin = base <= new[0].base_offset <= (max(base, remote.log_start_offset) if is_first else base)
    gaps = any(two.base_offset != one.end_offset for one, two in pairwise(new))
    fits = may_begin and new[-1].last_offset == old[-1].last_offset and not gaps
    require(fits, f"{key}: the nodes from {new[0].base_offset} have another range than {record.replaced}")
    return *nodes[:first], *new, *nodes[end:]


def _with_remote(
    image: ClusterImage, key: TopicIdPartition, remote: RemotePartition, dropped: Iterable[QueuedDelete] = ()
) -> ClusterImage:
    require(image.partition(*key) is not None, f"remote state of unknown partition {key}")
    queue = image.delete_queue.with_deletes(dropped)
    return replace(image, remote=image.remote.set(key, remote), delete_queue=queue)


def _queued(
    key: TopicIdPartition, dropped: Iterable[r.PageRef | r.RemoteSegment | StartedCopy], now_ms: int
) -> list[QueuedDelete]:
    return [
        QueuedDelete(
            uuid=one.uuid,
            is_page=isinstance(one, r.PageRef),
            topic_id=key.topic_id,
            partition=key.partition,
            base_offset=one.base_offset,
            last_offset=one.last_offset,
            leader_epoch=WITH_SEGMENTS if isinstance(one, r.PageRef) else one.leader_epoch,
            queued_ms=now_ms,
            log_bytes=0 if isinstance(one, StartedCopy) else one.log_bytes,
            segments=one.entries if isinstance(one, r.PageRef) else 1,
        )
        for one in dropped
    ]
