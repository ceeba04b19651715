"""Directory move: moves one replica between the log directories of this broker (AlterReplicaLogDirs,
KIP-113).

A future replica is built in the target directory, in threads of the target, while the log is in use
(broker/storage/future_log.py); below it is called the copy. When it has almost caught up, flushes are held
for a moment, so that no record is acknowledged that the copy lacks. Records that may have been acknowledged
are then copied and synced. Records appended after that are copied in threads without a sync, and the last of
them on the event loop. The copy gets the partition's name, and the log continues in it with its state in
memory. The order on disk, which a crash may interrupt anywhere:

1. The copy, in a directory named `-future`: it is never read, and the next start copies again.
2. The target's checkpoints include the log, and a marker file in the source names the target.
3. The copy gets its final name: with the marker, it is now the log.
4. That name is durable; only then is the old directory renamed and the marker removed.

Driven by `DirectoryMoves`, on the event loop.
"""

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import structlog

from tierlog.base.files import Space
from tierlog.base.types import InvariantViolation
from tierlog.broker.maintenance.orphan_directories import OrphanDirectories
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.storage.disk_threads import chunks
from tierlog.broker.storage.future_log import FutureLog, LogChanged
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.log_dir import LogDirectory
from tierlog.broker.storage.move_throttler import MoveStopped, MoveThrottler

FINISH_BYTES = 4 << 20
MAX_FINISH_BYTES = 32 << 20
"""Flushes are held to finish the copy once at most FINISH_BYTES are missing. Producers may append faster than
that limit allows, so it doubles, up to MAX_FINISH_BYTES, with each round of copying that reduced the missing
bytes by less than half.
"""

SWITCH_BYTES = 1 << 20
"""Maximum number of bytes copied on the event loop: a millisecond's work."""

MAX_HELD_ROUNDS = 16
"""Maximum number of rounds that copy without fsync while flushes are held. They end earlier once less than
SWITCH_BYTES is missing."""

MAX_HOLD_S = 5.0
"""Maximum time for which flushes are held (half of log.dirs.stop.timeout.ms if that is shorter), so that
producers on the log's disk do not wait for a slow target disk.
"""

MAX_SWITCH_TIMEOUTS = 5
"""Switches that may time out before the move fails: a disk may be slow for a moment."""

PARALLEL_SYNCS = 4
"""Files of a copy synced in parallel; half of a directory's threads remain for appends."""

RETRY_S = 0.05
"""Delay before the next attempt after a compaction or truncation changed the log."""

MAX_CHANGES = 10
"""Number of consecutive attempts that find a changed log, after which the move fails: the reason is a missing
file, not a compaction. The pauses between them take about 20 seconds.
"""

MAX_RETRY_S = 5.0
"""Longest delay between two attempts. Also the delay after a switch timed out, so that waiting flushes can
complete.
"""

CHECK_S = 1.0
"""Interval at which a waiting move checks whether it has been cancelled."""

FREE_BYTES_KEPT = 64 << 20
"""Free space kept in the target for appends; otherwise the move fails."""

FREE_BYTES_CHECK_INTERVAL = 16 << 20
"""Bytes copied between two checks of the free space."""

T = TypeVar("T")
_log = structlog.get_logger("tierlog.moves")


class NotEnoughSpace(OSError):
    """The target has too little free space for the copy."""


@dataclass(slots=True)
class MoveTimings:
    """Timeouts and retry delays of a move; tests change them while a move runs."""

    max_hold_s: float = MAX_HOLD_S
    retry_s: float = RETRY_S
    max_retry_s: float = MAX_RETRY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveContext:
    """Dependencies that all moves of a broker share."""

    replicas: ReplicaManager
    throttler: MoveThrottler
    orphans: OrphanDirectories
    times: MoveTimings
    reserved_for_others: Callable[["DirectoryMove"], int]
    """Bytes reserved in the same target for other moves, and not yet copied. Thread-safe."""


