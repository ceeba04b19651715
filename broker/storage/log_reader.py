"""Log reader: turns a read from an offset into slices of whole batches, over as many segments as fit.

No byte of a record is read (ADR 0008). Headers that are read to find a position are checked against the
previous header and the log's leader epochs; an invalid one raises CorruptLog and is not served. A `checked`
read validates all headers it returns: replicas that catch up keep what they get. Owned by `PartitionLog`, on
the event loop.
"""

from collections.abc import Sequence

from tierlog.base.files import FileSlice
from tierlog.base.leader_epochs import LeaderEpochs
from tierlog.base.slices import LogSlice, empty_slice
from tierlog.broker.storage.core.continuity import HeaderRules, consistent_prefix
from tierlog.broker.storage.segment import BatchAt, BatchBoundary, CorruptLog, Segment

ROLLED_KEPT_LOADED = 4
"""Rolled segments per partition whose indexes stay in memory: readers of old records read sequentially."""

READ_HINTS = 128
"""Number of recent read ends whose positions are kept: a consumer's next fetch starts there
without a search.
"""


class LogReader:
    __slots__ = ("_epochs", "_hints", "_loaded")

    def __init__(self, epochs: LeaderEpochs) -> None:
        self._epochs = epochs
        self._hints: dict[int, tuple[Segment, int]] = {}
        self._loaded: dict[int, Segment] = {}  # rolled ones, those read most recently last

    def mark_used(self, segment: Segment) -> None:
        """Keep the most recently read rolled segments loaded and unload the least recently read one."""
        if not segment.rolled:
            return
        self._loaded.pop(segment.base_offset, None)
        self._loaded[segment.base_offset] = segment
        if len(self._loaded) > ROLLED_KEPT_LOADED:
            self._loaded.pop(next(iter(self._loaded))).unload()

    def forget_hints(self) -> None:
        """Call it when segments were truncated or replaced."""
        self._hints.clear()

    def forget(self, segment: Segment) -> None:
        """The segment was removed from the log."""
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
        """Read as described in `PartitionLog.read`. `segments` starts with the one that holds the offset.
        `gaps`: compaction may have removed batches.
        """
        hint = self._hints.get(offset)
        at = 0
        if hint is not None and segments[0] is hint[0] and hint[1] < hint[0].size:
            # A hint at the end of a segment that has been rolled since is not used.
            position, base_offset = hint[1], offset
        else:
            found = segments[0].find(offset)
            while found is None and at + 1 < len(segments):
                at += 1
                found = segments[at].find(offset)
            if found is None:
                return empty_slice(offset)
            self._check_head(found, segments[at], offset, gaps)
            if found.header.base_offset >= end_offset:
                return empty_slice(offset)
            position, base_offset = found.position, found.header.base_offset
        rules = HeaderRules(gaps=gaps, epochs=self._epochs) if checked else None
        return self._gather(segments[at:], position, base_offset, max_bytes, end_offset, min_one, rules)

    def _check_head(self, found: BatchAt, segment: Segment, offset: int, gaps: bool) -> None:
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
        """Collect slices from the batch boundary at offset `reached`."""
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
                    break  # the next read from there reports it
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
        """Where the part of a segment ends, and whether it ends before an invalid header."""
        upper = segment.boundary_before(end_offset)
        boundary = (
            segment.boundary_within(position, max_bytes, upper, self._epochs) if max_bytes > 0 else None
        )
        if boundary is None and needs_one:
            first = next(segment.scan(position, upper.position), None)
            boundary = first and segment.boundary_within(position, first.header.size, upper, self._epochs)
        if boundary is None or rules is None:
            return boundary, False
        good = _checked(segment, BatchBoundary(position, reached), boundary, rules)
        if good.position == position < boundary.position:
            raise CorruptLog(f"{segment.path()}: the batch at {position} cannot follow offset {reached - 1}")
        return good, good.position < boundary.position

    def _hint(self, offset: int, segment: Segment, position: int) -> None:
        if len(self._hints) >= READ_HINTS:
            self._hints.clear()
        self._hints[offset] = (segment, position)


def _checked(segment: Segment, start: BatchBoundary, end: BatchBoundary, rules: HeaderRules) -> BatchBoundary:
    """How far the headers between two boundaries are valid. The next batch is read too, since it may
    contradict the last one.
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
    good = BatchBoundary(last.position + last.header.size, last.header.next_offset)
    return end if good.position >= end.position else good
