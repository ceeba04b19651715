"""Manifest recovery: reads the manifest in the bucket before a replica leads, after `tierlog quorum recover`.

The recovered quorum may lack the newest segments of a manifest, whose local copies are gone. The bucket has
the manifest as of the leader's last write. The newer one of both is committed, or the bucket's if the
recovered one lists objects that are missing. Only then the replica leads, and the bucket's manifest is
written again (docs/adr/0035). Then the log is compared with it, as after an unclean election. A manifest that
cannot be read or committed is reported and tried again: the partition has no leader until then. Called by
app.py.
"""

import asyncio

import structlog
from msgspec.structs import replace

from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicIdPartition, TopicPartition
from tierlog.broker.replication.replica_events import ManifestUnread, ReplicaEvent
from tierlog.metadata.controller.commands import AdoptManifest
from tierlog.metadata.controller.remote import MAX_ENTRIES
from tierlog.metadata.delete_queue import QueuedDelete
from tierlog.metadata.image import ClusterImage, RemotePartition
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.protocol.errors import ErrorCode
from tierlog.tiering.format.manifest import ManifestRoot
from tierlog.tiering.manager import TierManager
from tierlog.tiering.object_store import ObjectStoreError

_log = structlog.get_logger("tierlog.tiering")

READS_AT_ONCE = 16
FIRST_BACKOFF_S = 0.2
BACKOFF_MAX_S = 5.0


class ManifestRecovery:
    def __init__(
        self,
        broker_id: int,
        metadata: MetadataClient,
        manager: TierManager,
        tasks: TaskGroup,
        *,
        has_store: bool = True,
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._manager = manager
        self._tasks = tasks
        self._has_store = has_store
        self._slots = asyncio.Semaphore(READS_AT_ONCE)
        self._running: set[ManifestUnread] = set()
        self.errors: dict[TopicPartition, str] = {}
        """Partitions that this broker does not lead yet, and why; "" before the first attempt has failed."""

    def on_replica_event(self, event: ReplicaEvent) -> None:
        if isinstance(event, ManifestUnread) and event not in self._running:
            self._running.add(event)
            self._tasks.spawn(f"manifest of {event.replica.name}", self._recover(event))

    async def _recover(self, event: ManifestUnread) -> None:
        name, backoff_s = event.replica.name, FIRST_BACKOFF_S
        self.errors[name] = ""
        try:
            while self._is_wanted(event):
                async with self._slots:
                    error = await self._attempt(event)
                if error is None:
                    return
                if error != self.errors[name]:
                    _log.error(
                        "manifest.recovery.unread",
                        partition=str(name),
                        error=error,
                    )
                self.errors[name] = error
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)
        finally:
            self._running.discard(event)
            if all(other.replica.name != name for other in self._running):
                self.errors.pop(name, None)

    def _is_wanted(self, event: ManifestUnread) -> bool:
        """Whether this broker is still elected in that epoch, and the manifest is still unread."""
        where, image = event.replica.id, self._metadata.image
        partition = image.partition(*where)
        if partition is None or where not in image.unread_manifests:
            return False
        return (partition.leader, partition.leader_epoch) == (self._broker_id, event.leader_epoch)

    async def _attempt(self, event: ManifestUnread) -> str | None:
        """Returns why the manifest was not committed; None if it was."""
        where = event.replica.id
        try:
            root = await self._read(where)
            image = self._metadata.image
            remote = image.remote_partition(*where)
            adopted = await choose_manifest(self._manager, image, where, root)
            _report(event, remote, adopted, root)
            command = AdoptManifest(
                topic_id=where.topic_id,
                partition=where.partition,
                broker_id=self._broker_id,
                leader_epoch=event.leader_epoch,
                log_start_offset=adopted.log_start_offset,
                pages=adopted.pages,
                entries=adopted.entries,
            )
            reply = await self._metadata.submit(command)
        except (ObjectStoreError, MetadataUnavailable) as failure:
            return str(failure)
        return None if reply.error is ErrorCode.NONE else reply.message or reply.error.name

    async def _read(self, where: TopicIdPartition) -> ManifestRoot | None:
        is_remote = self._metadata.image.remote_partition(*where).copied_end_offset is not None
        if not self._has_store and not is_remote:
            return None  # a cluster without a store uploads nothing
        return await self._manager.read_root(where)


