"""Bucket scrubber: slowly compares the bucket with the manifests, in both directions.

Manifest to bucket: each broker checks the segments of the partitions that it leads. Both objects of a segment
exist with the right size and checksum, and one chunk of it, chosen at random, has the right content. Damage
goes into quarantine. Bucket to manifest: the broker with the lowest id lists the bucket and reports objects
that nothing names; it deletes none. A pass begins every `remote.log.scrub.interval.ms`, the first one after a
random part of it. It pauses while the store is unavailable, and keeps to the limits of
`remote.log.scrub.max.*`. Owned by `tiering`.
"""

import asyncio
import random

import structlog

from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicIdPartition
from tierlog.config.node import NodeSettings
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.records import RemoteSegment
from tierlog.tiering.bucket_audit import UNKNOWN, BucketAudit, BucketAuditor
from tierlog.tiering.object_store import CorruptObject, ObjectNotFound, ObjectStoreError
from tierlog.tiering.remote_log import RemoteLog
from tierlog.tiering.verifier import RemoteVerifier

RETRY_S = 60.0
"""Pause after a failure of the store or the quorum."""

OBJECTS_PER_LIST = 1000
REQUESTS_PER_SEGMENT = 2
REQUESTS_PER_CHUNK = 2  # the head of the index, and the chunk

DAMAGED_NEXT = "see docs/runbooks/damaged-object.md"
UNKNOWN_NEXT = "tierlog tier gc --dry-run lists them"

_log = structlog.get_logger("tierlog.tiering")


class BucketScrubber:
    def __init__(
        self,
        settings: NodeSettings,
        metadata: MetadataClient,
        log: RemoteLog,
        verifier: RemoteVerifier,
        auditor: BucketAuditor,
        tasks: TaskGroup,
        rng: random.Random,
    ) -> None:
        self._settings = settings
        self._metadata = metadata
        self._remote_log = log
        self._verifier = verifier
        self._auditor = auditor
        self._tasks = tasks
        self._rng = rng
        self._part = rng.random()
        self._changed = asyncio.Event()
        self._requested = False
        self._found = 0  # by the current pass
        self.segments = self.bytes_read = self.passes = 0
        self.progress = 1.0
        """Fraction of the partitions that the current pass has checked; 1 between two passes."""
        self.damaged = 0
        """Segments with a missing or damaged object, and damaged pages, that the last pass found."""
        self.audit = BucketAudit()
        """The result of the last pass, on the broker with the lowest id; else empty."""

    def start(self) -> None:
        """Start the task."""
        self._tasks.repeat("scrub bucket", self._turn)

    def configure(self, settings: NodeSettings) -> None:
        """Apply changed settings; a changed interval restarts the wait for the next pass."""
        before, self._settings = self._settings, settings
        if before.remote_log_scrub_interval_ms != settings.remote_log_scrub_interval_ms:
            self._changed.set()

    def begin(self) -> None:
        """Start a pass, unless one is running."""
        if self.progress == 1.0:
            self._requested = True
            self._changed.set()

    async def _turn(self) -> None:
        interval_s = self._settings.remote_log_scrub_interval_ms / 1000
        self._changed.clear()
        try:
            async with asyncio.timeout(interval_s * self._part if interval_s else None):
                await self._changed.wait()
        except TimeoutError:
            self._requested = True
        if self._requested:
            self._part, self._requested = 1.0, False
            await self.scrub_all()

    async def scrub_all(self) -> None:
        """One pass."""
        self.progress, self._found = 0.0, 0
        led = [where for where in self._metadata.image.remote if self._leads(self._metadata.image, where)]
        for number, where in enumerate(led):
            await self._scrub_partition(where)
            await asyncio.sleep(0)  # a partition without segments has not waited
            self.progress = min(0.99, (number + 1) / len(led))
        self.audit = await self._audit()
        self.damaged, self.progress = self._found, 1.0
        self.passes += 1
        if unknown := self.audit.objects[UNKNOWN]:
            _log.warning("the bucket has objects that nothing names", objects=unknown, next=UNKNOWN_NEXT)
        if self.damaged:
            _log.error("the bucket lacks what the manifests list", segments=self.damaged, next=DAMAGED_NEXT)

    def _leads(self, image: ClusterImage, where: TopicIdPartition) -> bool:
        partition = image.partition(*where)
        return partition is not None and partition.leader == self._settings.node_id

    async def _scrub_partition(self, where: TopicIdPartition) -> None:
        """Check all segments. After a failure of the store, continue with the segment that failed."""
        offset = 0
        while self._leads(self._metadata.image, where):
            try:
                async for entry in self._remote_log.entries(where, offset):
                    await self._check(where, entry)
                    offset = entry.end_offset
            except (CorruptObject, ObjectNotFound) as failure:  # a page is damaged, or was deleted
                if isinstance(failure, CorruptObject):
                    self._found += 1
            except (ObjectStoreError, OSError) as failure:
                _log.warning("the bucket cannot be scrubbed", error=str(failure), retry_s=RETRY_S)
                await asyncio.sleep(RETRY_S)
                continue
            return

    async def _check(self, where: TopicIdPartition, entry: RemoteSegment) -> None:
        began, size, requests = asyncio.get_running_loop().time(), 0, REQUESTS_PER_SEGMENT
        try:
            await self._verifier.check_objects(where, entry)
            if self._settings.remote_log_scrub_max_bytes_per_second:
                requests += REQUESTS_PER_CHUNK
                position = self._rng.randrange(entry.log_bytes)
                size = (await self._verifier.check_chunk(where, entry, position)).size
        except CorruptObject:
            self._found += 1
        except ObjectNotFound:
            return  # retention has deleted it
        self.segments += 1
        self.bytes_read += size
        await self._rest(requests, size, asyncio.get_running_loop().time() - began)

    async def _audit(self) -> BucketAudit:
        while self._is_auditor():
            try:
                return await self._auditor.run(
                    lambda objects: self._rest(1 + objects // OBJECTS_PER_LIST, 0, 0.0)
                )
            except (ObjectStoreError, OSError, MetadataUnavailable) as failure:
                _log.warning("the bucket cannot be listed", error=str(failure), retry_s=RETRY_S)
                await asyncio.sleep(RETRY_S)
        return BucketAudit()

    def _is_auditor(self) -> bool:
        live = self._metadata.image.live_brokers()
        return bool(live) and live[0].broker_id == self._settings.node_id

    async def _rest(self, requests: int, size: int, took_s: float) -> None:
        settings = self._settings
        least_s = requests / settings.remote_log_scrub_max_requests_per_second
        if size:
            least_s = max(least_s, size / max(1, settings.remote_log_scrub_max_bytes_per_second))
        await asyncio.sleep(max(0.0, least_s - took_s))
