"""One replica moves between the log directories of this broker (AlterReplicaLogDirs, KIP-113).

A copy of the log grows in the target, in its threads, while the log goes on (broker/storage/future_log.py).
Once little is missing, flushes are held for a moment, so that nothing is acknowledged that is not in the
copy: then what may have been acknowledged is synced, all else follows in the threads without a sync, and the
last of it on the event loop; the copy gets the partition's name, and the log goes on in it, with all that is
known of it in memory. The order on the disks, which any crash may cut short:
  1. the copy, whose directory is called `-future`: nobody reads it, and the next start begins it anew;
  2. the checkpoints of the target know the log, and a note in the source says where it may have gone;
  3. the copy gets its name: with the note, it is the log from here on;
  4. that name is durable, and only then is the old directory renamed, and the note taken away.
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

CLOSE_BYTES = 4 << 20
CLOSE_MOST_BYTES = 32 << 20
"""Missing in a copy that may be finished, flushes held, without a look at the rate: the first, and twice as
much, up to the second, with each round that missed little less than the one before. For the disk needs a
moment for its fsyncs however short the copy is, and producers go on.
"""

SWITCH_BYTES = 1 << 20
"""Copied on the event loop at the most: a millisecond's work."""

HELD_ROUNDS = 16
"""Copies without an fsync, flushes held, for less than that to be missing."""

HELD_S = 5.0
"""Flushes are held no longer, and at a stop for half of its patience: whoever waits for the healthy disk of
the log does not wait for that of the copy.
"""

SLOW_ENDS_MAX = 5
"""So often flushes are held in vain, before a move is given up: a disk may be slow for a moment."""

SYNCED_SIDE_BY_SIDE = 4
"""Files of a copy; half the threads of a directory are left to those who append there."""

AGAIN_S = 0.05
"""Before the next try, where compaction or a cut of the log was faster."""

CHANGES_MAX = 10
"""In a row, half a minute of them: then it is no compaction that was faster, but a file that is not there."""

REST_S = 5.0
"""The longest pause between two tries; after flushes were held in vain, so that those who wait for one get
it before they are held again.
"""

LOOK_S = 1.0
"""Between two looks at whether a move that waits is still wanted."""

ROOM_LEFT_BYTES = 64 << 20
"""Stay free in the target, or the move ends: others append there."""

ROOM_LOOK_BYTES = 16 << 20
"""Copied between two looks at it."""

T = TypeVar("T")
_log = structlog.get_logger("tierlog.moves")


class NoRoom(OSError):
    """The target has none for the copy, or would have too little left."""


@dataclass(slots=True)
class MoveWaits:
    """How long flushes are held, and moves pause between two tries; tests change it while a move runs."""

    held_s: float = HELD_S
    again_s: float = AGAIN_S
    rest_s: float = REST_S


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveContext:
    """What the moves of a broker have in common."""

    replicas: ReplicaManager
    pace: MoveThrottler
    leftovers: OrphanDirectories
    waits: MoveWaits
    granted_to_others: Callable[["DirectoryMove"], int]
    """Bytes that other moves into its target lack, of what they were granted room for; in any thread."""


class _Told(NamedTuple):
    """What the checkpoints of the target were told; of a recovery point, that it was not lowered since."""

    cuts: int
    log_start_offset: int
    cleaned_to: int | None

    @classmethod
    def of(cls, log: PartitionLog) -> "_Told":
        return cls(log.flusher.truncations, log.log_start_offset, log.cleaned_to)


