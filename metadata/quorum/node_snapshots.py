"""Snapshots that a metadata node makes of its own image, so that its log stays short.

The image is immutable, so it is encoded in a thread while the node goes on; what is encoded is written in the
node's turn, since nothing else may write meanwhile. Owned by the node, and called in its loop.
"""

import asyncio
from collections.abc import Awaitable, Callable

from tierlog.base.tasks import TaskGroup
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.image_codec import encode_image
from tierlog.metadata.quorum.publisher import MetadataPublisher
from tierlog.metadata.raft.core import RaftCore
from tierlog.metadata.raft.messages import Entry, Snapshot

SNAPSHOT_ENTRIES = 10_000  # applied since the last snapshot
SNAPSHOT_BYTES = 16 << 20
SNAPSHOT_MIN_BYTES = 512 << 10
SNAPSHOT_FACTOR = 2
"""A snapshot is also due once the entries since the last one take this many times its size in memory. Clients
that create and delete topics all day then make the log grow no further than a small multiple of the metadata,
and snapshots cost no more than a fixed share of what is written."""
ENTRY_BYTES = 200  # in memory, beside the payload: the entry, its numbers, its place in the list
KEEP_ENTRIES = 1_000  # in memory behind a snapshot, for followers that lag a little


class NodeSnapshots:
    def __init__(
        self,
        publisher: MetadataPublisher,
        tasks: TaskGroup,
        encoded: Callable[[], None],
        due_entries: int,
        due_bytes: int,
        keep_entries: int,
    ) -> None:
        """`encoded`: called when there is one to `keep`."""
        self._publisher, self._tasks, self._tell = publisher, tasks, encoded
        self._due_entries, self._due_bytes, self._keep_entries = due_entries, due_bytes, keep_entries
        self._bytes = 0  # applied since the last one was begun
        self._encoding: asyncio.Task[None] | None = None
        self._encoded: Snapshot | None = None

    @property
    def is_encoded(self) -> bool:
        return self._encoded is not None

    def applied(self, core: RaftCore, entries: tuple[Entry, ...]) -> None:
        """Begins one if it is due."""
        self._bytes += sum(len(entry.payload) + ENTRY_BYTES for entry in entries)
        image, last = self._publisher.image, core.log.snapshot
        due_bytes = min(self._due_bytes, max(SNAPSHOT_MIN_BYTES, SNAPSHOT_FACTOR * len(last.data)))
        is_due = image.index - last.index >= self._due_entries or self._bytes >= due_bytes
        if is_due and self._encoding is None:
            self._bytes = 0
            encode = self._encode(core, image, self._publisher.term)
            self._encoding = self._tasks.spawn(f"metadata {core.node_id} snapshot", encode)

    async def _encode(self, core: RaftCore, image: ClusterImage, term: int) -> None:
        configuration = core.log.configuration_at(image.index)
        data = await asyncio.to_thread(encode_image, image)
        self._encoded = Snapshot(image.index, term, data, configuration)
        self._tell()

    async def keep(self, core: RaftCore, save: Callable[[Snapshot], Awaitable[None]]) -> None:
        """What is encoded, unless the leader's came meanwhile: `save` makes it durable."""
        snapshot, self._encoded = self._encoded, None
        if snapshot is None:
            return
        if snapshot.index > core.log.snapshot.index:
            await save(snapshot)
            if snapshot.index >= core.log.snapshot.index:
                core.compact(snapshot, self._keep_entries)
        self._encoding = None

    async def stop(self) -> None:
        if self._encoding is not None:
            await asyncio.gather(self._encoding, return_exceptions=True)
