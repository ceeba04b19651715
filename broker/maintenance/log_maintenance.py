"""Log maintenance: periodic rolls, retention, flushes, checkpoints and deletion of files. It also rechecks
full disks, retries missing replicas, and closes files beyond the limit of open files.

Replicas belong to the event loop; slow file operations (fsync, unlink, checks of free space) run in threads.
A failed fsync takes its log directory offline: the kernel may have marked unwritten pages as clean, so only
recovery at the next start can tell what is on disk.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog

from tierlog.base.clock import Clock
from tierlog.base.files import Files
from tierlog.base.safeguards import safeguard
from tierlog.base.tasks import TaskGroup, in_turns
from tierlog.broker.replication.group_commit import GroupCommit
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_manager import ReplicaManager, ReportDamaged
from tierlog.broker.replication.replica_state import LogDirState
from tierlog.broker.storage.log_dir import LogDirectory
from tierlog.broker.storage.log_flusher import SyncFailed
from tierlog.config.node import NodeSettings
from tierlog.config.topic import MAX_LONG

CHECK_MS = 1_000
"""Interval of the checks whether full disks have free space again, and whether too many files are open."""

LOGS_PER_TURN = 100
"""Retention yields to the event loop after each non-empty log and after this many empty ones."""

_log = structlog.get_logger("tierlog.maintenance")


class DiskReserve(Protocol):
    """Disk space that the metadata node keeps in reserve.

    A full disk that also holds the metadata directory accepts appends again only once the reserve is
    complete.
    """

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
        reserve: DiskReserve,
        report_damaged: ReportDamaged | None = None,
    ) -> None:
        """`report_damaged`: as in ReplicaManager.retry_missing."""
        self._settings = settings
        self._replicas = replicas
        self._files = files
        self._clock = clock
        self._tasks = tasks
        self._commits = commits
        self._reserve = reserve
        self._report_damaged = report_damaged
        self._running: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Each directory has its own flush and checkpoint tasks, so one that hangs does not delay
        the others.
        """
        settings = self._settings
        self._repeat("retention", settings.log_retention_check_interval_ms, self.apply_retention)
        self._repeat("full disks", CHECK_MS, self.recheck_full)
        self._repeat("open files", CHECK_MS, self.trim_open_files)
        checkpoint_ms = settings.log_flush_offset_checkpoint_interval_ms
        self._repeat("missing replicas", checkpoint_ms, self._retry_missing)
        for directory in self._replicas.directories.all:
            flush_due, checkpoint = partial(self.flush_due, directory), partial(self.checkpoint, directory)
            self._repeat(f"flush {directory.path}", settings.log_flush_scheduler_interval_ms, flush_due)
            self._repeat(f"checkpoint {directory.path}", checkpoint_ms, checkpoint)

    def configure(self, settings: NodeSettings) -> None:
        """Apply changed settings. The intervals stay as they were at the start."""
        self._settings = settings

    async def stop(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def apply_retention(self) -> None:
        """Roll by age, delete by retention, expire idle producer ids, and unlink files whose delete delay has
        passed. The remote log manager applies retention to partitions that are or were tiered.

        Unexpected errors of single partitions are raised after all others have been processed.
        """
        now_ms = self._clock.now_ms()
        due: defaultdict[LogDirState, list[Path]] = defaultdict(list)
        unexpected: list[Exception] = []
        for number, replica in enumerate(self._replicas):
            if not self._replicas.holds(replica):
                continue  # deleted: a new topic of the same name may have files of the same names
            try:
                self._retain(replica, now_ms)
            except Exception as failure:
                failure.add_note(f"partition {replica.name}")
                unexpected.append(failure)
            due[replica.log_dir] += replica.log.take_due(now_ms)
            if not replica.log.is_empty or number % LOGS_PER_TURN == 0:
                await asyncio.sleep(0)  # let requests run between two partitions
        loop = asyncio.get_running_loop()
        for log_dir, paths in due.items():
            if paths:  # in the background; `_unlink` logs errors
                loop.run_in_executor(log_dir.threads, self._unlink, paths)
        if unexpected:
            raise ExceptionGroup("retention", unexpected)

    def _retain(self, replica: Replica, now_ms: int) -> None:
        replica.log.producers.expire(
            _producer_clock_ms(self._clock), self._settings.producer_id_expiration_ms
        )
        if replica.log.is_empty:
            return
        _try("roll", replica, replica.log.maybe_roll, now_ms)
        if _has_local_retention(replica):  # also if the roll failed for lack of space
            _try("retention", replica, replica.apply_retention, now_ms)

    async def flush_due(self, directory: LogDirectory) -> None:
        """Flush the logs whose oldest unflushed record is older than flush.ms."""
        now_ms = self._clock.now_ms()
        due = [
            replica
            async for replica in in_turns(self._replicas.replicas_in(directory))
            if replica.config.flush_ms < MAX_LONG and replica.log.must_flush(now_ms)
        ]
        ends = await asyncio.gather(*map(self._flush, due), return_exceptions=True)
        for failure in filter(None, ends):
            raise failure

    async def checkpoint(self, directory: LogDirectory) -> None:
        """Flush new records, write restart points and recovery points, so that recovery after a crash reads
        little."""
        async for replica in in_turns(self._replicas.replicas_in(directory)):
            log, interval = replica.log, replica.config.index_interval_bytes
            points = log.flusher.restart_points
            prepared = not directory.is_full and points.prepare(log.active, log.producers, interval)
            if prepared or log.recovery_point < log.log_end_offset:
                await self._flush(replica)
        if directory.failure is None:
            await self._replicas.checkpoints.write(directory)

    async def trim_open_files(self) -> None:
        """Close files that responses held open beyond `log.max.open.files`."""
        self._replicas.directories.open_files.trim()

    async def recheck_full(self) -> None:
        """Accept appends again on disks that have free space again, and retry missing replicas."""
        directories = self._replicas.directories
        has_reserve = await self._reserve.ensure_reserve()
        if not any(directory.is_full for directory in directories.online):
            return
        await self._release_reserved()
        metadata = None if has_reserve else self._settings.metadata_directory
        if await asyncio.to_thread(directories.recheck_full, metadata):
            await self._retry_missing()

    async def _release_reserved(self) -> None:
        """Free the space that active segments on full disks reserved for later appends."""
        full = await asyncio.to_thread(self._replicas.directories.sharing_full_disks)
        for replica in [replica for directory in full for replica in self._replicas.replicas_in(directory)]:
            with suppress(OSError):  # the directory handles it
                if self._replicas.holds(replica) and replica.log.active.release_reserved():
                    await asyncio.sleep(0)  # let requests run in between

    async def _flush(self, replica: Replica) -> None:
        try:
            await self._commits.flush(replica)
        except SyncFailed as failure:
            if self._replicas.holds(replica):  # the files of a deleted replica may be gone
                self._replicas.fail(replica, failure)
        except OSError:  # a full disk, which is logged: continue with the other replicas
            return

    async def _retry_missing(self) -> None:
        await self._replicas.retry_missing(self._report_damaged)

    def _repeat(self, name: str, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        async def turn() -> None:
            await asyncio.sleep(interval_ms / 1000)
            try:
                await work()
            except OSError as failure:
                _log.error("log.maintenance.failed", what=name, error=str(failure))

        self._running.append(self._tasks.repeat(name, turn))

    def _unlink(self, paths: list[Path]) -> None:
        for path in paths:
            try:
                self._files.unlink(path, missing_ok=True)
            except OSError as failure:  # continue with files in other directories
                _log.error("log.unlink_failed", path=str(path), error=str(failure))


@safeguard("producer expiration uses the monotonic clock")
def _producer_clock_ms(clock: Clock) -> int:
    return clock.monotonic_ms()


def _try(what: str, replica: Replica, work: Callable[[int], object], now_ms: int) -> None:
    try:
        work(now_ms)
    except BlockingIOError:
        pass  # a flush writes the leader epochs: the next turn deletes the segments
    except OSError as failure:
        _log.error("log.maintenance.failed", what=what, partition=str(replica.name), error=str(failure))


def _has_local_retention(replica: Replica) -> bool:
    """Whether local retention applies. Records of a compacted topic below its log start offset are always
    deleted locally."""
    return bool(replica.config.cleanup_policy) and not replica.is_tiered
