"""Snapshots of tiered topics, for the admin API: lists, takes and ends them.

Any broker can do all of it: a snapshot is in the bucket. Owned by `tiering`.
"""

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from tierlog.base.clock import Clock
from tierlog.base.types import random_uuid
from tierlog.broker.remote.tier_views import TierRefused
from tierlog.metadata.delete_queue import Deletion, QueuedDelete
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.tiering.format.manifest import TopicDocument
from tierlog.tiering.format.snapshots import Lease
from tierlog.tiering.snapshots import Snapshots


@dataclass(frozen=True, slots=True)
class SnapshotView:
    """`held_bytes`: of segments that have left the manifest and wait for their deletion."""

    id: str
    name: str | None
    topics: tuple[str, ...]
    partitions: int
    is_complete: bool
    lease_ms: int
    watched_ms: int
    created_ms: int
    age_ms: int
    metadata_index: int
    held_bytes: int


class TierSnapshots:
    def __init__(
        self, metadata: MetadataClient, snapshots: Snapshots, clock: Clock, rng: random.Random
    ) -> None:
        self._metadata, self._snapshots = metadata, snapshots
        self._clock, self._rng = clock, rng
        self._sizing = asyncio.Lock()  # the walk over the delete queue takes a core for seconds at worst

    async def all(self) -> list[SnapshotView]:
        """The live snapshots, oldest first. Raises ObjectStoreError."""
        leases = [lease for lease, _ in await self._snapshots.leases() if not lease.is_ended]
        queued = self._metadata.image.delete_queue.values()
        async with self._sizing:
            sizes = await asyncio.to_thread(held_bytes, leases, queued)
        views = [self._view(lease, size) for lease, size in zip(leases, sizes, strict=True)]
        return sorted(views, key=lambda view: (view.created_ms, view.id))

    async def create(self, topics: Sequence[str], lease_ms: int, name: str | None) -> SnapshotView:
        """Raises TierRefused for a topic that does not exist, SnapshotError, InvalidKey or
        ObjectStoreError."""
        image, documents = self._metadata.image, []
        for topic_name in dict.fromkeys(topics):
            topic = image.topic(topic_name)
            if topic is None:
                raise TierRefused(f"there is no topic {topic_name!r}")
            documents.append(
                TopicDocument(
                    topic_id=topic.topic_id, name=topic.name, partitions=len(topic.partitions), configs={}
                )
            )
        snapshot_id, now_ms = random_uuid(self._rng), self._clock.now_ms()
        return self._view(await self._snapshots.create(snapshot_id, documents, lease_ms, now_ms, name), 0)

    async def end(self, which: str) -> str:
        """End a snapshot by its name or id, and return the id. Raises as `create` does."""
        return str(await self._snapshots.end(which))

    def _view(self, lease: Lease, size: int) -> SnapshotView:
        return SnapshotView(
            id=str(lease.id),
            name=lease.name,
            topics=tuple(topic.name for topic in lease.topics),
            partitions=sum(len(topic.held) for topic in lease.topics),
            is_complete=lease.is_ready,
            lease_ms=lease.lease_ms,
            watched_ms=lease.watched_ms,
            created_ms=lease.created_ms,
            age_ms=max(0, self._clock.now_ms() - lease.created_ms),
            metadata_index=lease.metadata_index,
            held_bytes=size,
        )


def held_bytes(leases: Sequence[Lease], queued: Iterable[Deletion]) -> list[int]:
    """For each lease, the bytes of the segments that wait for their deletion and that it holds. Those of
    deleted topics are not known."""
    lines: dict[tuple[UUID, int], list[QueuedDelete]] = {}
    for line in queued:
        if isinstance(line, QueuedDelete):
            lines.setdefault((line.topic_id, line.partition), []).append(line)
    return [
        sum(
            line.log_bytes
            for topic in lease.topics
            for held in topic.held
            for line in lines.get((topic.topic_id, held.partition), ())
            if line.base_offset < held.end_offset and line.last_offset >= held.start_offset
        )
        for lease in leases
    ]
