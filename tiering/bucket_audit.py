"""Bucket audit: finds the objects in a cluster's bucket that neither a manifest nor the delete queue names.

It deletes nothing. An object counts as unknown only if the newest image of the quorum does not name it and
it still exists after that image was read, since uploads and deletions continue. Called by the bucket scrubber
and by `tier gc`.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from uuid import UUID

from tierlog.base.types import TopicIdPartition
from tierlog.metadata.delete_queue import DeleteQueue, QueuedDelete
from tierlog.metadata.image import ClusterImage, RemotePartition
from tierlog.metadata.records import ManifestNode, PageRef
from tierlog.tiering.format.keys import InvalidKey, Keys, parse_object
from tierlog.tiering.object_store import ObjectInfo, ObjectNotFound, ObjectStore, ObjectStoreError
from tierlog.tiering.remote_log import RemoteLog
from tierlog.tiering.store_health import STORE_FAILURES

NAMES_MAX = 1000
"""Unknown objects that a report names."""

LISTED, QUEUED, UNKNOWN, UNREADABLE = "listed", "queued", "unknown", "unreadable"
"""A manifest or a copy in progress names the object; the delete queue does; nothing does; or it is in the
range of an unreadable manifest page."""

GROUP_MAX = 200
"""Objects that are classified in one turn of the event loop: about a millisecond."""

_Lines = dict[TopicIdPartition, list[QueuedDelete]]


@dataclass(slots=True)
class BucketAudit:
    """Number and bytes of the objects, by class. `unknown`: at most NAMES_MAX of these objects."""

    objects: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    unknown: list[ObjectInfo] = field(default_factory=list)

    def add(self, kind: str, info: ObjectInfo) -> None:
        self.objects[kind] += 1
        self.bytes[kind] += info.size
        if kind == UNKNOWN and len(self.unknown) < NAMES_MAX:
            self.unknown.append(info)


@dataclass(frozen=True, slots=True)
class _Names:
    """The objects of a partition that an image names. `ranges`: of queued pages, whose segments are queued
    too. `unreadable`: ranges of pages that cannot be read. Ends of ranges are inclusive."""

    listed: frozenset[UUID]
    queued: frozenset[UUID]
    ranges: tuple[tuple[int, int], ...]
    unreadable: tuple[tuple[int, int], ...]
    topic_is_deleted: bool
    exists: bool

    def kind(self, key: str) -> str:
        if self.topic_is_deleted:
            return QUEUED
        if key.endswith("/root"):
            return LISTED if self.exists else UNKNOWN
        try:
            base_offset, last_offset, uuid = parse_object(key)
        except InvalidKey:
            return UNKNOWN
        if uuid in self.listed:
            return LISTED
        if uuid in self.queued or _is_covered(base_offset, last_offset, self.ranges):
            return QUEUED
        return UNREADABLE if _is_covered(base_offset, last_offset, self.unreadable) else UNKNOWN


_Source = tuple[TopicIdPartition, RemotePartition | None, DeleteQueue]
"""The partition, and the parts of an image that name its objects."""


class BucketAuditor:
    def __init__(
        self,
        store: ObjectStore,
        keys: Keys,
        log: RemoteLog,
        image: Callable[[], ClusterImage],
        current: Callable[[], Awaitable[ClusterImage]],
    ) -> None:
        """`image`: this node's image. `current`: reads the newest committed one from the quorum."""
        self._store = store
        self._keys = keys
        self._log = log
        self._image = image
        self._current = current
        self._lines_of: tuple[DeleteQueue, _Lines] = DeleteQueue(), {}
        self._names_of: tuple[_Source, _Names] | None = None

    async def run(self, pace: Callable[[int], Awaitable[None]]) -> BucketAudit:
        """Audit the bucket. Raises ObjectStoreError or MetadataUnavailable. `pace`: awaited with the number
        of objects after each group of them, to limit the rate."""
        audit = BucketAudit()
        async for where, infos in self._groups():
            kinds = await self._kinds(self._image(), where, infos)
            if UNKNOWN in kinds or UNREADABLE in kinds:  # a page may have been written again
                kinds = await self._kinds(await self._current(), where, infos)
            for info, kind in zip(infos, kinds, strict=True):
                if kind != UNKNOWN or await self._exists(info.key):
                    audit.add(kind, info)
            await pace(len(infos))
            await asyncio.sleep(0)  # other work gets a turn
        return audit

    async def _groups(self) -> AsyncIterator[tuple[TopicIdPartition | None, list[ObjectInfo]]]:
        """The objects by partition, at most GROUP_MAX at a time, and those that belong to none one by one.
        Keys of a partition are adjacent, once for its segments and once for its manifest."""
        where: TopicIdPartition | None = None
        folder = ""
        infos: list[ObjectInfo] = []
        async for info in self._store.list(self._keys.everything()):
            place, folder_before, folder = where, folder, info.key.rpartition("/")[0]
            if folder != folder_before:
                place = self._keys.partition_of(info.key)
            if infos and (place is None or place != where or len(infos) == GROUP_MAX):
                yield where, infos
                infos = []
            where = place
            infos.append(info)
        if infos:
            yield where, infos

    async def _kinds(
        self, image: ClusterImage, where: TopicIdPartition | None, infos: list[ObjectInfo]
    ) -> list[str]:
        if where is None:
            return [self._kind_of_document(image, info.key) for info in infos]
        names = await self._names(image, where)
        return [names.kind(info.key) for info in infos]

    def _kind_of_document(self, image: ClusterImage, key: str) -> str:
        if key == self._keys.cluster() or key.startswith(self._keys.probes()):
            return LISTED
        if key.startswith(self._keys.snapshots()):
            return LISTED
        topic_id = self._keys.topic_of(key)
        if topic_id in image.delete_queue:
            return QUEUED
        return LISTED if topic_id in image.topics else UNKNOWN

    async def _names(self, image: ClusterImage, where: TopicIdPartition) -> _Names:
        """The same object until the image changes, if all pages can be read. Raises STORE_FAILURES."""
        of = where, image.remote.get(where), image.delete_queue
        if self._names_of is not None and _is_same(self._names_of[0], of):
            return self._names_of[1]
        names = await self._read_names(image, where)
        self._names_of = None if names.unreadable else (of, names)
        return names

    async def _read_names(self, image: ClusterImage, where: TopicIdPartition) -> _Names:
        remote = image.remote_partition(*where)
        listed: set[UUID] = {copy.uuid for copy in remote.started}
        left: list[ManifestNode] = list(remote.nodes)
        unreadable: list[tuple[int, int]] = []
        while left:
            node = left.pop()
            listed.add(node.uuid)
            if isinstance(node, PageRef):
                try:
                    left += await self._log.indexes.page(where, node)
                except STORE_FAILURES:
                    raise
                except ObjectStoreError:
                    unreadable.append((node.base_offset, node.last_offset))
        if self._lines_of[0] is not image.delete_queue:
            lines_of = await asyncio.to_thread(_lines_by_partition, image.delete_queue)
            self._lines_of = image.delete_queue, lines_of
        lines = self._lines_of[1].get(where, ())
        pages = [line for line in lines if line.is_page and not line.is_alone]
        return _Names(
            listed=frozenset(listed),
            queued=frozenset(line.uuid for line in lines),
            ranges=tuple((page.base_offset, page.last_offset) for page in pages),
            unreadable=tuple(unreadable),
            topic_is_deleted=where.topic_id in image.delete_queue,
            exists=where in image.remote,
        )

    async def _exists(self, key: str) -> bool:
        try:
            await self._store.head(key)
        except ObjectNotFound:
            return False
        return True


def _is_covered(base_offset: int, last_offset: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(first <= base_offset and last_offset <= last for first, last in ranges)


def _is_same(one: _Source, other: _Source) -> bool:
    return one[0] == other[0] and one[1] is other[1] and one[2] is other[2]


def _lines_by_partition(queue: DeleteQueue) -> _Lines:
    found: _Lines = {}
    for line in queue.values():
        if isinstance(line, QueuedDelete):
            found.setdefault(TopicIdPartition(line.topic_id, line.partition), []).append(line)
    return found
