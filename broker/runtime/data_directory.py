"""The directory that holds this node's partitions: whose it is, what lies in it, what must outlive a restart.

One process at a time (`.lock`), one node of one cluster (`meta.properties`). A directory in it belongs
to a topic; one that the cluster does not know is kept aside as `-stray`, not deleted (KIP-858). Checkpoints
say how much of a log needs no check after a crash. Called by the composition root and the replica manager.
"""

import fcntl
import os
import random
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tierlog.broker.log.checkpoints import (
    CLEANER_OFFSETS,
    LOG_STARTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    MalformedCheckpoint,
    decode_uuid,
    encode_uuid,
    mark_clean_shutdown,
    read_meta_properties,
    read_offsets,
    read_partition_metadata,
    take_clean_shutdown,
    write_meta_properties,
    write_offsets,
    write_partition_metadata,
)
from tierlog.broker.log.names import DELETED_DIRECTORY, parse_partition_directory, renamed_directory
from tierlog.broker.ports.files import Files
from tierlog.broker.ports.types import TopicPartition, random_uuid

STRAY = "-stray"

CheckpointRow = tuple[TopicPartition, int, int]
"""Partition, recovery point, log start."""


class DirectoryUnusable(OSError):
    """The node cannot start on this directory; the message tells the operator why."""


@dataclass(frozen=True, slots=True)
class Identity:
    cluster_id: str
    directory_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """`clean`: the last stop closed every log; then recovery points need not be trusted or used."""

    clean: bool
    recovery_points: Mapping[TopicPartition, int]
    log_starts: Mapping[TopicPartition, int]
    cleaned: Mapping[TopicPartition, int]
    """Up to where compaction has been; every log in which it ever was has an entry."""


