"""Holds a rolled segment to its CRCs before tiering uploads it: what is remote stays so for as long as the
topic, and a flipped bit would have an object's checksum that is right.

The whole segment is read, each time that an upload is tried, in short steps in the threads of its log
directory; as the upload waits, with no rest between them other than for requests. What is found goes where
the scrubber tells it. Meanwhile the log may be cut, compacted, moved or deleted: then nothing is known of it,
and the caller plans anew. Called by the tier driver on the event loop, within the slot of the copy.
"""

import asyncio
import errno
from collections.abc import Callable

from tierlog.broker.maintenance.scrubber import FoundDamage
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.segment import Segment
from tierlog.broker.storage.segment_scrub import SegmentScrub

CAUSE = "upload"


async def checksum_to_upload(
    replica: Replica,
    base_offset: int,
    start_offset: int,
    found_damage: FoundDamage,
    goes_on: Callable[[], bool],
    timeout_s: float,
) -> int | None:
    """The CRC-32C of the rolled segment with that base, taken from the bytes that were checked. None if it is
    not whole from `start_offset` on, or is not what it was when this began.

    An answer holds until the caller awaits something. The upload reads the file again, so the checksum goes
    with it: the object store refuses bytes that have changed since. Raises OSError, also if the disk takes
    longer than `timeout_s` for one step: others wait for the slot.
    """
    segment = _rolled_at(replica.log, base_offset)
    if segment is None:
        return None
    scrub = await _read(replica, segment, goes_on, timeout_s)
    if scrub is None:
        return None
    if scrub.found:
        found_damage(replica, segment, scrub.found, CAUSE)
    elif segment.has_transactions is None and not segment.damage:
        segment.has_transactions = scrub.has_transactions  # the export need not look on the event loop
    is_whole = all(one.end_offset <= start_offset for one in segment.damage)
    return scrub.checksum if is_whole else None


async def _read(
    replica: Replica, segment: Segment, goes_on: Callable[[], bool], timeout_s: float
) -> SegmentScrub | None:
    """None if the log has changed, or nobody waits for it any more."""
    loop, scrub = asyncio.get_running_loop(), SegmentScrub(replica.log, segment)
    while not scrub.done:
        await asyncio.sleep(0)  # requests have their turn between two
        await _in_time(loop.run_in_executor(replica.log_dir.threads, scrub.step), segment, timeout_s)
        if not (goes_on() and scrub.is_current):
            return None
    return scrub


async def _in_time(step: asyncio.Future[int], segment: Segment, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s) as deadline:
            await step
    except TimeoutError:
        if not deadline.expired():
            raise  # of the disk
        late = f"{segment.path()} cannot be read: no answer in {timeout_s:g} s"
        raise OSError(errno.ETIMEDOUT, late) from None


def _rolled_at(log: PartitionLog, base_offset: int) -> Segment | None:
    rolled = log.rolled_below(log.log_end_offset)
    return next((segment for segment in rolled if segment.base_offset == base_offset), None)
