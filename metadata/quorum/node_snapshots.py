"""Node snapshots: a metadata node's snapshots of its own image, which keep its log short.

The image is immutable, so a thread encodes it while the node continues. The node's loop writes the result,
since only one write to the storage may be in progress. Owned by the node, and called on its event loop.
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
that create and delete topics all day then let the log grow to a small multiple of the metadata only, and
snapshots cost a fixed share of what is written."""
ENTRY_BYTES = 200  # in memory, besides the payload
KEEP_ENTRIES = 1_000  # kept in memory before a snapshot's index, for followers that lag a little


class NodeSnapshots:
    def __init__(
        self,
        publisher: MetadataPublisher,
        tasks: TaskGroup,
        on_encoded: Callable[[], None],
        due_entries: int,
        due_bytes: int,
        keep_entries: int,
    ) -> None:
        """`on_encoded`: called when there is a snapshot to `save`."""
        self._publisher, self._tasks, self._on_encoded = publisher, tasks, on_encoded
        self._due_entries, self._due_bytes, self._keep_entries = due_entries, due_bytes, keep_entries
        self._bytes = 0  # applied since the last snapshot was started
        self._encoding: asyncio.Task[None] | None = None
        self._encoded: Snapshot | None = None

    @property
    def is_encoded(self) -> bool:
        return self._encoded is not None

    def applied(self, core: RaftCore, entries: tuple[Entry, ...]) -> None:
        """Starts a snapshot if one is due."""
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
        self._on_encoded()

    async def save(self, core: RaftCore, write: Callable[[Snapshot], Awaitable[None]]) -> None:
        """Save the encoded snapshot, unless a newer one came from the leader. `write` makes it durable."""
        snapshot, self._encoded = self._encoded, None
        if snapshot is None:
            return
        if snapshot.index > core.log.snapshot.index:
            await write(snapshot)
            if snapshot.index >= core.log.snapshot.index:
                core.compact(snapshot, self._keep_entries)
        self._encoding = None

    async def stop(self) -> None:
        if self._encoding is not None:
            await asyncio.gather(self._encoding, return_exceptions=True)
