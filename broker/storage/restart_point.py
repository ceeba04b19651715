"""Restart point: the files with which a start reads only the last batches of the active segment.

At a checkpoint the index files get the entries of the active segment, and then a producer snapshot is written
at the log end, inside the segment. A start after a crash of the process cuts the indexes off at the snapshot,
and reads on from the last entry that is left. Nothing of it is synced, so a start that may follow a power
failure does not use it (docs/adr/0059-restart-points-inside-the-active-segment.md).

Invariant, at each file operation: while there is a producer snapshot inside the active segment, the log is
unchanged below it, the index files have every entry below it, and the leader epoch checkpoint has every epoch
below it. Therefore the snapshot is removed before the index files are written and before the log is truncated
below it, and written after them.

`prepare` runs on the event loop, `write` in the thread of a flush. Truncation never runs beside a flush;
rolls and closes may, and exclude a write by `replaced`. Owned by the log flusher.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tierlog.base.files import Files
from tierlog.broker.storage.core.producer_state import ProducerStateManager
from tierlog.broker.storage.names import SNAPSHOT, segment_file
from tierlog.broker.storage.recovery import overwrite
from tierlog.broker.storage.segment import IndexSizes, Segment

PRODUCERS_PER_INTERVAL = 4
"""A restart point is written once the segment has grown by an index interval, and by another for so many
producers, since the last one. Reading them takes a start no longer than it takes now to write the point: an
idle log gets none, and with the default interval one with 10,000 producers gets one for each 10 MiB.
"""


@dataclass(frozen=True, slots=True, eq=False)
class RestartPoint:
    """`offset` and `position`: where the segment ended. `snapshot`: the producer state there."""

    segment: Segment
    offset: int
    position: int
    index_sizes: IndexSizes
    snapshot: bytes


class RestartPoints:
    __slots__ = ("_directory", "_files", "_lock", "_offset", "_pending", "_position")

    def __init__(self, files: Files, directory: Path, offset: int | None, position: int) -> None:
        """`offset`: that of the snapshot inside the active segment, if there is one; `position`: where a
        start would begin to read."""
        self._files = files
        self._directory = directory
        self._lock = threading.Lock()  # held while small files are written, never during an fsync
        self._offset = offset
        self._position = position
        self._pending: RestartPoint | None = None

    @property
    def pending(self) -> RestartPoint | None:
        """The one that the next flush writes."""
        return self._pending

    def prepare(self, active: Segment, producers: ProducerStateManager, interval_bytes: int) -> bool:
        """Have the next flush write a restart point at the log end; False if it is not worth it.
        `interval_bytes`: of the index."""
        enough = interval_bytes + interval_bytes * len(producers) // PRODUCERS_PER_INTERVAL
        if active.size - self._position <= enough or not active.index_entries:
            return False
        self._pending = RestartPoint(
            active, active.end_offset, active.size, active.index_sizes, producers.encode()
        )
        return True

    def write(self, point: RestartPoint) -> None:
        """Write a restart point, unless it is void by now. The leader epoch checkpoint has the epochs below.
        Raises OSError; then there may be none, and a start reads the whole segment."""
        with self._lock:
            if self._pending is not point:
                return
            self._pending = None
            self._remove()
            point.segment.save_indexes(point.index_sizes)
            overwrite(self._files, self._path(point.offset), point.snapshot)
            self._offset, self._position = point.offset, point.position

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """The caller writes the indexes of the active segment inside. Until then there is no restart point,
        and none is written. Raises OSError."""
        with self._lock:
            self._pending = None
            self._remove()
            yield

    def remove(self) -> None:
        """Before the log is truncated fully. Raises OSError."""
        with self.replaced():
            return

    def on_truncated(self, log_end_offset: int) -> None:
        """Producer snapshots above the log end have been removed before."""
        self._pending = None
        if self._offset is not None and self._offset > log_end_offset:
            self._offset, self._position = None, 0

    def switch_directory(self, directory: Path, files: Files) -> None:
        """Continue in a directory that has no restart point."""
        self._directory, self._files = directory, files
        self._pending, self._offset, self._position = None, None, 0

    def close(self) -> None:
        """Write nothing from now on: another log may soon use the directory's name."""
        with self._lock:
            self._pending = None

    def _remove(self) -> None:
        if self._offset is not None:
            self._files.unlink(self._path(self._offset), missing_ok=True)
            self._offset = None
        self._position = 0

    def _path(self, offset: int) -> Path:
        return segment_file(self._directory, offset, SNAPSHOT)
