"""Segment scrub: reads one segment in steps and checks the CRC and header of every batch, for the scrubber.

During a scrub the log may be appended to, truncated, compacted, moved or deleted. The scrub therefore keeps
the file open, reads up to the end that the segment had at the start, and reads damage twice before it reports
it. The result counts only if the segment is unchanged (`is_current`), which the owner checks on the event
loop. A damaged range ends at the next intact batch, which the damaged batch's length or the offset index
locates. Created and evaluated on the event loop; each `step` runs in a thread.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Protocol

from tierlog.base.leader_epochs import LeaderEpochs
from tierlog.broker.storage.checked_batches import LARGEST_BATCH, ReadTarget, verified_batches
from tierlog.broker.storage.core.continuity import HeaderRules
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.names import OFFSET_INDEX
from tierlog.broker.storage.segment import BatchBoundary, CheckedBatch, Damage, Segment
from tierlog.records.batch import HEADER_SIZE, BatchHeader, check_batch, read_header
from tierlog.records.errors import RecordsError
from tierlog.records.indexes import OFFSET_ENTRY

STEP_BYTES = 1 << 20
STEP_BATCHES = 128
"""Limits of a step: it holds the interpreter lock for a millisecond or two, in which requests wait. Uploads
set a limit of bytes of their own."""


class BatchSink(Protocol):
    def add(self, header: BatchHeader, content: memoryview) -> None:
        """Called in the thread of a step, with the bytes of a batch."""


class SegmentScrub:
    """Scrub of a segment that is not empty. The constructor and the steps raise OSError."""

    def __init__(self, log: PartitionLog, segment: Segment) -> None:
        self.segment = segment
        self.done = False
        self.found: list[Damage] = []
        self.batches = 0
        self.has_transactions = False
        self._log = log
        self._rules = HeaderRules(
            gaps=log.may_have_gaps, epochs=LeaderEpochs(log.epochs.entries), end_offset=segment.end_offset
        )
        self._content_version, self._swaps = segment.content_version, log.swaps
        self._file = segment.file
        self._end = BatchBoundary(segment.size, segment.end_offset)
        self._index = b"" if segment.rolled else bytes(segment.offset_index)
        self._known = {damage.position: damage for damage in segment.damage}
        self._at = BatchBoundary(0, segment.base_offset)
        self.target = ReadTarget()
        """The buffer into which the next batches are read, if they fit. It is set between two steps."""
        self._batches = self._scan(self.target)

    @property
    def is_current(self) -> bool:
        """Whether the log still has the content that was read, in the same directory."""
        log, segment = self._log, self.segment
        return (
            segment.content_version == self._content_version and log.swaps is self._swaps and log.has(segment)
        )

    def step(self, sink: BatchSink | None = None, step_bytes: int = STEP_BYTES) -> int:
        """Check the next batches, in a thread, until they have `step_bytes`. `sink` gets every intact one.
        Returns the number of bytes read."""
        began, batches = self._at.position, self.batches
        while self._at.position < self._end.position:
            found = next(self._batches, None)
            if found is None:
                self._skip_damage()
                continue
            header = found.header
            if sink is not None:
                sink.add(header, found.content)
            self._at = BatchBoundary(found.position + header.size, header.next_offset)
            self.batches += 1
            self.has_transactions = self.has_transactions or header.is_transactional
            if self.batches - batches >= STEP_BATCHES or self._at.position - began >= step_bytes:
                break
        self.done = self._at.position >= self._end.position
        return self._at.position - began

    def _scan(self, target: ReadTarget | None = None) -> Iterator[CheckedBatch]:
        return verified_batches(self.segment, self._rules, file=self._file, start=self._at, target=target)

    def _skip_damage(self) -> None:
        """Skip the batch at this position as damaged, unless it is valid when it is read again."""
        at = self._at
        known = self._known.get(at.position)
        again = next(self._scan(), None) if known is None else None
        if again is None:
            self._at = (
                self._next_intact() if known is None else BatchBoundary(known.end_position, known.end_offset)
            )
            if known is None:
                end = self._at
                self.found.append(Damage(at.position, end.position, at.end_offset, end.end_offset))
        self.target.read_again(self._at.position)
        self._batches = self._scan(self.target)

    def _next_intact(self) -> BatchBoundary:
        """Position of the first intact batch after this one, or the end of the segment."""
        for position in self._candidates():
            if self._at.position < position < self._end.position:
                header = self._intact_batch(position)
                if header is None or header.base_offset <= self._at.end_offset:
                    continue
                if not self._rules.fault(header, header.base_offset):
                    return BatchBoundary(position, header.base_offset)
        return self._end

    def _candidates(self) -> Iterator[int]:
        """Positions of possible batches: after the damaged one if its length is intact, and indexed
        positions."""
        try:
            header = read_header(self._read(self._at.position, HEADER_SIZE))
            if HEADER_SIZE <= header.size <= LARGEST_BATCH:
                yield self._at.position + header.size
        except RecordsError:
            pass
        index, segment = self._index, self.segment
        with suppress(FileNotFoundError):
            index = index or segment.files.read_whole(segment.path(OFFSET_INDEX))
        entries = index[: len(index) - len(index) % OFFSET_ENTRY.size]
        yield from sorted(position for _, position in OFFSET_ENTRY.iter_unpack(entries))

    def _intact_batch(self, position: int) -> BatchHeader | None:
        try:
            size = read_header(self._read(position, HEADER_SIZE)).size
            if not HEADER_SIZE <= size <= min(LARGEST_BATCH, self._end.position - position):
                return None
            return check_batch(self._read(position, size))
        except RecordsError:
            return None

    def _read(self, position: int, size: int) -> bytes:
        return self.segment.files.read_at(self._file.fd, size, position)
