"""Log flusher: makes a log durable, and keeps its recovery point and leader epoch checkpoint.

Invariants: everything below `recovery_point` is on disk; a failed fsync is final, since the next one may
succeed without having written the data. Called by the log; `flush` may run in a thread while records are
appended.
"""

import errno
import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from tierlog.base.files import Files
from tierlog.base.leader_epochs import LeaderEpochs
from tierlog.broker.storage.checkpoints import PARTITION_METADATA
from tierlog.broker.storage.loaded_log import LoadedLog
from tierlog.broker.storage.names import EPOCH_CHECKPOINT, INDEXES, SNAPSHOT, segment_file
from tierlog.broker.storage.restart_point import RestartPoint, RestartPoints
from tierlog.broker.storage.segment import Segment

_NOT_OF_THE_DISK = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""An open before the fsync failed for lack of descriptors or memory, not because of the disk."""


class SyncFailed(OSError):
    """An fsync failed. The kernel may have dropped the unwritten pages, so only a restart, which reads the
    disk, can tell what is there. Other errors of a flush, such as a full disk, are temporary.
    """


class LogClosed(SyncFailed):
    """The log was closed, usually because its topic was deleted; the disk is fine."""


class FlushableLog(Protocol):
    """The part of a log that the flusher uses. The owner may append, roll and drop segments at
    the same time.
    """

    @property
    def log_end_offset(self) -> int: ...
    @property
    def active(self) -> Segment: ...
    def has(self, segment: Segment) -> bool: ...


class LogFlusher:
    __slots__ = (
        "_directory",
        "_directory_dirty",
        "_epochs",
        "_epochs_dirty",
        "_epochs_lock",
        "_failure",
        "_files",
        "_lock",
        "_name_synced",
        "_naming_lock",
        "_saved_epochs",
        "_start_snapshot",
        "_unsynced",
        "checkpointed_recovery_point",
        "files_changed",
        "recovery_point",
        "restart_points",
        "truncations",
        "unflushed_since_ms",
    )

    def __init__(self, files: Files, directory: Path, loaded: LoadedLog, recovery_point: int) -> None:
        """`recovery_point`: from the checkpoint file; it may be above the log end."""
        active = loaded.segments[-1]
        too_high = recovery_point if recovery_point > active.end_offset else 0
        self._unsynced = loaded.unsynced(recovery_point)  # rolled segments
        self.recovery_point = recovery_point
        if too_high:  # since a truncation, after which appends up to the log end may not have been synced
            self.recovery_point = (*self._unsynced, active)[0].base_offset
        self.checkpointed_recovery_point = max(too_high, loaded.missing_end)
        """The recovery point in the checkpoint file, if that may be above the log end since the log was
        truncated; else 0.

        A segment that ends below it must be synced when it is rolled, as recovery would not check it after a
        crash.
        """
        self.truncations = 0
        self.unflushed_since_ms = active.created_ms
        self.files_changed = False
        """Whether files were created, removed or truncated since the log was opened."""
        self._files = files
        self._directory = directory
        self._directory_dirty = True  # names changed since the last fsync of the directory
        self._name_synced = False  # whether the name of the directory and its topic id are on disk
        self._epochs = loaded.epochs
        self._epochs_dirty = loaded.has_changed
        self._saved_epochs = loaded.saved_epochs  # as in the checkpoint
        self._start_snapshot: int | None = None  # a producer snapshot that cannot be rebuilt from batches
        self._failure: SyncFailed | None = None
        self._lock = files.lock()
        self._epochs_lock = threading.Lock()  # held while the epochs are written
        self._naming_lock = threading.Lock()  # held while a file gets a name, never during an fsync
        self.restart_points = RestartPoints(files, directory, *loaded.restart_point)

    def flush(self, log: FlushableLog) -> int:
        """Make everything appended so far durable and advance the recovery point. Raises OSError, in
        particular SyncFailed.

        Safe in a thread beside appends, but not beside truncation. The log end is read first, then the active
        segment, then the rolled ones, so that a roll in between hides nothing.
        """
        with self._lock:
            self._require_open()  # after a failed fsync the next one succeeds without having written the data
            restart_point = self.restart_points.pending  # read before the log end
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
                    with suppress(ValueError):  # retention has dropped it
                        self._unsynced.remove(segment)
            self.recovery_point = max(self.recovery_point, end)
            if restart_point is not None:
                self._write_restart_point(restart_point)
            return self.recovery_point

    @contextmanager
    def held(self) -> Iterator[bool]:
        """No flush begins inside. Yields False if one is running, since the event loop cannot wait for it."""
        taken = self._lock.acquire(blocking=False)
        try:
            yield taken
        finally:
            if taken:
                self._lock.release()

    def hold(self) -> None:
        """Prevent flushes until `resume`. Waits for a running flush; call it in a thread."""
        self._lock.acquire()

    def resume(self) -> None:
        """Allow flushes again. Any thread may call it."""
        self._lock.release()

    def wait(self) -> None:
        """Wait for a running flush to end; call it in a thread."""
        with self._lock:
            return

    def flush_clean(self, log: FlushableLog) -> None:
        """Flush for a clean shutdown: also sync the active segment's indexes and producer snapshot. Raises
        OSError.
        """
        self._epochs_dirty = True
        self.flush(log)
        active = log.active
        for suffix in INDEXES if active.has_aborts else INDEXES[:2]:
            self._sync_file(active.path(suffix))
        self._sync_file(self._snapshot_path(log.log_end_offset))
        self._files.sync_directory(self._directory)

    def close(self) -> None:
        """Make further flushes fail. A running flush continues, since a hanging disk must not block the
        caller, but it creates no more files: another log may soon use the directory's name.
        """
        with self._naming_lock:
            self._failure = self._failure or LogClosed(errno.EBADF, "the log is closed")
        self.restart_points.close()

    def switch_directory(self, directory: Path, files: Files) -> None:
        """Continue in another directory that has all of the log, on disk up to the recovery point. Call it
        while flushes are held. The next flush also syncs the names there.
        """
        self._directory, self._files = directory, files
        self.restart_points.switch_directory(directory, files)
        self._name_synced = False
        self._directory_dirty = self._epochs_dirty = self.files_changed = True
        self._saved_epochs = LeaderEpochs()  # unknown

    # -- notifications from the log --

    def on_file_created(self) -> None:
        """The next append creates the active segment's file, unless it exists."""
        self._directory_dirty = True

    def on_rolled(self, segment: Segment) -> None:
        self._unsynced.append(segment)
        self._directory_dirty = self.files_changed = True

    def on_dropped(self, segment: Segment) -> None:
        self._unsynced = [other for other in self._unsynced if other is not segment]
        self._directory_dirty = self.files_changed = True

    def on_truncated(self, log: FlushableLog) -> None:
        """The log and its epochs have been truncated. Its active segment may be one that was
        rolled before.
        """
        self.restart_points.on_truncated(log.log_end_offset)
        before = self.recovery_point
        self.recovery_point = min(before, log.log_end_offset)
        if before > log.log_end_offset:
            self.checkpointed_recovery_point = max(self.checkpointed_recovery_point, before)
        self._directory_dirty = self._epochs_dirty = self.files_changed = True
        self._unsynced = [segment for segment in self._unsynced if segment.rolled and log.has(segment)]
        self.truncations += 1  # last: a checkpoint thread that sees it must see the new recovery point

    def on_restarted(self, snapshot_offset: int | None) -> None:
        """The log restarts empty, with a producer snapshot if other replicas have earlier records."""
        self._start_snapshot = snapshot_offset

    def on_checkpointed(self, truncations: int) -> bool:
        """The recovery point as of `truncations` is in the checkpoint file. Returns True if the file had a
        higher one.
        """
        was_higher = self.checkpointed_recovery_point > 0 and truncations == self.truncations
        if was_higher:
            self.checkpointed_recovery_point = 0
        return was_higher

    def epochs_changed(self) -> None:
        """Rewrite the leader epoch checkpoint at the next flush. After a crash before that, recovery rebuilds
        it from the batches and the log end. The file is replaced, never overwritten, as a torn one could look
        valid.
        """
        self._epochs_dirty = True

    def save_epochs(self, start_offset: int, end_offset: int) -> None:
        """Make the leader epochs in [start_offset, end_offset) durable, before the batches there are deleted:
        recovery could not rebuild them. Also called before the first record after a start from the tier: the
        flush before it may have failed, and no batch has these epochs. May run beside a flush. Raises
        OSError, in particular BlockingIOError while a flush writes the epochs; then nothing has changed.
        """
        if self._has_saved(start_offset, end_offset):
            return
        if not self._epochs_lock.acquire(blocking=False):
            raise BlockingIOError(errno.EAGAIN, "a flush writes the leader epochs")
        try:
            self._replace_epochs()
        finally:
            self._epochs_lock.release()

    def save_epochs_below(self, start_offset: int, ends: Sequence[int]) -> int:
        """As `save_epochs`, for segments with these end offsets. If it fails, as on a full disk, the first
        segments may have epochs that are durable already. Returns the number of segments whose epochs are
        durable; raises OSError if there are none."""
        try:
            self.save_epochs(start_offset, ends[-1])
        except OSError:
            if not (count := bisect_left(ends, True, key=lambda end: not self._has_saved(start_offset, end))):
                raise
            return count
        return len(ends)

    def _has_saved(self, start_offset: int, end_offset: int) -> bool:
        return self._epochs.agrees_with(self._saved_epochs, start_offset, end_offset)

    # -- syncing --

    def _sync(self, log: FlushableLog, active: Segment, rolled: list[Segment]) -> None:
        for segment in rolled:
            self._sync_segment(log, segment)
        if active not in rolled:
            self._sync_segment(log, active)
        if self._start_snapshot is not None:
            self._sync_file(self._snapshot_path(self._start_snapshot))
            self._start_snapshot = None
        if self._directory_dirty:
            self._directory_dirty = False  # first: later changes need another fsync
            self._files.sync_directory(self._directory)
        if not self._name_synced:
            self._sync_name()

    def _sync_name(self) -> None:
        """Sync the directory's name and topic id. Creating a partition does not wait for the disk, but the
        first flush does.
        """
        if self._files.exists(self._directory / PARTITION_METADATA):
            self._sync_file(self._directory / PARTITION_METADATA)
        self._files.sync_directory(self._directory.parent)
        self._name_synced = True

    def _sync_epochs(self) -> None:
        if self._epochs_dirty:
            self._epochs_dirty = False
            try:
                with self._epochs_lock:
                    self._replace_epochs()
            except OSError:
                self._epochs_dirty = True
                raise

    def _replace_epochs(self) -> None:
        """Like `write_atomically`, but safe if `close` is called between any two steps."""
        path, saved = self._directory / EPOCH_CHECKPOINT, LeaderEpochs(self._epochs.entries)
        temporary = path.with_name(path.name + ".tmp")
        with self._naming_lock:
            self._require_open()
            self._files.unlink(temporary, missing_ok=True)
            fd = self._files.open(temporary, exclusive=True)
        try:
            self._files.writev_at(fd, [saved.encode()], 0)
            self._files.sync(fd)
        finally:
            self._files.close(fd)
        with self._naming_lock:
            self._require_open()
            self._files.rename(temporary, path)
        self._files.sync_directory(self._directory)
        self._saved_epochs = saved

    def _write_restart_point(self, point: RestartPoint) -> None:
        """A flush does not fail with it: without one, a start after a crash takes longer."""
        if self._has_saved(0, point.offset):
            with suppress(OSError):
                self.restart_points.write(point)

    def _require_open(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args)

    def _sync_segment(self, log: FlushableLog, segment: Segment) -> None:
        try:
            segment.sync()
            if segment in self._unsynced:
                self._sync_file(self._snapshot_path(segment.end_offset))
        except FileNotFoundError:
            if log.has(segment):  # else retention has dropped it
                raise

    def _sync_file(self, path: Path) -> None:
        fd = self._files.open(path)
        try:
            self._files.sync(fd)
        finally:
            self._files.close(fd)

    def _snapshot_path(self, offset: int) -> Path:
        return segment_file(self._directory, offset, SNAPSHOT)
