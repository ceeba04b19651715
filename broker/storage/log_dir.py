"""A directory that holds partitions: whose it is, what lies in it, what must outlive a restart, how it fares.

One process at a time (`.lock`), one node of one cluster (`meta.properties`). A directory in it belongs
to a topic; one that the cluster does not know is kept aside as `-stray`, not deleted (KIP-858). Checkpoints
say how much of a log needs no check after a crash. Whatever goes through `files` and fails because of the
device takes the directory offline until the next start; want of room only stops appends. Called by
LogDirectories and the replica manager; failures are noted in any thread.
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
from typing import NamedTuple, TypeVar

import structlog

from tierlog.base.files import NO_ROOM, Files, Space
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
from tierlog.broker.storage.disk_threads import DiskThreads
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
from tierlog.broker.storage.unclean_restart import UNKNOWN_EPOCH, record_broker_epoch
from tierlog.broker.storage.watched_files import DEVICE_ERRORS, WatchedFiles

STRAY = "-stray"

REMOVED_AT_A_TIME = 2
"""Deleted partitions: the threads are there for those first who wait for an fsync."""

T = TypeVar("T")
Offsets = Mapping[TopicPartition, int]


class CheckpointRow(NamedTuple):
    """What is kept of one log. `high_watermark`: None if no other broker has a replica of it."""

    partition: TopicPartition
    recovery_point: int
    log_start: int
    high_watermark: int | None = None


_log = structlog.get_logger("tierlog.directories")


class DirectoryUnusable(OSError):
    """The node cannot start on this directory; the message tells the operator why."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class ForeignDirectory(DirectoryUnusable):
    """It is another node's or another cluster's: a mistake in the settings, not a broken disk."""


@dataclass(frozen=True, slots=True)
class Identity:
    cluster_id: str
    directory_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """`clean`: the last stop closed every log; each ends at its recovery point and needs no recovery."""

    clean: bool = False
    recovery_points: Mapping[TopicPartition, int] | None = field(default_factory=dict)
    """None: unreadable, or lost."""
    log_starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    cleaned: Mapping[TopicPartition, int] | None = field(default_factory=dict)
    """Up to where compaction has been; every log in which it ever was has an entry. None: unreadable."""
    high_watermarks: Mapping[TopicPartition, int] = field(default_factory=dict)

    def recovery_point(self, partition: TopicPartition) -> int | None:
        """None: nobody knows."""
        return None if self.recovery_points is None else self.recovery_points.get(partition, 0)

    def cleaned_to(self, partition: TopicPartition) -> int | None:
        """None: compaction was never there. If nobody knows, it may have been anywhere: from the start."""
        return 0 if self.cleaned is None else self.cleaned.get(partition)


NO_CHECKPOINTS = Checkpoints()


