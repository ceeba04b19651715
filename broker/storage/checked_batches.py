"""Verified scan: reads the batches of a segment in order and checks length, CRC, offset and leader epoch.

Called by recovery, by the scrubber (also during uploads, which read into their own buffer), and for the
copies that tiering uploads.
"""

from collections.abc import Iterator

from crc32c import crc32c

from tierlog.base.open_files import SharedFile
from tierlog.base.safeguards import safeguard
from tierlog.base.types import NO_EPOCH
from tierlog.broker.storage.core.continuity import HeaderRules, consistent_prefix
from tierlog.broker.storage.core.retention import LARGEST_RELATIVE_OFFSET
from tierlog.broker.storage.segment import BatchBoundary, CheckedBatch, Segment
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


_PIECE_BYTES = 256 * 1024
"""Read into a target at a time: the check of these bytes finds them in the CPU's cache."""


class ReadTarget:
    """The buffer that the next bytes of a segment are to be in. A scan reads the batches that fit into it
    there, and checks them in place. `read_end`: the position up to which it has the bytes of the file."""

    def __init__(self) -> None:
        self.begin = self.end = self.read_end = 0
        self._buffer = memoryview(b"")

    def set(self, buffer: memoryview, begin: int) -> None:
        """`begin`: the position in the segment of the buffer's first byte."""
        self._buffer, self.begin, self.end, self.read_end = buffer, begin, begin + len(buffer), begin

    def clear(self) -> None:
        self.set(memoryview(b""), 0)

    def read_again(self, at: int) -> None:
        """Do not rely on what was read from a position on."""
        self.read_end = min(self.read_end, at)

    def holds(self, content: memoryview) -> bool:
        """Whether the content of a batch is in this buffer, at its place."""
        return content.obj is self._buffer.obj

    def read(self, segment: Segment, file: SharedFile, at: int, size: int) -> memoryview | None:
        """Bytes from the beginning of the buffer on, which include [at, at + size); None if these do not fit,
        or the file ends before."""
        if not self.begin <= at or at + size > self.end:
            return None
        self.read_end = max(self.read_end, at)
        while self.read_end < at + size:
            first = self.read_end - self.begin
            piece = self._buffer[first : first + max(_PIECE_BYTES, at + size - self.read_end)]
            received = segment.files.read_into(file.fd, piece, self.read_end)
            if not received:
                return None
            self.read_end += received
        return self._buffer[: self.read_end - self.begin]


def verified_batches(
    segment: Segment,
    rules: HeaderRules,
    *,
    file: SharedFile | None = None,
    start: BatchBoundary | None = None,
    last_epoch: int = NO_EPOCH,
    next_header: BatchHeader | None = None,
    target: ReadTarget | None = None,
) -> Iterator[CheckedBatch]:
    """Each intact batch whose offsets and leader epoch can follow the previous batch; stops at the first
    other one.

    A leader epoch that goes back is damage, or a batch that a follower had truncated and a crash restored
    after what it fetched instead. `start`: a batch boundary. `last_epoch`: leader epoch of the previous
    batch. `next_header`: the first header of the next segment. `target`: where batches are read if they fit.
    """
    position, offset = start or (0, segment.base_offset)
    batches = intact_batches(segment, file or segment.file, position, target)
    return consistent_prefix(batches, offset, rules, last_epoch, next_header)


def intact_batches(
    segment: Segment, file: SharedFile, at: int, target: ReadTarget | None = None
) -> Iterator[CheckedBatch]:
    """Intact batches from a batch boundary on, whatever their offsets."""
    window, window_at = memoryview(b""), 0
    while at + HEADER_SIZE <= segment.size:
        if at - window_at + HEADER_SIZE > len(window):
            window, window_at = _read(segment, file, at, HEADER_SIZE, target)
        try:
            size = read_header(window, at - window_at).size
            if not HEADER_SIZE <= size <= min(LARGEST_BATCH, segment.size - at):
                return
            if at - window_at + size > len(window):
                window, window_at = _read(segment, file, at, size, target)
            header = _checked(window, at - window_at)
        except RecordsError:
            return
        if header.last_offset - segment.base_offset > LARGEST_RELATIVE_OFFSET:
            return
        yield CheckedBatch(at, header, window[at - window_at : at - window_at + size])
        at += size


def _read(
    segment: Segment, file: SharedFile, at: int, size: int, target: ReadTarget | None
) -> tuple[memoryview, int]:
    """Bytes that include [at, at + size), unless the file ends before, and their position."""
    window = None if target is None else target.read(segment, file, at, size)
    if target is not None and window is not None:
        return window, target.begin
    return memoryview(segment.files.read_at(file.fd, max(size, _WINDOW_BYTES), at)), at


def _checked(window: memoryview, at: int) -> BatchHeader:
    return check_batch(window, at)


safeguard("a scan of a log checks the CRC of batches")(_checked)


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
