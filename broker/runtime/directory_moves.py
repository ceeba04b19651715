"""Replicas move between the log directories of this broker (AlterReplicaLogDirs, KIP-113).

A copy of the log grows in the target, in its threads, while the log goes on (broker/log/future.py). Once
little is missing, flushes are held for a moment, so that nobody is promised what is not in the copy: then
what may have been promised is synced, all else follows in the threads without a sync, and the last of it on
the event loop; the copy gets the partition's name, and the log goes on in it, with all that is known of it in
memory. The order on the disks, which any crash may cut short:
  1. the copy, whose directory is called `-future`: nobody reads it, and the next start begins it anew;
  2. the checkpoints of the target know the log, and a note in the source says where it may have gone;
  3. the copy gets its name: with the note, it is the log from here on;
  4. that name is durable, and only then is the old directory renamed, and the note taken away.
A move that fails is dropped and told in the log; the partition stays where it is. Owned by the composition
root; asked by handlers and the admin API, on the event loop.
"""

import asyncio
import errno
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import structlog

from tierlog.broker.log.checkpoints import MalformedCheckpoint, read_partition_metadata
from tierlog.broker.log.future import FutureLog, LogChanged
from tierlog.broker.log.log import PartitionLog
from tierlog.broker.log.names import LEFT
from tierlog.broker.ports.clock import Clock
from tierlog.broker.ports.files import Space
from tierlog.broker.ports.tasks import TaskGroup
from tierlog.broker.ports.types import InvariantViolation, TopicPartition
from tierlog.broker.runtime.copy_pace import CopyPace, MoveStopped
from tierlog.broker.runtime.data_directory import DataDirectory
from tierlog.broker.runtime.disk_threads import portions
from tierlog.broker.runtime.replica import Replica
from tierlog.broker.runtime.replica_manager import ReplicaManager
from tierlog.broker.settings.node import NodeSettings
from tierlog.broker.wire.errors import ErrorCode
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import ConfigScope

RATE = "replica.alter.log.dirs.io.max.bytes.per.second"

LONGEST_NAME = 255 - len(f".{LEFT}") - 32
"""Of a partition: the names of its copy and of the note have an id behind it, and Kafka refuses to cut it."""

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

ROOM_WAIT_S = 1.0
"""Between two looks at whether a move that waits for room is still wanted."""

T = TypeVar("T")
_log = structlog.get_logger("tierlog.moves")


class NoRoom(OSError):
    """The target has none for the copy, or would have too little left."""


class MoveEnd(StrEnum):
    MOVED = "moved"
    STOPPED = "stopped"
    FAILED = "failed"


class DirectoryMove:
    """One that is under way, or waits for its turn."""

    def __init__(self, replica: Replica, source: DataDirectory, target: DataDirectory) -> None:
        self.name = replica.name
        self.replica = replica
        self.source = source
        self.target = target
        self.future: FutureLog | None = None
        self.stop = threading.Event()
        self.missing_bytes = 0
        """Of what it was granted room for."""
        self.has_switched = False
        self.grave: Path | None = None
        self.slow_ends = 0
        """How often flushes were held for the last of it in vain."""
        self._unlooked_bytes = 0
        self._at_work = set[asyncio.Future[Any]]()  # in threads of the target
        self.task: asyncio.Task[None] | None = None

    @property
    def copied_bytes(self) -> int:
        return 0 if self.future is None else self.future.copied_bytes

    @property
    def offset_lag(self) -> int:
        """Offsets of the log that the copy does not have."""
        log = self.replica.log
        end = log.local_log_start_offset if self.future is None else self.future.end_offset
        return max(0, log.log_end_offset - end)

    def spent(self, count: int) -> bool:
        """So many bytes more are copied; whether it is time to look for room. In a thread."""
        self.missing_bytes -= count
        self._unlooked_bytes += count
        is_due = self._unlooked_bytes >= ROOM_LOOK_BYTES
        if is_due:
            self._unlooked_bytes = 0
        return is_due

    @property
    def target_id(self) -> UUID:
        if self.target.directory_id is None:
            raise InvariantViolation(f"{self.target.path} is claimed by nobody")
        return self.target.directory_id

    async def run(self, work: Callable[[], T]) -> T:
        """In a thread of the target, which goes through with it whether or not the caller is cancelled."""
        running = asyncio.get_running_loop().run_in_executor(self.target.threads, work)
        self._at_work.add(running)
        running.add_done_callback(self._at_work.discard)
        return await asyncio.shield(running)

    async def rest(self, patience_s: float | None = None) -> bool:
        """Returns once no thread is at it, however its work ended; False if that takes longer."""
        if self._at_work:
            await asyncio.wait(self._at_work, timeout=patience_s)
        return not self._at_work

    def bury(self) -> None:
        """What it left behind, once. Raises OSError."""
        if self.grave is None:
            self.grave = self.source.bury(self.name)