def newer_manifest(remote: RemotePartition, root: ManifestRoot | None, known_index: int) -> RemotePartition:
    """The newer one of the recovered manifest and the one in the bucket. Pure.

    A root of an index up to `known_index` was written from a state that the recovered log contains. One of a
    later index may still be older than the recovered log, whose last entries may have been committed or not:
    then it ends before the recovered manifest.
    """
    if root is None or root.metadata_index <= known_index:
        return remote
    found = _manifest_of(root, remote)
    return found if _end_of(found) >= _end_of(remote) else remote


async def choose_manifest(
    manager: TierManager, image: ClusterImage, where: TopicIdPartition, root: ManifestRoot | None
) -> RemotePartition:
    """The newer manifest, unless that is the recovered one and an object of it is missing that the root does
    not list: then the root's, and the segments after it that exist.

    The last entries of the recovered log may never have been committed. If they finished a copy or replaced
    segments, the lost majority has abandoned the new objects, and deleted them. Objects that the root lists
    are not deleted before another root is written. Raises ObjectStoreError.
    """
    remote = image.remote_partition(*where)
    chosen = newer_manifest(remote, root, image.unread_manifests.get(where, image.index))
    if root is None or chosen is not remote:
        return chosen
    found = _manifest_of(root, remote)
    listed = {node.uuid for node in found.nodes}
    others = [node for node in remote.nodes if node.uuid not in listed]
    if not await manager.lacks_objects(where, others) or _lists_deletions(image, where, found):
        return remote
    entries, end = list(found.entries), _end_of(found)
    for entry in remote.entries:
        if entry.base_offset == end and not await manager.lacks_objects(where, (entry,)):
            entries.append(entry)
            end = entry.end_offset
    return replace(found, entries=tuple(entries[:MAX_ENTRIES]))


def _lists_deletions(image: ClusterImage, where: TopicIdPartition, found: RemotePartition) -> bool:
    """Whether a manifest lists what is being deleted, or has a page of its own that may name what is queued:
    only nodes of the manifest itself leave the delete queue when it is adopted."""
    known = {node.uuid for node in image.remote_partition(*where).nodes}
    pages = [page for page in found.pages if page.uuid not in known]
    listed = {node.uuid for node in found.nodes}
    return any(image.is_being_deleted(uuid) for uuid in listed) or any(
        page.base_offset <= line.last_offset and line.base_offset <= page.last_offset
        for line in (image.delete_queue.values() if pages else ())
        if isinstance(line, QueuedDelete) and line.uuid not in listed
        if (line.topic_id, line.partition) == where
        for page in pages
    )


def _manifest_of(root: ManifestRoot, recovered: RemotePartition) -> RemotePartition:
    """The manifest of a root, from the later one of both log starts on."""
    start = max(recovered.log_start_offset, root.log_start_offset)
    return RemotePartition(
        log_start_offset=start,
        pages=tuple(page for page in root.pages if page.end_offset > start),
        entries=tuple(entry for entry in root.entries if entry.end_offset > start),
    )


def _end_of(remote: RemotePartition) -> int:
    return remote.end_offset or remote.log_start_offset


def _report(
    event: ManifestUnread, remote: RemotePartition, adopted: RemotePartition, root: ManifestRoot | None
) -> None:
    partition = str(event.replica.name)
    if adopted is not remote:
        _log.warning(
            "manifest.recovery.adopted",
            partition=partition,
            recovered_end_offset=remote.end_offset,
            remote_end_offset=adopted.end_offset,
            log_start_offset=adopted.log_start_offset,
        )
    elif root is None and remote.end_offset is not None:
        _log.warning("manifest.recovery.missing", partition=partition)
