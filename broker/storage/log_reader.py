"""Log reader: returns whole batches from an offset as file slices, from as many segments as needed.

No byte of a record is read (ADR 0008). Some batch headers are read to find a file position. They are checked
against the previous header and the log's leader epochs; an invalid one raises CorruptLog and is not served. A
`checked` read validates every header in its result. Followers that catch up use it, since they append the
batches to their own logs. Owned by `PartitionLog`, on the event loop.
"""

from collections.abc import Sequence

from tierlog.base.files import FileSlice
from tierlog.base.leader_epochs import LeaderEpochs
from tierlog.base.slices import LogSlice, empty_slice
from tierlog.broker.storage.core.continuity import HeaderRules, consistent_prefix
from tierlog.broker.storage.segment import BatchAt, BatchBoundary, CorruptLog, Segment

ROLLED_KEPT_LOADED = 4
"""Rolled segments per partition whose indexes stay in memory. A few are enough, since consumers of old
records read sequentially.
"""

READ_HINTS = 128
"""Number of recent reads whose end positions are kept, so that the consumer's next fetch needs no search."""


class LogReader:
    __slots__ = ("_epochs", "_hints", "_loaded")

    def __init__(self, epochs: LeaderEpochs) -> None:
        self._epochs = epochs
        self._hints: dict[int, tuple[Segment, int]] = {}  # by offset: where the batch at the offset begins
        self._loaded: dict[int, Segment] = {}  # rolled segments by base offset, least recently read first

    def mark_used(self, segment: Segment) -> None:
        """Keep the most recently read rolled segments loaded and unload the least recently read one."""
        if not segment.rolled:
            return
        self._loaded.pop(segment.base_offset, None)
        self._loaded[segment.base_offset] = segment
        if len(self._loaded) > ROLLED_KEPT_LOADED:
            self._loaded.pop(next(iter(self._loaded))).unload()

    def forget_hints(self) -> None:
        """Forget the end positions of recent reads. Called after segments were truncated or replaced."""
        self._hints.clear()

    def forget(self, segment: Segment) -> None:
        """Forget a segment that was removed from the log."""
        self._hints.clear()
        self._loaded.pop(segment.base_offset, None)

    def close(self) -> None:
        self._hints.clear()
        self._loaded.clear()

    def read(
        self,
        segments: Sequence[Segment],
        offset: int,
        max_bytes: int,
        end_offset: int,
        *,
        min_one: bool,
        gaps: bool,
        checked: bool,
    ) -> LogSlice:
        """Read as described in `PartitionLog.read`. `segments` starts with the one that contains the offset.
        `gaps`: compaction may have removed batches. Raises OSError and CorruptLog.
        """
        index, found = 0, self._hinted(segments[0], offset)
        if found is None:
            found = segments[0].find(offset)
        while found is None and index + 1 < len(segments):
            index += 1
            found = segments[index].find(offset)
        if found is None:
            return empty_slice(offset)
        self._check_head(found, segments[index], offset, gaps)
        base_offset = found.header.base_offset
        if base_offset >= end_offset:
            return empty_slice(offset)
        rules = HeaderRules(gaps=gaps, epochs=self._epochs) if checked else None
        return self._gather(
            segments[index:], found.position, base_offset, max_bytes, end_offset, min_one, rules
        )

    def _hinted(self, segment: Segment, offset: int) -> BatchAt | None:
        """The batch at which an earlier read ended. A hint at the end of a segment is not used: the segment
        may have been rolled since."""
        hint = self._hints.get(offset)
        if hint is None or segment is not hint[0] or hint[1] >= segment.size:
            return None
        return next(segment.scan(hint[1], expected=offset), None)

    def _check_head(self, found: BatchAt, segment: Segment, offset: int, gaps: bool) -> None:
        """Raise CorruptLog unless the first batch of a read can contain the offset."""
        header = found.header
        holds = (header.base_offset <= offset or gaps) and header.next_offset <= segment.end_offset
        if not (holds and self._epochs.allows(header.leader_epoch, header.last_offset)):
            raise CorruptLog(
                f"offset {offset}: the batch there says offset {header.base_offset} and leader epoch "
                f"{header.leader_epoch}"
            )

    def _gather(
        self,
        segments: Sequence[Segment],
        position: int,
        reached: int,
        max_bytes: int,
        end_offset: int,
        min_one: bool,
        rules: HeaderRules | None,
    ) -> LogSlice:
        """Collect slices, starting at `position` of the first segment: the boundary of the batch at offset
        `reached`. Raises CorruptLog only for the first slice.
        """
        parts: list[FileSlice] = []
        total, base_offset = 0, reached
        for segment in segments:
            if reached >= end_offset:
                break
            remaining = max_bytes - total
            try:
                boundary, ends = self._boundary(
                    segment, position, reached, remaining, end_offset, min_one and not parts, rules
                )
            except CorruptLog:
                if parts:
                    break  # the next read starts there and raises it
                raise
            if boundary is None or boundary.position <= position:
                break
            parts.append(FileSlice(segment.file, position, boundary.position - position))
            total += boundary.position - position
            reached = boundary.end_offset
            self.mark_used(segment)
            if ends:
                break
            if boundary.position < segment.size or not segment.rolled:
                self._hint(reached, segment, boundary.position)
                break
            position = 0
        return LogSlice(tuple(parts), total, base_offset, reached)

    def _boundary(
        self,
        segment: Segment,
        position: int,
        reached: int,
        max_bytes: int,
        end_offset: int,
        needs_one: bool,
        rules: HeaderRules | None,
    ) -> tuple[BatchBoundary | None, bool]:
        """The boundary where the slice of a segment ends (None if no batch fits), and whether it ends there
        because the next header is invalid. Raises CorruptLog if the first header is invalid.
        """
        upper = segment.boundary_before(end_offset)
        boundary = (
            segment.boundary_within(position, max_bytes, upper, self._epochs) if max_bytes > 0 else None
        )
        if boundary is None and needs_one:
            first = next(segment.scan(position, upper.position), None)
            boundary = first and segment.boundary_within(position, first.header.size, upper, self._epochs)
        if boundary is None or rules is None:
            return boundary, False
        valid = _checked(segment, BatchBoundary(position, reached), boundary, rules)
        if valid.position == position < boundary.position:
            raise CorruptLog(f"{segment.path()}: the batch at {position} cannot follow offset {reached - 1}")
        return valid, valid.position < boundary.position

    def _hint(self, offset: int, segment: Segment, position: int) -> None:
        if len(self._hints) >= READ_HINTS:
            self._hints.clear()
        self._hints[offset] = (segment, position)


def _checked(segment: Segment, start: BatchBoundary, end: BatchBoundary, rules: HeaderRules) -> BatchBoundary:
    """The last boundary, at most `end`, before which all headers from `start` are valid. The batch at `end`
    is read too, since it may contradict the one before it.
    """
    batches = segment.scan(start.position, expected=start.end_offset)
    last: BatchAt | None = None
    try:
        for batch in consistent_prefix(batches, start.end_offset, rules):
            if batch.position >= end.position:
                return end
            last = batch
    except CorruptLog:
        pass
    if last is None:
        return start
    valid = BatchBoundary(last.position + last.header.size, last.header.next_offset)
    return end if valid.position >= end.position else valid
