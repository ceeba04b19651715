"""What of a log is on disk: fsync, the recovery point, and the checkpoint of leader epochs.

Invariants: everything below `recovery_point` is durable; a failed fsync is final, since the kernel may say
yes the next time without having written anything. Called by the log; `flush` may run in a thread beside
appends.
"""

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from tierlog.base.files import Files
from tierlog.base.leader_epochs import LeaderEpochs
from tierlog.broker.storage.checkpoints import PARTITION_METADATA
from tierlog.broker.storage.names import EPOCH_CHECKPOINT, INDEXES, SNAPSHOT, segment_file
from tierlog.broker.storage.segment import Segment

_NOT_OF_THE_DISK = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Of an open before a sync: no descriptors or memory for now."""


class SyncFailed(OSError):
    """fsync failed: the kernel may have dropped what it could not write, so only a new start, which reads the
    disk, can tell what is there. Other errors of a flush (no room for a small file) pass.
    """


class LogClosed(SyncFailed):
    """It was closed meanwhile, above all since its topic was deleted: no fault of the disk."""


class Flushed(Protocol):
    """What is asked of the log, whose owner may append, roll and drop segments meanwhile."""

    @property
    def log_end_offset(self) -> int: ...
    @property
    def active(self) -> Segment: ...
    def has(self, segment: Segment) -> bool: ...


class Flushing:
    __slots__ = (
        "_directory",
        "_directory_dirty",
        "_epochs",
        "_epochs_dirty",
        "_failure",
        "_files",
        "_lock",
        "_named",
        "_naming",
        "_start_snapshot",
        "_unsynced",
        "claimed",
        "cuts",
        "files_changed",
        "recovery_point",
        "unflushed_since_ms",
    )

    def __init__(
        self,
        files: Files,
        directory: Path,
        epochs: LeaderEpochs,
        *,
        unsynced: list[Segment],
        epochs_dirty: bool,
        recovery_point: int,
        claimed: int,
        now_ms: int,
    ) -> None:
        self.recovery_point = recovery_point
        self.claimed = claimed
        """The checkpoint on disk may say that everything below it is durable, from before the log was cut; 0
        if it does not. A segment that ends below it has to be synced before it is rolled: after a crash none
        would look at it.
        """
        self.cuts = 0
        self.unflushed_since_ms = now_ms
        self.files_changed = False
        """Whether files came or went since the log was opened, or were cut."""
        self._files = files
        self._directory = directory
        self._directory_dirty = True  # names were added or taken away that no fsync covers
        self._named = False  # whether an fsync covers the name of the directory, and the topic id in it
        self._epochs = epochs
        self._epochs_dirty = epochs_dirty
        self._unsynced = unsynced  # rolled segments
        self._start_snapshot: int | None = None  # offset of one that no batch here could replace
        self._failure: SyncFailed | None = None
        self._lock = threading.Lock()
        self._naming = threading.Lock()  # held where a file gets a name, never while the disk writes

    def flush(self, log: Flushed) -> int:
        """Makes everything appended so far durable, and raises the recovery point to it. Raises OSError,
        above all SyncFailed.

        Safe in threads beside appends: what must be synced is taken in an order in which a roll in between
        hides nothing (the end, then the active segment, then the rolled ones). Not beside truncation.
        """
        with self._lock:
            self._require_open()  # after a failure fsync says yes the next time, but has written nothing
            end, active, rolled = log.log_end_offset, log.active, list(self._unsynced)
            if end > self.recovery_point or rolled or self._epochs_dirty:
                try:
                    self._sync(log, active, rolled)
                except OSError as failure:
                    if failure.errno in _NOT_OF_THE_DISK:
                        raise
                    self._failure = SyncFailed(failure.errno, failure.strerror)
                    raise self._failure from failure
                self._sync_epochs()
                for segment in rolled:
                    with suppress(ValueError):  # retention dropped it meanwhile
                        self._unsynced.remove(segment)
            self.recovery_point = max(self.recovery_point, end)
            return self.recovery_point

    @contextmanager
    def held(self) -> Iterator[bool]:
        """No flush begins within; False if one is under way, which nobody waits for on the event loop."""
        taken = self._lock.acquire(blocking=False)
        try:
            yield taken
        finally:
            if taken:
                self._lock.release()

    def hold(self) -> None:
        """As `held`, until `resume`; waits for a flush that is under way, in a thread."""
        self._lock.acquire()

    def resume(self) -> None:
        """In whatever thread."""
        self._lock.release()

    def wait(self) -> None:
        """Returns once the flush that is under way has ended, if there is one; in a thread."""
        with self._lock:
            return

    def flush_clean(self, log: Flushed) -> None:
        """As `flush`, and of the active segment, whose files were just written, the indexes and the snapshot
        too. Raises OSError.
        """
        self._epochs_dirty = True
        self.flush(log)
        active = log.active
        for suffix in INDEXES if active.has_aborts else INDEXES[:2]:
            self._sync_file(active.path(suffix))
        self._sync_file(self._snapshot_path(log.log_end_offset))
        self._files.sync_directory(self._directory)

    def close(self) -> None:
        """From here on `flush` fails. One that is still under way goes on, since a disk that hangs must not
        hold up who closes; but it makes no file any more, as the directory's name may soon be another log's.
        """
        with self._naming:
            self._failure = self._failure or LogClosed(errno.EBADF, "the log is closed")

    def go_on_in(self, directory: Path, files: Files) -> None:
        """Within `hold`: all of the log has moved, and what is below the recovery point is on disk there. The
        next flush has the names on disk too, before it confirms anything.
        """
        self._directory, self._files = directory, files
        self._named = False
        self._directory_dirty = self._epochs_dirty = self.files_changed = True

    # -- what the log tells --

    def named(self) -> None:
        """The active segment's first append is at hand, which makes its file unless it is there."""
        self._directory_dirty = True

    def rolled(self, segment: Segment) -> None:
        self._unsynced.append(segment)
        self._directory_dirty = self.files_changed = True

    def dropped(self, segment: Segment) -> None:
        self._unsynced = [other for other in self._unsynced if other is not segment]
        self._directory_dirty = self.files_changed = True

    def cut(self, log: Flushed) -> None:
        """The log ends earlier now, as do its epochs; its active segment may be one that was rolled."""
        before = self.recovery_point
        self.recovery_point = min(before, log.log_end_offset)
        if before > log.log_end_offset:
            self.claimed = max(self.claimed, before)
        self._directory_dirty = self._epochs_dirty = self.files_changed = True
        self._unsynced = [segment for segment in self._unsynced if segment.rolled and log.has(segment)]
        self.cuts += 1  # last: a thread that writes checkpoints, and sees it, has the new recovery point

    def begun(self, snapshot_offset: int | None) -> None:
        """The log begins anew; with a snapshot of producers there, if others hold what came before."""
        self._start_snapshot = snapshot_offset

    def checkpointed(self, cuts: int) -> bool:
        """The checkpoint on disk has the recovery point as it was after so many cuts. True if it had claimed
        more.
        """
        claimed = self.claimed > 0 and cuts == self.cuts
        if claimed:
            self.claimed = 0
        return claimed

    def epochs_changed(self) -> None:
        """The next flush replaces their file; until then, after a crash, the batches tell what is new, and a
        cut log's end what is not so any more. Never is it written over: a torn one may look whole.
        """
        self._epochs_dirty = True

    # -- the rest --

    def _sync(self, log: Flushed, active: Segment, rolled: list[Segment]) -> None:
        for segment in rolled:
            self._sync_segment(log, segment)
        if active not in rolled:
            self._sync_segment(log, active)
        if self._start_snapshot is not None:
            self._sync_file(self._snapshot_path(self._start_snapshot))
            self._start_snapshot = None
        if self._directory_dirty:
            self._directory_dirty = False  # first: what changes from here on needs another one
            self._files.sync_directory(self._directory)
        if not self._named:
            self._sync_name()

    def _sync_name(self) -> None:
        """Making a partition waits for no disk; what is durable in it needs its directory, and the topic id
        that says whose it is.
        """
        if self._files.exists(self._directory / PARTITION_METADATA):
            self._sync_file(self._directory / PARTITION_METADATA)
        self._files.sync_directory(self._directory.parent)
        self._named = True

    def _sync_epochs(self) -> None:
        if self._epochs_dirty:
            self._epochs_dirty = False
            try:
                self._replace_epochs()
            except OSError:
                self._epochs_dirty = True
                raise

    def _replace_epochs(self) -> None:
        """As `write_atomically`, but `close` may come between any two steps."""
        path = self._directory / EPOCH_CHECKPOINT
        temporary = path.with_name(path.name + ".tmp")
        with self._naming:
            self._require_open()
            self._files.unlink(temporary, missing_ok=True)
            fd = self._files.open(temporary, exclusive=True)
        try:
            self._files.writev_at(fd, [self._epochs.encode()], 0)
            self._files.sync(fd)
        finally:
            self._files.close(fd)
        with self._naming:
            self._require_open()
            self._files.rename(temporary, path)
        self._files.sync_directory(self._directory)

    def _require_open(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args)

    def _sync_segment(self, log: Flushed, segment: Segment) -> None:
        try:
            segment.sync()
            if segment in self._unsynced:
                self._sync_file(self._snapshot_path(segment.end_offset))
        except FileNotFoundError:
            if log.has(segment):  # else retention dropped it meanwhile
                raise

    def _sync_file(self, path: Path) -> None:
        fd = self._files.open(path)
        try:
            self._files.sync(fd)
        finally:
            self._files.close(fd)

    def _snapshot_path(self, offset: int) -> Path:
        return segment_file(self._directory, offset, SNAPSHOT)
