"""Bucket scrubber: slowly compares the bucket with the manifests, in both directions.

Manifest to bucket: each broker checks the roots and the segments of the partitions that it leads. Both
objects of a segment exist with the right size and checksum, and one chunk of it, chosen at random, has the
right content. Damage goes into quarantine. A root that differs from the manifest is written again
(`manifest_check`). A segment that cannot be checked, although the store responds, is reported and passed
over. Bucket to manifest: the broker with the lowest id lists the bucket and reports unreferenced objects; it
deletes none. It also checks the cluster's and the topics' documents. A pass begins every
`remote.log.scrub.interval.ms` (`base/pass_schedule.py`). It pauses while the store is unavailable, and keeps
to the limits of `remote.log.scrub.max.*`. Owned by `tiering`.
"""

import asyncio
import random
from collections import Counter

import structlog

from tierlog.base.pass_schedule import PassSchedule
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicIdPartition
from tierlog.broker.remote.manifest_check import ManifestCheck, ManifestFault
from tierlog.config.node import NodeSettings
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.records import RemoteSegment
from tierlog.tiering.bucket_audit import UNKNOWN, BucketAudit, BucketAuditor
from tierlog.tiering.object_store import CorruptObject, ObjectNotFound, ObjectStoreError
from tierlog.tiering.store_health import FAILURES_TO_OPEN, STORE_FAILURES, BreakerOpen
from tierlog.tiering.store_probe import UnsuitableStore
from tierlog.tiering.verifier import RemoteVerifier, UnreadablePage

RETRY_S = 60.0
"""Pause after a failure of the store or the quorum."""

TRIES = 2 * FAILURES_TO_OPEN
"""The breaker opens before a segment has failed so often, unless other calls succeed."""

UNSENT = (BreakerOpen, UnsuitableStore)
"""Failures without a request to the store."""

LINES_PER_PASS = 20
"""Log lines about segments that cannot be checked."""

OBJECTS_PER_LIST = 1000
REQUESTS_PER_SEGMENT = 2
REQUESTS_PER_CHUNK = 2  # the head of the index, and the chunk
FAULTS_MAX = 1000
"""Roots and documents with a fault that a pass names."""

_log = structlog.get_logger("tierlog.tiering")


