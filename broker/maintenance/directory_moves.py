"""Directory moves: the replicas that move between the log directories of this broker (AlterReplicaLogDirs,
KIP-113).

`directory_move` moves one replica. As many moves run at a time as there are directories, and the last request
for a partition wins. A failed move is logged and dropped; the partition stays where it is. Owned by the
composition root; called by handlers and the admin API, on the event loop.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import structlog

from tierlog.base.clock import Clock
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicPartition
from tierlog.broker.maintenance.directory_move import (
    MAX_HOLD_S,
    MAX_RETRY_S,
    RETRY_S,
    DirectoryMove,
    MoveContext,
    MoveTimings,
)
from tierlog.broker.maintenance.orphan_directories import OrphanDirectories
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_events import ReplicaEvent, ReplicaRemoved
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.storage.checkpoints import MalformedCheckpoint, read_partition_metadata
from tierlog.broker.storage.log_dir import LogDirectory
from tierlog.broker.storage.move_throttler import MoveStopped, MoveThrottler
from tierlog.broker.storage.names import MOVED_AWAY
from tierlog.config.node import NodeSettings
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import ConfigScope
from tierlog.protocol.errors import ErrorCode

RATE = "replica.alter.log.dirs.io.max.bytes.per.second"

MAX_NAME_LENGTH = 255 - len(f".{MOVED_AWAY}") - 32
"""Maximum length of the name of a partition that can move: the names of its copy and of its marker add an id
to it. Kafka does not shorten the name of a copy either.
"""

_log = structlog.get_logger("tierlog.moves")


class MoveOutcome(StrEnum):
    MOVED = "moved"
    STOPPED = "stopped"
    FAILED = "failed"


class DirectoryMoves:
    def __init__(
        self,
        settings: NodeSettings,
        replicas: ReplicaManager,
        image: Callable[[], ClusterImage],
        clock: Clock,
        tasks: TaskGroup,
        *,
        max_hold_s: float = MAX_HOLD_S,
        retry_s: float = RETRY_S,
        max_retry_s: float = MAX_RETRY_S,
    ) -> None:
        max_hold_s = min(max_hold_s, settings.log_dirs_stop_timeout_ms / 2000)
        self.times = MoveTimings(max_hold_s, retry_s, max_retry_s)
        self._settings = settings
        self._replicas = replicas
        self.directories = replicas.directories
        self.outcomes = Counter[MoveOutcome]()
        self.failed_partitions = set[TopicPartition]()
        """Partitions whose last move failed, until they are moved again or removed."""
        self.unexpected_failures = 0
        """Moves that ended with an unexpected error."""
        self._image = image
        self._tasks = tasks
        self._throttler = MoveThrottler(clock, self._rate)
        self._slots = asyncio.Semaphore(len(self.directories.all))  # Kafka has as many threads for it
        self._moves: dict[TopicPartition, DirectoryMove] = {}
        self._orphans = OrphanDirectories(tasks)
        self._context = MoveContext(
            replicas=replicas,
            throttler=self._throttler,
            orphans=self._orphans,
            times=self.times,
            reserved_for_others=self._reserved_for_others,
        )
        self._stopping = False

    @property
    def under_way(self) -> list[DirectoryMove]:
        return [move for move in self._moves.values() if not move.has_switched and not move.stop.is_set()]

    @property
    def copied_bytes(self) -> int:
        return self._throttler.copied_bytes

    def move(self, name: TopicPartition, path: str) -> ErrorCode:
        """Begin to move a replica into the directory with an absolute path.

        A running move to another directory is cancelled; none begins if the replica is there already. A
        replica that this broker does not have yet will be created there.
        """
        if len(str(name)) > MAX_NAME_LENGTH:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        target = self.directories.by_path(path)
        if target is None:
            return ErrorCode.LOG_DIR_NOT_FOUND
        if target.failure is not None or self._replicas.is_offline(name):
            return ErrorCode.KAFKA_STORAGE_ERROR
        replica, source = self._replicas.get(*name), self.directories.directory_of(name)
        if replica is None or source is None:
            self.directories.set_preferred(name, target)
            topic = self._image().topic(name.topic)
            exists = topic is not None and 0 <= name.partition < len(topic.partitions)
            return ErrorCode.REPLICA_NOT_AVAILABLE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        before = self._moves.get(name)
        if before is not None and before.target is target and not before.stop.is_set():
            return ErrorCode.NONE
        if source is not target and self.directories.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR  # the next start could not tell where the log is
        if before is not None and before.target is not target:
            before.stop.set()
        if source is not target:
            self._begin(replica, target)
        return ErrorCode.NONE

    def resume(self) -> None:
        """Restart the moves that the last run did not finish, once logs are open, unless a directory is
        offline, and remove their copies. Remove copies that belong to no replica."""
        for directory in self.directories.online:
            try:
                futures = directory.future_logs()
            except OSError as failure:
                directory.on_error(failure)
                continue
            for name, path in futures:
                replica = self._replicas.get(*name)
                if replica is None and self._replicas.is_offline(name):
                    continue  # a later start may find its log
                if replica is not None and self._is_interrupted_move(replica, directory, path):
                    if self.directories.offline:
                        continue
                    self._begin(replica, directory)
                self._orphans.remove(directory, path)

    def _is_interrupted_move(self, replica: Replica, directory: LogDirectory, copy: Path) -> bool:
        """False if the copy is of an earlier topic of the same name."""
        try:
            is_same_topic = read_partition_metadata(directory.files, copy) == replica.topic_id
        except (OSError, MalformedCheckpoint):
            return False
        return is_same_topic and replica.log_dir is not directory

    async def stop(self) -> None:
        """Stop all moves; the next start begins them again. Waits at most log.dirs.stop.timeout.ms: a disk
        may hang."""
        self._stopping = True
        running = []
        for move in self._moves.values():
            move.stop.set()
            if move.task is not None:
                running.append(move.task)
        if running:
            await asyncio.wait(running, timeout=self._settings.log_dirs_stop_timeout_ms / 1000)

    def _begin(self, replica: Replica, target: LogDirectory) -> None:
        before = self._moves.get(replica.name)
        source = self.directories.directory_of(replica.name)
        if source is None or self._stopping:
            return
        move = self._moves[replica.name] = DirectoryMove(replica, source, target, self._context)
        self.failed_partitions.discard(replica.name)
        after = None if before is None else before.task
        move.task = self._tasks.spawn(f"move {replica.name}", self._run(move, after))

    async def _run(self, move: DirectoryMove, after: asyncio.Task[None] | None) -> None:
        where = {"partition": str(move.name), "directory": str(move.target.path)}
        if after is not None:
            await asyncio.wait({after})  # its files are removed first
        try:
            async with self._slots:
                move.require_running()
                await move.run()
            self.outcomes[MoveOutcome.MOVED] += 1
            _log.info("move.ended", **where)
        except MoveStopped:
            self.outcomes[MoveOutcome.STOPPED] += 1
            _log.info("move.cancelled", **where)
        except (OSError, MalformedCheckpoint) as failure:
            self.outcomes[MoveOutcome.MOVED if move.has_switched else MoveOutcome.FAILED] += 1
            if not move.has_switched and self._replicas.holds(move.replica):
                self.failed_partitions.add(move.name)
            _log.error(
                "move.cleanup_failed" if move.has_switched else "move.failed", **where, error=str(failure)
            )
        except Exception:
            self.unexpected_failures += 1
            raise
        finally:
            move.stop.set()
            if not move.has_switched:
                await move.remove_marker()
                if not self._stopping:  # else the next start removes it
                    move.drop_copy()
            if self._moves.get(move.name) is move:
                del self._moves[move.name]

    def on_replica_event(self, event: ReplicaEvent) -> None:
        """Stop the move of a removed replica, before a replica of the same name may be created."""
        if not isinstance(event, ReplicaRemoved):
            return
        self.failed_partitions.discard(event.replica.name)
        move = self._moves.get(event.replica.name)
        if move is None:
            return
        move.stop.set()
        if move.has_switched and move.source.failure is None and move.target.failure is None:
            with suppress(OSError):
                move.rename_source()

    def _reserved_for_others(self, move: DirectoryMove) -> int:
        """Thread-safe."""
        others = (one for one in tuple(self._moves.values()) if one is not move and one.target is move.target)
        return sum(one.missing_bytes for one in others)

    def _rate(self) -> int:
        """The rate set for this node, for all nodes, or at the start. Thread-safe."""
        rate = self._settings.replica_alter_log_dirs_io_max_bytes_per_second
        image = self._image()
        for scope, of in ((ConfigScope.CLUSTER, ""), (ConfigScope.BROKER, str(self._settings.node_id))):
            rate = int(image.overrides(scope, of).get(RATE, rate))
        return rate
