"""Upload check: verifies the CRCs of a rolled segment before its upload.

A remote segment is kept as long as its topic's retention, and a bit flipped before the upload would have a
correct object checksum. The complete segment is read before each upload, in short steps in the threads of its
log directory, between which requests are served. Damage is reported as the scrubber reports it. If the log is
truncated, compacted, moved or deleted during the check, there is no result, and the caller plans again.
Called by the remote log manager on the event loop, within the copy's slot.
"""

import asyncio
import errno
from collections.abc import Callable

from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_events import DamageFound, OnReplicaEvent
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.segment import Segment
from tierlog.broker.storage.segment_scrub import SegmentScrub
from tierlog.records.chunks import ChunkBuilder

CAUSE = "upload"


async def chunks_to_upload(
    replica: Replica,
    base_offset: int,
    start_offset: int,
    emit: OnReplicaEvent,
    is_current: Callable[[], bool],
    timeout_s: float,
) -> ChunkBuilder | None:
    """The chunks of the rolled segment at `base_offset` and its checksum, computed from the verified bytes.
    None if it is not intact from `start_offset` on, or if the log has changed during the check.

    The result is valid until the caller awaits. The upload reads the file again, and sends this checksum: the
    object store refuses bytes that have changed since. Raises OSError, also if one step takes longer than
    `timeout_s`, since other copies wait for the slot.
    """
    segment = _rolled_at(replica.log, base_offset)
    if segment is None:
        return None
    chunks = ChunkBuilder()
    scrub = await _read(replica, SegmentScrub(replica.log, segment, chunks), is_current, timeout_s)
    if scrub is None:
        return None
    if scrub.found:
        emit(DamageFound(replica, segment, scrub.found, CAUSE))
    elif segment.has_transactions is None and not segment.damage:
        segment.has_transactions = scrub.has_transactions  # so the export does not read it on the event loop
    is_intact = all(one.end_offset <= start_offset for one in segment.damage)
    return chunks if is_intact else None


async def _read(
    replica: Replica, scrub: SegmentScrub, is_current: Callable[[], bool], timeout_s: float
) -> SegmentScrub | None:
    """None if the log has changed, or the result is no longer needed."""
    loop, segment = asyncio.get_running_loop(), scrub.segment
    while not scrub.done:
        await asyncio.sleep(0)  # let requests run between two steps
        await _with_timeout(loop.run_in_executor(replica.log_dir.threads, scrub.step), segment, timeout_s)
        if not (is_current() and scrub.is_current):
            return None
    return scrub


async def _with_timeout(step: asyncio.Future[int], segment: Segment, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s) as deadline:
            await step
    except TimeoutError:
        if not deadline.expired():
            raise  # an error of the disk
        message = f"cannot read {segment.path()}: the disk did not respond in {timeout_s:g} s"
        raise OSError(errno.ETIMEDOUT, message) from None


def _rolled_at(log: PartitionLog, base_offset: int) -> Segment | None:
    rolled = log.rolled_below(log.log_end_offset)
    return next((segment for segment in rolled if segment.base_offset == base_offset), None)