class BucketScrubber:
    def __init__(
        self,
        settings: NodeSettings,
        metadata: MetadataClient,
        verifier: RemoteVerifier,
        auditor: BucketAuditor,
        manifests: ManifestCheck,
        tasks: TaskGroup,
        rng: random.Random,
    ) -> None:
        self._settings = settings
        self._metadata = metadata
        self._verifier = verifier
        self._auditor = auditor
        self._manifests = manifests
        self._tasks = tasks
        self._rng = rng
        self._schedule = PassSchedule(settings.remote_log_scrub_interval_ms, rng)
        self._found: Counter[TopicIdPartition] = Counter()  # damage, by the current pass
        self._damaged: Counter[TopicIdPartition] = Counter()  # by the last pass
        self._unchecked_found = 0  # by the current pass
        self._faults_found: list[ManifestFault] = []  # by the current pass
        self.manifest_faults: list[ManifestFault] = []
        """Manifest roots and documents that the last pass found missing, damaged or outdated. They have been
        written again since."""
        self._last_audit = BucketAudit()
        self.segments = self.bytes_read = self.passes = 0
        self.progress = 1.0
        """Fraction of the partitions that the current pass has checked; 1 between two passes."""
        self.unchecked = 0
        """Segments and pages that the last pass could not check, although the store responds."""

    @property
    def node_id(self) -> int:
        return self._settings.node_id

    def start(self) -> None:
        """Start the task."""
        self._tasks.repeat("scrub bucket", self._turn)

    def configure(self, settings: NodeSettings) -> None:
        """Apply changed settings; a changed interval restarts the wait for the next pass."""
        self._settings = settings
        self._schedule.set_interval(settings.remote_log_scrub_interval_ms)

    def begin(self) -> None:
        """Start a pass, unless one is running."""
        if self.progress == 1.0:
            self._schedule.request()

    async def _turn(self) -> None:
        await self._schedule.wait()
        await self.scrub_all()

    async def scrub_all(self) -> None:
        """One pass. It begins at any partition, so that a broker which restarts often checks all of them."""
        self.progress, self._found, self._unchecked_found = 0.0, Counter(), 0
        self._faults_found = []
        try:
            led = [where for where in self._metadata.image.remote if self._leads(where)]
            first = self._rng.randrange(len(led)) if led else 0
            for number, where in enumerate([*led[first:], *led[:first]]):
                await self._check_root(where)
                await self._scrub_partition(where)
                await asyncio.sleep(0)  # a partition without segments has not waited
                self.progress = min(0.99, (number + 1) / len(led))
            await self._check_documents()
            self._last_audit = await self._audit()
            self.manifest_faults = self._faults_found
            self._damaged, self.unchecked = self._found, self._unchecked_found
            self.passes += 1
        finally:
            self.progress = 1.0
        if unknown := self.audit.objects[UNKNOWN]:
            _log.warning("bucket.unreferenced", objects=unknown)
        if self.damaged:
            _log.error("bucket.damaged", segments=self.damaged)
        if self.unchecked:
            _log.error("bucket.check.incomplete", segments=self.unchecked)

    @property
    def damaged(self) -> int:
        """Segments with a missing or damaged object, and damaged pages, that the last pass found in
        partitions which this broker still leads."""
        return sum(number for where, number in self._damaged.items() if self._leads(where))

    @property
    def audit(self) -> BucketAudit:
        """The result of the last pass, on the broker with the lowest id; else empty."""
        return self._last_audit if self._is_auditor() else BucketAudit()

    def _leads(self, where: TopicIdPartition) -> bool:
        partition = self._metadata.image.partition(*where)
        return partition is not None and partition.leader == self._settings.node_id

    async def _check_root(self, where: TopicIdPartition) -> None:
        while self._leads(where):
            began = asyncio.get_running_loop().time()
            try:
                self._note(await self._manifests.root(where))
                await self._rest(1, 0, asyncio.get_running_loop().time() - began)
                return
            except (*STORE_FAILURES, MetadataUnavailable) as failure:
                _log.warning("bucket.scrub_failed", error=str(failure), retry_s=RETRY_S)
                await asyncio.sleep(RETRY_S)
            except (ObjectStoreError, OSError) as failure:
                self._report_unchecked(str(failure))
                return

    async def _check_documents(self) -> None:
        try:
            async for fault in self._manifests.documents():
                self._note(fault)
                await self._rest(1, 0, 0.0)
        except (ObjectStoreError, OSError) as failure:
            self._report_unchecked(str(failure))

    def _note(self, fault: ManifestFault | None) -> None:
        if fault is not None and len(self._faults_found) < FAULTS_MAX:
            self._faults_found.append(fault)

    async def _scrub_partition(self, where: TopicIdPartition) -> None:
        """Check all segments. After a failure of the store, continue with the segment that failed."""
        offset = failures = 0
        while self._leads(where):
            try:
                async for entry in self._verifier.entries(where, offset):
                    if isinstance(entry, UnreadablePage):
                        self._report_page(where, entry)
                    else:
                        await self._check(where, entry, is_last_try=failures == TRIES - 1)
                    offset, failures = entry.end_offset, 0
                return
            except STORE_FAILURES as failure:
                if not isinstance(failure, UNSENT):
                    failures += 1
                if failures == TRIES:  # a page
                    self._report_unchecked(str(failure))
                    return
                _log.warning("bucket.scrub_failed", error=str(failure), retry_s=RETRY_S)
                await asyncio.sleep(RETRY_S)

    async def _check(self, where: TopicIdPartition, entry: RemoteSegment, *, is_last_try: bool) -> None:
        """Check one segment. Raises STORE_FAILURES; in the last try only those of UNSENT."""
        began, size, requests = asyncio.get_running_loop().time(), 0, REQUESTS_PER_SEGMENT
        try:
            self._verifier.recheck_now(where, entry)
            await self._verifier.check_objects(where, entry)
            if self._settings.remote_log_scrub_max_bytes_per_second:
                requests += REQUESTS_PER_CHUNK
                position = self._rng.randrange(entry.log_bytes)
                size = (await self._verifier.check_chunk(where, entry, position)).size
        except CorruptObject:
            self._found[where] += 1  # logged by the quarantine
        except ObjectNotFound:
            return  # retention has deleted it
        except (ObjectStoreError, OSError) as failure:
            if isinstance(failure, UNSENT if is_last_try else STORE_FAILURES):
                raise
            self._report_unchecked(str(failure))
            return
        finally:
            await self._rest(requests, size, asyncio.get_running_loop().time() - began)
        self.segments += 1
        self.bytes_read += size

    def _report_page(self, where: TopicIdPartition, page: UnreadablePage) -> None:
        if page.is_damaged:
            self._found[where] += 1
        else:
            self._report_unchecked(page.error)

    def _report_unchecked(self, error: str) -> None:
        """`error`: names the object."""
        self._unchecked_found += 1
        if self._unchecked_found <= LINES_PER_PASS:
            _log.error("bucket.segment.unchecked", error=error)

    async def _audit(self) -> BucketAudit:
        """Audit the bucket. Returns the previous result if the store refuses to list it, and an empty one on
        brokers that are not the auditor."""
        while self._is_auditor():
            try:
                return await self._auditor.run(
                    lambda objects: self._rest(1 + objects // OBJECTS_PER_LIST, 0, 0.0)
                )
            except (*STORE_FAILURES, MetadataUnavailable) as failure:
                _log.warning("bucket.list_failed", error=str(failure), retry_s=RETRY_S)
                await asyncio.sleep(RETRY_S)
            except (ObjectStoreError, OSError) as failure:
                _log.error("bucket.list_failed", error=str(failure))
                return self._last_audit
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