class LogDirectory:
    def __init__(self, path: Path, files: Files, rng: random.Random) -> None:
        self.path = path
        self.threads = DiskThreads(f"disk {path.name}")
        self.files: Files = WatchedFiles(files, self)
        self.directory_id: uuid.UUID | None = None
        """None before it is known whose it is."""
        self.failure: str | None = None
        """Why it is offline, until the next start."""
        self.is_full = False
        self.refusal: str | None = None
        """Why nothing may be appended: it is offline, or full."""
        self.on_failure: Callable[[LogDirectory], None] = lambda directory: None
        self.on_full_changed: Callable[[LogDirectory], object] = lambda directory: None
        """Called when it is full, and when it is not any more; in any thread."""
        self.checkpoints = NO_CHECKPOINTS
        """What the last run left, of the partitions that are not open yet."""
        self._rng = rng
        self._broker_epoch = UNKNOWN_EPOCH
        self._lock = -1
        self._hangs = False
        self._removing = asyncio.Semaphore(REMOVED_AT_A_TIME)
        self._checkpointing = threading.Lock()  # before `_taking`; held while the disk writes
        self._taking = threading.Lock()
        self._checkpointed: set[TopicPartition] = set()
        self._cleaned: set[TopicPartition] = set()
        self._recorded_moves = defaultdict[TopicPartition, set[str]](set)  # names of notes about them
        self._twice: dict[str, Offsets] = {}  # what stands in a file and in its copy
        self._points: Offsets = {}  # as they were written last

    # -- whose it is --

    def lock(self) -> dict[str, str]:
        """Takes it for this process; its meta.properties, empty if it is new. Raises OSError."""
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
        """Checks or writes whose it is. Raises OSError, above all ForeignDirectory."""
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
        """A directory that hangs stays locked until the process ends: its threads may yet write."""
        self.threads.shutdown()
        if self._hangs:
            return
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # -- how it fares --

    def space(self) -> Space:
        """Raises OSError."""
        return self.files.space(self.path)

    def on_error(self, error: OSError) -> None:
        """Judges what an operation in it met. May run in a thread."""
        if error.errno in DEVICE_ERRORS:
            self.fail(error.strerror or str(error))
        elif error.errno in NO_ROOM:
            self.mark_full()
        elif error.errno == errno.ENOENT and self._lock >= 0 and not self.files.exists(self.path / ".lock"):
            self.fail("it is gone: unmounted or removed")

    def on_sync_error(self, error: OSError) -> None:
        """A failed fsync, whatever the reason: the kernel may have dropped what it could not write, so only
        a new start, which reads the disk, can tell what is there.
        """
        self.fail(f"fsync failed: {error.strerror}")

    async def run(self, work: Callable[[], T]) -> T:
        """Waits for its disk in its threads."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, work)

    def mark_hung(self, timeout_s: float) -> None:
        """At a stop, which goes on without it: no clean end for its logs."""
        self._hangs = True
        self.fail(f"it hangs: no operation has ended for {timeout_s:g} s")

    def fail(self, why: str) -> None:
        """Takes it offline. May run in a thread."""
        if self.failure is None:
            self.failure = why
            self.refusal = f"log directory {self.path} is offline: {why}"
            self.on_failure(self)

    def mark_full(self) -> None:
        """Nothing is appended until `mark_not_full`: what little is left is for checkpoints and metadata."""
        if not self.is_full:
            self.is_full = True
            self.refusal = self.refusal or f"log directory {self.path} is full"
            _log.error("a log directory is full: appends are refused", directory=str(self.path))
            self.on_full_changed(self)

    def mark_not_full(self) -> None:
        """There is room again."""
        if self.is_full:
            self.is_full = False
            self.refusal = None if self.failure is None else self.refusal
            _log.info("a log directory has room again", directory=str(self.path))
            self.on_full_changed(self)

    # -- what lies in it --

    def partitions(self) -> dict[TopicPartition, uuid.UUID | MalformedCheckpoint | None]:
        """Every partition's directory and the topic id that it belongs to (None: it does not say)."""
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
        """Directories of deleted partitions that a stop left behind."""
        return [
            self.path / name
            for name in self.files.list_directory(self.path)
            if name.endswith(DELETED_DIRECTORY)
        ]

    def directory(self, partition: TopicPartition) -> Path:
        return self.path / str(partition)

    def holds(self, partition: TopicPartition) -> bool:
        """Whether a replica of it was made: no log is opened before its directory says whose it is."""
        return self.files.exists(self.directory(partition) / PARTITION_METADATA)

    def create(self, partition: TopicPartition, topic_id: uuid.UUID) -> Path:
        """The directory of a new replica, with its topic id in it; durable once its log is first flushed."""
        self._forget_checkpoints(partition)
        directory = self.directory(partition)
        try:
            self.files.make_directory(directory)
            write_partition_metadata(self.files, directory, topic_id)
        except OSError:
            with suppress(OSError):  # else the partition would be found twice if it is made elsewhere
                self.files.unlink(directory / PARTITION_METADATA, missing_ok=True)
                self.files.remove_directory(directory)
            raise
        return directory

    def remove_uninitialized(self, partition: TopicPartition) -> bool:
        """Removes a directory that a crash left before it said whose it is, and so before it had a log."""
        directory = self.directory(partition)
        if any(name.endswith(LOG) for name in self.files.list_directory(directory)):
            return False
        self.remove(directory)
        return True

    def rename_deleted(self, partition: TopicPartition) -> Path:
        """Renames a deleted partition's directory, so that its name is free; the files go later. Durable
        after `sync_names`: if the power fails before, the next start sets it aside.
        """
        return self._rename(
            partition, renamed_directory(str(partition), random_uuid(self._rng).hex, DELETED_DIRECTORY)
        )

    def remove_other_topic(self, partition: TopicPartition, topic_id: uuid.UUID) -> Path | None:
        """Buries what another topic of the name has left in a partition's place (its own burial failed), and
        returns the grave. Raises OSError, MalformedCheckpoint: then nothing may be opened there.
        """
        if not self.holds(partition):
            return None
        of = read_partition_metadata(self.files, self.directory(partition))
        if of == topic_id:
            return None
        if of is not None:
            require_no_flip(of, topic_id)
        return self.rename_deleted(partition)

    # -- a partition that moves between directories --

    def create_future(self, partition: TopicPartition, topic_id: uuid.UUID) -> Path:
        """A directory for the copy of a log, durable but for its name. What is in the way of its last name is
        buried if it is another topic's. Raises OSError, MalformedCheckpoint.
        """
        self.remove_other_topic(partition, topic_id)
        if self.holds(partition):
            raise DirectoryUnusable(None, "the partition has a directory here", str(self.path))
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
        """What a stop left of moves into this directory."""
        names = ((parse_future_directory(name), name) for name in self.files.list_directory(self.path))
        return [(partition, self.path / name) for partition, name in names if partition is not None]

    def record_move(self, partition: TopicPartition, target: uuid.UUID) -> None:
        """From here on, if it is in the directory of that id too, it is there. Durable, and takes no room."""
        note = moved_away_marker(partition, target)
        self._recorded_moves[partition].add(note)
        self.files.close(self.files.open(self.path / note, create=True))
        self.sync_names()

    def clear_move(self, partition: TopicPartition) -> None:
        """It is nowhere else after all. If the power fails now, the next start finds that out again."""
        for note in tuple(self._recorded_moves.get(partition, ())):
            self.files.unlink(self.path / note, missing_ok=True)
        self._recorded_moves.pop(partition, None)

    def may_have_moved(self, partition: TopicPartition) -> bool:
        """Whether there may be such a note; without a look at the disk."""
        return partition in self._recorded_moves

    def remove_moved(self, partition: TopicPartition) -> Path | None:
        """Of a partition that lies elsewhere: what it left here goes for good, before the note that says so;
        returns its grave, if it had none. Raises OSError.
        """
        grave = self.rename_deleted(partition) if self.holds(partition) else None
        self.sync_names()
        self.clear_move(partition)
        self.sync_names()
        return grave

    def recorded_moves(self) -> dict[TopicPartition, set[uuid.UUID | None]]:
        """Those that `leave` was called for, and `stay` was not, and where they may be. None: anywhere."""
        self._recorded_moves.clear()
        targets = defaultdict[TopicPartition, set[uuid.UUID | None]](set)
        for note in self.files.list_directory(self.path):
            if (found := parse_moved_away(note)) is not None:
                self._recorded_moves[found[0]].add(note)
                targets[found[0]].add(found[1])
        return targets

    def sync_names(self) -> None:
        """May run in a thread."""
        self.files.sync_directory(self.path)

    def rename_stray(self, partition: TopicPartition) -> Path:
        """Keeps a directory that belongs to no partition of the cluster, out of the way."""
        aside = self._rename(partition, renamed_directory(str(partition), random_uuid(self._rng).hex, STRAY))
        self.sync_names()
        return aside

    def _rename(self, partition: TopicPartition, name: str) -> Path:
        target = self.path / name
        self.files.rename(self.directory(partition), target)
        return target

    def remove(self, directory: Path) -> None:
        """Unlinks a directory and its files. May run in a thread."""
        for name in self.files.list_directory(directory):
            self.files.unlink(directory / name, missing_ok=True)
        self.files.remove_directory(directory)

    async def remove_later(self, directory: Path, delay_ms: int = 0) -> None:
        """In a thread, when few others are being removed; later, for those who still read the files."""
        await asyncio.sleep(delay_ms / 1000)
        async with self._removing:
            await self.run(partial(self.remove, directory))

    # -- checkpoints --

    def load_checkpoints(self) -> Checkpoints:
        """What the last run left; the marker of its clean stop is gone after this call."""
        clean = take_clean_shutdown(self.files, self.path)
        points = self._read(RECOVERY_POINTS, "everything is checked")
        if clean and points:
            points = self._agreed(points)
        if not points and not self.files.exists(self.path / RECOVERY_POINTS):
            points = None if self.files.exists(self.path / LOG_STARTS) else {}  # which is written after it
        cleaned = self._read(CLEANER_OFFSETS, "any log may have gaps, and is compacted from its start")
        found = Checkpoints(clean, points, self._read_starts(), cleaned, self._read_high_watermarks())
        self._cleaned = set(cleaned or ())
        self._checkpointed = {*(points or ()), *found.log_starts, *found.high_watermarks}
        self.checkpoints = found
        return found

    def mark_unclean(self) -> None:
        """From here on a log that is not open yet has been touched: it is not as the clean stop left it."""
        self.checkpoints = replace(self.checkpoints, clean=False)

    def write_checkpoints(self, take_rows: Callable[[], Sequence[CheckpointRow]]) -> None:
        """Of every log. May run in a thread: rows are taken when nothing else is being written, so that
        those of a deleted topic do not come back.
        """
        with self._checkpointing:
            with self._taking:
                rows = take_rows()
                self._checkpointed |= {row.partition for row in rows}
            self._write(
                {row.partition: row.recovery_point for row in rows},
                {row.partition: row.log_start for row in rows},
                {row.partition: row.high_watermark for row in rows if row.high_watermark is not None},
            )
            self._checkpointed = {row.partition for row in rows}

    def write_cleaned(self, take_offsets: Callable[[], Mapping[TopicPartition, int]]) -> None:
        """Up to where each log is compacted; in a thread, as `write_checkpoints`."""
        with self._checkpointing:
            with self._taking:
                offsets = take_offsets()
                self._cleaned |= offsets.keys()
            write_offsets(self.files, self.path / CLEANER_OFFSETS, offsets)
            self._cleaned = set(offsets)

    def has_checkpoint(self, partition: TopicPartition) -> bool:
        """Whether a checkpoint speaks of it: then `create` waits for the disk."""
        with self._taking:  # rows of a topic that is deleted meanwhile may be on their way to the disk
            left = self.checkpoints
            known = (self._checkpointed, self._cleaned, left.recovery_points, left.log_starts, left.cleaned)
            return any(partition in names for names in (*known, left.high_watermarks) if names)

    def _forget_checkpoints(self, partition: TopicPartition) -> None:
        """A topic made anew must not start where the old one of its name did: records would be hidden."""
        if not self.has_checkpoint(partition):
            return
        with self._checkpointing:  # wholly: several threads make partitions
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
        """What the last run left of the others."""
        if partition in self._cleaned:
            cleaned = self._read(CLEANER_OFFSETS, "it is written anew with the next cleaning")
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
        self._points = points
        self._write_twice(LOG_STARTS, LOG_STARTS_COPY, starts)  # they seldom change
        if high_watermarks or self.files.exists(self.path / HIGH_WATERMARKS):
            self._write_twice(HIGH_WATERMARKS, HIGH_WATERMARKS_COPY, high_watermarks)

    def _write_twice(self, name: str, copy: str, offsets: Offsets) -> None:
        if offsets != self._twice.get(name):
            self._twice.pop(name, None)
            write_offsets(self.files, self.path / name, offsets)
            write_offsets(self.files, self.path / copy, offsets)
            self._twice[name] = dict(offsets)

    def record_broker_epoch(self, broker_epoch: int) -> None:
        """It is used under this broker epoch from now on; takes it offline if it cannot be written."""
        self._broker_epoch = broker_epoch
        try:
            record_broker_epoch(self.files, [self.path], broker_epoch)
        except OSError as failure:
            self.fail(failure.strerror or str(failure))

    def mark_clean(self) -> None:
        """After `write_checkpoints`. Raises OSError."""
        write_offsets(self.files, self.path / RECOVERY_POINTS_COPY, self._points)
        mark_clean_shutdown(self.files, self.path, self._broker_epoch)

    def _agreed(self, points: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """After a clean stop, which wrote a copy: else a flipped bit would make a log look too short."""
        copy = self._read(RECOVERY_POINTS_COPY, "the other file is taken") or {}
        return {name: min(at, copy.get(name, at)) for name, at in points.items()}

    def _read_starts(self) -> Offsets:
        """Without either file, as in Kafka, a log begins with its first segment, and deleted records that are
        still in it come back.
        """
        return self._read_both(LOG_STARTS, LOG_STARTS_COPY, "logs begin with their first segments")

    def _read_high_watermarks(self) -> Offsets:
        """Without either, what is committed is known again once a leader has told."""
        return self._read_both(HIGH_WATERMARKS, HIGH_WATERMARKS_COPY, "leaders tell them again")

    def _read_both(self, name: str, copy: str, without: str) -> Offsets:
        """A file and its copy, or the one of them that is readable. Neither has a checksum. Where they
        differ, a bit has flipped in one, or a crash came between the two writes. The smaller offset is taken:
        it hides no record, and calls none committed that is not. It undoes nothing that was answered, as
        DeleteRecords is answered after both were written.
        """
        is_there = self.files.exists(self.path / name)
        offsets = self._read(name, "its copy is taken") if is_there else None
        others = self._read(copy, without if offsets is None else "the other file is taken")
        if not offsets or not others:
            return offsets or others or {}
        differ = sorted(each for each in offsets.keys() & others.keys() if offsets[each] != others[each])
        if differ:
            _log.warning(
                "a checkpoint and its copy differ: the smaller offsets are taken",
                file=str(self.path / name),
                partitions=len(differ),
                first=str(differ[0]),
            )
        return {**offsets, **others, **{each: min(offsets[each], others[each]) for each in differ}}

    def _read(self, name: str, instead: str) -> dict[TopicPartition, int] | None:
        """None if it is unreadable, and the operator is told what that means; empty if there is none."""
        try:
            return read_offsets(self.files, self.path / name)
        except MalformedCheckpoint as failure:
            _log.error(
                "a checkpoint is unreadable", file=str(self.path / name), why=str(failure), instead=instead
            )
            return None


def _without(
    partition: TopicPartition, offsets: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, int]:
    return {name: at for name, at in offsets.items() if name != partition}
