"""Upload check: verifies the CRCs of a rolled segment while it is uploaded.

A remote segment is kept as long as its topic's retention, and a bit flipped before the upload would have a
correct object checksum. The segment is read once, in steps in the threads of its log directory, into the
buffer from which it is sent, and checked there; only a batch that does not fit into the rest of a buffer is
copied. A step fills a buffer, unless it has many batches: each hand-over to a thread and back costs as much
as the check of several batches. The bytes that are sent are those that were verified. Damage is reported
as the scrubber reports it. If the segment is damaged, or the log is truncated, compacted, moved or deleted
during the upload, the upload ends without an object. Called by the remote log manager on the event loop,
within the copy's slot.
"""

import asyncio
import errno
from collections import deque
from collections.abc import Callable

from tierlog.base.segments import SegmentExport
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_events import DamageFound, OnReplicaEvent
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.segment import CorruptLog, Segment
from tierlog.broker.storage.segment_scrub import STEP_BYTES, BatchSink, SegmentScrub
from tierlog.records.batch import BatchHeader
from tierlog.records.chunks import ChunkBuilder
from tierlog.tiering.copier import NotUploadable

CAUSE = "upload"


class CheckedSegment:
    """The body of an upload: verified bytes of a rolled segment. Reads raise NotUploadable, and OSError, also
    if one step takes longer than `timeout_s`, since other copies wait for the slot."""

    def __init__(
        self,
        replica: Replica,
        segment: Segment,
        emit: OnReplicaEvent,
        is_current: Callable[[], bool],
        timeout_s: float,
    ) -> None:
        self.size = segment.size
        self.base_offset, self.end_offset = segment.base_offset, segment.end_offset
        self._replica = replica
        self._segment = segment
        self._emit = emit
        self._is_current = is_current
        self._timeout_s = timeout_s
        self._chunks = ChunkBuilder()
        self._position = 0  # in the segment, where the next buffer begins
        self._target: memoryview | None = None  # where the next verified bytes belong
        self._batches: deque[memoryview] = deque()  # verified, and did not fit into the last target
        self._scrub = SegmentScrub(replica.log, segment)

    def add(self, header: BatchHeader, content: memoryview) -> None:
        """Called by the scrub, in the thread of its step."""
        self._chunks.add(header, content)
        self._put(content)

    async def read_into(self, buffer: memoryview) -> None:
        rest, self._batches, self._target = self._batches, deque(), buffer
        self._scrub.target.set(buffer, self._position)
        self._position += len(buffer)
        try:
            for content in rest:
                self._put(content)
            while self._target:
                await self._step()
        finally:
            self._target = None
            self._scrub.target.clear()

    def _put(self, content: memoryview) -> None:
        target = self._target
        taken = 0 if target is None else min(len(content), len(target))
        if target is not None and taken:
            if not self._scrub.target.holds(content):
                target[:taken] = content[:taken]
            self._target = target[taken:]
        if taken < len(content):
            self._batches.append(content[taken:])

    async def _step(self) -> None:
        if self._scrub.done:
            raise NotUploadable(f"{self._segment.path()} ends before its size")
        wanted = 0 if self._target is None else len(self._target)
        await _step(self._replica, self._scrub, self._timeout_s, self, wanted)
        self._require_current()
        if not self._scrub.found:
            return
        self._scrub.target.clear()
        while not self._scrub.done:  # find all damage
            self._batches.clear()
            await _step(self._replica, self._scrub, self._timeout_s)
            self._require_current()
        self._emit(DamageFound(self._replica, self._segment, self._scrub.found, CAUSE))
        raise NotUploadable(f"{self._segment.path()} is damaged")

    def _require_current(self) -> None:
        if not (self._is_current() and self._scrub.is_current):
            raise NotUploadable(f"{self._segment.path()} has changed")

    def finish(self) -> tuple[SegmentExport, ChunkBuilder]:
        """The indexes and chunks of the bytes, which have all been read. Raises NotUploadable."""
        self._require_current()
        segment = self._segment
        if segment.damage:
            raise NotUploadable(f"{segment.path()} was found to be damaged during its upload")
        if segment.has_transactions is None:
            segment.has_transactions = self._scrub.has_transactions  # so the export does not read the segment
        exported = self._replica.log.export_segment(self.base_offset)
        if exported is None:
            raise NotUploadable(f"{segment.path()} is deleted")
        return exported, self._chunks


def require_leader_epochs(log: PartitionLog, base_offset: int) -> None:
    """Raises CorruptLog if the leader epoch of a segment's first records is not known: a flipped epoch in the
    first batch of a log removes it from the cache until log repair restores it (ADR 0014). The manifest
    entry would lack it forever."""
    offset = max(base_offset, log.log_start_offset)
    if not log.epochs.covering(offset, offset + 1):
        raise CorruptLog(f"{log.directory}: the leader epoch of offset {offset} is not known")


def checked_segment(
    replica: Replica,
    base_offset: int,
    emit: OnReplicaEvent,
    is_current: Callable[[], bool],
    timeout_s: float,
) -> CheckedSegment | None:
    """The rolled segment at `base_offset` as a body; None if there is none. Raises OSError."""
    segment = _rolled_at(replica.log, base_offset)
    return None if segment is None else CheckedSegment(replica, segment, emit, is_current, timeout_s)


async def is_intact_from(
    replica: Replica,
    base_offset: int,
    start_offset: int,
    emit: OnReplicaEvent,
    is_current: Callable[[], bool],
    timeout_s: float,
) -> bool:
    """Whether the rolled segment at `base_offset` is intact from `start_offset` on. False also if the log has
    changed during the check. Raises OSError, as reads of CheckedSegment do."""
    segment = _rolled_at(replica.log, base_offset)
    if segment is None:
        return False
    scrub = SegmentScrub(replica.log, segment)
    while not scrub.done:
        await _step(replica, scrub, timeout_s)
        if not (is_current() and scrub.is_current):
            return False
    if scrub.found:
        emit(DamageFound(replica, segment, scrub.found, CAUSE))
    elif segment.has_transactions is None and not segment.damage:
        segment.has_transactions = scrub.has_transactions
    return all(one.end_offset <= start_offset for one in segment.damage)


async def _step(
    replica: Replica,
    scrub: SegmentScrub,
    timeout_s: float,
    sink: BatchSink | None = None,
    step_bytes: int = STEP_BYTES,
) -> None:
    await asyncio.sleep(0)  # let requests run between two steps
    step = asyncio.get_running_loop().run_in_executor(replica.log_dir.threads, scrub.step, sink, step_bytes)
    try:
        async with asyncio.timeout(timeout_s) as deadline:
            await step
    except TimeoutError:
        if not deadline.expired():
            raise  # an error of the disk
        path = scrub.segment.path()
        message = f"cannot read {path}: the disk did not respond in {timeout_s:g} s"
        raise OSError(errno.ETIMEDOUT, message) from None


def _rolled_at(log: PartitionLog, base_offset: int) -> Segment | None:
    found = (segment for segment in log.segment_files if segment.base_offset == base_offset)
    return next((segment for segment in found if segment.rolled), None)
