"""Log directory: its owner, the partitions in it, its checkpoints, and its state (online, full or offline).

It belongs to one process at a time (`.lock`) and to one node of one cluster (`meta.properties`). A
partition's directory belongs to a topic id; one that the cluster does not know is renamed to `-stray`, not
deleted (KIP-858). Checkpoints say which part of a log needs no check after a crash. If an operation through
`files` fails because of the device, the directory is offline until the next start; a full disk only stops
appends. Called by LogDirectories and the replica manager; failures are reported in any thread.
"""

import asyncio
import errno
import fcntl
import os
import random
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

import structlog

from tierlog.base.daemon_threads import DaemonThreads
from tierlog.base.files import DISK_FULL, Files, Space
from tierlog.base.types import TopicPartition, random_uuid
from tierlog.broker.storage.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    HIGH_WATERMARKS_COPY,
    LOG_STARTS,
    LOG_STARTS_COPY,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    RECOVERY_POINTS_COPY,
    MalformedCheckpoint,
    decode_uuid,
    mark_clean_shutdown,
    read_meta_properties,
    read_offsets,
    read_partition_metadata,
    require_no_flip,
    take_clean_shutdown,
    write_meta_properties,
    write_offsets,
    write_partition_metadata,
)
from tierlog.broker.storage.disk_threads import DISK_THREADS
from tierlog.broker.storage.names import (
    DELETED_DIRECTORY,
    FUTURE_DIRECTORY,
    LOG,
    moved_away_marker,
    parse_future_directory,
    parse_moved_away,
    parse_partition_directory,
    renamed_directory,
)
from tierlog.broker.storage.unclean_restart import UNKNOWN_EPOCH, clear_boot_id, record_broker_epoch

STRAY = "-stray"

DEVICE_ERRORS = frozenset(
    {errno.EIO, errno.EROFS, errno.ENXIO, errno.ENODEV, errno.EUCLEAN, errno.ESTALE, errno.EREMOTEIO}
)
"""Errors of a device that is broken, gone, or was made read-only by the kernel."""

CONCURRENT_REMOVALS = 2
"""Deleted partitions removed at a time: threads that wait for an fsync come first."""

P = ParamSpec("P")
T = TypeVar("T")
OnError = Callable[[OSError], None]
"""Called in any thread."""

Offsets = Mapping[TopicPartition, int]


class CheckpointRow(NamedTuple):
    """Checkpoints of one log. `high_watermark`: None if no other broker has a replica."""

    partition: TopicPartition
    recovery_point: int
    log_start: int
    high_watermark: int | None = None


_log = structlog.get_logger("tierlog.directories")


