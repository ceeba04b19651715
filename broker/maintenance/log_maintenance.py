"""What keeps logs in shape while nobody asks: rolls, retention, flushes, checkpoints, and unlinking.

Replicas belong to the event loop; only fsync and unlink, which take long, run in threads. A failed fsync
takes its log directory offline: what the kernel dropped cannot be known (the page may be marked clean), so
only a recovery at the next start can tell.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog

from tierlog.base.clock import Clock
from tierlog.base.files import Files
from tierlog.base.tasks import TaskGroup
from tierlog.broker.replication.group_commit import GroupCommit
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.replication.replica_roles import Room
from tierlog.broker.storage.log_dir import LogDirectory
from tierlog.broker.storage.log_flusher import SyncFailed
from tierlog.config.node import NodeSettings
from tierlog.config.topic import MAX_LONG, TopicConfig

ROOM_CHECK_MS = 1_000
"""How often a full disk is asked whether there is room again."""

LOOKED_AT_A_TURN = 100
"""Empty logs that retention passes before requests have their turn; of others, one."""

GLANCED_AT_A_TURN = 1000
"""The same where one is only asked whether there is anything to do."""

_log = structlog.get_logger("tierlog.upkeep")


class Reserve(Protocol):
    """What the metadata node sets aside for a full disk: appends beside it wait until it stands again."""

    @property
    def has_reserve(self) -> bool: ...
    async def ensure_reserve(self) -> bool: ...


class LogMaintenance:
    def __init__(
        self,
        settings: NodeSettings,
        replicas: ReplicaManager,
        files: Files,
        clock: Clock,
        tasks: TaskGroup,
        commits: GroupCommit,
        reserve: Reserve,
    ) -> None:
        self._settings = settings
        self._replicas = replicas
        self._files = files
        self._clock = clock
        self._tasks = tasks
        self._commits = commits
        self._reserve = reserve
        self._running: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Each directory has its own flushes and checkpoints: one that hangs delays nobody else's."""
        settings = self._settings
        self._repeat("retention", settings.log_retention_check_interval_ms, self.apply_retention)
        self._repeat("room", ROOM_CHECK_MS, self.recheck_full)
        self._repeat("open files", ROOM_CHECK_MS, self.trim_open_files)
        checkpoint_ms = settings.log_flush_offset_checkpoint_interval_ms
        self._repeat("missing", checkpoint_ms, self._replicas.make_missing)
        for directory in self._replicas.directories.all:
            flush_due, checkpoint = partial(self.flush_due, directory), partial(self.checkpoint, directory)
            self._repeat(f"flush {directory.path}", settings.log_flush_scheduler_interval_ms, flush_due)
            self._repeat(f"checkpoint {directory.path}", checkpoint_ms, checkpoint)

    def configure(self, settings: NodeSettings) -> None:
        """As the settings are now; intervals stay what they were at the start."""
        self._settings = settings

    async def stop(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def apply_retention(self) -> None:
        """Rolls by age; deletes by time, size and log start (of tiered partitions the tier driver does).

        Raises what was not expected of a partition, once all others have had their turn."""
        now_ms = self._clock.now_ms()
        due: defaultdict[Room, list[Path]] = defaultdict(list)
        unexpected: list[Exception] = []
        for number, replica in enumerate(self._replicas):
            if not self._replicas.holds(replica):
                continue  # deleted meanwhile: its file names may be those of a topic made anew
            try:
                self._retain(replica, now_ms)
            except Exception as failure:
                failure.add_note(f"partition {replica.name}")
                unexpected.append(failure)
            due[replica.room] += replica.take_due(now_ms)
            if not replica.log.is_empty or number % LOOKED_AT_A_TURN == 0:
                await asyncio.sleep(0)  # requests have their turn between two partitions
        loop = asyncio.get_running_loop()
        for room, paths in due.items():
            if paths:  # nobody waits for it
                loop.run_in_executor(room.threads, self._unlink, paths)
        if unexpected:
            raise ExceptionGroup("retention", unexpected)

    def _retain(self, replica: Replica, now_ms: int) -> None:
        replica.expire_producers(self._clock.monotonic_ms(), self._settings.producer_id_expiration_ms)
        if replica.log.is_empty:
            return
        self._try(replica, replica.maybe_roll, now_ms)
        if _has_local_retention(replica.config):  # also where there was no room to roll: it makes some
            self._try(replica, replica.apply_retention, now_ms)

    async def flush_due(self, directory: LogDirectory) -> None:
        """flush.ms: fsyncs logs whose oldest unsynced record is that old."""
        now_ms = self._clock.now_ms()
        due = [
            replica
            async for replica in _in_turns(self._replicas.replicas_in(directory))
            if replica.config.flush_ms < MAX_LONG and replica.must_flush(now_ms)
        ]
        ends = await asyncio.gather(*map(self._flush, due), return_exceptions=True)
        for failure in filter(None, ends):
            raise failure

    async def checkpoint(self, directory: LogDirectory) -> None:
        """Flushes what is new and writes recovery points, so that recovery after a crash reads little."""
        async for replica in _in_turns(self._replicas.replicas_in(directory)):
            if replica.recovery_point < replica.log_end_offset:
                await self._flush(replica)
        if directory.failure is None:
            await self._replicas.checkpoints.write(directory)

    async def trim_open_files(self) -> None:
        """What answers held beyond `log.max.open.files` is closed once they are sent."""
        self._replicas.directories.open_files.trim()

    async def recheck_full(self) -> None:
        """Where a disk was full: appends go on, and what could not be made is made, once there is room."""
        directories = self._replicas.directories
        stands = self._reserve.has_reserve or await self._reserve.ensure_reserve()
        if not any(directory.is_full for directory in directories.online):
            return
        await self._release_reserved()
        metadata = None if stands else self._settings.metadata_directory
        if await asyncio.to_thread(directories.recheck_full, metadata):
            await self._replicas.make_missing()

    async def _release_reserved(self) -> None:
        """Room ahead of appends must not be what keeps a disk full."""
        full = await asyncio.to_thread(self._replicas.directories.sharing_full_disks)
        for replica in [replica for directory in full for replica in self._replicas.replicas_in(directory)]:
            with suppress(OSError):  # the directory has noted it
                if self._replicas.holds(replica) and replica.log.active.release_reserved():
                    await asyncio.sleep(0)  # requests have their turn between two

    async def _flush(self, replica: Replica) -> None:
        try:
            await self._commits.flush(replica)
        except SyncFailed as failure:
            if self._replicas.holds(replica):  # a deleted one may have lost its files meanwhile
                self._replicas.fail(replica, failure)
        except OSError:  # no room for a small file, which is logged: the other replicas have their turn
            return

    def _try(self, replica: Replica, work: Callable[[int], object], now_ms: int) -> None:
        try:
            work(now_ms)
        except OSError as failure:
            _log.error("retention failed", partition=str(replica.name), error=str(failure))

    def _repeat(self, name: str, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        async def turn() -> None:
            await asyncio.sleep(interval_ms / 1000)
            try:
                await work()
            except OSError as failure:
                _log.error("upkeep failed", what=name, error=str(failure))

        self._running.append(self._tasks.repeat(name, turn))

    def _unlink(self, paths: list[Path]) -> None:
        for path in paths:
            try:
                self._files.unlink(path, missing_ok=True)
            except OSError as failure:  # one directory's trouble is not another's
                _log.error("cannot unlink", path=str(path), error=str(failure))


async def _in_turns(replicas: Sequence[Replica]) -> AsyncIterator[Replica]:
    for number, replica in enumerate(replicas, 1):
        if number % GLANCED_AT_A_TURN == 0:
            await asyncio.sleep(0)
        yield replica


def _has_local_retention(config: TopicConfig) -> bool:
    """A tiered topic's retention covers both tiers; one that is compacted is never tiered (KIP-405), and
    loses what lies below its log start even if time and size delete nothing.
    """
    policy = config.cleanup_policy
    return "compact" in policy or ("delete" in policy and not config.remote_storage_enable)
