"""Segment uploader: one attempt to upload a rolled segment, from the announcement to the commit.

StartCopy committed -> objects put, the CRCs of the segment's batches verified on the way -> objects verified
-> FinishCopy committed. The caller holds a copy slot, so that StartCopy is committed only shortly before its
objects are put. Called by the remote log manager, beside the job of the partition: retention continues during
an upload, and may delete what is uploaded.
"""

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from uuid import UUID

import structlog

from tierlog.base.files import Files
from tierlog.base.segments import SegmentExport
from tierlog.base.tracing import Tracer
from tierlog.base.types import TopicIdPartition, random_uuid
from tierlog.broker.remote.upload_check import checked_segment, is_intact_from, require_leader_epochs
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_events import OnReplicaEvent
from tierlog.broker.storage.damage import overlaps
from tierlog.broker.storage.log_suffix import copy_suffix
from tierlog.broker.storage.segment import CorruptLog
from tierlog.metadata.controller import commands as c
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.records.chunks import ChunkBuilder
from tierlog.tiering import planner
from tierlog.tiering.copier import Attempt, NotUploadable, SegmentBody, SegmentFile
from tierlog.tiering.copy_slots import CopySlot
from tierlog.tiering.manager import TierManager
from tierlog.tiering.object_store import ObjectStoreTimeout
from tierlog.tiering.tier_counts import TransferCounts

_log = structlog.get_logger("tierlog.tiering")

Submit = Callable[[c.StartCopy | c.FinishCopy], Awaitable[None]]
"""Commits a command, or raises an error if the controller refuses it."""


@dataclass(slots=True, eq=False)
class Upload:
    """A segment that waits for its upload, or is uploaded now. `is_current`: whether this broker still leads
    the partition. `uuid`: of the copy, once it is announced."""

    where: TopicIdPartition
    replica: Replica
    action: planner.Copy
    is_current: Callable[[], bool]
    uuid: UUID | None = None

    @property
    def end_offset(self) -> int:
        return self.action.segment.end_offset


class SegmentUploader:
    def __init__(
        self,
        *,
        broker_id: int,
        metadata: MetadataClient,
        manager: TierManager,
        files: Files,
        rng: random.Random,
        emit: OnReplicaEvent,
        submit: Submit,
        tracer: Tracer,
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._manager = manager
        self._files = files
        self._rng = rng
        self._emit = emit
        self._submit = submit
        self._tracer = tracer
        self.counts = TransferCounts()

    async def run(self, upload: Upload, slot: CopySlot) -> bool:
        """Returns whether the segment is remote now; False also if the log has changed, so that there is
        nothing to upload. Raises ObjectStoreError, CorruptLog, OSError, and the errors of `submit`."""
        try:
            with self._tracer.span("upload", **{"tierlog.partition": str(upload.replica.name)}):
                return await self._copy(upload, slot)
        except Exception:
            self.counts.errors.add(upload.where.topic_id)
            raise
        finally:
            upload.uuid = None

    async def _copy(self, upload: Upload, slot: CopySlot) -> bool:
        replica, action = upload.replica, upload.action
        if not upload.is_current() or self._is_below_log_start(upload):
            return False  # leadership was lost, or retention passed it, during the wait for the slot
        base, check_s = action.segment.base_offset, self._manager.check_s
        require_leader_epochs(replica.log, base)
        if action.start_offset is None:
            checked = checked_segment(replica, base, self._emit, upload.is_current, check_s)
            return checked is not None and await self._upload(upload, slot, checked)
        start = action.start_offset
        if not await is_intact_from(replica, base, start, self._emit, upload.is_current, check_s):
            return False
        exported = replica.log.export_segment(base)
        if exported is None:
            return False  # the segment was deleted during the check
        copy = partial(copy_suffix, self._files, exported, start, replica.config.index_interval_bytes)
        copying = asyncio.get_running_loop().run_in_executor(replica.log_dir.threads, copy)
        try:
            suffix, suffix_chunks = await asyncio.shield(copying)
        except asyncio.CancelledError:  # the thread continues
            copying.add_done_callback(partial(self._remove_unused, replica))
            raise
        try:
            return await self._upload(upload, slot, SegmentFile(suffix, suffix_chunks))
        finally:
            await self._unlink(replica, suffix)

    def _is_below_log_start(self, upload: Upload) -> bool:
        return self._metadata.image.remote_partition(*upload.where).log_start_offset >= upload.end_offset

    def _remove_unused(
        self, replica: Replica, copying: asyncio.Future[tuple[SegmentExport, ChunkBuilder]]
    ) -> None:
        if not copying.cancelled() and copying.exception() is None:
            self._unlink(replica, copying.result()[0])

    def _unlink(self, replica: Replica, suffix: SegmentExport) -> asyncio.Future[None]:
        unlink = partial(self._files.unlink, suffix.descriptor.path_log, missing_ok=True)
        return asyncio.get_running_loop().run_in_executor(replica.log_dir.threads, unlink)

    async def _upload(self, upload: Upload, slot: CopySlot, body: SegmentBody) -> bool:
        where, replica, name = upload.where, upload.replica, str(upload.replica.name)
        base, end = body.base_offset, body.end_offset
        paid_bytes = await self._manager.pay(body.size)
        attempt = Attempt(where, random_uuid(self._rng), replica.leader_epoch)
        upload.uuid = attempt.uuid  # before the commit: the partition's job abandons copies that do not run
        await self._submit(
            c.StartCopy(
                topic_id=where.topic_id,
                partition=where.partition,
                broker_id=self._broker_id,
                leader_epoch=attempt.leader_epoch,
                uuid=attempt.uuid,
                base_offset=base,
                last_offset=end - 1,
            )
        )
        self.counts.requests.add(where.topic_id)
        try:
            with self._tracer.span("put segment", **{"tierlog.bytes": body.size}):
                entry = await self._manager.copy(body, attempt, slot, paid_bytes)
            if self._is_below_log_start(upload):
                raise NotUploadable("the log start has passed the segment")
        except NotUploadable as reason:  # the next plan abandons the copy, and sees why
            _log.info("upload.ended", partition=name, reason=str(reason))
            return False
        if self._metadata.image.format_version < 2:
            entry = entry.in_format_1()
        if overlaps(replica.log.damage, base, end - 1):
            raise CorruptLog(f"{name}: the segment from {base} was found to be damaged during its upload")
        await self._submit(
            c.FinishCopy(
                topic_id=where.topic_id, partition=where.partition, broker_id=self._broker_id, segment=entry
            )
        )
        self.counts.bytes.add(where.topic_id, entry.log_bytes)
        _log.info("upload.segment", partition=name, base=entry.base_offset, bytes=entry.log_bytes)
        return True


def is_timeout(failure: Exception) -> bool:
    """Whether the store or the disk did not respond in time, so that the copy held its slot for long."""
    is_disk = isinstance(failure, OSError) and failure.errno == errno.ETIMEDOUT
    return is_disk or isinstance(failure, ObjectStoreTimeout)