class _CheckpointedState(NamedTuple):
    """The values written to the target's checkpoints, and the truncation count: a truncation may lower the
    recovery point.
    """

    truncations: int
    log_start_offset: int
    cleaned_to: int | None

    @classmethod
    def of(cls, log: PartitionLog) -> "_CheckpointedState":
        return cls(log.flusher.truncations, log.log_start_offset, log.cleaned_to)


class DirectoryMove:
    """A move that is running, or waits for its turn."""

    def __init__(
        self,
        replica: Replica,
        source: LogDirectory,
        target: LogDirectory,
        context: MoveContext,
    ) -> None:
        self.name = replica.name
        self.replica = replica
        self.source = source
        self.target = target
        self.stop = threading.Event()
        self.task: asyncio.Task[None] | None = None
        self.missing_bytes = 0
        """Bytes still to be copied. Space in the target is reserved for them."""
        self.has_switched = False
        self.switch_timeouts = 0
        """Number of switches that timed out while flushes were held."""
        self._replicas, self._throttler, self._times = context.replicas, context.throttler, context.times
        self._checkpoints, self._directories = context.replicas.checkpoints, context.replicas.directories
        self._orphans, self._reserved_for_others = context.orphans, context.reserved_for_others
        self._future: FutureLog | None = None
        self._renamed_source: Path | None = None
        self._unchecked_bytes = 0
        self._running_work = set[asyncio.Future[Any]]()  # in the target's threads

    @property
    def copied_bytes(self) -> int:
        return 0 if self._future is None else self._future.copied_bytes

    @property
    def offset_lag(self) -> int:
        """Offsets of the log that are not in the copy."""
        log = self.replica.log
        end = log.local_log_start_offset if self._future is None else self._future.end_offset
        return max(0, log.log_end_offset - end)

    def require_running(self) -> None:
        """Raise MoveStopped if the move was cancelled, and OSError if the target accepts no writes."""
        if self.stop.is_set() or self.replica.failed is not None or not self._replicas.holds(self.replica):
            raise MoveStopped
        if self.target.refusal is not None:
            raise OSError(None, self.target.refusal, str(self.target.path))

    async def run(self) -> None:
        """Do the whole move. Raises MoveStopped, OSError, MalformedCheckpoint: then, unless it has switched,
        the copy must be dropped.
        """
        if offline := self._directories.offline:  # it may hold files of an earlier move
            raise OSError(None, "a log directory is offline", str(offline[0].path))
        for directory in self._directories.online:
            if directory is not self.source and directory.may_have_move_marker(self.name):
                await self._orphans.clear(directory, self.name)
        path = await self.target.run(partial(self.target.create_future, self.name, self.replica.topic_id))
        start_offset = self.replica.local_log_start_offset
        self._future = future = FutureLog(path, self.target.files, self.source.files, start_offset)
        self._checkpoints.moving[self.name] = self.target
        tries = switch_timeouts = 0
        while not await self._try_switch(future):
            tries += 1
            await self._wait_for_threads()
            was_slow, switch_timeouts = self.switch_timeouts > switch_timeouts, self.switch_timeouts
            await self._pause(self._times.max_retry_s if was_slow else self._pause_s(tries))
        await self._remove_source()

    async def remove_marker(self) -> None:
        """Remove the marker of a move that did not happen, now or at the next start."""
        self._checkpoints.moving.pop(self.name, None)
        if self.source.failure is None:
            with suppress(OSError):
                await self.source.run(partial(self.source.remove_move_marker, self.name))

    def drop_copy(self) -> None:
        """Remove the copy, now or at the next start."""
        if self._future is not None and self.target.failure is None:
            path = self._future.directory
            self._orphans.remove(self.target, path, self._remove_copy(path))

    def rename_source(self) -> None:
        """Rename the old directory for deletion, once. Raises OSError."""
        if self._renamed_source is None:
            self._renamed_source = self.source.rename_deleted(self.name)

    # -- up to the switch --

    async def _try_switch(self, future: FutureLog) -> bool:
        """Returns False if the log has changed or the disk was too slow: then the copy stays as it is."""
        log, source, target = self.replica.log, self.source, self.target
        await self._catch_up(future)
        checkpointed = _CheckpointedState.of(log)
        if not await self._checkpoints.write(target):
            raise OSError(None, "no checkpoint can be written", str(target.path))
        await self._checkpoints.write_cleaned(target)
        await source.run(partial(source.write_move_marker, self.name, self._target_id))
        await self._catch_up(future)  # copy what was appended in the meantime
        async with _flushes_held(log, source):
            self.require_running()
            if log.flusher.checkpointed_recovery_point:
                return False  # the next roll would wait for the flush held here
            try:
                async with asyncio.timeout(self._times.max_hold_s):
                    await self._copy_end(future)
            except LogChanged:
                return False
            except TimeoutError:
                self._on_switch_timeout()
                return False
            self.require_running()
            return checkpointed == _CheckpointedState.of(log) and self._switch(future)

    async def _catch_up(self, future: FutureLog) -> None:
        log = self.replica.log
        finish_bytes, changes = FINISH_BYTES, 0
        while True:
            self.require_running()
            space = await self.target.run(self.target.space)
            state = future.log_state(log)
            missing = future.missing_bytes(state)
            try:
                self._require_space(space, missing)
                self.missing_bytes = missing
                await self._copy(
                    future, future.copy(state, self._throttle, chunk_bytes=self._throttler.chunk_bytes)
                )
            except NotEnoughSpace:
                if not await self._orphans.wait_for_removal(self.target):
                    raise
                continue
            except LogChanged as changed:
                changes += 1
                if changes == MAX_CHANGES:
                    what = f"the log changed {changes} times in a row while it was copied: {changed}"
                    raise OSError(None, what, str(log.directory)) from changed
                await asyncio.sleep(self._pause_s(changes))
                continue
            changes = 0
            left = future.missing_bytes(future.log_state(log))
            if left <= finish_bytes and log.swaps.pending is None:
                return
            if left > missing // 2:
                finish_bytes = min(2 * finish_bytes, MAX_FINISH_BYTES)
            await asyncio.sleep(0)

    async def _copy_end(self, future: FutureLog) -> None:
        """Copy the end while flushes are held, so that everything acknowledged is durable in the copy once it
        is synced. The next flush syncs later records. Raises as `FutureLog.copy` does.
        """
        log, count_bytes = self.replica.log, partial(self._throttler.count_unthrottled, self.stop)
        await self._copy(future, future.copy(future.log_state(log), count_bytes))
        for _ in range(MAX_HELD_ROUNDS):
            now = future.log_state(log)
            if future.is_almost_complete(now, SWITCH_BYTES) or not future.only_end_is_missing(now):
                return
            await self._run_in_thread(partial(future.copy_end, now, count_bytes))

    def _switch(self, future: FutureLog) -> bool:
        """Switch to the copy in one turn of the event loop, so that no append runs in between. After an
        OSError nothing has changed.
        """
        target, log = self.target, self.replica.log
        now = future.log_state(log)
        if log.swaps.pending is not None or not future.only_end_is_missing(now):
            return False
        if not future.is_almost_complete(now, SWITCH_BYTES):
            return False
        try:
            future.copy_end(now, partial(self._throttler.count_unthrottled, self.stop))
        except LogChanged:
            return False
        directory = target.directory(self.name)
        target.files.rename(future.directory, directory)
        log.switch_directory(directory, target.files)
        self.replica.log_dir = target
        self._directories.set_directory(self.name, target)
        del self._checkpoints.moving[self.name]
        self.has_switched = True
        return True

    @property
    def _target_id(self) -> UUID:
        if self.target.directory_id is None:
            raise InvariantViolation(f"{self.target.path} has no directory id")
        return self.target.directory_id

    # -- removing the source or the copy --

    async def _remove_source(self) -> None:
        """Remove the old directory once the name of the new one is durable. After an OSError the next start
        does it.
        """
        source, target = self.source, self.target
        await target.run(target.sync_names)
        self.rename_source()  # on the loop: a new topic of the same name may use its place next
        await source.run(source.sync_names)
        await source.run(partial(source.remove_move_marker, self.name))
        if self._renamed_source is not None:
            delay_ms = self.replica.config.file_delete_delay_ms
            self._orphans.remove(
                source, self._renamed_source, source.remove_later(self._renamed_source, delay_ms)
            )

    async def _remove_copy(self, path: Path) -> None:
        """Remove the copy after the last writing thread has finished. That thread may hang; only moves that
        need the space wait for it.
        """
        with suppress(OSError):
            await self._wait_for_work()
            await self.target.remove_later(path)

    # -- in the target's threads --

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        """Run work to its end, even if the caller is cancelled."""
        running = asyncio.get_running_loop().run_in_executor(self.target.threads, work)
        self._running_work.add(running)
        running.add_done_callback(self._running_work.discard)
        return await asyncio.shield(running)

    async def _wait_for_work(self, timeout_s: float | None = None) -> bool:
        """Wait until no work runs in threads. Returns False after a timeout."""
        if self._running_work:
            await asyncio.wait(self._running_work, timeout=timeout_s)
        return not self._running_work

    async def _copy(self, future: FutureLog, parts: Iterator[None]) -> None:
        """Copy the captured log; it is durable when this returns."""
        is_more = True
        while is_more:
            is_more = await self._run_in_thread(partial(future.step, parts))
            paths = sorted(future.unsynced)
            share = -(-len(paths) // PARALLEL_SYNCS) or 1
            await asyncio.gather(
                *(self._run_in_thread(partial(future.sync, some)) for some in chunks(paths, share))
            )
        await self._run_in_thread(future.sync_names)

    def _throttle(self, count: int) -> None:
        """Wait until `count` more bytes may be copied; in a thread."""
        self._throttler.spend(self.stop, count)
        self.missing_bytes -= count
        self._unchecked_bytes += count
        if self._unchecked_bytes >= FREE_BYTES_CHECK_INTERVAL:
            self._unchecked_bytes = 0
            self._require_space(self.target.space(), self.missing_bytes)

    def _require_space(self, space: Space, missing_bytes: int) -> None:
        """Check that there is space for this move and for earlier ones into the same target. Thread-safe.
        Raises NotEnoughSpace.
        """
        if space.usable < missing_bytes + self._reserved_for_others(self) + FREE_BYTES_KEPT:
            raise NotEnoughSpace(errno.ENOSPC, "not enough space for the partition", str(self.target.path))

    # -- between two attempts --

    def _on_switch_timeout(self) -> None:
        """Raise OSError if there were too many."""
        self.switch_timeouts += 1
        what = (
            f"the switch did not complete within {self._times.max_hold_s:g} s ({self.switch_timeouts} times)"
        )
        if self.switch_timeouts >= MAX_SWITCH_TIMEOUTS:
            raise OSError(errno.ETIMEDOUT, what, str(self.target.path)) from None
        _log.warning("move.delayed", partition=str(self.name), why=what)

    async def _wait_for_threads(self) -> None:
        """Wait until no thread works for this move. A hanging disk counts as switch timeouts, so the move may
        fail without it.
        """
        waited_s = 0.0
        while not await self._wait_for_work(step_s := min(self._times.max_hold_s, CHECK_S)):
            self.require_running()
            waited_s += step_s
            if waited_s >= self._times.max_hold_s:
                waited_s = 0.0
                self._on_switch_timeout()

    async def _pause(self, left_s: float) -> None:
        while left_s > 0:
            self.require_running()
            await asyncio.sleep(min(left_s, CHECK_S))
            left_s -= CHECK_S

    def _pause_s(self, tries: int) -> float:
        return min(self._times.retry_s * (1 << min(tries, 10)), self._times.max_retry_s)


@asynccontextmanager
async def _flushes_held(log: PartitionLog, source: LogDirectory) -> AsyncIterator[None]:
    """No flush begins inside, and the log is not truncated."""
    holding = asyncio.get_running_loop().run_in_executor(source.threads, log.flusher.hold)
    try:
        await asyncio.shield(holding)
        yield
    finally:
        if holding.done():
            log.flusher.resume()
        else:  # the node stops while a flush hangs
            holding.add_done_callback(lambda _: log.flusher.resume())
