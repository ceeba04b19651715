"""Tier manager: all writes to the bucket (copies, manifests, cluster and topic descriptions, deletions).

Each call is one attempt with a deadline; the caller (`remote_log_manager`) retries, and commits to the
quorum. Copies of all partitions share slots (`copy_slots`), so that uploads cannot use all memory or
bandwidth. A copy that takes too long is reported in the log and in the counts, and then cancelled at its
deadline. One that crawls while others wait gives its slot up earlier, once: its next attempt is a retry,
which has all of its time, so that a slow link uploads too.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

import crc32c
import structlog
from msgspec.structs import replace

from tierlog.base.types import TopicIdPartition, require
from tierlog.metadata.delete_queue import DeletedTopic, Deletion, QueuedDelete
from tierlog.metadata.image import RemotePartition
from tierlog.metadata.records import ManifestNode, PageRef, RemoteSegment
from tierlog.tiering.copier import Attempt, SegmentBody, copy_segment
from tierlog.tiering.copy_slots import CopySlot, CopySlots
from tierlog.tiering.format.keys import AttemptKey, InvalidKey, Keys, PageKey, parse_attempt, parse_page
from tierlog.tiering.format.manifest import (
    ClusterDocument,
    ManifestError,
    ManifestPage,
    ManifestRoot,
    TopicDocument,
    decode_cluster,
    decode_page,
    decode_root,
    decode_topic,
    encode_cluster,
    encode_page,
    encode_root,
    encode_topic,
    page_reference,
)
from tierlog.tiering.format.snapshots import proves_removal
from tierlog.tiering.object_store import (
    Absent,
    Condition,
    CorruptObject,
    ObjectNotFound,
    ObjectStore,
    ObjectStoreError,
    PreconditionFailed,
    deadline,
)
from tierlog.tiering.rate_limit import RateLimit
from tierlog.tiering.snapshots import Snapshots
from tierlog.tiering.upload_watch import PORTION_BYTES, UploadTimes, UploadWatch

_log = structlog.get_logger("tierlog.tiering")

ROOT_TRIES = 4
UPLOAD_AGE_S = 86_400.0
"""Age of an upload that no process continues: the deadline of the largest one, 2 GiB, is five hours."""

DELETES_PER_REQUEST = 250  # lines of the queue, two objects each
KEYS_PER_REQUEST = 2 * DELETES_PER_REQUEST
"""The S3 client takes 5 microseconds of the event loop for each key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierLimits:
    """Limits of concurrency and time."""

    copies_at_once: int = 8  # each takes at most 16 MiB of memory (tiering.s3)
    crawl_window_seconds: float = 60.0  # a copy that sends less than `crawl_bytes_per_second` in it gives up
    crawl_bytes_per_second: int = 512 << 10  # its slot, if others wait and it is no retry
    check_seconds: float = 30.0  # for each step, at most 8 MiB, of the check during a copy
    copy_seconds: float = 120.0  # for each copy, plus
    copy_seconds_per_mib: float = 8.0  # all slots share a link, and one of 1 MiB/s cannot keep up with a log
    stall_seconds: float = 30.0  # after which a copy is reported as stalled, plus
    stall_seconds_per_mib: float = 1.0
    small_seconds: float = 60.0  # for a manifest, a page, or one batch of deletes


@dataclass(slots=True)
class TierCounts:
    """Counts for metrics and status, since the start of the process."""

    copies: int = 0
    copied_bytes: int = 0
    stalls: int = 0
    uploading: int = 0


MISSING, DAMAGED, OUTDATED = "missing", "damaged", "outdated"
"""Faults of a root or document: the bucket has none, it cannot be decoded, or it has another content than the
one that was written last, as after the bucket was restored from a copy."""


class ManifestMoved(ObjectStoreError):
    """The bucket's manifest has a newer metadata index: another broker leads, or this image is stale."""