class DataDirectory:
    def __init__(self, path: Path, files: Files, rng: random.Random) -> None:
        self.path = path
        self._files = files
        self._rng = rng
        self._lock = -1
        self._checkpointing = threading.Lock()
        self._checkpointed: set[TopicPartition] = set()
        self._cleaned: set[TopicPartition] = set()

    def claim(self, node_id: int, cluster_id: str) -> Identity:
        """Locks it, checks or writes its identity (`cluster_id` may be empty); raises DirectoryUnusable."""
        self._files.make_directory(self.path)
        self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as failure:
            self.release()
            raise DirectoryUnusable(failure.errno, "another process uses it", str(self.path)) from None
        try:
            return self._identify(node_id, cluster_id)
        except (MalformedCheckpoint, ValueError) as failure:
            self.release()
            raise DirectoryUnusable(None, str(failure), str(self.path)) from None

    def release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _identify(self, node_id: int, cluster_id: str) -> Identity:
        known = read_meta_properties(self._files, self.path)
        if not known:
            identity = Identity(cluster_id or encode_uuid(random_uuid(self._rng)), random_uuid(self._rng))
            write_meta_properties(self._files, self.path, identity.cluster_id, node_id, identity.directory_id)
            return identity
        if known.get("node.id") != str(node_id):
            raise ValueError(f"it belongs to node {known.get('node.id')}, this is node {node_id}")
        if cluster_id and known.get("cluster.id") != cluster_id:
            raise ValueError(f"it belongs to cluster {known.get('cluster.id')!r}, not to {cluster_id!r}")
        return Identity(known["cluster.id"], decode_uuid(known.get("directory.id", "")))

    # -- what lies in it --

    def partitions(self) -> dict[TopicPartition, uuid.UUID | None]:
        """Every partition's directory and the topic id that it belongs to (None: it does not say)."""
        found = {}
        for name in self._files.list_directory(self.path):
            partition = None if name.endswith(STRAY) else parse_partition_directory(name)
            if partition is not None:
                found[partition] = read_partition_metadata(self._files, self.path / name)
        return found

    def deleted(self) -> list[Path]:
        """Directories of deleted partitions that a stop left behind."""
        return [
            self.path / name
            for name in self._files.list_directory(self.path)
            if name.endswith(DELETED_DIRECTORY)
        ]

    def directory(self, partition: TopicPartition) -> Path:
        return self.path / str(partition)

    def holds(self, partition: TopicPartition) -> bool:
        """Whether a replica of it was made: no log is opened before its directory says whose it is."""
        return self._files.exists(self.directory(partition) / PARTITION_METADATA)

    def create(self, partition: TopicPartition, topic_id: uuid.UUID) -> Path:
        """The directory of a new replica, with its topic id in it; both durable, as what is synced in it
        must be.
        """
        self._forget_checkpoints(partition)
        directory = self.directory(partition)
        self._files.make_directory(directory)
        self._files.sync_directory(self.path)
        write_partition_metadata(self._files, directory, topic_id)
        return directory

    def bury(self, partition: TopicPartition) -> Path:
        """Renames a deleted partition's directory, so that its name is free; the files go later."""
        return self._rename(
            partition, renamed_directory(str(partition), random_uuid(self._rng).hex, DELETED_DIRECTORY)
        )

    def set_aside(self, partition: TopicPartition) -> Path:
        """Keeps a directory that belongs to no partition of the cluster, out of the way."""
        return self._rename(partition, renamed_directory(str(partition), random_uuid(self._rng).hex, STRAY))

    def _rename(self, partition: TopicPartition, name: str) -> Path:
        target = self.path / name
        self._files.rename(self.directory(partition), target)
        self._files.sync_directory(self.path)
        return target

    def remove(self, directory: Path) -> None:
        """Unlinks a directory and its files. May run in a thread."""
        for name in self._files.list_directory(directory):
            self._files.unlink(directory / name, missing_ok=True)
        self._files.remove_directory(directory)

    # -- checkpoints --

    def take_checkpoints(self) -> Checkpoints:
        """What the last run left; the marker of its clean stop is gone after this call."""
        clean = take_clean_shutdown(self._files, self.path)
        cleaned = self._read(CLEANER_OFFSETS)
        found = Checkpoints(clean, self._read(RECOVERY_POINTS), self._read(LOG_STARTS), cleaned)
        self._cleaned = set(cleaned)
        self._checkpointed = {*found.recovery_points, *found.log_starts}
        return found

    def write_checkpoints(self, take_rows: Callable[[], Sequence[CheckpointRow]]) -> None:
        """Of every log. May run in a thread: rows are taken when nothing else is being written, so that
        those of a deleted topic do not come back.
        """
        with self._checkpointing:
            rows = take_rows()
            self._checkpointed |= {name for name, _, _ in rows}
            self._write({name: point for name, point, _ in rows}, {name: start for name, _, start in rows})
            self._checkpointed = {name for name, _, _ in rows}

    def write_cleaned(self, take_offsets: Callable[[], Mapping[TopicPartition, int]]) -> None:
        """Up to where each log is compacted; in a thread, as `write_checkpoints`."""
        with self._checkpointing:
            offsets = take_offsets()
            self._cleaned |= offsets.keys()
            write_offsets(self._files, self.path / CLEANER_OFFSETS, offsets)
            self._cleaned = set(offsets)

    def _forget_checkpoints(self, partition: TopicPartition) -> None:
        """A topic made anew must not start where the old one of its name did: records would be hidden."""
        if partition in self._cleaned:
            with self._checkpointing:
                cleaned = self._read(CLEANER_OFFSETS)
                cleaned.pop(partition, None)
                write_offsets(self._files, self.path / CLEANER_OFFSETS, cleaned)
                self._cleaned = set(cleaned)
        if partition not in self._checkpointed:
            return
        with self._checkpointing:
            points, starts = self._read(RECOVERY_POINTS), self._read(LOG_STARTS)
            kept = {name for name in {*points, *starts} if self.holds(name)} - {partition}
            self._write(
                {name: point for name, point in points.items() if name in kept},
                {name: start for name, start in starts.items() if name in kept},
            )
            self._checkpointed = kept

    def _write(self, points: Mapping[TopicPartition, int], starts: Mapping[TopicPartition, int]) -> None:
        write_offsets(self._files, self.path / RECOVERY_POINTS, points)
        write_offsets(self._files, self.path / LOG_STARTS, starts)

    def mark_clean(self) -> None:
        mark_clean_shutdown(self._files, self.path)

    def _read(self, name: str) -> dict[TopicPartition, int]:
        try:
            return read_offsets(self._files, self.path / name)
        except MalformedCheckpoint:
            return {}  # then everything is checked, which costs time only
