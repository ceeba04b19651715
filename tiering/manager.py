"""What tiering does to the bucket besides reading: copies, manifests, descriptions, deletions.

Every call is one attempt with a deadline; who calls again, and when, is the runtime's affair
(remote_log_manager), as is every commit to the quorum. Copies of all partitions share a bound, so that
uploads never take all of the memory or the network; a copy that makes no end raises an alarm in the log and
in the counts, and then its deadline ends it, so that one stuck partition never stops another.
"""

import asyncio
from collections.abc import AsyncIterator, Container, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from uuid import UUID

import crc32c
import structlog

from tierlog.base.types import TopicIdPartition, require
from tierlog.metadata.delete_queue import QueuedDelete
from tierlog.metadata.image import RemotePartition
from tierlog.metadata.records import PageRef, RemoteSegment
from tierlog.tiering.copier import Attempt, SegmentSource, copy_segment
from tierlog.tiering.format.keys import InvalidKey, Keys, parse_attempt
from tierlog.tiering.format.manifest import (
    ClusterDocument,
    ManifestError,
    ManifestPage,
    ManifestRoot,
    TopicDocument,
    decode_page,
    decode_root,
    decode_topic,
    encode_cluster,
    encode_page,
    encode_root,
    encode_topic,
    page_reference,
)
from tierlog.tiering.object_store import (
    Absent,
    Condition,
    ObjectNotFound,
    ObjectStore,
    ObjectStoreError,
    PreconditionFailed,
)

_log = structlog.get_logger("tierlog.tiering")

ROOT_TRIES = 4
DELETES_AT_A_TIME = 500  # lines of the queue, two objects each: one request to S3


@dataclass(frozen=True, slots=True, kw_only=True)
class TierLimits:
    """Bounds of the work on the bucket."""

    copies_at_once: int = 2
    check_seconds: float = 30.0  # of each step of the check of a segment, 1 MiB at most, before its copy
    copy_seconds: float = 120.0  # of any copy, and besides
    copy_seconds_per_mib: float = 1.0  # a link slower than 1 MiB/s does not carry a log
    stall_seconds: float = 30.0  # a copy that takes longer than this and its size's share is reported
    small_seconds: float = 60.0  # manifests, pages, one round of deletes


@dataclass(slots=True)
class TierCounts:
    """For metrics and status; all since the start of the process."""

    copies: int = 0
    copied_bytes: int = 0
    failed_copies: int = 0
    stalls: int = 0
    roots_written: int = 0
    deleted_objects: int = 0
    uploading: int = 0


class ManifestMoved(ObjectStoreError):
    """The bucket has a manifest of a newer metadata index: another broker leads, or our image is behind."""