class TierManager:
    """All writes of this broker to the cluster's bucket."""

    def __init__(
        self,
        store: ObjectStore,
        keys: Keys,
        limits: TierLimits | None = None,
        copy_rate: RateLimit | None = None,
    ) -> None:
        self._store = store
        self.keys = keys
        self.snapshots = Snapshots(store, keys)
        self._limits = limits or TierLimits()
        self.copies = CopySlots(self._limits.copies_at_once)
        """The caller holds a slot from StartCopy on, so that an upload follows soon after its
        announcement."""
        self._roots: dict[TopicIdPartition, tuple[ManifestRoot, str]] = {}
        """The roots in the bucket, with their ETags. Their pages and entries are the objects of the image."""
        self.copy_rate = copy_rate or RateLimit()
        """The caller pays for the first bytes of a segment before StartCopy (`pay`)."""
        self.counts = TierCounts()

    # -- copies --

    @property
    def check_s(self) -> float:
        """Timeout of one disk read while a segment is checked and copied."""
        return self._limits.check_seconds

    @property
    def small_s(self) -> float:
        """Deadline of a call for small objects."""
        return self._limits.small_seconds

    async def pay(self, size: int) -> int:
        """Wait until the copy rate permits the beginning of a segment. Returns the bytes paid for."""
        paid_bytes = min(size, PORTION_BYTES)
        await self.copy_rate.take(paid_bytes)
        return paid_bytes

    async def copy(
        self, body: SegmentBody, attempt: Attempt, slot: CopySlot, paid_bytes: int
    ) -> RemoteSegment:
        """Upload and verify one segment, at the copy rate. The caller holds this slot of `copies`.

        Raises ObjectStoreError, NotUploadable, or OSError of the local file.
        """
        window_s = self._limits.crawl_window_seconds
        entry = await self._upload(
            body, attempt, self.copy_rate, paid_bytes, lambda: self.copies.give_up(slot, window_s)
        )
        self.counts.copies += 1
        self.counts.copied_bytes += entry.log_bytes
        return entry

    async def upload(self, body: SegmentBody, attempt: Attempt) -> RemoteSegment:
        """Upload and verify a segment whose records are remote already, at the caller's rate. Raises as
        `copy` does."""
        return await self._upload(body, attempt, RateLimit(), 0, lambda: False)

    async def _upload(
        self,
        body: SegmentBody,
        attempt: Attempt,
        rate: RateLimit,
        paid_bytes: int,
        give_up: Callable[[], bool],
    ) -> RemoteSegment:
        limits, mib = self._limits, body.size / (1 << 20)
        times = UploadTimes(
            total=limits.copy_seconds + limits.copy_seconds_per_mib * mib,
            stall=limits.stall_seconds + limits.stall_seconds_per_mib * mib,
            crawl_window=limits.crawl_window_seconds,
            crawl_bytes=limits.crawl_window_seconds * limits.crawl_bytes_per_second,
        )

        def report_stall() -> None:
            self.counts.stalls += 1
            seconds = round(times.stall)
            _log.warning("upload.stalled", partition=str(attempt.partition), seconds=seconds)

        what = f"copy of {attempt.partition}"
        watched = UploadWatch(
            body, what, times, rate=rate, paid_bytes=paid_bytes, on_stall=report_stall, give_up=give_up
        )
        self.counts.uploading += 1
        try:
            async with watched.running():
                return await copy_segment(self._store, self.keys, watched, attempt)
        finally:
            self.counts.uploading -= 1

    async def probe(self) -> None:
        """Check that the store responds. Called before a retry, so that an outage does not fill the quorum's
        log and delete queue with attempts. Raises ObjectStoreError."""
        async with deadline(self._limits.small_seconds, "the object store"):
            with suppress(ObjectNotFound):
                await self._store.head(self.keys.cluster())

    # -- manifests --

    async def write_root(
        self, where: TopicIdPartition, remote: RemotePartition, leader_epoch: int, metadata_index: int
    ) -> ManifestRoot:
        """Write the manifest root unless it is up to date. Raises ManifestMoved if the bucket's is newer."""
        async with deadline(self._limits.small_seconds, f"manifest of {where}"):
            for _ in range(ROOT_TRIES):
                found = self._roots.get(where) or await self._read_root(where)
                wanted = _root(where, remote, leader_epoch, metadata_index, found and found[0])
                if found is not None and found[0].metadata_index > metadata_index:
                    self._roots.pop(where, None)
                    index = found[0].metadata_index
                    raise ManifestMoved(f"{where}: the bucket's manifest has metadata index {index}")
                if found is not None and _state(found[0]) == _state(wanted):
                    root = replace(found[0], pages=remote.pages, entries=remote.entries)
                    self._roots[where] = root, found[1]
                    return root
                written = await self._put_root(where, wanted, found)
                if written is not None:
                    return written
        raise ObjectStoreError(f"{where}: concurrent writes of the manifest, after {ROOT_TRIES} attempts")

    async def read_root(self, where: TopicIdPartition) -> ManifestRoot | None:
        """The manifest root in the bucket; None if there is none. Raises CorruptObject if it is damaged."""
        key = self.keys.root(where)
        async with deadline(self._limits.small_seconds, f"manifest of {where}"):
            try:
                root = decode_root(await self._store.get(key))
            except ObjectNotFound:
                return None
            except ManifestError as error:
                raise CorruptObject(f"{key}: {error}") from error
        if (root.topic_id, root.partition) != where:
            raise CorruptObject(f"{key}: the manifest belongs to another partition")
        return root

    def forget(self, where: TopicIdPartition) -> None:
        """Drop the cached root, after another broker became leader or the topic was deleted, or because the
        bucket has another one."""
        self._roots.pop(where, None)

    async def root_fault(self, where: TopicIdPartition) -> str | None:
        """Compare the root in the bucket with the one that this broker wrote or read last. Returns its fault;
        None also if a write is in progress, or the bucket's root has a newer metadata index."""
        known = self._roots.get(where)
        if known is None:
            return None
        async with deadline(self._limits.small_seconds, f"manifest of {where}"):
            found = await self._read_root(where)
        now = self._roots.get(where)
        if now is None or now[1] != known[1]:
            return None  # written during the read
        if found is None:
            return MISSING
        if found[0].metadata_index < 0:
            return DAMAGED
        is_older = found[0].metadata_index <= known[0].metadata_index
        return OUTDATED if is_older and _state(found[0]) != _state(known[0]) else None

    async def _read_root(self, where: TopicIdPartition) -> tuple[ManifestRoot, str] | None:
        """The root and its ETag. A root that is damaged in two reads counts as metadata index -1, so that it
        is replaced; its ETag is from before the second one, so that a root of another leader is not."""
        key = self.keys.root(where)
        try:
            data, etag = await self._store.get_with_etag(key)
            return decode_root(data), etag
        except ObjectNotFound:
            return None
        except (ManifestError, CorruptObject):
            pass
        try:
            etag_before = (await self._store.head(key)).etag
            data, etag = await self._store.get_with_etag(key)
            return decode_root(data), etag
        except ObjectNotFound:
            return None
        except (ManifestError, CorruptObject) as error:
            _log.error("manifest.damaged", key=key, error=str(error))
            return _root(where, RemotePartition(log_start_offset=-1), -1, -1, None), etag_before

    async def _put_root(
        self, where: TopicIdPartition, root: ManifestRoot, found: tuple[ManifestRoot, str] | None
    ) -> ManifestRoot | None:
        """Put the root and read it back, because local data is deleted once the root names its copy. Returns
        None if the condition failed (another write, or an earlier attempt of this one, was first), or if the
        stored root differs."""
        body = encode_root(root)
        condition: Condition = Absent() if found is None else found[1]
        self._roots.pop(where, None)
        key = self.keys.root(where)
        try:
            await self._store.put(key, body, crc32c=crc32c.crc32c(body), condition=condition)
        except PreconditionFailed:
            return None
        try:
            data, etag = await self._store.get_with_etag(key)
        except ObjectNotFound:
            return None
        if data != body:
            return None
        self._roots[where] = root, etag
        return root

    async def ensure_unlisted(
        self,
        where: TopicIdPartition,
        remote: RemotePartition,
        leader_epoch: int,
        metadata_index: int,
        dropped: Sequence[QueuedDelete],
    ) -> bool:
        """Make sure that the bucket's root is from after these objects left the manifest, so that no reader
        finds them from now on. The leader has usually written such a root; if it has not, as it cannot or
        needs none, this writes it. Returns False if the image is older than the bucket's root."""
        async with deadline(self._limits.small_seconds, f"manifest of {where}"):
            found = await self._read_root(where)
            if found is not None and found[0].metadata_index > metadata_index:
                return False
            current = {node.uuid for node in remote.nodes}
            if found is not None and all(
                proves_removal(found[0], current, line.base_offset, line.last_offset) for line in dropped
            ):
                return True
            root = _root(where, remote, leader_epoch, metadata_index, found and found[0])
            written = await self._put_root(where, root, found)
        self.forget(where)  # another broker may lead
        return written is not None

    async def write_page(
        self, where: TopicIdPartition, page_id: UUID, nodes: Sequence[ManifestNode]
    ) -> PageRef:
        """Put and verify a page of these successive entries, or of references of one level."""
        require(len(nodes) > 0, "a page needs entries or references")
        page = ManifestPage(
            topic_id=where.topic_id,
            partition=where.partition,
            entries=tuple(node for node in nodes if isinstance(node, RemoteSegment)),
            pages=tuple(node for node in nodes if isinstance(node, PageRef)),
        )
        # in threads: a page has hundreds of nodes
        body = await asyncio.to_thread(encode_page, page)
        ref = page_reference(page_id, page, body)
        key = self.keys.page(where, ref)
        async with deadline(self._limits.small_seconds, f"page of {where}"):
            with suppress(PreconditionFailed):  # an earlier attempt of this put; the page is read back
                await self._store.put(key, body, crc32c=ref.crc32c, condition=Absent())
            try:
                await asyncio.to_thread(decode_page, await self._store.get(key), ref)
            except ManifestError as error:
                raise ObjectStoreError(f"{key}: {error}") from error
        return ref

    async def lacks_objects(self, where: TopicIdPartition, nodes: Iterable[ManifestNode]) -> bool:
        """Whether an object of these nodes does not exist. Pages are not read. There may be hundreds of
        nodes, so only each request has a deadline."""
        for node in nodes:
            if isinstance(node, PageRef):
                keys: tuple[str, ...] = (self.keys.page(where, node),)
            else:
                keys = self.keys.log(where, node), self.keys.index(where, node)
            try:
                for key in keys:
                    await self._store.head(key)
            except ObjectNotFound:
                return True
        return False

    # -- descriptions --

    async def describe_cluster(self) -> None:
        async with deadline(self._limits.small_seconds, "cluster.json"):
            body = encode_cluster(ClusterDocument(cluster_id=self.keys.cluster_id))
            await self._store.put(self.keys.cluster(), body, crc32c=crc32c.crc32c(body))

    async def cluster_fault(self) -> str | None:
        """The fault of cluster.json, or None."""
        async with deadline(self._limits.small_seconds, "cluster.json"):
            try:
                found = decode_cluster(await self._store.get(self.keys.cluster()))
            except ObjectNotFound:
                return MISSING
            except (ManifestError, CorruptObject):
                return DAMAGED
        return None if found.cluster_id == self.keys.cluster_id else OUTDATED

    async def topic_document(self, topic_id: UUID) -> TopicDocument | str:
        """A topic's description in the bucket, or MISSING or DAMAGED."""
        async with deadline(self._limits.small_seconds, f"description of {topic_id}"):
            try:
                return decode_topic(await self._store.get(self.keys.topic(topic_id)))
            except ObjectNotFound:
                return MISSING
            except (ManifestError, CorruptObject):
                return DAMAGED

    async def described_topics(self) -> tuple[dict[UUID, TopicDocument], list[str]]:
        """All topics that the bucket describes, and the keys of descriptions that could not be read. A
        damaged description counts as missing."""
        found: dict[UUID, TopicDocument] = {}
        unread: list[str] = []
        async for info in self._store.list(self.keys.topics()):
            try:
                document = await self.read_topic(info.key)
            except ObjectStoreError:
                await self.probe()
                unread.append(info.key)
                continue
            if document is not None:
                found[document.topic_id] = document
        return found, unread

    async def read_topic(self, key: str) -> TopicDocument | None:
        """A topic's description; None if it is damaged or missing."""
        try:
            return decode_topic(await self._store.get(key))
        except (ManifestError, ObjectNotFound, CorruptObject) as error:
            _log.warning("topic.description.unreadable", key=key, error=str(error))
            return None

    async def describe_topic(self, document: TopicDocument) -> None:
        async with deadline(self._limits.small_seconds, f"description of {document.name}"):
            body = encode_topic(document)
            await self._store.put(self.keys.topic(document.topic_id), body, crc32c=crc32c.crc32c(body))

    async def named_topics(self) -> dict[UUID, str]:
        """The names of all topics that readers find by name."""
        keys = [info.key async for info in self._store.list(self.keys.names())]
        return dict(named for named in map(self.keys.named, keys) if named is not None)

    async def name_topic(self, document: TopicDocument) -> None:
        """Let readers find a topic by its name. Try this before its description exists: a reader that finds
        an earlier topic by this name does not look for another one."""
        key = self.keys.topic_name(document.name, document.topic_id)
        async with deadline(self._limits.small_seconds, f"name of {document.name}"):
            await self._store.put(key, b"", crc32c=0)

    async def forget_topic(self, document: TopicDocument) -> None:
        """Delete the manifests, then the description and the name, of a deleted topic. The delete queue
        handles its data."""
        for first in range(0, document.partitions, KEYS_PER_REQUEST):
            numbers = range(first, min(first + KEYS_PER_REQUEST, document.partitions))
            roots = [self.keys.root(TopicIdPartition(document.topic_id, number)) for number in numbers]
            async with deadline(self._limits.small_seconds, f"manifests of {document.name}"):
                await self._store.delete(roots)
        name = self.keys.topic_name(document.name, document.topic_id)
        async with deadline(self._limits.small_seconds, f"description of {document.name}"):
            await self._store.delete([name, self.keys.topic(document.topic_id)])

    async def ensure_undescribed(self, topic_id: UUID) -> bool:
        """Make sure that the bucket does not describe a deleted topic, so that no reader finds it from now
        on. Returns False if it did: a late write may have put the description back."""
        found = await self.topic_document(topic_id)
        if found == MISSING:
            return True
        if isinstance(found, TopicDocument):
            await self.forget_topic(found)
        else:
            async with deadline(self._limits.small_seconds, f"description of {topic_id}"):
                await self._store.delete([self.keys.topic(topic_id)])
        return False

    async def abort_uploads(self) -> None:
        """Remove the parts of uploads that crashes interrupted, which no listing of objects shows."""
        async with deadline(self._limits.small_seconds, "unfinished uploads"):
            aborted = await self._store.abort_uploads(self.keys.everything(), UPLOAD_AGE_S)
        if aborted:
            _log.info("upload.unfinished.aborted", uploads=aborted)

    # -- the delete queue --

    async def delete(
        self, lines: Sequence[Deletion], log_start: Callable[[TopicIdPartition], int]
    ) -> tuple[UUID, ...]:
        """Delete the objects of the first due lines, at most DELETES_PER_REQUEST or one topic, and return the
        ids of these lines to confirm. Idempotent. `log_start`: of the newest image."""
        first = lines[0]
        if isinstance(first, DeletedTopic):
            await self._delete_topic(first)
            return (first.uuid,)
        keys: list[str] = []
        done: list[UUID] = []
        for line in lines[:DELETES_PER_REQUEST]:
            if isinstance(line, DeletedTopic):
                break
            keys += await self._objects_of(line, log_start)
            done.append(line.uuid)
        async with deadline(self._limits.small_seconds, "deletion"):
            await self._store.delete(keys)
        return tuple(done)

    async def _delete_topic(self, topic: DeletedTopic) -> None:
        """Delete all objects that the bucket has of the topic's partitions: what the manifests listed,
        unfinished copies, and a root that a write in progress put back after the topic's deletion."""
        for number in range(topic.partitions):
            where = TopicIdPartition(topic.uuid, number)
            for prefix in (self.keys.manifests(where), self.keys.data(where)):
                await self._delete_below(prefix)

    async def _delete_below(self, prefix: str) -> None:
        while True:
            async with deadline(self._limits.small_seconds, prefix):
                keys = await self._first_keys(prefix)
                if keys:
                    await self._store.delete(keys)
            if len(keys) < KEYS_PER_REQUEST:
                return

    async def _first_keys(self, prefix: str) -> list[str]:
        keys: list[str] = []
        async for info in self._store.list(prefix):
            keys.append(info.key)
            if len(keys) == KEYS_PER_REQUEST:
                break
        return keys

    async def _objects_of(
        self, line: QueuedDelete, log_start: Callable[[TopicIdPartition], int]
    ) -> list[str]:
        where = TopicIdPartition(line.topic_id, line.partition)
        if not line.is_page:
            return list(
                self.keys.attempt(where, line.base_offset, line.last_offset, line.leader_epoch, line.uuid)
            )
        page_key = self.keys.page_of(where, line.base_offset, line.last_offset, line.uuid)
        if not line.is_alone:
            await self._delete_named(where, page_key, line, log_start(where))
        return [page_key]

    async def _delete_named(
        self, where: TopicIdPartition, page_key: str, line: QueuedDelete | PageRef, log_start: int
    ) -> None:
        """Delete everything below a page. A page is deleted last, in a later request than what it names: that
        can be found as long as the page exists."""
        async with deadline(self._limits.small_seconds, page_key):
            try:
                page = await asyncio.to_thread(decode_page, await self._store.get(page_key))
            except ObjectNotFound:
                return  # what it names was deleted before it
            except ManifestError:
                await self._store.delete(await self._listed(where, line, log_start))
                return
        for below in page.pages:
            await self._delete_named(where, self.keys.page(where, below), below, log_start)
        keys = [self.keys.page(where, below) for below in page.pages]
        for entry in page.entries:
            keys += self.keys.log(where, entry), self.keys.index(where, entry)
        async with deadline(self._limits.small_seconds, page_key):
            await self._store.delete(keys)

    async def _listed(
        self, where: TopicIdPartition, line: QueuedDelete | PageRef, log_start: int
    ) -> list[str]:
        """Keys of all segments and pages in a damaged page's range that end below the log start. After
        tiering was switched off and on, the manifest may list new segments of the same offsets: those end
        above it."""
        keys = []
        last_offset = min(line.last_offset, log_start - 1)
        sources: tuple[tuple[str, Callable[[str], AttemptKey | PageKey]], ...] = (
            (self.keys.data(where), parse_attempt),
            (self.keys.manifests(where), parse_page),
        )
        for prefix, parse in sources:
            async for info in self._store.list(prefix):
                try:
                    found = parse(info.key)
                except InvalidKey:
                    continue
                is_below = line.base_offset <= found.base_offset and found.last_offset <= last_offset
                if is_below and found.uuid != line.uuid:
                    keys.append(info.key)
        return keys


def _root(
    where: TopicIdPartition,
    remote: RemotePartition,
    leader_epoch: int,
    metadata_index: int,
    before: ManifestRoot | None,
) -> ManifestRoot:
    return ManifestRoot(
        topic_id=where.topic_id,
        partition=where.partition,
        version=1 if before is None else before.version + 1,
        metadata_index=metadata_index,
        leader_epoch=leader_epoch,
        log_start_offset=remote.log_start_offset,
        pages=remote.pages,
        entries=remote.entries,
    )


def _state(root: ManifestRoot) -> tuple[object, ...]:
    return root.log_start_offset, root.pages, root.entries
