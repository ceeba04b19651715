"""Reads one segment again, step by step, in threads: checks the CRC of every batch, and compares its header
with the batches around it and with the leader epochs of the log.

Meanwhile the log may be appended to, cut, compacted, moved or deleted: so it reads a file that it holds, up
to where the segment ended when it began, and looks a second time before it calls anything damage. What it has
found counts only if the segment is still what it was (`holds`), which its owner asks on the event loop.
Where damage ends is found by the batch behind it, or by the offset index. Called by the scrubber of the
runtime: made and judged on the loop, one `step` at a time in a thread.
"""

from collections.abc import Iterator
from contextlib import suppress

from crc32c import crc32c

from tierlog.base.leader_epochs import LeaderEpochs
from tierlog.broker.storage.checked_batches import LARGEST_BATCH, CheckedBatch, verified_batches
from tierlog.broker.storage.core.continuity import HeaderRules
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.names import OFFSET_INDEX
from tierlog.broker.storage.segment import BatchBoundary, Damage, Segment
from tierlog.records.batch import HEADER_SIZE, BatchHeader, check_batch, read_header
from tierlog.records.errors import RecordsError
from tierlog.records.indexes import OFFSET_ENTRY

STEP_BYTES = 1 << 20
STEP_BATCHES = 128
"""After which a step ends: it holds the interpreter for a millisecond or two."""


class SegmentScrub:
    """Of one that is not empty. Raises OSError, as its steps do."""

    def __init__(self, log: PartitionLog, segment: Segment) -> None:
        self.segment = segment
        self.done = False
        self.found: list[Damage] = []
        self.batches = 0
        self.has_transactions = False
        self.checksum = 0
        """CRC-32C of the segment's file, of the very bytes that were checked, if nothing is damaged."""
        self._log = log
        self._rules = HeaderRules(
            gaps=log.may_have_gaps, epochs=LeaderEpochs(log.epochs.entries), end_offset=segment.end_offset
        )
        self._cuts, self._swaps = segment.content_version, log.swaps
        self._file = segment.file
        self._end = BatchBoundary(segment.size, segment.end_offset)
        self._index = b"" if segment.rolled else bytes(segment.offset_index)
        self._known = {one.position: one for one in segment.damage}
        self._at = BatchBoundary(0, segment.base_offset)
        self._batches = self._from_here()

    @property
    def holds(self) -> bool:
        """Whether the log still has what was looked at; one that has moved reads from another file."""
        log, segment = self._log, self.segment
        return segment.content_version == self._cuts and log.swaps is self._swaps and log.has(segment)

    def step(self) -> int:
        """Reads on; how many bytes. In a thread."""
        began, batches = self._at.position, self.batches
        while self._at.position < self._end.position:
            found = next(self._batches, None)
            if found is None:
                self._pass_damage()
                continue
            header = found.header
            self.checksum = crc32c(found.content, self.checksum)
            self._at = BatchBoundary(found.position + header.size, header.next_offset)
            self.batches += 1
            self.has_transactions = self.has_transactions or header.is_transactional
            if self.batches - batches >= STEP_BATCHES or self._at.position - began >= STEP_BYTES:
                break
        self.done = self._at.position >= self._end.position
        return self._at.position - began

    def _from_here(self) -> Iterator[CheckedBatch]:
        return verified_batches(self.segment, self._rules, file=self._file, start=self._at)

    def _pass_damage(self) -> None:
        """What lies here is no batch that could follow; unless a second look says otherwise."""
        at = self._at
        known = self._known.get(at.position)
        again = next(self._from_here(), None) if known is None else None
        if again is None:
            self._at = (
                self._next_whole() if known is None else BatchBoundary(known.end_position, known.end_offset)
            )
            if known is None:
                self.found.append(Damage(*_both(at, self._at)))
        self._batches = self._from_here()

    def _next_whole(self) -> BatchBoundary:
        """The first batch behind here that is whole: behind the damaged one, if its length is; or indexed."""
        for position in self._candidates():
            if self._at.position < position < self._end.position:
                header = self._whole_batch(position)
                if header is None or header.base_offset <= self._at.end_offset:
                    continue
                if not self._rules.fault(header, header.base_offset):
                    return BatchBoundary(position, header.base_offset)
        return self._end

    def _candidates(self) -> Iterator[int]:
        try:
            header = read_header(self._read(self._at.position, HEADER_SIZE))
            if HEADER_SIZE <= header.size <= LARGEST_BATCH:
                yield self._at.position + header.size
        except RecordsError:
            pass
        index, segment = self._index, self.segment
        with suppress(FileNotFoundError):
            index = index or segment.files.read_whole(segment.path(OFFSET_INDEX))
        whole = index[: len(index) - len(index) % OFFSET_ENTRY.size]
        yield from sorted(position for _, position in OFFSET_ENTRY.iter_unpack(whole))

    def _whole_batch(self, position: int) -> BatchHeader | None:
        try:
            size = read_header(self._read(position, HEADER_SIZE)).size
            if not HEADER_SIZE <= size <= min(LARGEST_BATCH, self._end.position - position):
                return None
            return check_batch(self._read(position, size))
        except RecordsError:
            return None

    def _read(self, position: int, size: int) -> bytes:
        return self.segment.files.read_at(self._file.fd, size, position)


def _both(start: BatchBoundary, end: BatchBoundary) -> tuple[int, int, int, int]:
    return start.position, end.position, start.end_offset, end.end_offset
