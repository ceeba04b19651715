"""Verified scan: reads the batches of a segment in order and checks length, CRC, offset and leader epoch.

Called by recovery, by the scrubber (also before uploads), and for the copies that tiering uploads.
"""

from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from tierlog.base.open_files import SharedFile
from tierlog.base.safeguards import safeguard
from tierlog.base.types import NO_EPOCH
from tierlog.broker.storage.core.continuity import HeaderRules, consistent_prefix
from tierlog.broker.storage.core.retention import LARGEST_RELATIVE_OFFSET
from tierlog.broker.storage.segment import BatchBoundary, Segment
from tierlog.records.batch import (
    CRC_FROM,
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    check_batch,
    read_header,
)
from tierlog.records.errors import RecordsError

LARGEST_BATCH = 100 * 1024 * 1024
"""No request is larger (`socket.request.max.bytes`): a greater length is a torn header, not a batch."""

_WINDOW_BYTES = 192 * 1024
"""Less than `MAPPED_FROM_BYTES`: the allocator keeps the pages of such a buffer. The kernel clears and maps
each page of a larger one for every read, which takes longer than the read."""


class CheckedBatch(NamedTuple):
    """`content` is the checked bytes, in a read buffer that it keeps alive."""

    position: int
    header: BatchHeader
    content: memoryview


def verified_batches(
    segment: Segment,
    rules: HeaderRules,
    *,
    file: SharedFile | None = None,
    start: BatchBoundary | None = None,
    last_epoch: int = NO_EPOCH,
    next_header: BatchHeader | None = None,
) -> Iterator[CheckedBatch]:
    """Each intact batch whose offsets and leader epoch can follow the previous batch; stops at the first
    other one.

    A leader epoch that goes back is damage, or a batch that a follower had truncated and a crash restored
    after what it fetched instead. `start`: a batch boundary. `last_epoch`: leader epoch of the previous
    batch. `next_header`: the first header of the next segment.
    """
    position, offset = start or (0, segment.base_offset)
    batches = intact_batches(segment, file or segment.file, position)
    return consistent_prefix(batches, offset, rules, last_epoch, next_header)


def intact_batches(segment: Segment, file: SharedFile, at: int) -> Iterator[CheckedBatch]:
    """Intact batches from a batch boundary on, whatever their offsets."""
    window, window_at = b"", 0
    files = segment.files
    while at + HEADER_SIZE <= segment.size:
        if at - window_at + HEADER_SIZE > len(window):
            window, window_at = files.read_at(file.fd, _WINDOW_BYTES, at), at
        try:
            size = read_header(window, at - window_at).size
            if not HEADER_SIZE <= size <= min(LARGEST_BATCH, segment.size - at):
                return
            if at - window_at + size > len(window):
                window, window_at = files.read_at(file.fd, max(size, _WINDOW_BYTES), at), at
            header = _checked(window, at - window_at)
        except RecordsError:
            return
        if header.last_offset - segment.base_offset > LARGEST_RELATIVE_OFFSET:
            return
        content = memoryview(window)[at - window_at : at - window_at + size]
        yield CheckedBatch(at, header, content)
        at += size


@safeguard("a scan of a log checks the CRC of batches")
def _checked(window: bytes, at: int) -> BatchHeader:
    return check_batch(window, at)


def is_torn(segment: Segment, at: int) -> bool:
    """Whether the bytes at a position are the beginning of one batch, according to its header."""
    left = segment.size - at
    if left < HEADER_SIZE:
        return True
    try:
        header = read_header(segment.files.read_at(segment.file.fd, HEADER_SIZE, at))
    except RecordsError:
        return False
    looks_torn = left < header.size <= LARGEST_BATCH and header.base_offset >= segment.end_offset
    return looks_torn and not _has_flipped_length(segment, at, header, left)


def _has_flipped_length(segment: Segment, at: int, header: BatchHeader, left: int) -> bool:
    """Whether only the length is wrong, by one bit: an intact batch, which may have been acknowledged, must
    not be mistaken for a torn write.
    """
    for bit in range(31):
        size = (header.batch_length ^ 1 << bit) + LOG_OVERHEAD
        if HEADER_SIZE <= size <= left:
            content = segment.files.read_at(segment.file.fd, size, at)
            if crc32c(memoryview(content)[CRC_FROM:]) == header.crc:
                return True
    return False