class TierManager:
    """All writes to the bucket of one cluster by this broker."""

    def __init__(self, store: ObjectStore, keys: Keys, limits: TierLimits | None = None) -> None:
        self._store = store
        self._keys = keys
        self._limits = limits or TierLimits()
        self.copying = asyncio.Semaphore(self._limits.copies_at_once)
        """A slot of it is held by the caller from StartCopy on: what is announced is put soon, or never."""
        self._roots: dict[TopicIdPartition, tuple[ManifestRoot, str]] = {}
        self.counts = TierCounts()

    # -- copies --

    @property
    def check_s(self) -> float:
        """How long a disk may be silent while what is to be copied is checked."""
        return self._limits.check_seconds

    async def copy(self, source: SegmentSource, attempt: Attempt) -> RemoteSegment:
        """Uploads and verifies one segment, within the caller's slot of `copying`.

        Raises ObjectStoreError, OSError for the local file.
        """
        limits = self._limits
        share = limits.copy_seconds_per_mib * source.size_bytes / (1 << 20)
        async with self._alarm(attempt, limits.stall_seconds + share):
            self.counts.uploading += 1
            try:
                async with _deadline(limits.copy_seconds + share, f"copy of {attempt.partition}"):
                    entry = await copy_segment(self._store, self._keys, source, attempt)
            except (ObjectStoreError, OSError):
                self.counts.failed_copies += 1
                raise
            finally:
                self.counts.uploading -= 1
        self.counts.copies += 1
        self.counts.copied_bytes += entry.log_bytes
        return entry

    @asynccontextmanager
    async def _alarm(self, attempt: Attempt, seconds: float) -> AsyncIterator[None]:
        def ring() -> None:
            self.counts.stalls += 1
            _log.warning("an upload does not end", partition=str(attempt.partition), seconds=round(seconds))

        alarm = asyncio.get_running_loop().call_later(seconds, ring)
        try:
            yield
        finally:
            alarm.cancel()

    async def probe(self) -> None:
        """Whether the store answers at all: asked before an attempt that follows a failed one, so that an
        outage fills neither the quorum's log nor its delete queue. Raises ObjectStoreError."""
        async with _deadline(self._limits.small_seconds, "the object store"):
            with suppress(ObjectNotFound):
                await self._store.head(self._keys.cluster())

    # -- manifests --

    async def write_root(
        self, where: TopicIdPartition, remote: RemotePartition, leader_epoch: int, metadata_index: int
    ) -> ManifestRoot:
        """Makes the bucket's root show the state, if it does not yet. Raises ManifestMoved if it is newer."""
        async with _deadline(self._limits.small_seconds, f"manifest of {where}"):
            for _ in range(ROOT_TRIES):
                found = self._roots.get(where) or await self._read_root(where)
                wanted = _root(where, remote, leader_epoch, metadata_index, found and found[0])
                if found is not None and found[0].metadata_index > metadata_index:
                    self._roots.pop(where, None)
                    raise ManifestMoved(f"{where}: the bucket's manifest is of {found[0].metadata_index}")
                if found is not None and _same_state(found[0], wanted):
                    self._roots[where] = found
                    return found[0]
                written = await self._put_root(where, wanted, found)
                if written is not None:
                    return written
        raise ObjectStoreError(f"{where}: the manifest changed under every of {ROOT_TRIES} writes")

    def forget(self, where: TopicIdPartition) -> None:
        """Another broker leads, or the topic is gone: what is remembered of its root is of no more use."""
        self._roots.pop(where, None)

    async def _read_root(self, where: TopicIdPartition) -> tuple[ManifestRoot, str] | None:
        """The root and its ETag; one that is damaged counts as of index -1 and is replaced."""
        key = self._keys.root(where)
        try:
            data, etag = await self._store.get_with_etag(key)
        except ObjectNotFound:
            return None
        try:
            return decode_root(data), etag
        except ManifestError as error:
            _log.error("a manifest in the bucket is damaged and will be replaced", key=key, error=str(error))
            return _root(where, RemotePartition(log_start_offset=-1), -1, -1, None), etag

    async def _put_root(
        self, where: TopicIdPartition, root: ManifestRoot, found: tuple[ManifestRoot, str] | None
    ) -> ManifestRoot | None:
        """None if the condition failed, as another write was first, or an earlier try of this one; or if it
        is not what the store has now: local data goes because the root names it.
        """
        body = encode_root(root)
        condition: Condition = Absent() if found is None else found[1]
        self._roots.pop(where, None)
        try:
            key = self._keys.root(where)
            await self._store.put(key, body, crc32c=crc32c.crc32c(body), condition=condition)
        except PreconditionFailed:
            return None
        written = await self._read_root(where)
        if written is None or written[0] != root:
            return None
        self._roots[where] = written
        self.counts.roots_written += 1
        return root

    async def write_page(
        self, where: TopicIdPartition, page_id: UUID, entries: Sequence[RemoteSegment]
    ) -> PageRef:
        """Puts and verifies a page of the oldest entries; the quorum forgets them afterwards."""
        require(len(entries) > 0, "a page needs entries")
        page = ManifestPage(topic_id=where.topic_id, partition=where.partition, entries=tuple(entries))
        body = encode_page(page)
        ref = page_reference(page_id, page, body)
        key = self._keys.page(where, ref)
        async with _deadline(self._limits.small_seconds, f"page of {where}"):
            with suppress(PreconditionFailed):  # an earlier try of this put; what is there is read back
                await self._store.put(key, body, crc32c=ref.crc32c, condition=Absent())
            try:
                decode_page(await self._store.get(key), ref)
            except ManifestError as error:
                raise ObjectStoreError(f"{key}: {error}") from error
        return ref

    # -- descriptions --

    async def describe_cluster(self) -> None:
        async with _deadline(self._limits.small_seconds, "cluster.json"):
            body = encode_cluster(ClusterDocument(cluster_id=self._keys.cluster_id))
            await self._store.put(self._keys.cluster(), body, crc32c=crc32c.crc32c(body))

    async def described_topics(self) -> dict[UUID, TopicDocument]:
        """Every topic that the bucket describes; a damaged description counts as missing."""
        found: dict[UUID, TopicDocument] = {}
        async for info in self._store.list(self._keys.topics()):
            try:
                document = decode_topic(await self._store.get(info.key))
                found[document.topic_id] = document
            except (ManifestError, ObjectNotFound) as error:
                _log.warning("a topic's description cannot be read", key=info.key, error=str(error))
        return found

    async def describe_topic(self, document: TopicDocument) -> None:
        async with _deadline(self._limits.small_seconds, f"description of {document.name}"):
            body = encode_topic(document)
            await self._store.put(self._keys.topic(document.topic_id), body, crc32c=crc32c.crc32c(body))

    async def forget_topic(self, document: TopicDocument) -> None:
        """The topic was deleted: its manifests go, then its description. Data follows by the delete queue."""
        partitions = [TopicIdPartition(document.topic_id, number) for number in range(document.partitions)]
        async with _deadline(self._limits.small_seconds, f"manifests of {document.name}"):
            await self._store.delete([self._keys.root(where) for where in partitions])
            await self._store.delete([self._keys.topic(document.topic_id)])

    # -- the delete queue --

    async def delete(self, lines: Sequence[QueuedDelete], topics: Container[UUID]) -> tuple[UUID, ...]:
        """Deletes the objects of due lines, at most DELETES_AT_A_TIME; the lines to confirm. Idempotent.

        `topics`: those that exist. Of any other the manifest root goes too: one that was being written when
        the topic went may have come back.
        """
        batch = lines[:DELETES_AT_A_TIME]
        gone = {
            TopicIdPartition(line.topic_id, line.partition) for line in batch if line.topic_id not in topics
        }
        doomed = [self._keys.root(where) for where in sorted(gone)]
        for line in batch:
            doomed += await self._objects_of(line)
        async with _deadline(self._limits.small_seconds, "deletion"):
            await self._store.delete(doomed)
        self.counts.deleted_objects += len(doomed)
        return tuple(line.uuid for line in batch)

    async def _objects_of(self, line: QueuedDelete) -> list[str]:
        where = TopicIdPartition(line.topic_id, line.partition)
        if not line.is_page:
            return list(
                self._keys.attempt(where, line.base_offset, line.last_offset, line.leader_epoch, line.uuid)
            )
        page_key = self._keys.page_of(where, line.base_offset, line.last_offset, line.uuid)
        if line.is_unfinished_page:
            return [page_key]
        async with _deadline(self._limits.small_seconds, page_key):
            try:
                page = decode_page(await self._store.get(page_key))
            except ObjectNotFound:
                return []  # the page goes after its segments, so they are gone too
            except ManifestError:
                return [*await self._listed(where, line), page_key]
        # the page in a request of its own, last: while it is there, its segments can be found
        segments = [
            key
            for entry in page.entries
            for key in (self._keys.log(where, entry), self._keys.index(where, entry))
        ]
        async with _deadline(self._limits.small_seconds, page_key):
            await self._store.delete(segments)
        self.counts.deleted_objects += len(segments)
        return [page_key]

    async def _listed(self, where: TopicIdPartition, line: QueuedDelete) -> list[str]:
        """Objects of a damaged page's range, by their names: all of that range left the manifest."""
        keys = []
        async for info in self._store.list(self._keys.data(where)):
            try:
                attempt = parse_attempt(info.key)
            except InvalidKey:
                continue
            if line.base_offset <= attempt.base_offset and attempt.last_offset <= line.last_offset:
                keys.append(info.key)
        return keys


@asynccontextmanager
async def _deadline(seconds: float, what: str) -> AsyncIterator[None]:
    """A deadline as an error of the store."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise ObjectStoreError(f"{what}: not done after {seconds:.0f} s") from error


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


def _same_state(one: ManifestRoot, other: ManifestRoot) -> bool:
    return (one.log_start_offset, one.pages, one.entries) == (
        other.log_start_offset,
        other.pages,
        other.entries,
    )
