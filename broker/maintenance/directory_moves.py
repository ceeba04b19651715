"""Which replicas move between the log directories of this broker (AlterReplicaLogDirs, KIP-113).

How one moves is in `directory_move`. As many do at a time as there are directories; of one partition the
last move that was asked for counts. One that fails is dropped and told in the log; the partition stays where
it is. Owned by the composition root; asked by handlers and the admin API, on the event loop.
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
    AGAIN_S,
    HELD_S,
    REST_S,
    DirectoryMove,
    MoveContext,
    MoveWaits,
)
from tierlog.broker.maintenance.orphan_directories import OrphanDirectories
from tierlog.broker.replication.replica import Replica
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

LONGEST_NAME = 255 - len(f".{MOVED_AWAY}") - 32
"""Of a partition: the names of its copy and of the note have an id behind it, and Kafka refuses to cut it."""

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
        held_s: float = HELD_S,
        again_s: float = AGAIN_S,
        rest_s: float = REST_S,
    ) -> None:
        self.waits = MoveWaits(min(held_s, settings.log_dirs_stop_timeout_ms / 2000), again_s, rest_s)
        self._settings = settings
        self._replicas = replicas
        self.directories = replicas.directories
        self.ended = Counter[MoveOutcome]()
        self.failed = set[TopicPartition]()
        """Those that could not move, until they are moved again or gone."""
        self.dead = 0
        """Moves that an error of this program has ended."""
        self._image = image
        self._tasks = tasks
        self._pace = MoveThrottler(clock, self._rate)
        self._slots = asyncio.Semaphore(len(self.directories.all))  # as many threads Kafka has for it
        self._moves: dict[TopicPartition, DirectoryMove] = {}
        self._leftovers = OrphanDirectories(tasks)
        self._around = MoveContext(
            replicas=replicas,
            pace=self._pace,
            leftovers=self._leftovers,
            waits=self.waits,
            granted_to_others=self._granted_to_others,
        )
        self._stopping = False
        replicas.dropped.append(self._dropped)

    @property
    def under_way(self) -> list[DirectoryMove]:
        return [move for move in self._moves.values() if not move.has_switched and not move.stop.is_set()]

    @property
    def copied_bytes(self) -> int:
        return self._pace.copied_bytes

    def move(self, name: TopicPartition, path: str) -> ErrorCode:
        """Begins to move a replica into the directory of an absolute path. One that is under way elsewhere
        ends, and with the directory that it is in none begins. One that is not here yet, in whatever state,
        will be made there.
        """
        if len(str(name)) > LONGEST_NAME:
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
        if before is not None and before.target is not target:
            before.stop.set()
        if source is target or (before is not None and before.target is target and not before.stop.is_set()):
            return ErrorCode.NONE
        if self.directories.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR  # a start could not tell where the log is
        self._begin(replica, target)
        return ErrorCode.NONE

    def resume(self) -> None:
        """Begins anew what the last run did not finish, or leaves that to a start at which no directory is
        offline; its copies go. Once logs are open.
        """
        for directory in self.directories.online:
            try:
                futures = directory.future_logs()
            except OSError as failure:
                directory.on_error(failure)
                continue
            for name, path in futures:
                replica = self._replicas.get(*name)
                if replica is None and self._replicas.is_offline(name):
                    continue  # until a start that finds its log
                if replica is not None and self._is_to_move(replica, directory, path):
                    if self.directories.offline:
                        continue
                    self._begin(replica, directory)
                self._leftovers.remove(directory, path)

    def _is_to_move(self, replica: Replica, directory: LogDirectory, copy: Path) -> bool:
        """Not so if the copy is of another topic that had the name."""
        try:
            is_of_it = read_partition_metadata(directory.files, copy) == replica.topic_id
        except (OSError, MalformedCheckpoint):
            return False
        return is_of_it and replica.room is not directory

    async def stop(self) -> None:
        """Ends them all; the next start begins them anew. A disk that hangs is not waited for."""
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
        move = self._moves[replica.name] = DirectoryMove(replica, source, target, self._around)
        self.failed.discard(replica.name)
        after = None if before is None else before.task
        move.task = self._tasks.spawn(f"move {replica.name}", self._run(move, after))

    async def _run(self, move: DirectoryMove, after: asyncio.Task[None] | None) -> None:
        where = {"partition": str(move.name), "directory": str(move.target.path)}
        if after is not None:
            await asyncio.wait({after})  # what it leaves behind goes first
        try:
            async with self._slots:
                move.require_going()
                await move.go()
            self.ended[MoveOutcome.MOVED] += 1
            _log.info("a replica has moved to another log directory", **where)
        except MoveStopped:
            self.ended[MoveOutcome.STOPPED] += 1
            _log.info("a replica does not move to another log directory after all", **where)
        except (OSError, MalformedCheckpoint) as failure:
            self.ended[MoveOutcome.MOVED if move.has_switched else MoveOutcome.FAILED] += 1
            if not move.has_switched and self._replicas.holds(move.replica):
                self.failed.add(move.name)
            what = "a replica cannot move to another log directory"
            if move.has_switched:
                what = "a replica has moved to another log directory; the next start takes the old one away"
            _log.error(what, **where, error=str(failure))
        except Exception:
            self.dead += 1
            raise
        finally:
            move.stop.set()
            if not move.has_switched:
                await move.stay()
                if not self._stopping:  # else the next start does it
                    move.drop_copy()
            if self._moves.get(move.name) is move:
                del self._moves[move.name]

    def _dropped(self, replica: Replica) -> None:
        """Its topic was deleted, it went elsewhere, or its directory has failed; on the loop, before another
        one of the name may be made.
        """
        self.failed.discard(replica.name)
        move = self._moves.get(replica.name)
        if move is None:
            return
        move.stop.set()
        if move.has_switched and move.source.failure is None and move.target.failure is None:
            with suppress(OSError):
                move.bury()

    def _granted_to_others(self, move: DirectoryMove) -> int:
        """In any thread."""
        others = (one for one in tuple(self._moves.values()) if one is not move and one.target is move.target)
        return sum(one.missing_bytes for one in others)

    def _rate(self) -> int:
        """As set for this node, for all, or at its start; in any thread."""
        rate = self._settings.replica_alter_log_dirs_io_max_bytes_per_second
        image = self._image()
        for scope, of in ((ConfigScope.CLUSTER, ""), (ConfigScope.BROKER, str(self._settings.node_id))):
            rate = int(image.overrides(scope, of).get(RATE, rate))
        return rate
