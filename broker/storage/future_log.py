"""Future log: the copy of a log in another directory, which will replace it (AlterReplicaLogDirs, KIP-113).

Files are copied as they are, so offsets, indexes, leader epochs and producer snapshots are those of the log.
`log_state` captures the log on the event loop; `copy` and `sync` run in a thread while appends continue; then
the log is captured again. Rolled segments do not change and the active one only grows. Segments that were
dropped, compacted or truncated in the meantime are recognised by the segment object and its content version,
and copied again. The remaining end is eventually short, and `copy_end` copies it, finally on the event loop:
then both logs are equal, and the copy can become the log.

Everything up to the last `sync` that no flush of the log overlapped is on disk by then. A crash before that
leaves a copy that is never read. Capturing costs almost nothing for segments that are already copied, as a
log may have very many. Called by the directory moves.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tierlog.base.files import Files, write_atomically
from tierlog.base.open_files import SharedFile
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.names import (
    DAMAGED,
    EPOCH_CHECKPOINT,
    INDEXES,
    LOG,
    SNAPSHOT,
    TXN_INDEX,
    segment_file,
)
from tierlog.broker.storage.segment import Segment

CHUNK_BYTES = 1 << 20
"""Bytes read and written at a time."""

SYNC_BYTES = 64 << 20
"""Bytes written between two fsyncs, over all files, so that other writers on that disk, in particular the
event loop, do not wait for a long writeback.
"""

MAX_NEW_SEGMENTS_ON_LOOP = 2
"""Segments started since the last copy: each needs several files, and creating a file on a busy disk takes
time.
"""

Spend = Callable[[int], None]
"""Called before bytes are copied: waits, or raises to stop."""


class LogChanged(Exception):
    """A file has changed since the log was captured: capture it again."""


@dataclass(frozen=True, slots=True)
class SegmentState:
    """A captured segment. Segments are the same if they are the same object."""

    segment: Segment
    size: int
    end_offset: int
    rolled: bool
    content_version: int

    def has_become(self, later: "SegmentState") -> bool:
        """Whether only appends, and possibly a roll, happened since."""
        same = self.segment is later.segment and self.content_version == later.content_version
        return same and self.size <= later.size and self.rolled <= later.rolled


@dataclass(frozen=True, slots=True)
class LogState:
    """A captured log, whose last segment is the active one. `damaged`: recovery found damage that has not
    been reported yet.
    """

    segments: tuple[SegmentState, ...]
    epochs: bytes
    damaged: bool

    @property
    def end_offset(self) -> int:
        return self.segments[-1].end_offset


class FutureLog:
    """`files` are those of the target directory, `source` those of the log."""

    def __init__(self, directory: Path, files: Files, source: Files, start_offset: int) -> None:
        self.directory = directory
        self.end_offset = start_offset
        """Everything the log had below it when captured has been copied."""
        self.copied_bytes = 0
        self._files = files
        self._source = source
        self._copied: dict[int, SegmentState] = {}  # by base offset
        self._latest: tuple[SegmentState, ...] = ()  # all of them in order, unless a copy was interrupted
        self.unsynced: set[Path] = set()
        """Files that `copy` has written and `sync` has not synced."""
        self._started: set[int] = set()  # base offsets that may have files
        self._epochs = b""
        self._damaged = False
        self._chunk_bytes = CHUNK_BYTES
        self._unsynced_bytes = 0

    # -- on the event loop --

    def log_state(self, log: PartitionLog) -> LogState:
        """Capture the log while no copy is running."""
        segments = tuple(map(self._segment_state, (*log.rolled_below(log.log_end_offset), log.active)))
        damaged = log.was_damaged and log.active.files.exists(log.directory / DAMAGED)
        return LogState(segments, log.epochs.encode(), damaged)

    def _segment_state(self, segment: Segment) -> SegmentState:
        known = self._copied.get(segment.base_offset)
        if (
            known is not None
            and known.segment is segment
            and known.rolled
            and known.content_version == segment.content_version
        ):
            return known
        return SegmentState(
            segment, segment.size, segment.end_offset, segment.rolled, segment.content_version
        )

    def missing_bytes(self, state: LogState) -> int:
        """Bytes that `copy` would copy."""
        segments = state.segments
        if self.only_end_is_missing(state):
            segments = segments[len(self._latest) - 1 :]
        return sum(entry.size - self._copied_size(entry) for entry in segments)

    def only_end_is_missing(self, state: LogState) -> bool:
        """Whether only appends and rolls happened since the last copy."""
        count = len(self._latest)
        if not 0 < count <= len(state.segments):
            return False
        if not self._latest[-1].has_become(state.segments[count - 1]):
            return False
        return self._latest[:-1] == state.segments[: count - 1]

    def is_almost_complete(self, state: LogState, most_bytes: int) -> bool:
        """Whether the missing end may be copied on the event loop."""
        new = len(state.segments) - len(self._latest)
        return new <= MAX_NEW_SEGMENTS_ON_LOOP and self.missing_bytes(state) <= most_bytes

    # -- in a thread --

    def copy(self, state: LogState, spend: Spend, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[None]:
        """Copy in parts, one per `next`; a part is on disk after its `unsynced` files are synced, and the
        names after `sync_names`. Raises OSError of either disk, LogChanged, and what `spend` raises.
        """
        self._chunk_bytes = chunk_bytes
        self._latest = ()
        wanted = {entry.segment.base_offset: entry for entry in state.segments}
        if void := [base for base in self._started if self._is_void(base, wanted)]:
            for base in void:
                self._remove(base)
            self.copied_bytes = sum(entry.size for entry in self._copied.values())
        for base, entry in wanted.items():
            known = self._copied.get(base)
            if known is not entry and known != entry:
                yield from self._copy_segment(entry, spend)
            self.end_offset = entry.end_offset
        if state.epochs != self._epochs:
            write_atomically(self._files, self.directory / EPOCH_CHECKPOINT, state.epochs)
            self._epochs = state.epochs
        self._mark(state.damaged)
        self._latest = state.segments

    def step(self, parts: Iterator[None]) -> bool:
        """Copy the next part. Returns False after the last one."""
        for _ in parts:
            return True
        return False

    def sync(self, paths: Sequence[Path]) -> None:
        """Sync files. Several calls may run in parallel, since a file system commits them together. Raises
        OSError.
        """
        for path in paths:
            target = SharedFile(self._files, path)
            self._files.sync(target.fd)
            self.unsynced.discard(path)
        self._unsynced_bytes = 0

    def sync_names(self) -> None:
        self._files.sync_directory(self.directory)

    def _is_void(self, base: int, wanted: dict[int, SegmentState]) -> bool:
        """Whether the copy of a segment cannot be continued."""
        had, now = self._copied.get(base), wanted.get(base)
        return had is None or now is None or not (had is now or had.has_become(now))

    def _mark(self, damaged: bool) -> None:
        """Copy the mark of a damaged log, so that the next start can still report it."""
        marker = self.directory / DAMAGED
        if damaged and not self._damaged:
            self._files.close(self._files.open(marker, create=True))
        elif self._damaged and not damaged:
            self._files.unlink(marker, missing_ok=True)
        self._damaged = damaged

    def _copy_segment(self, entry: SegmentState, spend: Spend) -> Iterator[None]:
        segment = entry.segment
        base, is_new = segment.base_offset, segment.base_offset not in self._started
        self._started.add(base)
        source = self._open(segment.path(LOG), may_be_missing=entry.size == 0)
        if source is not None:
            target = SharedFile(self._files, segment_file(self.directory, base, LOG), create=True)
            yield from self._copy_bytes(source, target, self._copied_size(entry), entry.size, spend)
        if is_new:
            snapshot = segment_file(segment.directory, base, SNAPSHOT)
            self._copy_small(snapshot, snapshot.name, may_be_missing=True)  # there may be none
        if entry.rolled:
            for suffix in INDEXES:
                name = segment_file(self.directory, base, suffix).name
                may_be_missing = suffix == TXN_INDEX and not segment.has_aborts
                self._copy_small(segment.path(suffix), name, may_be_missing=may_be_missing)
        self._copied[base] = entry

    def _copy_bytes(
        self, source: SharedFile, target: SharedFile, at: int, end: int, spend: Spend
    ) -> Iterator[None]:
        while at < end:
            count = min(self._chunk_bytes, end - at)
            spend(count)
            chunk = self._source.read_at(source.fd, count, at)
            if not chunk:
                raise LogChanged(f"{source.path}: truncated at {at}")
            self._files.writev_at(target.fd, (chunk,), at)
            at += len(chunk)
            self.copied_bytes += len(chunk)
            self.unsynced.add(target.path)
            self._unsynced_bytes += len(chunk)
            if self._unsynced_bytes >= SYNC_BYTES:
                yield

    def _copy_small(self, path: Path, name: str, *, may_be_missing: bool) -> None:
        """Copy a small file. A file that must exist may be missing for a moment while a compaction renames
        it.
        """
        source = self._open(path, may_be_missing=may_be_missing)
        if source is None:
            return
        content = self._source.read_at(source.fd, self._source.size(source.fd), 0)
        target = SharedFile(self._files, self.directory / name, create=True)
        self._files.writev_at(target.fd, (content,), 0)
        self._files.truncate(target.fd, len(content))
        self.unsynced.add(target.path)

    def _open(self, path: Path, *, may_be_missing: bool) -> SharedFile | None:
        try:
            return SharedFile(self._source, path)
        except FileNotFoundError:
            if may_be_missing:
                return None
            raise LogChanged(f"{path} is gone") from None

    def _remove(self, base: int) -> None:
        """Remove a segment's copy, the log first, so that no other segment's file is taken for part of it."""
        self._copied.pop(base, None)
        for suffix in (LOG, *INDEXES, SNAPSHOT):
            path = segment_file(self.directory, base, suffix)
            self._files.unlink(path, missing_ok=True)
            self.unsynced.discard(path)
        self._started.discard(base)

    # -- in a thread, or on the event loop --

    def copy_end(self, state: LogState, spend: Spend) -> None:
        """Copy the end if `only_end_is_missing`. The log's next flush syncs it, in either directory. Raises
        as `copy` does.
        """
        for entry in state.segments[len(self._latest) - 1 :]:
            if self._copied.get(entry.segment.base_offset) != entry:
                for _ in self._copy_segment(entry, spend):
                    continue  # no sync is needed
        self._mark(state.damaged)
        self._latest = state.segments
        self.end_offset = state.end_offset

    def _copied_size(self, entry: SegmentState) -> int:
        """Bytes of a segment's log that have been copied."""
        known = self._copied.get(entry.segment.base_offset)
        return known.size if known is not None and known.has_become(entry) else 0