class _Told(NamedTuple):
    """What the checkpoints of the target were told; of a recovery point, that it was not lowered since."""

    cuts: int
    log_start_offset: int
    cleaned_to: int | None


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
        self._settings, self._again_s, self._rest_s = settings, again_s, rest_s
        self._held_s = min(held_s, settings.log_dirs_stop_timeout_ms / 2000)
        self._replicas = replicas
        self.directories = replicas.directories
        self.ended = Counter[MoveEnd]()
        self.failed = set[TopicPartition]()
        """Those that could not move, until they are moved again or gone."""
        self.dead = 0
        """Moves that an error of this program has ended."""
        self._checkpoints = replicas.checkpoints
        self._image = image
        self._tasks = tasks
        self._pace = CopyPace(clock, self._rate)
        self._slots = asyncio.Semaphore(len(self.directories.all))  # as many threads Kafka has for it
        self._moves: dict[TopicPartition, DirectoryMove] = {}
        self._removals = defaultdict[DataDirectory, set[asyncio.Task[None]]](set)
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
        target = self.directories.named(path)
        if target is None:
            return ErrorCode.LOG_DIR_NOT_FOUND
        if target.failure is not None or self._replicas.is_offline(name):
            return ErrorCode.KAFKA_STORAGE_ERROR
        replica, source = self._replicas.get(*name), self.directories.directory_of(name)
        if replica is None or source is None:
            self.directories.prefer(name, target)
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
                futures = directory.futures()
            except OSError as failure:
                directory.note(failure)
                continue
            for name, path in futures:
                replica = self._replicas.get(*name)
                if replica is None and self._replicas.is_offline(name):
                    continue  # until a start that finds its log
                if replica is not None and self._is_to_move(replica, directory, path):
                    if self.directories.offline:
                        continue
                    self._begin(replica, directory)
                self._remove(directory, path, directory.remove_in_turn(path))

    def _is_to_move(self, replica: Replica, directory: DataDirectory, copy: Path) -> bool:
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

    def _begin(self, replica: Replica, target: DataDirectory) -> None:
        before = self._moves.get(replica.name)
        source = self.directories.directory_of(replica.name)
        if source is None or self._stopping:
            return
        move = self._moves[replica.name] = DirectoryMove(replica, source, target)
        self.failed.discard(replica.name)
        after = None if before is None else before.task
        move.task = self._tasks.spawn(f"move {replica.name}", self._run(move, after))

    async def _run(self, move: DirectoryMove, after: asyncio.Task[None] | None) -> None:
        where = {"partition": str(move.name), "directory": str(move.target.path)}
        if after is not None:
            await asyncio.wait({after})  # what it leaves behind goes first
        try:
            async with self._slots:
                self._require_going(move)
                await self._move(move)
            self.ended[MoveEnd.MOVED] += 1
            _log.info("a replica has moved to another log directory", **where)
        except MoveStopped:
            self.ended[MoveEnd.STOPPED] += 1
            _log.info("a replica does not move to another log directory after all", **where)
        except (OSError, MalformedCheckpoint) as failure:
            self.ended[MoveEnd.MOVED if move.has_switched else MoveEnd.FAILED] += 1
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
                self._checkpoints.moving.pop(move.name, None)
                await self._drop_copy(move)
            if self._moves.get(move.name) is move:
                del self._moves[move.name]

    async def _move(self, move: DirectoryMove) -> None:
        replica, target = move.replica, move.target
        if self.directories.offline:  # it may hold what an earlier move could not take away
            raise OSError(None, "a log directory is offline", str(self.directories.offline[0].path))
        for directory in self.directories.online:
            if directory is not move.source and directory.has_left(move.name):
                await self._clear(directory, move.name)
        path = await target.run(partial(target.make_future, move.name, replica.topic_id))
        start_offset = replica.local_log_start_offset
        move.future = FutureLog(path, target.files, move.source.files, start_offset)
        self._checkpoints.moving[move.name] = target
        tries = slow_ends = 0
        while not await self._try_to_switch(move, move.future):
            tries += 1
            await self._require_rest(move)
            was_slow, slow_ends = move.slow_ends > slow_ends, move.slow_ends
            await self._pause(move, self._rest_s if was_slow else self._pause_s(tries))
        await self._leave(move)

    async def _clear(self, directory: DataDirectory, name: TopicPartition) -> None:
        """What an earlier move could not take away, and the next start would have. Raises OSError."""
        grave = await directory.run(partial(directory.clear_left, name))
        if grave is not None:
            self._remove(directory, grave, directory.remove_in_turn(grave))

    async def _try_to_switch(self, move: DirectoryMove, future: FutureLog) -> bool:
        """False if the log was in the way, or the disk too slow: then the copy stands, and all else is as it
        was.
        """
        log, source, target = move.replica.log, move.source, move.target
        await self._catch_up(move, future)
        told = _Told(log.flushing.cuts, log.log_start_offset, log.cleaned_to)
        if not await self._checkpoints.write(target):
            raise OSError(None, "no checkpoint can be written", str(target.path))
        await self._checkpoints.write_cleaned_of(target)
        await source.run(partial(source.leave, move.name, move.target_id))
        await self._catch_up(move, future)  # with what came meanwhile
        async with _no_flush(log, source):
            self._require_going(move)
            if log.flushing.claimed:
                return False  # the next roll would wait for the flush that is held here
            try:
                async with asyncio.timeout(self._held_s):
                    await self._close_in(move, future)
            except LogChanged:
                return False
            except TimeoutError:
                self._note_slow_end(move)
                return False
            self._require_going(move)
            if told != _Told(log.flushing.cuts, log.log_start_offset, log.cleaned_to):
                return False
            return self._switch(move, future)

    def _note_slow_end(self, move: DirectoryMove) -> None:
        """Raises OSError if it was the last one allowed."""
        move.slow_ends += 1
        what = f"flushes were held for {self._held_s:g} s for the last of it, {move.slow_ends} times"
        if move.slow_ends >= SLOW_ENDS_MAX:
            raise OSError(errno.ETIMEDOUT, what, str(move.target.path)) from None
        _log.warning("a move between log directories is held up", partition=str(move.name), why=what)

    async def _require_rest(self, move: DirectoryMove) -> None:
        """Returns once no thread is at it. A disk that hangs costs it slow ends, and may be left alone."""
        waited_s = 0.0
        while not await move.rest(step_s := min(self._held_s, LOOK_S)):
            self._require_going(move)
            waited_s += step_s
            if waited_s >= self._held_s:
                waited_s = 0.0
                self._note_slow_end(move)

    async def _pause(self, move: DirectoryMove, left_s: float) -> None:
        while left_s > 0:
            self._require_going(move)
            await asyncio.sleep(min(left_s, LOOK_S))
            left_s -= LOOK_S

    def _pause_s(self, tries: int) -> float:
        return min(self._again_s * (1 << min(tries, 10)), REST_S)

    async def _catch_up(self, move: DirectoryMove, future: FutureLog) -> None:
        log, spend = move.replica.log, partial(self._spend, move)
        close_bytes, changes = CLOSE_BYTES, 0
        while True:
            self._require_going(move)
            room = await move.target.run(move.target.space)
            seen = future.look(log)
            missing = future.missing_bytes(seen)
            try:
                self._require_room(move, room, missing)
                move.missing_bytes = missing
                copy = future.copy(seen, spend, chunk_bytes=self._pace.chunk_bytes)
                await _copy(move, future, copy)
            except NoRoom:
                if not await self._something_went(move.target):
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
            left = future.missing_bytes(future.look(log))
            if left <= close_bytes and log.swaps.pending is None:
                return
            if left > missing // 2:
                close_bytes = min(2 * close_bytes, CLOSE_MOST_BYTES)
            await asyncio.sleep(0)

    async def _close_in(self, move: DirectoryMove, future: FutureLog) -> None:
        """Flushes are held, so what may have been promised is durable in the copy once this has synced it; of
        what comes now the next flush sees to that. Raises as `FutureLog.copy` does.
        """
        log, go_on = move.replica.log, partial(self._pace.pass_by, move.stop)
        await _copy(move, future, future.copy(future.look(log), go_on))
        for _ in range(HELD_ROUNDS):
            now = future.look(log)
            if future.is_close_to(now, SWITCH_BYTES) or not future.lacks_the_end_only(now):
                return
            await move.run(partial(future.append_rest, now, go_on))

    def _switch(self, move: DirectoryMove, future: FutureLog) -> bool:
        """In one turn of the event loop, on which appends are made. Raises OSError, and changes nothing
        then.
        """
        replica, target, log = move.replica, move.target, move.replica.log
        now = future.look(log)
        if log.swaps.pending is not None or not future.lacks_the_end_only(now):
            return False
        if not future.is_close_to(now, SWITCH_BYTES):
            return False
        try:
            future.append_rest(now, partial(self._pace.pass_by, move.stop))
        except LogChanged:
            return False
        directory = target.directory(move.name)
        target.files.rename(future.directory, directory)
        log.go_on_in(directory, target.files)
        replica.room = target
        self.directories.moved(move.name, target)
        del self._checkpoints.moving[move.name]
        move.has_switched = True
        return True

    async def _leave(self, move: DirectoryMove) -> None:
        """The old directory goes, when it is sure that the new one stays. Raises OSError: then the next start
        does it.
        """
        source, target = move.source, move.target
        await target.run(target.sync_names)
        move.bury()  # on the loop: a topic made anew under the name may be next in its place
        await source.run(source.sync_names)
        await source.run(partial(source.stay, move.name))
        if move.grave is not None:
            delay_ms = move.replica.config.file_delete_delay_ms
            self._remove(source, move.grave, source.remove_in_turn(move.grave, delay_ms))

    async def _drop_copy(self, move: DirectoryMove) -> None:
        """What the directories cannot do now, the next start does."""
        if move.source.failure is None:
            with suppress(OSError):
                await move.source.run(partial(move.source.stay, move.name))
        if move.future is not None and move.target.failure is None and not self._stopping:
            path = move.future.directory
            self._remove(move.target, path, self._remove_copy(move, path))

    async def _remove_copy(self, move: DirectoryMove, path: Path) -> None:
        """Once no thread writes into it, where a disk that hangs may hold it; only who lacks room waits."""
        with suppress(OSError):
            await move.rest()
            await move.target.remove_in_turn(path)

    def _remove(self, directory: DataDirectory, path: Path, work: Coroutine[Any, Any, None]) -> None:
        """What a move has left somewhere; until it is gone, the next one may find too little room there."""
        removal = self._tasks.spawn(f"remove {path.name}", work)
        self._removals[directory].add(removal)
        removal.add_done_callback(self._removals[directory].discard)

    async def _something_went(self, directory: DataDirectory) -> bool:
        """After a moment, in which what moves have left there may have gone; False if nothing is to go."""
        removals = self._removals[directory]
        if removals:
            await asyncio.wait(removals, timeout=ROOM_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
            return True
        return False

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

    def _require_going(self, move: DirectoryMove) -> None:
        replica = move.replica
        if move.stop.is_set() or replica.failed is not None or not self._replicas.holds(replica):
            raise MoveStopped
        if move.target.refusal is not None:
            raise OSError(None, move.target.refusal, str(move.target.path))

    def _spend(self, move: DirectoryMove, count: int) -> None:
        """In a thread."""
        self._pace.spend(move.stop, count)
        if move.spent(count):
            self._require_room(move, move.target.space(), move.missing_bytes)

    def _require_room(self, move: DirectoryMove, room: Space, missing_bytes: int) -> None:
        """For it, and for the others into its target that were granted theirs before; in any thread. Raises
        NoRoom.
        """
        others = (one for one in tuple(self._moves.values()) if one is not move and one.target is move.target)
        if room.usable < missing_bytes + sum(one.missing_bytes for one in others) + ROOM_LEFT_BYTES:
            raise NoRoom(errno.ENOSPC, "no room for it", str(move.target.path))

    def _rate(self) -> int:
        """As set for this node, for all, or at its start; in any thread."""
        rate = self._settings.replica_alter_log_dirs_io_max_bytes_per_second
        image = self._image()
        for scope, of in ((ConfigScope.CLUSTER, ""), (ConfigScope.BROKER, str(self._settings.node_id))):
            rate = int(image.overrides(scope, of).get(RATE, rate))
        return rate


async def _copy(move: DirectoryMove, future: FutureLog, parts: Iterator[None]) -> None:
    """What was looked at, durable when this returns."""
    is_more = True
    while is_more:
        is_more = await move.run(partial(future.step, parts))
        paths = sorted(future.unsynced)
        share = -(-len(paths) // SYNCED_SIDE_BY_SIDE) or 1
        await asyncio.gather(*(move.run(partial(future.sync, some)) for some in portions(paths, share)))
    await move.run(future.sync_names)


@asynccontextmanager
async def _no_flush(log: PartitionLog, source: DataDirectory) -> AsyncIterator[None]:
    """No flush begins within, and the log is not cut; who waits for a flush waits."""
    holding = asyncio.get_running_loop().run_in_executor(source.threads, log.flushing.hold)
    try:
        await asyncio.shield(holding)
        yield
    finally:
        if holding.done():
            log.flushing.resume()
        else:  # the node stops, and a flush hangs
            holding.add_done_callback(lambda _: log.flushing.resume())