class DirectoryMove:
    """One that is under way, or waits for its turn."""

    def __init__(
        self,
        replica: Replica,
        source: LogDirectory,
        target: LogDirectory,
        around: MoveContext,
    ) -> None:
        self.name = replica.name
        self.replica = replica
        self.source = source
        self.target = target
        self.stop = threading.Event()
        self.task: asyncio.Task[None] | None = None
        self.missing_bytes = 0
        """Of what it was granted room for."""
        self.has_switched = False
        self.slow_ends = 0
        """How often flushes were held for the last of it in vain."""
        self._replicas, self._pace, self._waits = around.replicas, around.pace, around.waits
        self._checkpoints, self._directories = around.replicas.checkpoints, around.replicas.directories
        self._leftovers, self._granted_to_others = around.leftovers, around.granted_to_others
        self._future: FutureLog | None = None
        self._grave: Path | None = None
        self._unlooked_bytes = 0
        self._at_work = set[asyncio.Future[Any]]()  # in threads of the target

    @property
    def copied_bytes(self) -> int:
        return 0 if self._future is None else self._future.copied_bytes

    @property
    def offset_lag(self) -> int:
        """Offsets of the log that the copy does not have."""
        log = self.replica.log
        end = log.local_log_start_offset if self._future is None else self._future.end_offset
        return max(0, log.log_end_offset - end)

    def require_going(self) -> None:
        """Raises MoveStopped, and OSError if the target takes nothing."""
        if self.stop.is_set() or self.replica.failed is not None or not self._replicas.holds(self.replica):
            raise MoveStopped
        if self.target.refusal is not None:
            raise OSError(None, self.target.refusal, str(self.target.path))

    async def go(self) -> None:
        """All of it. Raises MoveStopped, OSError, MalformedCheckpoint: unless it has switched, what there is
        of it is to be dropped then.
        """
        if offline := self._directories.offline:  # it may hold what an earlier move could not take away
            raise OSError(None, "a log directory is offline", str(offline[0].path))
        for directory in self._directories.online:
            if directory is not self.source and directory.may_have_moved(self.name):
                await self._leftovers.clear(directory, self.name)
        path = await self.target.run(partial(self.target.create_future, self.name, self.replica.topic_id))
        start_offset = self.replica.local_log_start_offset
        self._future = future = FutureLog(path, self.target.files, self.source.files, start_offset)
        self._checkpoints.moving[self.name] = self.target
        tries = slow_ends = 0
        while not await self._try_to_switch(future):
            tries += 1
            await self._require_rest()
            was_slow, slow_ends = self.slow_ends > slow_ends, self.slow_ends
            await self._pause(self._waits.rest_s if was_slow else self._pause_s(tries))
        await self._leave()

    async def stay(self) -> None:
        """It does not move after all: the note that it may have goes, now or with the next start."""
        self._checkpoints.moving.pop(self.name, None)
        if self.source.failure is None:
            with suppress(OSError):
                await self.source.run(partial(self.source.clear_move, self.name))

    def drop_copy(self) -> None:
        """What there is of it goes, in its turn, or with the next start."""
        if self._future is not None and self.target.failure is None:
            path = self._future.directory
            self._leftovers.remove(self.target, path, self._remove_copy(path))

    def bury(self) -> None:
        """What it left behind, once. Raises OSError."""
        if self._grave is None:
            self._grave = self.source.rename_deleted(self.name)

    # -- up to the switch --

    async def _try_to_switch(self, future: FutureLog) -> bool:
        """False if the log was in the way, or the disk too slow: then the copy stands, and all else is as it
        was.
        """
        log, source, target = self.replica.log, self.source, self.target
        await self._catch_up(future)
        told = _Told.of(log)
        if not await self._checkpoints.write(target):
            raise OSError(None, "no checkpoint can be written", str(target.path))
        await self._checkpoints.write_cleaned_of(target)
        await source.run(partial(source.record_move, self.name, self._target_id))
        await self._catch_up(future)  # with what came meanwhile
        async with _no_flush(log, source):
            self.require_going()
            if log.flusher.checkpointed_recovery_point:
                return False  # the next roll would wait for the flush that is held here
            try:
                async with asyncio.timeout(self._waits.held_s):
                    await self._close_in(future)
            except LogChanged:
                return False
            except TimeoutError:
                self._note_slow_end()
                return False
            self.require_going()
            return told == _Told.of(log) and self._switch(future)

    async def _catch_up(self, future: FutureLog) -> None:
        log = self.replica.log
        close_bytes, changes = CLOSE_BYTES, 0
        while True:
            self.require_going()
            room = await self.target.run(self.target.space)
            state = future.log_state(log)
            missing = future.missing_bytes(state)
            try:
                self._require_room(room, missing)
                self.missing_bytes = missing
                await self._copy(future, future.copy(state, self._spend, chunk_bytes=self._pace.chunk_bytes))
            except NoRoom:
                if not await self._leftovers.wait_for_removal(self.target):
                    raise
                continue
            except LogChanged as changed:
                changes += 1
                if changes == CHANGES_MAX:
                    what = f"the log was another one {changes} times in a row while it was copied: {changed}"
                    raise OSError(None, what, str(log.directory)) from changed
                await asyncio.sleep(self._pause_s(changes))
                continue
            changes = 0
            left = future.missing_bytes(future.log_state(log))
            if left <= close_bytes and log.swaps.pending is None:
                return
            if left > missing // 2:
                close_bytes = min(2 * close_bytes, CLOSE_MOST_BYTES)
            await asyncio.sleep(0)

    async def _close_in(self, future: FutureLog) -> None:
        """Flushes are held, so what may have been promised is durable in the copy once this has synced it; of
        what comes now the next flush sees to that. Raises as `FutureLog.copy` does.
        """
        log, go_on = self.replica.log, partial(self._pace.count_unthrottled, self.stop)
        await self._copy(future, future.copy(future.log_state(log), go_on))
        for _ in range(HELD_ROUNDS):
            now = future.log_state(log)
            if future.is_almost_complete(now, SWITCH_BYTES) or not future.only_end_is_missing(now):
                return
            await self._run(partial(future.copy_end, now, go_on))

    def _switch(self, future: FutureLog) -> bool:
        """In one turn of the event loop, on which appends are made. Raises OSError, and changes nothing
        then.
        """
        target, log = self.target, self.replica.log
        now = future.log_state(log)
        if log.swaps.pending is not None or not future.only_end_is_missing(now):
            return False
        if not future.is_almost_complete(now, SWITCH_BYTES):
            return False
        try:
            future.copy_end(now, partial(self._pace.count_unthrottled, self.stop))
        except LogChanged:
            return False
        directory = target.directory(self.name)
        target.files.rename(future.directory, directory)
        log.switch_directory(directory, target.files)
        self.replica.room = target
        self._directories.set_directory(self.name, target)
        del self._checkpoints.moving[self.name]
        self.has_switched = True
        return True

    @property
    def _target_id(self) -> UUID:
        if self.target.directory_id is None:
            raise InvariantViolation(f"{self.target.path} is claimed by nobody")
        return self.target.directory_id

    # -- what is left behind --

    async def _leave(self) -> None:
        """The old directory goes, when it is sure that the new one stays. Raises OSError: then the next start
        does it.
        """
        source, target = self.source, self.target
        await target.run(target.sync_names)
        self.bury()  # on the loop: a topic made anew under the name may be next in its place
        await source.run(source.sync_names)
        await source.run(partial(source.clear_move, self.name))
        if self._grave is not None:
            delay_ms = self.replica.config.file_delete_delay_ms
            self._leftovers.remove(source, self._grave, source.remove_later(self._grave, delay_ms))

    async def _remove_copy(self, path: Path) -> None:
        """Once no thread writes into it, where a disk that hangs may hold it; only who lacks room waits."""
        with suppress(OSError):
            await self._rest()
            await self.target.remove_later(path)

    # -- in threads of the target --

    async def _run(self, work: Callable[[], T]) -> T:
        """Goes through with it whether or not the caller is cancelled."""
        running = asyncio.get_running_loop().run_in_executor(self.target.threads, work)
        self._at_work.add(running)
        running.add_done_callback(self._at_work.discard)
        return await asyncio.shield(running)

    async def _rest(self, timeout_s: float | None = None) -> bool:
        """Returns once no thread is at it, however its work ended; False if that takes longer."""
        if self._at_work:
            await asyncio.wait(self._at_work, timeout=timeout_s)
        return not self._at_work

    async def _copy(self, future: FutureLog, parts: Iterator[None]) -> None:
        """What was looked at, durable when this returns."""
        is_more = True
        while is_more:
            is_more = await self._run(partial(future.step, parts))
            paths = sorted(future.unsynced)
            share = -(-len(paths) // SYNCED_SIDE_BY_SIDE) or 1
            await asyncio.gather(*(self._run(partial(future.sync, some)) for some in chunks(paths, share)))
        await self._run(future.sync_names)

    def _spend(self, count: int) -> None:
        """So many bytes more are copied; in a thread."""
        self._pace.spend(self.stop, count)
        self.missing_bytes -= count
        self._unlooked_bytes += count
        if self._unlooked_bytes >= ROOM_LOOK_BYTES:
            self._unlooked_bytes = 0
            self._require_room(self.target.space(), self.missing_bytes)

    def _require_room(self, room: Space, missing_bytes: int) -> None:
        """For it, and for the others into its target that were granted theirs before; in any thread. Raises
        NoRoom.
        """
        if room.usable < missing_bytes + self._granted_to_others(self) + ROOM_LEFT_BYTES:
            raise NoRoom(errno.ENOSPC, "no room for it", str(self.target.path))

    # -- between two tries --

    def _note_slow_end(self) -> None:
        """Raises OSError if it was the last one allowed."""
        self.slow_ends += 1
        what = f"flushes were held for {self._waits.held_s:g} s for the last of it, {self.slow_ends} times"
        if self.slow_ends >= SLOW_ENDS_MAX:
            raise OSError(errno.ETIMEDOUT, what, str(self.target.path)) from None
        _log.warning("a move between log directories is held up", partition=str(self.name), why=what)

    async def _require_rest(self) -> None:
        """Returns once no thread is at it. A disk that hangs costs it slow ends, and may be left alone."""
        waited_s = 0.0
        while not await self._rest(step_s := min(self._waits.held_s, LOOK_S)):
            self.require_going()
            waited_s += step_s
            if waited_s >= self._waits.held_s:
                waited_s = 0.0
                self._note_slow_end()

    async def _pause(self, left_s: float) -> None:
        while left_s > 0:
            self.require_going()
            await asyncio.sleep(min(left_s, LOOK_S))
            left_s -= LOOK_S

    def _pause_s(self, tries: int) -> float:
        return min(self._waits.again_s * (1 << min(tries, 10)), REST_S)


@asynccontextmanager
async def _no_flush(log: PartitionLog, source: LogDirectory) -> AsyncIterator[None]:
    """No flush begins within, and the log is not cut; who waits for a flush waits."""
    holding = asyncio.get_running_loop().run_in_executor(source.threads, log.flusher.hold)
    try:
        await asyncio.shield(holding)
        yield
    finally:
        if holding.done():
            log.flusher.resume()
        else:  # the node stops, and a flush hangs
            holding.add_done_callback(lambda _: log.flusher.resume())