class DirectoryUnusable(OSError):
    """The node cannot start with this directory; the message tells the operator why."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class ForeignDirectory(DirectoryUnusable):
    """The directory belongs to another node or cluster: a configuration error, not a broken disk."""


@dataclass(frozen=True, slots=True)
class Identity:
    cluster_id: str
    directory_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """`clean`: the last shutdown closed every log; each ends at its recovery point and needs no recovery."""

    clean: bool = False
    recovery_points: Mapping[TopicPartition, int] | None = field(default_factory=dict)
    """None: unreadable or lost."""
    log_starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    cleaned: Mapping[TopicPartition, int] | None = field(default_factory=dict)
    """How far each log has been compacted; every log that ever was has an entry. None: unreadable."""
    high_watermarks: Mapping[TopicPartition, int] = field(default_factory=dict)

    def recovery_point(self, partition: TopicPartition) -> int | None:
        """None if unknown."""
        return None if self.recovery_points is None else self.recovery_points.get(partition, 0)

    def cleaned_to(self, partition: TopicPartition) -> int | None:
        """None if the log has never been compacted. If the file is unreadable, any log may have been."""
        return 0 if self.cleaned is None else self.cleaned.get(partition)


NO_CHECKPOINTS = Checkpoints()


class LogDirectory:
    def __init__(self, path: Path, files: Files, rng: random.Random) -> None:
        self.path = path
        self.threads = DaemonThreads(f"disk {path.name}", DISK_THREADS)
        self.files: Files = WatchedFiles(files, self.on_error, self.on_sync_error)
        self.directory_id: uuid.UUID | None = None
        """None until the directory is identified."""
        self.failure: str | None = None
        """Why it is offline, until the next start."""
        self.is_full = False
        self.refusal: str | None = None
        """Why appends are refused: it is offline or full."""
        self.on_failure: Callable[[LogDirectory], None] = lambda directory: None
        self.on_full_changed: Callable[[LogDirectory], object] = lambda directory: None
        """Called when it becomes full and when it no longer is, in any thread."""
        self.checkpoints = NO_CHECKPOINTS
        """Checkpoints of the last run, for partitions that are not open yet."""
        self._rng = rng
        self.last_broker_epoch = UNKNOWN_EPOCH
        """The broker epoch under which an earlier process last used it, once that has been read."""
        self._broker_epoch = UNKNOWN_EPOCH
        self._lock = -1
        self.is_hung = False
        """Whether shutdown waits for it no longer."""
        self._removing = asyncio.Semaphore(CONCURRENT_REMOVALS)
        self._write_lock = threading.Lock()  # taken before `_rows_lock`; held during writes
        self._rows_lock = threading.Lock()
        self._boot_lock = threading.Lock()  # held while the boot id file is read and replaced
        self._checkpointed: set[TopicPartition] = set()
        self._cleaned: set[TopicPartition] = set()
        self._move_markers = defaultdict[TopicPartition, set[str]](set)  # names of `.moved-away` files
        self._written_with_copy: dict[str, Offsets] = {}  # content of checkpoints that have a copy
        self._recovery_points: Offsets = {}  # as last written

    # -- owner --

    def lock(self) -> dict[str, str]:
        """Lock it for this process; returns its meta.properties, empty if it is new. Raises OSError."""
        self.files.make_directory(self.path)
        self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as failure:
            self.release()
            raise DirectoryUnusable(failure.errno, "another process uses it", str(self.path)) from None
        try:
            return read_meta_properties(self.files, self.path)
        except MalformedCheckpoint as failure:
            self.release()
            raise DirectoryUnusable(None, str(failure), str(self.path)) from None

    def identify(self, known: Mapping[str, str], node_id: int, cluster_id: str) -> Identity:
        """Check or write its owner. Raises OSError, in particular ForeignDirectory."""
        identity = self._identify(known, node_id, cluster_id)
        self.directory_id = identity.directory_id
        return identity

    def _identify(self, known: Mapping[str, str], node_id: int, cluster_id: str) -> Identity:
        if not known:
            identity = Identity(cluster_id, random_uuid(self._rng))
            write_meta_properties(self.files, self.path, cluster_id, node_id, identity.directory_id)
            return identity
        if known.get("node.id") != str(node_id):
            whose = f"it belongs to node {known.get('node.id')}, this is node {node_id}"
            raise ForeignDirectory(None, whose, str(self.path))
        if known.get("cluster.id") != cluster_id:
            whose = f"it belongs to cluster {known.get('cluster.id')!r}, not to {cluster_id!r}"
            raise ForeignDirectory(None, whose, str(self.path))
        try:
            return Identity(cluster_id, decode_uuid(known.get("directory.id", "")))
        except ValueError as failure:
            raise DirectoryUnusable(None, f"{META_PROPERTIES}: {failure}", str(self.path)) from None

    def release(self) -> None:
        """Unlock it. A directory that hangs stays locked until the process ends: its threads may
        still write.
        """
        self.threads.shutdown()
        if self.is_hung:
            return
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # -- state --

    def space(self) -> Space:
        """Raises OSError."""
        return self.files.space(self.path)

    def on_error(self, error: OSError) -> None:
        """Handle an error of an operation in it. May run in a thread."""
        if error.errno in DEVICE_ERRORS:
            self.fail(error.strerror or str(error))
        elif error.errno in DISK_FULL:
            self.mark_full()
        elif error.errno == errno.ENOENT and self._lock >= 0 and not self.files.exists(self.path / ".lock"):
            self.fail("it is gone: unmounted or removed")

    def on_sync_error(self, error: OSError) -> None:
        """Handle a failed fsync, whatever the reason: the kernel may have dropped the unwritten pages, so
        only a restart, which reads the disk, can tell what is there.
        """
        self.fail(f"fsync failed: {error.strerror}")

    async def run(self, work: Callable[[], T]) -> T:
        """Run work in its threads and wait for the result."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, work)

    def mark_hung(self, timeout_s: float) -> None:
        """Take it offline during shutdown, which continues without it; its logs are not closed clean."""
        self.is_hung = True
        self.fail(f"it hangs: no operation has ended for {timeout_s:g} s")

    def fail(self, why: str) -> None:
        """Take it offline. May run in a thread."""
        if self.failure is None:
            self.failure = why
            self.refusal = f"log directory {self.path} is offline: {why}"
            self.on_failure(self)

    def mark_full(self) -> None:
        """Refuse appends until `mark_not_full`: the remaining space is for checkpoints and metadata."""
        if not self.is_full:
            self.is_full = True
            self.refusal = self.refusal or f"log directory {self.path} is full"
            _log.error("log_dir.full", directory=str(self.path))
            self.on_full_changed(self)

    def mark_not_full(self) -> None:
        """Accept appends again."""
        if self.is_full:
            self.is_full = False
            self.refusal = None if self.failure is None else self.refusal
            _log.info("log_dir.space.back", directory=str(self.path))
            self.on_full_changed(self)

    # -- partitions --

    def partitions(self) -> dict[TopicPartition, uuid.UUID | MalformedCheckpoint | None]:
        """Every partition's directory and its topic id (None: it has none)."""
        found: dict[TopicPartition, uuid.UUID | MalformedCheckpoint | None] = {}
        for name in self.files.list_directory(self.path):
            partition = None if name.endswith(STRAY) else parse_partition_directory(name)
            if partition is None:
                continue
            try:
                found[partition] = read_partition_metadata(self.files, self.path / name)
            except MalformedCheckpoint as failure:
                found[partition] = failure
        return found

    def deleted_partitions(self) -> list[Path]:
        """Directories of deleted partitions that have not been removed yet."""
        return [
            self.path / name
            for name in self.files.list_directory(self.path)
            if name.endswith(DELETED_DIRECTORY)
        ]

    def directory(self, partition: TopicPartition) -> Path:
        return self.path / str(partition)

    def holds(self, partition: TopicPartition) -> bool:
        """Whether it has a replica of the partition: no log is opened before its directory has a topic id."""
        return self.files.exists(self.directory(partition) / PARTITION_METADATA)

    def create(self, partition: TopicPartition, topic_id: uuid.UUID) -> Path:
        """Create the directory of a new replica, with its topic id; durable after the first flush
        of its log.
        """
        self._forget_checkpoints(partition)
        directory = self.directory(partition)
        try:
            self.files.make_directory(directory)
            write_partition_metadata(self.files, directory, topic_id)
        except OSError:
            with suppress(OSError):  # else the partition would be found twice once it is created elsewhere
                self.files.unlink(directory / PARTITION_METADATA, missing_ok=True)
                self.files.remove_directory(directory)
            raise
        return directory

    def remove_uninitialized(self, partition: TopicPartition) -> bool:
        """Remove a directory that a crash left before it had a topic id, and so before it had a log."""
        directory = self.directory(partition)
        if any(name.endswith(LOG) for name in self.files.list_directory(directory)):
            return False
        self.remove(directory)
        return True

    def rename_deleted(self, partition: TopicPartition) -> Path:
        """Rename a deleted partition's directory to free its name; its files are deleted later. Durable after
        `sync_names`: after a power failure before that, the next start sets it aside.
        """
        return self._rename(
            partition, renamed_directory(str(partition), random_uuid(self._rng).hex, DELETED_DIRECTORY)
        )

    def remove_other_topic(self, partition: TopicPartition, topic_id: uuid.UUID) -> Path | None:
        """Rename a directory that an earlier topic of the same name has left in a partition's place. Returns
        the new path. Raises OSError or MalformedCheckpoint: then nothing may be opened there.
        """
        if not self.holds(partition):
            return None
        found = read_partition_metadata(self.files, self.directory(partition))
        if found is not None and found != topic_id:
            require_no_flip(found, topic_id)
        return None if found == topic_id else self.rename_deleted(partition)

    # -- moves between directories --

    def create_future(self, partition: TopicPartition, topic_id: uuid.UUID) -> Path:
        """Create a directory for the future copy of a log, durable except for its name. Another topic's
        directory in the partition's place is renamed for deletion. Raises OSError, MalformedCheckpoint.
        """
        self.remove_other_topic(partition, topic_id)
        if self.holds(partition):
            raise DirectoryUnusable(None, "it already has a directory of the partition", str(self.path))
        future = self.path / renamed_directory(str(partition), random_uuid(self._rng).hex, FUTURE_DIRECTORY)
        self.files.make_directory(future)
        write_partition_metadata(self.files, future, topic_id)
        fd = self.files.open(future / PARTITION_METADATA)
        try:
            self.files.sync(fd)
        finally:
            self.files.close(fd)
        return future

    def future_logs(self) -> list[tuple[TopicPartition, Path]]:
        """Future copies that interrupted moves into this directory have left."""
        names = ((parse_future_directory(name), name) for name in self.files.list_directory(self.path))
        return [(partition, self.path / name) for partition, name in names if partition is not None]

    def write_move_marker(self, partition: TopicPartition, target: uuid.UUID) -> None:
        """Create a durable marker: the partition's log is in the directory with id `target`, if that has the
        partition too. Needs no disk space.
        """
        marker = moved_away_marker(partition, target)
        self._move_markers[partition].add(marker)
        self.files.close(self.files.open(self.path / marker, create=True))
        self.sync_names()

    def remove_move_marker(self, partition: TopicPartition) -> None:
        """Remove the marker of a move. After a power failure the next start decides again."""
        for marker in tuple(self._move_markers.get(partition, ())):
            self.files.unlink(self.path / marker, missing_ok=True)
        self._move_markers.pop(partition, None)

    def may_have_move_marker(self, partition: TopicPartition) -> bool:
        """Whether there may be a marker of a move; does not read the disk."""
        return partition in self._move_markers

    def remove_moved(self, partition: TopicPartition) -> Path | None:
        """Remove what a partition that is now elsewhere left here: durably first its directory, then the
        marker of the move. Returns the renamed directory, if there was one. Raises OSError.
        """
        renamed = self.rename_deleted(partition) if self.holds(partition) else None
        self.sync_names()
        self.remove_move_marker(partition)
        self.sync_names()
        return renamed

    def moved_partitions(self) -> dict[TopicPartition, set[uuid.UUID | None]]:
        """Partitions with a marker of a move, and the directory ids they may be in. None: any directory."""
        self._move_markers.clear()
        targets = defaultdict[TopicPartition, set[uuid.UUID | None]](set)
        for name in self.files.list_directory(self.path):
            if (found := parse_moved_away(name)) is not None:
                self._move_markers[found[0]].add(name)
                targets[found[0]].add(found[1])
        return targets

    def sync_names(self) -> None:
        """May run in a thread."""
        self.files.sync_directory(self.path)

    def rename_stray(self, partition: TopicPartition) -> Path:
        """Rename a directory that belongs to no partition of the cluster; it is kept."""
        aside = self._rename(partition, renamed_directory(str(partition), random_uuid(self._rng).hex, STRAY))
        self.sync_names()
        return aside

    def _rename(self, partition: TopicPartition, name: str) -> Path:
        target = self.path / name
        self.files.rename(self.directory(partition), target)
        return target

    def remove(self, directory: Path) -> None:
        """Delete a directory and its files. May run in a thread."""
        for name in self.files.list_directory(directory):
            self.files.unlink(directory / name, missing_ok=True)
        self.files.remove_directory(directory)

    async def remove_later(self, directory: Path, delay_ms: int = 0) -> None:
        """Delete a directory in a thread after a delay, for readers that still use its files, and a few at a
        time.
        """
        await asyncio.sleep(delay_ms / 1000)
        async with self._removing:
            await self.run(partial(self.remove, directory))

    # -- checkpoints --

    def load_checkpoints(self) -> Checkpoints:
        """Read the checkpoints of the last run and remove the clean shutdown file."""
        clean = take_clean_shutdown(self.files, self.path)
        points = self._read(RECOVERY_POINTS, "everything is checked")
        if clean and points:
            points = self._smaller_of_copies(points)
        if not points and not self.files.exists(self.path / RECOVERY_POINTS):
            points = None if self.files.exists(self.path / LOG_STARTS) else {}  # written after it
        cleaned = self._read(CLEANER_OFFSETS, "any log may have gaps, and is compacted from its start")
        found = Checkpoints(clean, points, self._read_starts(), cleaned, self._read_high_watermarks())
        self._cleaned = set(cleaned or ())
        self._checkpointed = {*(points or ()), *found.log_starts, *found.high_watermarks}
        self.checkpoints = found
        return found

    def mark_unclean(self) -> None:
        """Logs that are not open yet may have been changed since the clean shutdown."""
        self.checkpoints = replace(self.checkpoints, clean=False)

    def write_checkpoints(self, take_rows: Callable[[], Sequence[CheckpointRow]]) -> None:
        """Write the checkpoints of every log. May run in a thread. Rows are taken when no other write is
        running, so that those of a deleted topic do not come back.
        """
        with self._write_lock:
            with self._rows_lock:
                rows = take_rows()
                self._checkpointed |= {row.partition for row in rows}
            self._write(
                {row.partition: row.recovery_point for row in rows},
                {row.partition: row.log_start for row in rows},
                {row.partition: row.high_watermark for row in rows if row.high_watermark is not None},
            )
            self._checkpointed = {row.partition for row in rows}

    def write_cleaned(self, take_offsets: Callable[[], Mapping[TopicPartition, int]]) -> None:
        """Write how far each log has been compacted; in a thread, as `write_checkpoints`."""
        with self._write_lock:
            with self._rows_lock:
                offsets = take_offsets()
                self._cleaned |= offsets.keys()
            write_offsets(self.files, self.path / CLEANER_OFFSETS, offsets)
            self._cleaned = set(offsets)

    def has_checkpoint(self, partition: TopicPartition) -> bool:
        """Whether a checkpoint has the partition; then `create` waits for the disk."""
        with self._rows_lock:  # rows of a topic that was just deleted may be about to be written
            left = self.checkpoints
            known = (self._checkpointed, self._cleaned, left.recovery_points, left.log_starts, left.cleaned)
            return any(partition in names for names in (*known, left.high_watermarks) if names)

    def _forget_checkpoints(self, partition: TopicPartition) -> None:
        """Remove a partition's checkpoints: a topic created again must not start with the old topic's
        offsets, which would hide records.
        """
        if not self.has_checkpoint(partition):
            return
        with self._write_lock:  # for all of it: several threads create partitions
            left = self.checkpoints
            points = left.recovery_points and _without(partition, left.recovery_points)
            self.checkpoints = replace(
                left,
                recovery_points=points,
                log_starts=_without(partition, left.log_starts),
                cleaned=self._forget_cleaned(partition),
                high_watermarks=_without(partition, left.high_watermarks),
            )
            if partition in self._checkpointed:
                self._forget_offsets(partition)

    def _forget_cleaned(self, partition: TopicPartition) -> Mapping[TopicPartition, int] | None:
        """Remove a partition; returns the remaining rows of the last run."""
        if partition in self._cleaned:
            cleaned = self._read(CLEANER_OFFSETS, "it is written again at the next cleaning")
            if cleaned is not None:
                kept = {name for name in cleaned if self.holds(name)} - {partition}
                cleaned = {name: at for name, at in cleaned.items() if name in kept}
                write_offsets(self.files, self.path / CLEANER_OFFSETS, cleaned)
                self._cleaned = kept
            return cleaned
        left = self.checkpoints.cleaned
        return left and _without(partition, left)

    def _forget_offsets(self, partition: TopicPartition) -> None:
        points = self._read(RECOVERY_POINTS, "after a crash everything is checked") or {}
        starts, high_watermarks = self._read_starts(), self._read_high_watermarks()
        kept = {name for name in {*points, *starts, *high_watermarks} if self.holds(name)} - {partition}
        self._write(
            *(
                {name: at for name, at in offsets.items() if name in kept}
                for offsets in (points, starts, high_watermarks)
            )
        )
        self._checkpointed = kept

    def _write(self, points: Offsets, starts: Offsets, high_watermarks: Offsets) -> None:
        write_offsets(self.files, self.path / RECOVERY_POINTS, points)
        self._recovery_points = points
        self._write_with_copy(LOG_STARTS, LOG_STARTS_COPY, starts)  # rarely changes
        if high_watermarks or self.files.exists(self.path / HIGH_WATERMARKS):
            self._write_with_copy(HIGH_WATERMARKS, HIGH_WATERMARKS_COPY, high_watermarks)

    def _write_with_copy(self, name: str, copy: str, offsets: Offsets) -> None:
        if offsets != self._written_with_copy.get(name):
            self._written_with_copy.pop(name, None)
            write_offsets(self.files, self.path / name, offsets)
            write_offsets(self.files, self.path / copy, offsets)
            self._written_with_copy[name] = dict(offsets)

    def record_broker_epoch(self, broker_epoch: int) -> None:
        """Record that it is used under this broker epoch; takes it offline if that fails."""
        self._broker_epoch = broker_epoch
        try:
            with self._boot_lock:
                record_broker_epoch(self.files, [self.path], broker_epoch)
        except OSError as failure:
            self.fail(failure.strerror or str(failure))

    def forget_boot(self) -> None:
        """Clear its boot id, in a thread: a directory of this broker has failed."""
        with self._boot_lock:
            clear_boot_id(self.files, [self.path])

    def mark_clean(self) -> None:
        """After `write_checkpoints`. Raises OSError."""
        write_offsets(self.files, self.path / RECOVERY_POINTS_COPY, self._recovery_points)
        mark_clean_shutdown(self.files, self.path, self._broker_epoch)

    def _smaller_of_copies(self, points: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """After a clean stop, which wrote a copy: else a flipped bit would make a log look too short."""
        copy = self._read(RECOVERY_POINTS_COPY, "the other file is taken") or {}
        return {name: min(at, copy.get(name, at)) for name, at in points.items()}

    def _read_starts(self) -> Offsets:
        """Without either file a log begins with its first segment, as in Kafka, and deleted records still in
        it come back.
        """
        return self._read_both(LOG_STARTS, LOG_STARTS_COPY, "logs begin with their first segments")

    def _read_high_watermarks(self) -> Offsets:
        """Without either file, what is committed is only known after the leader has sent it."""
        return self._read_both(HIGH_WATERMARKS, HIGH_WATERMARKS_COPY, "leaders send them again")

    def _read_both(self, name: str, copy: str, without: str) -> Offsets:
        """Read a file and its copy, or the one that is readable.

        Neither has a checksum. If they differ, a bit has flipped in one, or a crash came between the two
        writes. The smaller offset is used: it hides no record and does not call uncommitted records
        committed. It reverts no acknowledged DeleteRecords, as that is acknowledged after both writes.
        """
        is_there = self.files.exists(self.path / name)
        offsets = self._read(name, "its copy is taken") if is_there else None
        others = self._read(copy, without if offsets is None else "the other file is taken")
        if not offsets or not others:
            return offsets or others or {}
        differ = sorted(each for each in offsets.keys() & others.keys() if offsets[each] != others[each])
        if differ:
            _log.warning(
                "checkpoint.differs",
                file=str(self.path / name),
                partitions=len(differ),
                first=str(differ[0]),
            )
        return {**offsets, **others, **{each: min(offsets[each], others[each]) for each in differ}}

    def _read(self, name: str, instead: str) -> dict[TopicPartition, int] | None:
        """None if it is unreadable, which is logged with its consequence; empty if there is none."""
        try:
            return read_offsets(self.files, self.path / name)
        except MalformedCheckpoint as failure:
            _log.error("checkpoint.unreadable", file=str(self.path / name), why=str(failure), instead=instead)
            return None


def _without(
    partition: TopicPartition, offsets: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, int]:
    return {name: at for name, at in offsets.items() if name != partition}


class WatchedFiles:
    """The file port of one log directory: reports write errors to the directory.

    All writers of a directory (logs, recovery, cleaner, checkpoints) use it, so a failed device is noticed
    wherever it happens, in any thread. Read errors are not reported: a bad sector costs one response, not the
    directory.
    """

    def __init__(self, files: Files, on_error: OnError, on_sync_error: OnError) -> None:
        self.open_files, self.lock = files.open_files, files.lock
        self.close, self.size = files.close, files.size
        self.read_at, self.read_into = files.read_at, files.read_into
        self.list_directory, self.read_whole = files.list_directory, files.read_whole
        self.exists, self.size_of, self.space = files.exists, files.size_of, files.space
        self.reserve = files.reserve  # optional: a failure does not matter
        self.open = _watched(files.open, on_error)  # always for writing too
        self.writev_at = _watched(files.writev_at, on_error)
        self.truncate = _watched(files.truncate, on_error)
        self.sync = _watched(files.sync, on_sync_error)
        self.sync_directory = _watched(files.sync_directory, on_error)
        self.rename = _watched(files.rename, on_error)
        self.unlink = _watched(files.unlink, on_error)
        self.make_directory = _watched(files.make_directory, on_error)
        self.remove_directory = _watched(files.remove_directory, on_error)


def _watched(operation: Callable[P, T], on_error: OnError) -> Callable[P, T]:
    def watched(*args: P.args, **named: P.kwargs) -> T:
        try:
            return operation(*args, **named)
        except OSError as error:
            on_error(error)
            raise

    return watched
