"""Log cleaner: compacts the log with the highest dirty ratio, then the next one, one at a time.

Reading and writing happen in a thread of the log's directory. The event loop picks the log, collects what the
thread needs to know, and swaps cleaned segments in. A log that cannot be cleaned is counted as uncleanable,
and skipped until it is repaired or truncated, or the broker restarts; a full disk does not count. Called by
the composition root; metrics show its counts.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

import structlog

from tierlog.base.clock import Clock
from tierlog.base.files import DISK_FULL
from tierlog.base.tasks import TaskGroup, in_turns
from tierlog.broker.replication.group_commit import GroupCommit
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.storage.cleaner import Cleaner, CleanerThrottler, CleaningJob, CleaningStopped, take_job
from tierlog.broker.storage.core.compaction import LogToClean, log_to_clean
from tierlog.broker.storage.segment import CorruptLog
from tierlog.broker.storage.segment_swap import Swap, Swaps, discard
from tierlog.config.node import NodeSettings
from tierlog.config.topic import TopicConfig
from tierlog.records.errors import RecordsError

LOGS_PER_TURN = 100
"""Logs checked before other requests run: about a millisecond."""

T = TypeVar("T")
_log = structlog.get_logger("tierlog.cleaner")


class LogCleaner:
    def __init__(
        self,
        settings: NodeSettings,
        replicas: ReplicaManager,
        clock: Clock,
        tasks: TaskGroup,
        commits: GroupCommit,
    ) -> None:
        self._settings = settings
        self._replicas = replicas
        self._clock = clock
        self._tasks = tasks
        self._commits = commits
        self._stop_thread = threading.Event()
        self._stopping = asyncio.Event()
        self._woken = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._uncleanable: dict[Replica, int] = {}
        """Replica -> content version that could not be cleaned. Repair or truncation changes the version."""
        self._logged_malformed: dict[Replica, set[int]] = {}  # base offsets of malformed batches
        self.bytes_read = self.bytes_written = 0
        self.max_dirty_ratio = 0.0
        """Dirty ratio of the dirtiest log at the last check."""

    @property
    def uncleanable(self) -> int:
        """Logs that are skipped after a failure."""
        return sum(map(self._replicas.holds, self._uncleanable))

    def start(self) -> None:
        if self._settings.log_cleaner_enable:
            self._running = self._tasks.repeat(
                "log cleaner", self._turn, should_continue=lambda: not self._stopping.is_set()
            )

    def configure(self, settings: NodeSettings) -> None:
        """Apply changed settings, and check all logs at once. The buffer size applies from the next
        cleaning."""
        self._settings = settings
        self._woken.set()

    async def stop(self) -> None:
        """Stop the thread; cleaned segments that were not swapped in are deleted. A hanging disk is not
        waited for.
        """
        self._stop_thread.set()
        self._stopping.set()
        self._woken.set()
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=self._settings.log_dirs_stop_timeout_ms / 1000)
            self._running.cancel()

    async def clean_all(self) -> int:
        """Clean until no log is dirty enough; returns the number of cleanings."""
        await self._complete_swaps()
        count = 0
        skipped: set[Replica] = set()
        while not self._stopping.is_set() and (picked := await self._dirtiest(skipped)) is not None:
            if await self._try(*picked):
                count += 1
            else:
                skipped.add(picked[0])
        return count

    async def _turn(self) -> None:
        self._woken.clear()
        await self.clean_all()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.log_cleaner_backoff_ms / 1000):
                await self._woken.wait()

    async def _dirtiest(self, skipped: set[Replica]) -> tuple[Replica, LogToClean] | None:
        now_ms = self._clock.now_ms()
        self._uncleanable = {
            replica: version
            for replica, version in self._uncleanable.items()
            if self._replicas.holds(replica) and version == _content_version(replica)
        }
        self._logged_malformed = {
            replica: offsets
            for replica, offsets in self._logged_malformed.items()
            if self._replicas.holds(replica)
        }
        found: list[tuple[Replica, LogToClean]] = []
        max_dirty_ratio = 0.0
        for number, replica in enumerate(self._replicas, 1):
            if number % LOGS_PER_TURN == 0:
                await asyncio.sleep(0)
            if not _is_compacted(replica.config) or replica.failed is not None or replica.log.damage:
                continue  # compaction would lose the damaged part
            if replica in self._uncleanable or replica in skipped or replica.log.swaps.pending:
                continue
            dirty = log_to_clean(
                replica.segments,
                replica.config,
                cleaned_to=replica.log.cleaned_to or 0,
                log_start_offset=replica.log_start_offset,
                last_stable_offset=replica.last_stable_offset,
                now_ms=now_ms,
            )
            max_dirty_ratio = max(max_dirty_ratio, dirty.ratio)
            if dirty.needs_cleaning(replica.config):
                found.append((replica, dirty))
        self.max_dirty_ratio = max_dirty_ratio
        return max(found, key=lambda one: one[1].ratio, default=None)

    async def _try(self, replica: Replica, dirty: LogToClean) -> bool:
        """Returns whether the log was cleaned."""
        try:
            return await self._clean(replica, dirty)
        except CleaningStopped:
            return False
        except Exception as failure:  # it must not prevent the cleaning of other logs
            self._on_failure(replica, failure)
            return False

    def _on_failure(self, replica: Replica, failure: Exception) -> None:
        """Decide whether the log is tried again."""
        where = str(replica.name)
        if not self._replicas.holds(replica):
            return  # its topic was deleted
        if isinstance(failure, FileNotFoundError):
            _log.info("compaction.interrupted", partition=where)
        elif isinstance(failure, OSError) and failure.errno in DISK_FULL:
            _log.warning("compaction.no_space", partition=where)
        else:
            self._uncleanable[replica] = _content_version(replica)
            if isinstance(failure, (CorruptLog, RecordsError)):
                for segment in replica.segments:
                    replica.suspect(segment.base_offset, str(failure))
            _log.error("compaction.failed", partition=where, exc_info=failure)

    async def _clean(self, replica: Replica, dirty: LogToClean) -> bool:
        log = replica.log
        if replica.log.recovery_point < dirty.end_offset:
            await self._commits.flush(replica)
        if log.cleaned_to is None:
            # From now on the log may have offset gaps. Recovery must accept them even if cleanup.policy
            # changes.
            log.cleaned_to = log.log_start_offset
            await self._write_cleaned(replica)
        if not log.rolled_below(dirty.end_offset):
            return False  # retention has deleted the segments to clean
        swaps = log.swaps
        cleaning = self._begin(take_job(log, dirty, self._clock.now_ms()))
        try:
            for group in await _in_thread(replica, cleaning.build_offset_map):
                swap = await _in_thread(replica, partial(cleaning.clean, group))
                if swap is not None and not await self._swap_in(replica, swaps, swap):
                    return False
        finally:
            self.bytes_read += cleaning.bytes_read
            self.bytes_written += cleaning.bytes_written
        cleaning.log_malformed(replica.name, self._logged_malformed.setdefault(replica, set()))
        if not self._replicas.holds(replica):
            return False
        log.cleaned_to = min(cleaning.cleaned_to, log.log_end_offset)
        await self._write_cleaned(replica)
        _log.info(
            "compaction.ended",
            partition=str(replica.name),
            to_offset=log.cleaned_to,
            read_bytes=cleaning.bytes_read,
            kept_bytes=cleaning.bytes_written,
            keys=cleaning.keys,
        )
        return True

    async def _write_cleaned(self, replica: Replica) -> None:
        replicas = self._replicas
        await replicas.checkpoints.write_cleaned(replicas.directories.directory_of(replica.name))

    def _begin(self, job: CleaningJob) -> Cleaner:
        settings = self._settings
        throttler = CleanerThrottler(
            self._clock, self._stop_thread, lambda: self._settings.log_cleaner_io_max_bytes_per_second
        )
        budget = settings.log_cleaner_dedupe_buffer_size
        return Cleaner(job, throttler, budget, settings.log_cleaner_io_buffer_load_factor)

    async def _swap_in(self, replica: Replica, swaps: Swaps, swap: Swap) -> bool:
        """Returns False if the log has changed since the cleaning began, or was moved between log
        directories, even if it is back in the same one.
        """
        log = replica.log
        if not self._replicas.holds(replica) or log.swaps is not swaps or not swaps.begin(log, swap):
            await _in_thread(replica, lambda: discard(swap.cleaned))
            return False
        return await self._finish_swap(replica, swap)

    async def _complete_swaps(self) -> None:
        """Complete pending swaps. After a failed step (a full disk), a swap blocks the next cleaning of its
        log.
        """
        async for replica in in_turns(self._replicas):
            swap = replica.log.swaps.pending
            if swap is None or replica.failed is not None or replica in self._uncleanable:
                continue
            if not self._replicas.holds(replica):
                continue
            try:
                swap.begin()
                await self._finish_swap(replica, swap)
            except Exception as failure:
                self._on_failure(replica, failure)

    async def _finish_swap(self, replica: Replica, swap: Swap) -> bool:
        """Do the remaining steps of a swap. Returns False if the log is gone."""
        log = replica.log
        for step in log.swaps.after_begin(log, swap, self._clock.now_ms()):
            await _in_thread(replica, lambda: swap.cleaned.files.sync_directory(log.directory))
            if not self._replicas.holds(replica):
                return False
            step()
        return True


async def _in_thread(replica: Replica, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(replica.log_dir.threads, work)


def _is_compacted(config: TopicConfig) -> bool:
    """A tiered topic is compacted in the object store, after its segments have left the local log
    (`remote_compactor`)."""
    return "compact" in config.cleanup_policy and not config.remote_storage_enable


def _content_version(replica: Replica) -> int:
    """Grows when the log is truncated, or damage in it is repaired."""
    log = replica.log
    return log.flusher.truncations + sum(segment.content_version for segment in log.segment_files)
